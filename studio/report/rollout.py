"""One rollout in full: its prompt, its replies and the verdict.

Reads the run's journal and records; changes nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from engines.core.codec import fields_of, from_dict, to_dict
from engines.core.errors import ConflictError
from engines.core.events import RolloutFinished
from engines.core.text.tool_marks import CallMark, split_marks
from engines.core.text.tool_text import argument_text, said_text
from engines.core.types import Message, Verdict, rollout_id
from engines.record.ledger import Record, read_record, read_trajectory
from engines.record.run_dir import RunDir
from engines.record.step_history import HistoryReader, read_history
from studio.report.rates import metrics_text, try_acts_text
from studio.secrets.sanitize import sanitize


@dataclass(frozen=True, slots=True)
class RecordedRollout:
    """A rollout that ended, with everything its records hold."""

    id: str
    rollout: RolloutFinished
    verdict: Verdict | None
    messages: tuple[Message, ...]
    calls: tuple[tuple[str, Record], ...]  # of models, each with its place below the run's folder

    @property
    def finish_reason(self) -> str:
        """The endpoint's word for why the last reply ended; "" where no call was answered."""
        return self.calls[-1][1].reply.finish if self.calls else ""


def read_rollout(run: RunDir, rollout: RolloutFinished, verdict: Verdict | None) -> RecordedRollout:
    """A rollout with what its records hold. Raises DamagedError, ConflictError."""
    messages: tuple[Message, ...] = ()
    calls = []
    for ref in rollout.refs:
        record = read_record(run.records, ref)
        messages = record.extend(messages)
        if not record.is_tool_result:
            calls.append((f"records/{ref.file}@{ref.offset}", record))
    name = rollout_id(rollout.step, rollout.position, rollout.index)
    return RecordedRollout(name, rollout, verdict, messages, tuple(calls))


def rollout_facts(run: RunDir, name: str) -> dict[str, Any]:
    """Everything about one rollout, as plain data. Raises ConflictError: there is none such."""
    step = re.fullmatch(r"s(\d{1,9})p\d+r\d+", name)
    of_step = HistoryReader(run, int(step[1])).read().rollouts if step else ()
    rollouts = {rollout.id: rollout for rollout in of_step}
    if name not in rollouts:
        ended = (rollout.finished for rollout in read_history(run).rollouts)
        known = [rollout_id(*key) for key in sorted((r.step, r.position, r.index) for r in ended)]
        move = f"They are called {known[0]} to {known[-1]}." if known else "It has none yet."
        raise ConflictError(f"run {run.run}, rollout {name}", "it has no such rollout.", move)
    finished, verdict = rollouts[name].finished, rollouts[name].verdict
    return {
        "id": name,
        **fields_of(finished, "status", "error", "seed", "elapsed_s"),
        "tokens": finished.usage.tokens,
        **fields_of(finished, "turns", "tool_calls", "failed_calls"),
        "cited": list(finished.cited or ()),
        "verdict": to_dict(verdict) if verdict else None,
        "messages": [to_dict(m) for m in read_trajectory(run.records, finished.refs)],
        "records": [f"records/{ref.file}@{ref.offset}" for ref in finished.refs],
    }


def rollout_text(facts: dict[str, Any]) -> str:
    verdict = facts["verdict"] or {}
    reward = "?" if verdict.get("reward") is None else f"{verdict['reward']:g}"
    reward += metrics_text(verdict.get("metrics") or {})
    made = f"{facts['tokens']} tokens  seed {facts['seed']}  {', '.join(facts['records'])}"
    lines = [f"{facts['id']}  {facts['status']}  reward {reward}  {made}"]
    if acted := try_acts_text(*(facts[name] for name in ("turns", "tool_calls", "failed_calls"))):
        lines.append(acted)
    for message in facts["messages"]:
        said = said_text(from_dict(Message, message))
        lines += [
            "",
            f"[{message['speaker'] or message['role']}]",
            *([sanitize(said)] if said else []),
        ]
        if message["reasoning"]:
            lines += ["[reasoning]", sanitize(message["reasoning"])]
        for call in message["tool_calls"]:
            lines += call_lines(call["name"], call["arguments"])
    if facts["cited"]:
        lines += ["", f"cites {sanitize(', '.join(facts['cited']))}"]
    for what in (verdict.get("critique"), verdict.get("error"), facts["error"]):
        if what:
            lines += ["", sanitize(what)]
    return "\n".join(lines)


def call_lines(name: str, arguments: str) -> list[str]:
    said = sanitize(argument_text(arguments).strip("\n"))
    return [f"[calls {sanitize(name)}]", *([said] if said else [])]


def streamed_text(text: str) -> str:
    """A piece of a try's text as plain lines, sanitized; it holds whole marks."""
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
