"""What rehearsal can read out of a prompt and a request.

Knows nothing of the problems themselves: what is not in the text is not known here.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from engines.core.frozen import frozen
from engines.core.types import Message

CHARS_PER_TOKEN = 4  # the usual rule of thumb; there is no tokenizer to ask
_SECTION = re.compile(r"^## (.+)$")
_ATTEMPT = re.compile(r"^### Attempt (\d+)\b(?:.*\breward (-?\d+(?:\.\d+)?))?")
_EXPERIENCE = re.compile(r"^\[([A-Za-z]*\d+)\]\s*(\S.*)$")
# Who says it and, in a team, the key of what is said; then the number of the line.
_SPEAKER = re.compile(r"^\[(?:assistant|planner_\w+|executor|verifier|generator)\]\s*(?:\w+: )?")
_NUMBERED = re.compile(r"^(?:[-*]\s+)?(?:\d+[.)]\s+)?")
# A call or its result, and a note about the attempt, are no steps of it.
_NO_STEP = re.compile(r"^\[(?:tool|calls [^\]]*)\]|^\((?:verifier: .*|cut off .*|rests on .*)\)$")
_ANY_OF = "any one of:"  # above several expected answers, each on a line of its own
_LABELLED = re.compile(
    r"^(?:\w+\s+\d+\s*)?(?:\((?P<label>[^)]{1,40})\)|\*\*(?P<bold>[^*]{1,40}?):?\*\*)\s*:?\s*"
    r"(?P<body>.*)$"
)
_FINAL = re.compile(
    r"^(?:####\s*(?P<hash>.+)|A:\s*(?P<a>.+)|.*\\boxed\{(?P<box>[^{}]*)\}.*"
    r"|(?:the )?(?:final )?answer(?: is)?\s*:?\s*(?P<word>.+))$",
    re.I,
)


@frozen
class AttemptLine:
    """One line of an attempt. `label` is empty where the line has none."""

    label: str
    body: str


@frozen
class ShownAttempt:
    """An attempt as the prompt shows it; `reward` is None where the prompt hides it."""

    number: int
    reward: float | None
    lines: tuple[AttemptLine, ...]
    final: str


def token_count(text: str) -> int:
    return -(-len(text) // CHARS_PER_TOKEN)


def instructions_text(messages: Sequence[Message]) -> str:
    return "\n".join(message.content for message in messages if message.role == "system")


def fence(json: str, fenced: bool) -> str:
    return f"```json\n{json}\n```" if fenced else json


def parse_sections(prompt: str) -> dict[str, list[str]]:
    """Return the lines below each `## ` heading; of headings that occur twice the last one.

    A heading that does not occur has no lines.
    """
    sections: dict[str, list[str]] = defaultdict(list)
    lines: list[str] = []
    for line in prompt.splitlines():
        if heading := _SECTION.match(line):
            lines = sections[heading[1].strip()] = []
        else:
            lines.append(line)
    return sections


def split_blocks(
    lines: Sequence[str], heading: re.Pattern[str]
) -> list[tuple[re.Match[str], list[str]]]:
    """Return each heading with the quoted lines below it."""
    blocks: list[tuple[re.Match[str], list[str]]] = []
    for line in lines:
        if match := heading.match(line):
            blocks.append((match, []))
        elif blocks:
            blocks[-1][1].extend(unquote_lines([line]))
    return blocks


def unquote_lines(lines: Sequence[str]) -> list[str]:
    """Return the quoted lines without their mark, blank ones left out."""
    bare = (line[1:].strip() for line in lines if line.startswith("|"))
    return [line for line in bare if line]


def quoted_text(sections: Mapping[str, Sequence[str]], name: str) -> str:
    return " ".join(unquote_lines(sections[name]))


def parse_library(lines: Sequence[str]) -> dict[str, str]:
    """Return id → text of the experiences shown."""
    matches = (_EXPERIENCE.match(line) for line in unquote_lines(lines))
    return {match[1]: match[2].strip() for match in matches if match}


def parse_attempts(lines: Sequence[str]) -> list[ShownAttempt]:
    attempts: list[ShownAttempt] = []
    for heading, texts in split_blocks(lines, _ATTEMPT):
        reward = float(heading[2]) if heading[2] else None
        attempts.append(ShownAttempt(int(heading[1]), reward, *parse_attempt(texts)))
    return attempts


def parse_attempt(texts: Sequence[str]) -> tuple[tuple[AttemptLine, ...], str]:
    """Return steps and final answer of one attempt; the answer's own line is no step."""
    steps: list[AttemptLine] = []
    final = ""
    for text in texts:
        bare = _NUMBERED.sub("", _SPEAKER.sub("", text), count=1).strip()
        if not bare or _NO_STEP.match(bare):
            continue
        if match := _FINAL.match(bare):
            final = normalise_answer(match[match.lastindex or 0])
        elif match := _LABELLED.match(bare):
            label = match["label"] or match["bold"]
            steps.append(AttemptLine(label.strip(), match["body"].strip()))
        else:
            steps.append(AttemptLine("", bare))
    return tuple(steps), final


def normalise_answer(answer: str) -> str:
    """Return an answer so that 1,200 and $1200.0 are the same."""
    return re.sub(r"[,$]|\.0*$", "", answer.strip()).strip().lower()


def parse_expected_answers(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the answers that count as right; none where the prompt tells none."""
    texts = unquote_lines(lines)
    if texts[:1] == [_ANY_OF]:
        return tuple(texts[1:])
    truth = " ".join(texts)
    return (truth,) if truth and not truth.startswith("(") else ()  # as in "(not shown)"


def split_winners(
    attempts: Sequence[ShownAttempt], truth: Sequence[str]
) -> tuple[list[ShownAttempt], list[ShownAttempt]]:
    """Return winners and losers; both are empty where there is no contrast.

    By reward where any is told (an attempt without one is on neither side), else by
    the expected answers where those are told, else by what most attempts answer.
    """
    rewards = {a.number: a.reward for a in attempts if a.reward is not None}
    if not rewards:
        right = {normalise_answer(text) for text in truth}
        right = right or _majority_answer([a.final for a in attempts])
        rewards = {a.number: float(a.final in right) for a in attempts if right and a.final}
    best = max(rewards.values(), default=0.0)
    winners = [a for a in attempts if rewards.get(a.number) == best]
    losers = [a for a in attempts if rewards.get(a.number, best) < best]
    return (winners, losers) if losers else ([], [])


def _majority_answer(answers: Sequence[str]) -> set[str]:
    """Return the answer that more attempts give than any other; none where two are level."""
    leading = Counter(answer for answer in answers if answer).most_common(2)
    if len(leading) == 2 and leading[0][1] == leading[1][1]:
        return set()
    return {answer for answer, _ in leading[:1]}
