"""One step of a run as lines of text."""

from collections.abc import Sequence

from engines.core.types import GATE, NOT_ONE, LostWork, Operation, WeightUpdate
from studio.facts.rollout import ModelCall
from studio.facts.step import GroupFacts, StepFacts
from studio.facts.training import FIGURE_NAMES
from studio.render.lines import indent_text
from studio.render.training_lines import figure_text
from studio.render.words import decided_text, dropped_texts, merged_text
from studio.secrets.sanitize import sanitize


def step_text(facts: StepFacts, *, prompts: bool) -> str:
    """Return a step as lines; with `prompts` also what the reflector was shown."""
    policy = f"policy v{facts.policy_version}, " if facts.trains else ""
    head = f"run {facts.run}, step {facts.step} (epoch {facts.epoch})"
    lines = [f"{head}, {policy}library v{facts.library_version}"]
    for group in facts.groups:
        lines += ["", *_group_lines(group, prompts)]
    if facts.trains:
        lines += ["", "weight update", *_update_lines(facts.lesson.update)]
    else:
        calls = _call_lines(facts.consolidation, prompts)
        lines += ["", "consolidation", *(calls or ["  no call: nothing was proposed"])]
    lines += _loss_lines(facts.lesson.losses, facts.lesson.notes)
    lines += _fate_lines(facts)
    for operation in facts.lesson.withheld:
        text = sanitize(operation.text or operation.target or "")
        lines.append(f"  not proposed again, since it was rejected before: {text}")
    for own in facts.own:
        lines.append(f"  {_operation_text(own.operation)}, proposed by {sanitize(own.reviewer)}")
    for reply in facts.repaired:
        reason = f": {sanitize(reply.reason)}" if reply.reason else ""
        lines.append(f"  {reply.repair} {reply.what} by {sanitize(reply.reviewer)}{reason}")
        lines += [f"    {_operation_text(operation)}" for operation in reply.operations]
    lines += _choice_lines(facts)
    lines += ["", "decisions", *_decision_lines(facts), _commit_line(facts)]
    return "\n".join(lines)


def _group_lines(group: GroupFacts, prompts: bool) -> list[str]:
    reflection = group.reflection
    rewards = " ".join("?" if reward is None else f"{reward:g}" for reward in group.rewards)
    lines = [f"{group.id}  problem {group.problem}  {reflection.outcome}  ({rewards})"]
    lines += _call_lines(group.calls, prompts)
    for doubt in reflection.doubts:
        lines.append(f"  verdict of {doubt.rollout} doubted: {sanitize(doubt.reason)}")
    return lines + _loss_lines(reflection.losses, reflection.notes)


def _call_lines(calls: Sequence[ModelCall], prompts: bool) -> list[str]:
    lines = []
    for call in calls:
        name = call.purpose
        if name == "summary":
            name += f" of r{call.index}"
        elif name == "consolidation" and call.index != NOT_ONE:
            name = f"{name}, part {call.position + 1}"
        if call.turn:
            name += " (repair)"
        lines.append(f"  {name}, {sanitize(call.model)}, {call.tokens} tokens, {call.record}")
        if prompts:
            lines += [indent_text(sanitize(text), "  > ") for text in call.prompt]
        lines.append(indent_text(sanitize(call.reply), "    "))
    return lines


def _loss_lines(losses: Sequence[LostWork], notes: Sequence[str]) -> list[str]:
    lines = [f"  lost: {sanitize(loss.reason)}" for loss in losses]
    return lines + [f"  left out: {sanitize(note)}" for note in notes]


def _fate_lines(facts: StepFacts) -> list[str]:
    """Say which proposals an operation merges, and which became none."""
    fates = facts.lesson.fates
    proposals = [p for group in facts.groups for p in group.reflection.proposals]
    texts = [proposal.text or f"{proposal.kind} {proposal.target}" for proposal in proposals]
    lines = []
    for name in dict.fromkeys(fate.operation for fate in fates):
        if text := merged_text(name, fates):
            lines.append(f"  {name} merges {text}")
    return lines + [f"  dropped: proposal {text}" for text in dropped_texts(fates, texts)]


def _choice_lines(facts: StepFacts) -> list[str]:
    """Return the choice, and what the lessons that were not chosen held."""
    if facts.choice is None:
        return []
    lines = ["", f"choice: {facts.choice_text}"]
    for number, draft in enumerate(facts.choice.drafts):
        if number != facts.choice.chosen:
            lines.append(f"  lesson {number + 1}, not chosen")
            for operation in draft.lesson.operations:
                # Without its id: those of the chosen lesson are the same.
                lines.append(f"    {_operation_text(operation, name='-')}")
    return lines


def _operation_text(operation: Operation, name: str = "") -> str:
    text = sanitize(operation.text or operation.target or "")
    return f"{name or operation.id}  {operation.kind} {text}"


def _decision_lines(facts: StepFacts) -> list[str]:
    lines = []
    outcomes = {outcome.operation_id: outcome for outcome in facts.outcomes}
    for decision in facts.decisions:
        outcome = outcomes.get(decision.operation_id)
        result = f" -> {outcome.id}" if outcome and outcome.id else ""
        if outcome and outcome.kind == "weights":
            result = " -> applied" if outcome.applied else " -> not applied"
        reason, reviewer = sanitize(decision.reason), sanitize(decision.reviewer)
        text = decided_text(decision.action, reviewer, reason)
        lines.append(f"  {decision.operation_id}  {text}{result}")
        if reason and reviewer != GATE:
            word = "because" if decision.action == "reject" else "note"
            lines.append(f"      {word}: {reason}")
    return lines


def _commit_line(facts: StepFacts) -> str:
    if facts.committed_version is None:
        return "not committed"
    if facts.trains:
        return f"committed: policy v{facts.committed_policy}"
    return f"committed: library v{facts.committed_version}"


def _update_lines(update: WeightUpdate | None) -> list[str]:
    if update is None:
        return ["  none was computed"]
    lines = []
    if update.rollback_to is not None:
        lines.append(f"  back to the weights of step {update.rollback_to}")
    metrics = update.metrics
    names = [name for name in FIGURE_NAMES if name in metrics]
    for name in [*names, *sorted(set(metrics) - set(FIGURE_NAMES))]:
        title = FIGURE_NAMES.get(name, sanitize(name))
        lines.append(f"  {title:<15} {figure_text(name, metrics[name])}")
    return lines + ([f"  {sanitize(update.note)}"] if update.note else [])
