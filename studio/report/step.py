"""One step of a run, whole: groups, what the reflector was asked and said, what came of it.

Reads the run's journal and records; changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engines.core import events as ev
from engines.core.codec import to_dict
from engines.core.errors import ConflictError
from engines.core.types import Decision, Lesson, RecordRef, Reflection, group_id
from engines.record.ledger import read_record
from engines.record.run_dir import RunDir
from studio.report.tables import indent_text
from studio.report.training import WORDS, figure_text
from studio.secrets.sanitize import sanitize


def step_facts(run: RunDir, step: int) -> dict[str, Any]:
    """Everything about one step, as plain data.

    Raises:
        ConflictError: the run has no such step.
    """
    begun: ev.StepStarted | None = None
    rewards: dict[int, dict[int, float | None]] = {}
    reflections: list[Reflection] = []
    lesson: Lesson | None = None
    decisions: list[Decision] = []
    repaired: list[ev.ReplyMended | ev.ReplyDropped] = []
    own: list[ev.OperationProposed] = []
    committed: ev.LessonCommitted | None = None
    trains = False
    last = 0
    for entry in run.entries():
        event = entry.event
        last = event.step if isinstance(event, ev.StepStarted) else last
        trains = trains or isinstance(event, ev.EngineOpened)
        if _step_of(event) != step:
            continue
        match event:
            case ev.StepStarted():
                begun = event
            case ev.RolloutJudged():
                rewards.setdefault(event.position, {})[event.index] = event.verdict.reward
            case ev.GroupReflected():
                reflections.append(event.reflection)
            case ev.LessonProposed():
                lesson = event.lesson
            case ev.OperationDecided():
                decisions.append(event.decision)
            case ev.ReplyMended() | ev.ReplyDropped():
                repaired.append(event)
            case ev.OperationProposed():
                own.append(event)
            case ev.LessonCommitted():
                committed = event
    if begun is None:
        raise ConflictError(
            f"run {run.run}, step {step}",
            "it has not begun that step.",
            f"Choose 1 to {last}." if last else "It has not begun any.",
        )
    return {
        "run": run.run,
        "step": step,
        "epoch": begun.epoch,
        "library_version": begun.library_version,
        "policy_version": begun.policy_version,
        "trains": trains or bool(lesson and lesson.update),
        "groups": [
            {
                "id": group_id(step, found.position),
                "problem": begun.problems[found.position],
                "outcome": found.outcome,
                "rewards": [rewards.get(found.position, {}).get(n) for n in _indices(rewards)],
                "calls": _read_calls(run, found.refs),
                "proposals": [to_dict(proposal) for proposal in found.proposals],
                "losses": [to_dict(loss) for loss in found.losses],
            }
            for found in sorted(reflections, key=lambda found: found.position)
        ],
        "consolidation": _read_calls(run, lesson.refs if lesson else ()),
        "operations": [to_dict(op) for op in lesson.operations] if lesson else [],
        "update": to_dict(lesson.update) if lesson and lesson.update else None,
        "withheld": [to_dict(op) for op in lesson.withheld] if lesson else [],
        "own": [{**to_dict(e.operation), "reviewer": e.reviewer} for e in own],
        "repaired": [_resubmission_data(event) for event in repaired],
        "losses": [to_dict(loss) for loss in lesson.losses] if lesson else [],
        "decisions": [to_dict(decision) for decision in decisions],
        "outcomes": [to_dict(outcome) for outcome in committed.outcomes] if committed else [],
        "committed_version": committed.library_version if committed else None,
        "committed_policy": committed.policy_version if committed else None,
    }


def step_text(facts: dict[str, Any], *, prompts: bool) -> str:
    """The same for people; with `prompts` also what the reflector was shown."""
    lines = [
        f"run {facts['run']}, step {facts['step']} (epoch {facts['epoch']}), "
        + (f"policy v{facts['policy_version']}, " if facts["trains"] else "")
        + f"library v{facts['library_version']}"
    ]
    for group in facts["groups"]:
        shown = " ".join("?" if r is None else f"{r:g}" for r in group["rewards"])
        lines += ["", f"{group['id']}  problem {group['problem']}  {group['outcome']}  ({shown})"]
        lines += _call_lines(group["calls"], prompts)
        lines += [f"  lost: {sanitize(loss['reason'])}" for loss in group["losses"]]
    if facts["trains"]:
        lines += ["", "weight update", *_update_lines(facts["update"])]
    else:
        lines += ["", "consolidation"]
        lines += _call_lines(facts["consolidation"], prompts) or ["  no call: nothing was proposed"]
    lines += [f"  lost: {sanitize(loss['reason'])}" for loss in facts["losses"]]
    lines += [
        f"  not proposed again, since it was rejected before: "
        f"{sanitize(op['text'] or op['target'])}"
        for op in facts["withheld"]
    ]
    lines += [
        f"  {op['id']}  {op['kind']} {sanitize(op['text'] or op['target'] or '')}, proposed by "
        f"{sanitize(op['reviewer'])}"
        for op in facts["own"]
    ]
    for found in facts["repaired"]:
        why = f": {sanitize(found['reason'])}" if found["reason"] else ""
        lines.append(f"  {found['repair']} {found['what']} by {sanitize(found['reviewer'])}{why}")
        lines += [
            f"    {op['id']}  {op['kind']} {sanitize(op['text'] or op['target'] or '')}"
            for op in found["operations"]
        ]
    lines += ["", "decisions"]
    outcomes = {outcome["operation_id"]: outcome for outcome in facts["outcomes"]}
    for decision in facts["decisions"]:
        outcome = outcomes.get(decision["operation_id"])
        became = f" -> {outcome['id']}" if outcome and outcome["id"] else ""
        if outcome and outcome["kind"] == "weights":
            became = " -> applied" if outcome["applied"] else " -> not applied"
        why = f": {sanitize(decision['reason'])}" if decision["reason"] else ""
        lines.append(
            f"  {decision['operation_id']}  {decision['action']} by "
            f"{sanitize(decision['reviewer'])}{became}{why}"
        )
    version = facts["committed_version"]
    if facts["trains"] and version is not None:
        lines.append(f"committed: policy v{facts['committed_policy']}")
    else:
        lines.append("not committed" if version is None else f"committed: library v{version}")
    return "\n".join(lines)


def _update_lines(update: dict[str, Any] | None) -> list[str]:
    if update is None:
        return ["  none was computed"]
    metrics = update["metrics"]
    known = [name for name in WORDS if name in metrics] + sorted(set(metrics) - set(WORDS))
    lines = [
        f"  {WORDS.get(name, sanitize(name)):<15} {figure_text(name, metrics[name])}"
        for name in known
    ]
    if update.get("rollback_to") is not None:
        lines.insert(0, f"  back to the weights of step {update['rollback_to']}")
    return lines + ([f"  {sanitize(update['note'])}"] if update.get("note") else [])


def _step_of(event: ev.DurableEvent) -> int | None:
    """The step an event is about; a reply may be mended when that step is long over."""
    if isinstance(event, ev.ReplyMended | ev.ReplyDropped):
        return int(event.repair.removeprefix("s").partition("p")[0])
    return getattr(event, "step", None)


def _resubmission_data(event: ev.ReplyMended | ev.ReplyDropped) -> dict[str, Any]:
    found = {"repair": event.repair, "reviewer": event.reviewer}
    if isinstance(event, ev.ReplyMended):
        operations = [to_dict(op) for op in event.operations]
        return {**found, "what": "mended", "reason": "", "operations": operations}
    return {**found, "what": "dropped", "reason": event.reason, "operations": []}


def _indices(rewards: dict[int, dict[int, float | None]]) -> list[int]:
    return sorted({index for row in rewards.values() for index in row})


def _read_calls(run: RunDir, refs: Sequence[RecordRef]) -> list[dict[str, Any]]:
    calls = []
    for ref in refs:
        record = read_record(run.records, ref)
        calls.append(
            {
                "purpose": record.key.purpose,
                "turn": record.key.turn,
                "index": record.key.index,
                "model": record.reply.model or record.policy,
                "prompt": [message.content for message in record.messages],
                "reply": record.reply.text,
                "tokens": record.reply.usage.tokens,
                "record": f"records/{ref.file}@{ref.offset}",
            }
        )
    return calls


def _call_lines(calls: Sequence[dict[str, Any]], prompts: bool) -> list[str]:
    lines = []
    for call in calls:
        turn = " (repair)" if call["turn"] and call["purpose"] != "summary" else ""
        about = f" of r{call['index']}" if call["purpose"] == "summary" else ""
        lines.append(
            f"  {call['purpose']}{about}{turn}, {sanitize(call['model'])}, {call['tokens']} "
            f"tokens, "
            f"{call['record']}"
        )
        if prompts:
            lines += [indent_text(sanitize(text), "  > ") for text in call["prompt"]]
        lines.append(indent_text(sanitize(call["reply"]), "    "))
    return lines
