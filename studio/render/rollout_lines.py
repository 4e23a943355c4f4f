"""A rollout as lines of text: its prompt, its replies and the verdict."""

from engines.core.text.tool_text import CallMark, argument_text, said_text, split_marks
from engines.core.types import Message
from studio.facts.rollout import RolloutFacts
from studio.render.words import acted_text, metrics_text
from studio.secrets.sanitize import sanitize


def rollout_text(facts: RolloutFacts) -> str:
    finished, verdict = facts.finished, facts.verdict
    reward = "?" if facts.reward is None else f"{facts.reward:g}"
    if verdict is not None:
        reward += metrics_text(verdict.metrics)
    spent = f"{facts.tokens} tokens  seed {finished.seed}  {', '.join(facts.records)}"
    lines = [f"{facts.id}  {finished.status}  reward {reward}  {spent}"]
    if acted := acted_text(finished):
        lines.append(acted)
    for message in facts.messages:
        lines += ["", *_message_lines(message)]
    if finished.cited:
        lines += ["", f"cites {sanitize(', '.join(finished.cited))}"]
    remarks = [verdict.critique, verdict.error] if verdict else []
    for text in [*remarks, finished.error]:
        if text:
            lines += ["", sanitize(text)]
    return "\n".join(lines)


def _message_lines(message: Message) -> list[str]:
    lines = [f"[{message.speaker or message.role}]"]
    if text := said_text(message):
        lines.append(sanitize(text))
    if message.reasoning:
        lines += ["[reasoning]", sanitize(message.reasoning)]
    for call in message.tool_calls:
        lines += call_lines(call.name, call.arguments)
    return lines


def call_lines(name: str, arguments: str) -> list[str]:
    text = sanitize(argument_text(arguments).strip("\n"))
    return [f"[calls {sanitize(name)}]", *([text] if text else [])]


def streamed_text(text: str) -> str:
    """Return a piece of a rollout's text as plain lines, sanitized; it holds whole marks."""
    out = ""
    for part in split_marks(text):
        if isinstance(part, str):
            out += sanitize(part)
            continue
        if isinstance(part, CallMark):
            lines = call_lines(part.name, part.arguments)
        else:
            lines = [f"[{sanitize(part.name)}: {part.status}]", sanitize(part.text)]
        out += "\n".join(("", *lines, ""))
    return out
