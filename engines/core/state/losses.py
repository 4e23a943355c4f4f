"""What a run lost, what waits to be mended of it, and what a resume tries again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from engines.core import events as ev
from engines.core.state.run_state import RunState, StepState
from engines.core.types import (
    LostWork,
    Reflection,
    UnparsedReply,
    Verdict,
    group_id,
    replace_dropped,
    rollout_id,
)

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


def forget_failures(state: RunState) -> None:
    """What failed in the step under way while nothing worked gets another try."""
    step = state.current
    if step is None or step.committed:
        return
    if step.lesson is not None:
        lost = step.lesson.losses
        if step.lesson.operations or step.lesson.update is not None:
            return
        if not lost or any(loss.reply for loss in lost):
            return
        step.lesson = step.choice = None  # its call failed, so there is nothing of it to lose
        take_back_losses(state, lost)
    resolved = _resolved_groups(state, step)
    retried = {
        place
        for place, rollout in step.rollouts.items()
        if place[0] not in resolved
        and (rollout.status == "failed" or _is_unjudged(step.verdicts.get(place)))
    }
    groups = {position for position, _ in retried}
    groups |= {at for at, reflection in step.reflections.items() if reflection.outcome == "failed"}
    _try_again(state, step, retried, groups - resolved)


def forget_failed_tries(state: RunState) -> None:
    """What failed in the step under way beside what worked gets another try.

    A group that was learned from stays as it is.
    """
    step = state.current
    if step is None or step.committed or step.lesson is not None:
        return
    failed = {
        at
        for at, reflection in step.reflections.items()
        if reflection.outcome == "failed" and at not in _resolved_groups(state, step)
    }
    retried = {
        place
        for place, rollout in step.rollouts.items()
        if rollout.status == "failed" and (place[0] in failed or place[0] not in step.reflections)
    }
    # The same reply would be read again.
    unread = {at for at in failed if any(loss.reply for loss in step.reflections[at].losses)}
    _try_again(state, step, retried, {position for position, _ in retried} | (failed - unread))


def _resolved_groups(state: RunState, step: StepState) -> set[int]:
    """Groups that a person has mended or dropped: trying again would say it twice."""
    return {at for at in step.reflections if group_id(step.step, at) in state.repaired}


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


def _is_unjudged(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.reward is None and verdict.error is not None


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
