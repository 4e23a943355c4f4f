"""What a run's events add up to: the one reducer behind resume, screens, report and diff.

Holds rollouts only of the step under way; of finished steps it keeps counts, so that memory does
not grow with the length of a run.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from engines.core import codec, library_notes
from engines.core import events as ev
from engines.core.library import CommitResult, Library
from engines.core.state.run_state import (
    AnsweredReply,
    Live,
    OperationHistory,
    ReviewerStats,
    Rewards,
    RolloutHistory,
    RunHistory,
    RunState,
    Stage,
    Status,
    StepHistory,
    StepState,
)
from engines.core.types import (
    BASE_MOVED,
    FLAG_NAMES,
    MERGED,
    NO_ANSWER,
    NO_USAGE,
    PROVED,
    UNPROVEN,
    Decision,
    Flag,
    LostWork,
    Operation,
    Reflection,
    UnparsedReply,
    Usage,
    group_id,
    lesson_operations,
    replace_dropped,
    rollout_id,
    try_id,
)


def fold(state: RunState, event: ev.DurableEvent | ev.TransientEvent) -> RunState:
    """Take one event in. Returns the same object, changed: a run has many events."""
    _fold_live(state.live, event)
    if not ev.is_durable(event):
        return state
    state.events += 1
    if isinstance(event, ev.StepEvent):
        _fold_step_event(state, event)
    elif isinstance(event, ev.ReviewEvent):
        _fold_review_event(state, event)
    elif isinstance(event, ev.LessonEvent):
        _fold_lesson_event(state, event)
    elif isinstance(event, ev.EngineEvent):
        _fold_engine_event(state, event)
    elif isinstance(event, ev.RunEvent):
        _fold_run_event(state, event)
    else:
        raise ValueError("a library's event stands in a run's journal")
    return state


def _fold_run_event(state: RunState, event: ev.RunEvent) -> None:
    match event:
        case ev.RunStarted():
            state.started, state.status = event, "running"
            state.epochs, state.reviewer = event.epochs, event.reviewer
            state.settings = event.settings
            if state.curates:  # it never has a process
                state.status, state.ending = "finished", "finished"
            state.library_version = state.base_version = event.library_version
            state.step, state.policy_version = event.forked_steps, event.policy_version
            state.streaks = dict(event.streaks)
            state.shown_questions = set(event.shown_questions)
        case ev.RunResumed():
            forget_failures(state, is_outage=state.ending == "failed")
            state.status = state.working_status
            state.ending, state.reason, state.pid = "", "", event.pid
            state.epochs, state.reviewer = event.epochs, event.reviewer
            state.settings = event.settings
            state.hold_after = None
        case ev.RunPaused():
            state.status = "paused"
        case ev.RunContinued():
            state.status = state.working_status
            state.hold_after = None if event.steps is None else state.steps_finished + event.steps
        case ev.RunEnded():
            state.status = _ENDINGS[event.how]
            state.ending, state.reason, state.pid = event.how, event.reason, None
            state.paid = event.paid or state.paid
            state.remarks = tuple(dict.fromkeys((*state.remarks, *event.remarks)))


def _fold_step_event(state: RunState, event: ev.StepEvent) -> None:
    match event:
        case ev.StepStarted():
            state.step, state.base_version = event.step, event.library_version
            state.status = "running"
            state.steps[event.step] = StepState(
                event.epoch,
                event.step,
                event.problems,
                event.library_version,
                event.notes,
                policy_version=event.policy_version,
                tries=event.tries,
                learns=event.learns,
            )
        case ev.RolloutFinished():
            _fold_rollout_finished(state, event)
        case ev.RolloutJudged():
            _fold_rollout_judged(state, event)
        case ev.GroupReflected():
            step = state.steps[event.step]
            step.reflections[event.position] = event.reflection
            step.groups[event.outcome] += 1
            count_doubts(state, step, event.reflection)
            _spend_at(state, event.step, event.reflection.usage, "reading")
            count_losses(state, event.reflection.losses)
            queue_unparsed_replies(state, event.step, "extraction", event.reflection.losses)
        case ev.StepFinished():
            step = state.steps[event.step]
            _fold_streaks(state, step)
            step.finished, step.symptoms = True, count_symptoms(step, state.settings)
            step.rollouts, step.verdicts, step.reflections = {}, {}, {}
            step.lesson = None
            step.choice = step.choice and replace(step.choice, drafts=())
        case ev.HeldOutShown():
            state.shown.append(event)
            state.shown_questions.add(codec.question_of(event.tries[0][0].problem))


def _fold_lesson_event(state: RunState, event: ev.LessonEvent) -> None:
    match event:
        case ev.LessonProposed():
            step, proposed = state.steps[event.step], lesson_operations(event.lesson)
            step.lesson, step.operations = event.lesson, len(proposed)
            state.base_version = event.lesson.base_version
            state.operations.update((op.id, op) for op in proposed)
            if event.lesson.update is not None:
                state.training[event.step] = event.lesson.update.metrics
            state.status = "reviewing"
            _spend_at(state, event.step, event.lesson.usage, "consolidation")
            count_losses(state, event.lesson.losses)
            queue_unparsed_replies(state, event.step, "consolidation", event.lesson.losses)
            state.withheld += len(event.lesson.withheld)
        case ev.LessonsCompared():
            _fold_choice(state, event)
        case ev.EffectMeasured():
            _fold_effect(state, event)
            _spend_at(state, event.step, event.effect.usage, "gate")
        case ev.LessonReturned():
            moved = Flag(BASE_MOVED, detail=f"v{event.based_on} -> v{event.head}")
            for name in event.asked_again:
                state.decisions.pop(name, None)
                asked = state.operations[name]
                state.operations[name] = replace(asked, flags=(*asked.flags, moved))
            state.flagged_stale = state.base_version = event.head
        case ev.LessonCommitted():
            _fold_commit(state, event)


def _fold_review_event(state: RunState, event: ev.ReviewEvent) -> None:
    match event:
        case ev.OperationDecided() | ev.OperationsDecided():
            for decision in event.decisions:
                # Taken out first: dicts keep the place of a key that is only overwritten.
                state.decisions.pop(decision.operation_id, None)
                state.decisions[decision.operation_id] = decision
                if decision.action == "defer" and decision.reason:
                    state.notes[decision.operation_id] = decision.reason
            _spend_at(state, event.step, event.usage, "review")
        case ev.OperationProposed():
            operation = event.operation
            state.operations[operation.id] = operation
            state.own.add(operation.id)
            if not state.under_review:
                state.deferred.add(operation.id)  # no lesson waits for it
            _spend_at(state, event.step, event.usage, "review")
        case ev.ReplyMended():
            fold_reply_mended(state, event)
            _spend_at(state, event.step, event.usage, "review")
        case ev.ReplyDropped():
            state.repairs.pop(event.repair)
            state.repaired[event.repair] = f"dropped by {event.reviewer}"
        case ev.DecisionUndone():
            state.decisions.pop(event.operation_id, None)
            if event.withdrawn:
                state.operations.pop(event.operation_id, None)
                state.deferred.discard(event.operation_id)


def _fold_engine_event(state: RunState, event: ev.EngineEvent) -> None:
    match event:
        case ev.EvaluationFinished():
            state.evaluations.append(event)
            _count_evaluation(state, event)
        case ev.CellMeasured():
            state.cells.append(event)
            _count_evaluation(state, event.result)
        case ev.EngineOpened():
            state.engine_facts = event.facts
        case ev.AgentOpened():
            state.agent_facts = event.facts
        case ev.CheckpointSaved():
            state.checkpoints.append(event)


def _fold_live(live: Live, event: ev.DurableEvent | ev.TransientEvent) -> None:
    if event.__class__ is ev.TextStreamed:
        return  # a hundred thousand a second: whoever shows texts keeps them
    if live.stage_name == "restore":
        live.stage = None  # nothing begins before it is through
    match event:
        case ev.RolloutStarted():
            live.tries[try_id(event.key)] = event
        case ev.RolloutPlaced():
            live.placed[try_id(event.key)] = event
        case ev.NodesChanged():
            live.nodes = event
            here = {name: one for name, one in live.placed.items() if one.node in event.nodes}
            live.placed = here
        case ev.StageEntered():
            live.stage = event
        case ev.EvaluationProgressed():
            before = live.evaluation
            if before is None or (before.data, before.step) != (event.data, event.step):
                live.rewards = {}
            live.evaluation = event if event.done < event.total else None
            if event.key is not None:
                name = try_id(event.key)
                live.end_try(name)
                live.rewards[name] = event.reward
        case ev.EvaluationFinished():
            live.evaluation = live.stage = None
            held_out = [name for name in live.tries if name.startswith("h")]
            for name in held_out:
                live.end_try(name)
        case ev.RolloutFinished():
            live.stage = None
            live.end_try(rollout_id(event.step, event.position, event.index))
        case ev.StepStarted() | ev.StepFinished():
            live.stage = live.evaluation = None
            live.tries.clear()
        case ev.RunEnded():
            live.tries.clear()
            live.placed.clear()
            live.stage = live.evaluation = live.nodes = None
        case (
            ev.LessonsCompared()
            | ev.LessonProposed()
            | ev.EffectMeasured()
            | ev.DecisionUndone()
            | ev.LessonCommitted()
            | ev.LessonReturned()
        ):
            live.stage = None


def fold_library(library: Library | None, event: ev.DurableEvent) -> Library:
    """Take one event of a library's journal in.

    Raises ValueError: it does not belong there, or gives another content than the journal says.
    """
    match event:
        case ev.LibraryCreated():
            return Library(
                name=event.name,
                version=0,
                experiences=event.experiences,
                next_number=event.next_number,
                notes=library_notes.LibraryNotes(
                    curated=event.curated,
                    uses=event.uses,
                    effects=event.effects,
                    mark=library_notes.NotesMark(decisions=len(event.curated)),
                ),
            )
        case ev.LibraryCredited() if library is not None:
            here = {experience.id for experience in library.experiences}
            counted = library_notes.StepCredits(event.run, event.step, event.credits)
            return replace(library, notes=library.notes.credit(counted, here))
        case ev.LibraryMeasured() if library is not None:
            effects = {**library.notes.effects, **event.effects}
            return replace(library, notes=replace(library.notes, effects=effects))
        case ev.LibraryCurated() if library is not None:
            done = library.commit(event.reviewed, run=event.run, step=event.step)
            if done.library.content_hash != library.content_hash:
                raise ValueError("a line that changes no text would change one")
            return done.library
        case ev.LibraryLabelled() if library is not None:
            if not 0 <= (event.version or 0) <= library.version:
                raise ValueError(f"label {event.label!r} names version {event.version}, not there")
            return library
        case ev.LibraryCommitted() if library is not None:
            return replay_commit(library, event).library
    raise ValueError(f"{type(event).__name__} is not the next event of a library")


@dataclass(slots=True)
class LibraryHistory:
    """The versions of a library, each with the commit that made it, None for version 0."""

    versions: list[tuple[Library, ev.LibraryCommitted | None]] = field(default_factory=list)
    labels: list[tuple[float, ev.LibraryLabelled]] = field(default_factory=list)  # and when
    copied_from: str | None = None


def fold_library_history(history: LibraryHistory, event: ev.DurableEvent, at: float = 0.0) -> None:
    """Take one event of a library's journal in; raises as `fold_library` does."""
    versions = history.versions
    library = fold_library(versions[-1][0] if versions else None, event)
    match event:
        case ev.LibraryCommitted():
            versions.append((library, event))
        case ev.LibraryCreated():
            versions.append((library, None))
            history.copied_from = event.copied_from
        case _:
            versions[-1] = (library, versions[-1][1])
            if isinstance(event, ev.LibraryLabelled):
                history.labels.append((at, event))


def replay_commit(library: Library, event: ev.LibraryCommitted) -> CommitResult:
    """Apply a recorded commit to the version before it."""
    done = library.commit(event.reviewed, run=event.run, step=event.step, limit=event.limit)
    if (done.library.version, done.library.content_hash) != (event.version, event.content_hash):
        raise ValueError(f"version {event.version} does not follow from version {library.version}")
    return done


def fold_events(events: Iterable[ev.DurableEvent]) -> RunState:
    state = RunState()
    for event in events:
        fold(state, event)
    return state


_ENDINGS: dict[str, Status] = {
    "finished": "finished",
    "stopped": "stopped",
    "held": "held",
    "failed": "failed",
    "budget": "stopped",
    "waiting": "stopped",
}


def _count_evaluation(state: RunState, found: ev.EvaluationFinished) -> None:
    _spend_at(state, 0, found.usage, "evaluation")
    if found.unjudged:
        where = f"{found.data} after step {found.step}"
        state.lost["held-out rollout"] += found.unjudged
        state.losses.append(LostWork("held-out rollout", where, found.trouble))


def _fold_rollout_finished(state: RunState, event: ev.RolloutFinished) -> None:
    step = state.steps[event.step]
    step.rollouts[event.position, event.index] = event
    step.rollouts_done += 1
    step.turns += event.turns
    step.tool_calls += event.tool_calls
    step.failed_calls += event.failed_calls
    _spend_at(state, event.step, event.usage, "rollouts")
    if event.status == "failed":
        step.failed += 1
        where = rollout_id(event.step, event.position, event.index)
        count_losses(state, (LostWork("rollout", where, event.error or ""),))


def _fold_rollout_judged(state: RunState, event: ev.RolloutJudged) -> None:
    step = state.steps[event.step]
    step.verdicts[event.position, event.index] = event.verdict
    _spend_at(state, event.step, event.verdict.usage, "judging")
    if event.verdict.reward is not None:
        step.rewards.add(Rewards(event.verdict.reward, 1))
        return
    rollout = step.rollouts.get((event.position, event.index))
    if rollout is None or rollout.status != "failed":  # a failed rollout is lost already
        step.unjudged += 1
        if event.verdict.error:  # without one there was nothing to judge by, as was agreed
            where = rollout_id(event.step, event.position, event.index)
            count_losses(state, (LostWork("verdict", where, event.verdict.error),))


def _fold_streaks(state: RunState, step: StepState) -> None:
    """Count on which problems were solved by every try, and which by none."""
    sizes = state.group_sizes(step)
    for position, (problem, size) in enumerate(zip(step.problems, sizes, strict=True)):
        verdicts = (step.verdicts.get((position, index)) for index in range(size))
        rewards = [v.reward for v in verdicts if v is not None and v.reward is not None]
        if not rewards:
            continue  # nothing was learned of it
        if min(rewards) >= 1:
            state.streaks[problem] = max(0, state.streaks.get(problem, 0)) + 1
        else:
            failed = len(rewards) > 1 and len(set(rewards)) == 1
            state.streaks[problem] = -1 if failed else 0


def _tally(state: RunState, operation: Operation | None, decision: Decision) -> None:
    if decision.action == "defer":
        return
    counted = state.curation.setdefault(decision.reviewer, ReviewerStats())
    match decision.action:
        case "approve":
            counted.approved += 1
            counted.flagged += bool(operation and operation.is_flagged)
        case "edit":
            counted.edited += 1
            counted.flagged += bool(decision.flags)
        case "reject" if decision.reason.startswith(MERGED):
            counted.edited += 1  # what it said was let in, in the words of another
        case "reject":
            counted.rejected += 1
    if decision.took_s is not None:
        counted.times_s.append(decision.took_s)


def _fold_choice(state: RunState, event: ev.LessonsCompared) -> None:
    """What the lessons that were not chosen cost and lost; what was read for the one that was."""
    step = state.steps[event.step]
    step.choice = event
    _spend_at(state, event.step, event.usage, "gate")
    for number, draft in enumerate(event.drafts):
        for reflection in draft.reflections:
            _spend_at(state, event.step, reflection.usage, "reading")
            count_losses(state, reflection.losses)
            if number == event.chosen:
                step.reflections[reflection.position] = reflection
        if number != event.chosen:  # the chosen one is proposed
            _spend_at(state, event.step, draft.lesson.usage, "consolidation")
            count_losses(state, draft.lesson.losses)


def _fold_effect(state: RunState, event: ev.EffectMeasured) -> None:
    """Flag the operations that were tried; what was measured of them before no longer counts."""
    state.effects.append(event)
    for name in event.operations:
        if (operation := state.operations.get(name)) is None:
            continue
        others = [other for other in event.operations if other != name]
        detail = event.effect.text + (f", together with {', '.join(others)}" if others else "")
        choice = state.steps[event.step].choice if event.step in state.steps else None
        if choice is not None and choice.drafts:
            detail += f"; {choice.text}"
        kept = (flag for flag in operation.flags if flag.name not in PROVED.values())
        flag = Flag(PROVED[event.effect.verdict], detail=detail)
        state.operations[name] = replace(operation, flags=(*kept, flag))


def _fold_commit(state: RunState, event: ev.LessonCommitted) -> None:
    for outcome in event.outcomes:
        operation = state.operations.pop(outcome.operation_id, None)
        decision = state.decisions.pop(outcome.operation_id, None)
        state.notes.pop(outcome.operation_id, None)
        if decision is not None:
            _tally(state, operation, decision)
        state.deferred.discard(outcome.operation_id)
    # What is left was deferred: open, but no longer in anyone's way. A decision made about
    # one after this commit's line reached the library, before a crash, waits for the next.
    state.deferred = set(state.operations)
    state.decisions = {k: d for k, d in state.decisions.items() if d.action != "defer"}
    state.flagged_stale = None
    if state.status == "reviewing":
        state.status = "running"
    state.library_version = state.base_version = event.library_version
    state.content_hash, state.policy_version = event.content_hash, event.policy_version
    step = state.steps.get(event.step)
    if step is not None:
        step.outcomes = event.outcomes
        update = step.lesson.update if step.lesson is not None else None
        if update is not None and update.rollback_to is not None and step.applied_update:
            state.rolled_back[event.step] = update.rollback_to
        step.committed, step.committed_version = True, event.library_version
        step.notes_after = event.notes


def _spend_at(state: RunState, step: int, usage: Usage, stage: Stage) -> None:
    if step in state.steps:  # a run that was forked may have none of its own at its first lint
        state.steps[step].usage += usage
    state.usage += usage
    if state.ending and state.paid is not None:  # after the process that counted let go of it
        state.paid += usage
    if usage.calls:
        state.spent_on[stage] = state.spent_on.get(stage, NO_USAGE) + usage


KEPT_LOSSES = 200
"""Losses kept with their words; all are counted."""
KEPT_REPLY_CHARS = 500
"""Of a reply that could not be used; the journal has the whole."""


def count_losses(state: RunState, losses: Iterable[LostWork]) -> None:
    for loss in losses:
        state.lost[loss.kind] += 1
        if len(state.losses) < KEPT_LOSSES:
            state.losses.append(_shorten_reply(loss))


def count_doubts(state: RunState, step: StepState, reflection: Reflection) -> None:
    """Count the verdicts that a reflection doubts; the words of the first ones are kept."""
    step.doubts += len(reflection.doubts)
    for doubt in reflection.doubts[: max(0, KEPT_LOSSES - len(state.doubts))]:
        state.doubts[doubt.rollout] = doubt.reason[:KEPT_REPLY_CHARS]


def _shorten_reply(loss: LostWork) -> LostWork:
    """So that memory does not grow with replies."""
    return replace(loss, reply=loss.reply[:KEPT_REPLY_CHARS])


def take_back_losses(state: RunState, losses: Iterable[LostWork]) -> None:
    """Take losses back: what was lost is tried again."""
    for loss in losses:
        state.lost[loss.kind] -= 1
        if _shorten_reply(loss) in state.losses:
            state.losses.remove(_shorten_reply(loss))
    state.lost = +state.lost


def fold_reply_mended(state: RunState, event: ev.ReplyMended) -> None:
    mended = state.repairs.pop(event.repair)
    state.repaired[event.repair] = f"mended by {event.reviewer}"
    state.operations.update((op.id, op) for op in event.operations)
    # Others may have said the very same words, so the place must fit too.
    places = (mended.id, f"step {mended.step}")
    state.lost -= Counter(mended.lost)
    state.losses = [
        loss
        for loss in state.losses
        if loss.kind not in mended.lost or loss.reply != mended.reply or loss.where not in places
    ]
    step = state.steps.get(mended.step)
    if event.fates and step is not None and step.lesson is not None:
        step.lesson = replace(step.lesson, fates=replace_dropped(step.lesson.fates, event.fates))
    if "extraction" in mended.lost:  # nothing of it had been understood
        groups = state.steps[mended.step].groups
        groups["failed"] -= 1
        groups["used"] += 1


def forget_failures(state: RunState, *, is_outage: bool) -> None:
    """What failed in the step under way gets another try.

    Beside what worked, a group that was learned from stays as it is; after an outage, when nothing
    worked any more, its failed tries are made again, too.
    """
    step = state.current
    if step is None or step.committed:
        return
    if step.lesson is not None:
        lost = step.lesson.losses
        if not is_outage or step.operations or not lost or any(loss.reply for loss in lost):
            return
        step.lesson = step.choice = None  # its call failed, so there is nothing of it to lose
        take_back_losses(state, lost)
    # A group that a person has mended or dropped: trying again would say it twice.
    settled = {at for at in step.reflections if group_id(step.step, at) in state.repaired}
    failed = {at for at, one in step.reflections.items() if one.outcome == "failed"} - settled
    learned = step.reflections.keys() - failed
    retried = set()
    for place, rollout in step.rollouts.items():
        verdict = step.verdicts.get(place)
        unjudged = verdict is not None and verdict.reward is None and verdict.error is not None
        kept = settled if is_outage else learned
        if place[0] not in kept and (rollout.status == "failed" or unjudged):
            retried.add(place)
    # The same reply would be read again.
    unread = {at for at in failed if any(loss.reply for loss in step.reflections[at].losses)}
    _try_again(state, step, retried, {position for position, _ in retried} | (failed - unread))


def _try_again(
    state: RunState, step: StepState, retried: set[tuple[int, int]], groups: set[int]
) -> None:
    """Take back these rollouts or their verdicts, and what was drawn from these groups."""
    for position in groups & step.reflections.keys():
        reflection = step.reflections.pop(position)
        step.groups[reflection.outcome] -= 1
        take_back_losses(state, reflection.losses)
        step.doubts -= len(reflection.doubts)
        for doubt in reflection.doubts:
            state.doubts.pop(doubt.rollout, None)
        state.repairs.pop(group_id(step.step, position), None)
    step.groups = +step.groups
    for place in retried:
        rollout, verdict = step.rollouts[place], step.verdicts.pop(place, None)
        where = rollout_id(step.step, *place)
        if rollout.status == "failed":
            del step.rollouts[place]
            step.rollouts_done -= 1
            step.failed -= 1
            take_back_losses(state, (LostWork("rollout", where, rollout.error or ""),))
        elif verdict is not None:
            step.unjudged -= 1
            take_back_losses(state, (LostWork("verdict", where, verdict.error or ""),))


def queue_unparsed_replies(
    state: RunState,
    step: int,
    kind: Literal["extraction", "consolidation"],
    losses: Iterable[LostWork],
) -> None:
    """Keep what could not be understood for a person to mend: one entry a reply."""
    for loss in losses:
        if not loss.reply:
            continue
        name = loss.where if kind == "extraction" else f"s{step}"
        known = state.repairs.get(name) or UnparsedReply(
            name, step, kind, (), _shorten_reply(loss).reply
        )
        state.repairs[name] = replace(
            known, reasons=(*known.reasons, loss.reason), lost=(*known.lost, loss.kind)
        )
    # Groups end in any order; a person reads the replies in that of their problems.
    state.repairs = dict(sorted(state.repairs.items(), key=lambda item: _reply_order(item[1])))


def _reply_order(repair: UnparsedReply) -> tuple[int, bool, int]:
    """Sorts by step, groups in sample order, the consolidation behind them."""
    position = repair.id.partition("p")[2]
    return (repair.step, not position, int(position or 0))


def count_symptoms(step: StepState, settings: Mapping[str, Any]) -> Counter[str]:
    """Of a step that ends, while it still holds its rollouts; `settings` are the run's."""
    found = Counter[str](
        rollouts=step.rollouts_done,
        judged=step.rewards.n,
        tool_calls=step.tool_calls,
        failed_calls=step.failed_calls,
    )
    limit = settings.get("policy.max_tokens") or 0
    for rollout in step.rollouts.values():
        late, tokens = (rollout.error or "").startswith("timeout"), rollout.usage.completion_tokens
        found["timeouts"] += late
        # No reply is longer, so that all of them were cut.
        found["timeouts at limit"] += late and 0 < limit * rollout.turns <= tokens
        # An empty answer marks a try that had no turn or context left for one.
        found["cut"] += rollout.status == "truncated" and rollout.answer != ""
    for verdict in step.verdicts.values():
        found["no answer"] += NO_ANSWER in (verdict.critique or "")
    found.update(step.groups)
    found["groups"] = step.groups.total()
    for reflection in step.reflections.values():
        found["credits"] += len(reflection.credits)
        found["unused"] += sum(credit.use != "used" for credit in reflection.credits)
    for outcome in step.outcomes:
        if outcome.kind != "weights":
            found["operations"] += 1
            found["kept"] += outcome.applied and outcome.kind == "keep"
            fault = outcome.reason.partition(":")[0]
            found["unproven"] += fault == UNPROVEN
            found["refused"] += fault in FLAG_NAMES and fault not in PROVED.values()
            found["rejected"] += not outcome.applied and fault not in FLAG_NAMES
    return +found


def run_history(events: Iterable[ev.DurableEvent]) -> RunHistory:
    """The history that a run's events give, in one pass."""
    history = RunHistory()
    for event in events:
        fold_history(history, event)
    return history


def fold_history(history: RunHistory, event: ev.DurableEvent, at: float = 0.0) -> None:
    """Take one event of a run's journal in; those that are about no step change nothing."""
    number = getattr(event, "step", None)
    step = StepHistory(0)
    if number is not None:
        step = history.steps.setdefault(number, StepHistory(number))
    match event:
        case ev.RunStarted():
            history.started, history.settings = event, event.settings
            history.policy_version = event.policy_version
            history.steps_per_epoch = event.steps_per_epoch
            history.planned_steps = event.epochs * event.steps_per_epoch
        case ev.RunResumed():
            history.settings = event.settings or history.settings
            # Accepted changes may have made other batches of the data.
            history.steps_per_epoch = event.steps_per_epoch or history.steps_per_epoch
            history.planned_steps = event.epochs * history.steps_per_epoch
        case ev.EngineOpened():
            history.trains_weights = True
        case ev.ReplyMended():
            answer = AnsweredReply(
                event.repair, "mended", event.reviewer, "", event.operations, event.fates
            )
            _answer(history, answer)
            _propose(history, event.operations, at)
        case ev.ReplyDropped():
            _answer(history, AnsweredReply(event.repair, "dropped", event.reviewer, event.reason))
        case ev.DecisionUndone():
            _take_back(history, event.operation_id, at)
            if event.withdrawn:
                history.operations.pop(event.operation_id, None)
        case ev.LessonReturned():
            for operation_id in event.asked_again:
                _take_back(history, operation_id, at)
        case ev.OperationDecided() | ev.OperationsDecided():
            step.decisions.extend(event.decisions)
            for decision in event.decisions:
                if (operation := history.operations.get(decision.operation_id)) is not None:
                    operation.decision, operation.at = decision, decision.at or at
        case ev.EffectMeasured():
            for operation_id in event.operations:
                if (operation := history.operations.get(operation_id)) is not None:
                    operation.effect = event.effect
        case ev.LessonCommitted():
            history.policy_version = event.policy_version
            step.committed = event
            for outcome in event.outcomes:
                if (operation := history.operations.get(outcome.operation_id)) is not None:
                    operation.outcome = outcome
        case ev.LessonsCompared():
            step.choice = event
            step.reflections = list(event.drafts[event.chosen].reflections) or step.reflections
        case ev.LessonProposed():
            step.lesson, step.lesson_settings = event.lesson, history.settings
            step.planned_steps = history.planned_steps
            history.trains_weights = history.trains_weights or event.lesson.update is not None
            _propose(history, lesson_operations(event.lesson), at)
        case ev.StepStarted():
            step.started = event
        case ev.RolloutFinished():
            # A new try of a failed rollout keeps its place and has no verdict yet.
            step.rollouts[event.position, event.index] = RolloutHistory(event)
        case ev.RolloutJudged():
            if rollout := step.rollouts.get((event.position, event.index)):
                rollout.verdict = event.verdict
        case ev.GroupReflected():
            step.reflections.append(event.reflection)
        case ev.OperationProposed():
            step.proposed.append(event)
            _propose(history, [event.operation], at)
        case ev.EvaluationFinished():
            step.evaluations.append(event)
            history.evaluations.append((at, event))
        case ev.CheckpointSaved():
            step.checkpoint = event


def _answer(history: RunHistory, answer: AnsweredReply) -> None:
    """Keep an answer at the step of its reply, which may have been over long before."""
    number = int(answer.repair.removeprefix("s").partition("p")[0])
    history.steps.setdefault(number, StepHistory(number)).answers.append(answer)


def _propose(history: RunHistory, operations: Iterable[Operation], at: float) -> None:
    for operation in operations:
        history.operations[operation.id] = OperationHistory(operation, at)


def _take_back(history: RunHistory, operation_id: str, at: float) -> None:
    if (operation := history.operations.get(operation_id)) is not None:
        operation.decision, operation.at = None, at
