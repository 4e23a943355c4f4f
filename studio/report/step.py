"""One step of a run in full: groups, the reflector's calls, operations, decisions, the commit.

Reads the run's journal and records; changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engines.core import events as ev
from engines.core.codec import from_dict, to_dict
from engines.core.errors import ConflictError
from engines.core.state.step_history import StepHistory
from engines.core.types import GATE, NOT_ONE, ProposalFate, RecordRef, Reflection, group_id
from engines.record.ledger import read_record
from engines.record.run_dir import RunDir
from engines.record.step_history import read_step
from studio.render.lines import indent_text
from studio.render.training_lines import WORDS, figure_text
from studio.render.words import decided_text, dropped_texts, merged_text
from studio.secrets.sanitize import sanitize


def step_facts(run: RunDir, step: int) -> dict[str, Any]:
    """Everything about one step, as plain data. Raises ConflictError: the run has no such step."""
    found = read_step(run, step)
    begun, lesson, committed = found.started, found.lesson, found.committed
    if begun is None:
        last = run.state().step
        move = f"Choose 1 to {last}." if last else "It has not begun any."
        raise ConflictError(f"run {run.run}, step {step}", "it has not begun that step.", move)
    return {
        "run": run.run,
        "step": step,
        "epoch": begun.epoch,
        "library_version": begun.library_version,
        "policy_version": begun.policy_version,
        "trains": run.state().trains_weights and found.trains,
        "groups": [
            _group_facts(run, found, reflection)
            for reflection in sorted(found.reflections, key=lambda one: one.position)
        ],
        "consolidation": _read_calls(run, lesson.refs if lesson else ()),
        "operations": [to_dict(op) for op in lesson.operations] if lesson else [],
        "choice": found.choice and {**to_dict(found.choice), "text": found.choice.text},
        "update": to_dict(lesson.update) if lesson and lesson.update else None,
        "fates": [to_dict(fate) for fate in found.fates],
        "withheld": [to_dict(op) for op in lesson.withheld] if lesson else [],
        "own": [{**to_dict(e.operation), "reviewer": e.reviewer} for e in found.proposed],
        "repaired": [_resubmission_data(event) for event in found.resubmissions],
        "losses": [to_dict(loss) for loss in lesson.losses] if lesson else [],
        "notes": list(lesson.notes) if lesson else [],
        "decisions": [to_dict(made.decision) for made in found.decisions],
        "outcomes": [to_dict(outcome) for outcome in committed.outcomes] if committed else [],
        "committed_version": committed.library_version if committed else None,
        "committed_policy": committed.policy_version if committed else None,
    }


def _group_facts(run: RunDir, step: StepHistory, reflection: Reflection) -> dict[str, Any]:
    position, rewards = reflection.position, step.rewards
    return {
        "id": group_id(step.step, position),
        "problem": step.problems[position],
        "outcome": reflection.outcome,
        "rewards": [rewards.get((position, n)) for n in sorted({index for _, index in rewards})],
        "calls": _read_calls(run, reflection.refs),
        "proposals": [to_dict(proposal) for proposal in reflection.proposals],
        "doubts": [to_dict(doubt) for doubt in reflection.doubts],
        "losses": [to_dict(loss) for loss in reflection.losses],
        "notes": list(reflection.notes),
    }


def step_text(facts: dict[str, Any], *, prompts: bool) -> str:
    """The same for people; with `prompts` also what the reflector was shown."""
    head = f"run {facts['run']}, step {facts['step']} (epoch {facts['epoch']})"
    policy = f"policy v{facts['policy_version']}, " if facts["trains"] else ""
    lines = [f"{head}, {policy}library v{facts['library_version']}"]
    for group in facts["groups"]:
        shown = " ".join("?" if r is None else f"{r:g}" for r in group["rewards"])
        lines += ["", f"{group['id']}  problem {group['problem']}  {group['outcome']}  ({shown})"]
        lines += _call_lines(group["calls"], prompts)
        lines += [
            f"  verdict of {doubt['rollout']} doubted: {sanitize(doubt['reason'])}"
            for doubt in group["doubts"]
        ]
        lines += _loss_lines(group)
    if facts["trains"]:
        lines += ["", "weight update", *_update_lines(facts["update"])]
    else:
        lines += ["", "consolidation"]
        lines += _call_lines(facts["consolidation"], prompts) or ["  no call: nothing was proposed"]
    lines += _loss_lines(facts)
    lines += _fate_lines(facts)
    rejected = "not proposed again, since it was rejected before"
    lines += [f"  {rejected}: {sanitize(op['text'] or op['target'])}" for op in facts["withheld"]]
    lines += [
        f"  {_operation_text(op)}, proposed by {sanitize(op['reviewer'])}" for op in facts["own"]
    ]
    for found in facts["repaired"]:
        why = f": {sanitize(found['reason'])}" if found["reason"] else ""
        lines.append(f"  {found['repair']} {found['what']} by {sanitize(found['reviewer'])}{why}")
        lines += [f"    {_operation_text(op)}" for op in found["operations"]]
    lines += _choice_lines(facts["choice"]) if facts["choice"] else []
    lines += ["", "decisions", *_decision_lines(facts)]
    version = facts["committed_version"]
    if facts["trains"] and version is not None:
        lines.append(f"committed: policy v{facts['committed_policy']}")
    else:
        lines.append("not committed" if version is None else f"committed: library v{version}")
    return "\n".join(lines)


def _loss_lines(facts: dict[str, Any]) -> list[str]:
    lost = [f"  lost: {sanitize(loss['reason'])}" for loss in facts["losses"]]
    return lost + [f"  left out: {sanitize(note)}" for note in facts["notes"]]


def _fate_lines(facts: dict[str, Any]) -> list[str]:
    """Which proposals an operation merges, and which became none."""
    fates = [from_dict(ProposalFate, one) for one in facts["fates"]]
    wishes = (wish for group in facts["groups"] for wish in group["proposals"])
    texts = [wish["text"] or f"{wish['kind']} {wish['target']}" for wish in wishes]
    names = dict.fromkeys(one.operation for one in fates)
    merged = [f"  {name} merges {text}" for name in names if (text := merged_text(name, fates))]
    return merged + [f"  dropped: proposal {one}" for one in dropped_texts(fates, texts)]


def _choice_lines(choice: dict[str, Any]) -> list[str]:
    """The choice, and what the lessons that were not chosen held."""
    lines = ["", f"choice: {choice['text']}"]
    for number, draft in enumerate(choice["drafts"]):
        if number != choice["chosen"]:
            lines.append(f"  lesson {number + 1}, not chosen")
            # Without their ids: those of the chosen one are the same.
            operations = draft["lesson"]["operations"]
            lines += [f"    {_operation_text(op | {'id': '-'})}" for op in operations]
    return lines


def _operation_text(operation: dict[str, Any]) -> str:
    what = sanitize(operation["text"] or operation["target"] or "")
    return f"{operation['id']}  {operation['kind']} {what}"


def _decision_lines(facts: dict[str, Any]) -> list[str]:
    lines = []
    outcomes = {outcome["operation_id"]: outcome for outcome in facts["outcomes"]}
    for decision in facts["decisions"]:
        name = decision["operation_id"]
        outcome = outcomes.get(name)
        result = f" -> {outcome['id']}" if outcome and outcome["id"] else ""
        if outcome and outcome["kind"] == "weights":
            result = " -> applied" if outcome["applied"] else " -> not applied"
        reason, by = sanitize(decision["reason"]), sanitize(decision["reviewer"])
        lines.append(f"  {name}  {decided_text(decision['action'], by, reason)}{result}")
        if reason and by != GATE:
            word = "because" if decision["action"] == "reject" else "note"
            lines.append(f"      {word}: {reason}")
    return lines


def _update_lines(update: dict[str, Any] | None) -> list[str]:
    if update is None:
        return ["  none was computed"]
    metrics = update["metrics"]
    known = [name for name in WORDS if name in metrics] + sorted(set(metrics) - set(WORDS))
    names = {name: WORDS.get(name, sanitize(name)) for name in known}
    lines = [f"  {names[key]:<15} {figure_text(key, metrics[key])}" for key in known]
    if update.get("rollback_to") is not None:
        lines.insert(0, f"  back to the weights of step {update['rollback_to']}")
    return lines + ([f"  {sanitize(update['note'])}"] if update.get("note") else [])


def _resubmission_data(event: ev.ReplyMended | ev.ReplyDropped) -> dict[str, Any]:
    operations = event.operations if isinstance(event, ev.ReplyMended) else ()
    return {
        "repair": event.repair,
        "reviewer": event.reviewer,
        "what": "mended" if isinstance(event, ev.ReplyMended) else "dropped",
        "reason": event.reason if isinstance(event, ev.ReplyDropped) else "",
        "operations": [to_dict(op) for op in operations],
    }


def _read_calls(run: RunDir, refs: Sequence[RecordRef]) -> list[dict[str, Any]]:
    return [
        {
            "purpose": record.key.purpose,
            "turn": record.key.turn,
            "index": record.key.index,
            "position": record.key.position,
            "model": record.reply.model or record.policy,
            "prompt": [message.content for message in record.messages],
            "reply": record.reply.text,
            "tokens": record.reply.usage.tokens,
            "record": f"records/{ref.file}@{ref.offset}",
        }
        for ref in refs
        for record in [read_record(run.records, ref)]
    ]


def _call_lines(calls: Sequence[dict[str, Any]], prompts: bool) -> list[str]:
    lines = []
    for call in calls:
        name = call["purpose"]
        if name == "summary":
            name += f" of r{call['index']}"
        elif name == "consolidation" and call["index"] != NOT_ONE:
            name = f"{name}, level {call['index']} call {call['position'] + 1}"
        if call["turn"]:
            name += " (repair)"
        model = sanitize(call["model"])
        lines.append(f"  {name}, {model}, {call['tokens']} tokens, {call['record']}")
        if prompts:
            lines += [indent_text(sanitize(text), "  > ") for text in call["prompt"]]
        lines.append(indent_text(sanitize(call["reply"]), "    "))
    return lines
