"""One step of practice, from its batch to its commit.

Reads as the diagram in the README does:

    batch ─ rollouts ─ verdicts ─ reflection (per group, no barrier)
          ─ lesson (proposes, changes nothing) ─ review ─ commit ─ evaluation

Every stage first looks at what the journal already holds of this step, so that the
same function starts a step and takes up one that was cut anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from engines.core import events as ev
from engines.core.concurrently import all_of
from engines.core.library import Library
from engines.core.state import StepState
from engines.core.types import (
    Attempt,
    CallKey,
    Group,
    Message,
    Problem,
    Reflection,
    Rollout,
    Verdict,
)
from engines.pipeline.evaluate import evaluate
from engines.pipeline.practice import Practice
from engines.record.ledger import trajectory

TAIL_CHARS = 200
"""Of an answer, kept in the journal for display; the whole is in the records."""


async def practise_step(practice: Practice, step: int) -> None:
    """Practise one batch and commit what was approved of it.

    Raises:
        HoldExpired: the reviewers left operations undecided.
        StudioError: nothing can be recorded any more.
    """
    record, state = practice.recorder.record, practice.recorder.state

    now = await _begun(practice, step)
    if not now.committed:
        if now.lesson is None:
            library = practice.gate.at(now.library_version)
            batch = practice.batch(step)
            practised = await all_of(
                _practise_group(practice, now, position, problem, library)
                for position, problem in enumerate(batch)
            )
            groups = [group for group, _ in practised]
            reflections = [reflection for _, reflection in practised]

            practice.recorder.emit(ev.StageEntered(step, "consolidation"))
            lesson = await practice.engine.consolidate(groups, reflections, library)
            await record(ev.LessonProposed(step, lesson))

        practice.recorder.emit(ev.StageEntered(step, "review", {"open": len(state.open)}))
        await practice.gate.review(step)
        await practice.gate.commit(step)

    practice.publish(practice.gate.library)
    if practice.evaluation and practice.evaluation.due(step, practice.sampler.ends_epoch(step)):
        await evaluate(practice.evaluation, practice.recorder, step, practice.gate.library)
    await record(ev.StepFinished(now.epoch, step))
    practice.ledger.forget()


async def _begun(practice: Practice, step: int) -> StepState:
    """The step under way, begun now or by an earlier process."""
    recorder = practice.recorder
    if recorder.state.current is None:
        library = practice.gate.refresh()
        started = ev.StepStarted(
            practice.sampler.epoch_of(step),
            step,
            tuple(problem.id for problem in practice.batch(step)),
            recorder.state.policy_version,
            library.version,
        )
        await recorder.record(started)
    now = recorder.state.current
    assert now is not None and now.step == step
    return now


async def _practise_group(
    practice: Practice, now: StepState, position: int, problem: Problem, library: Library
) -> tuple[Group, Reflection]:
    """Roll out, judge and reflect on one problem; no other group is waited for."""
    tries = await all_of(
        _practise_rollout(practice, now, position, index, problem, library)
        for index in range(practice.group_size)
    )
    rollouts = tuple(rollout for rollout, _ in tries)
    verdicts = tuple(verdict for _, verdict in tries)
    group = Group(problem, now.epoch, now.step, position, rollouts, verdicts)

    reflection = now.reflections.get(position)
    if reflection is None:
        await practice.control.cleared()
        reflection = await practice.engine.reflect(group, library)
        await practice.recorder.record(ev.GroupReflected(now.step, position, reflection))
    return group, reflection


async def _practise_rollout(
    practice: Practice,
    now: StepState,
    position: int,
    index: int,
    problem: Problem,
    library: Library,
) -> tuple[Rollout, Verdict]:
    """One try at one problem, and its verdict as soon as it ends."""
    key = CallKey("rollout", now.epoch, now.step, position, index)
    done = now.rollouts.get((position, index))
    if done is None:
        rollout = await _rolled_out(practice, key, problem, library)
    else:
        rollout = _remembered(practice, now, done)

    verdict = now.verdicts.get((position, index))
    if verdict is None:
        (verdict,) = await practice.verifier.verify(problem, (rollout,))
        await practice.recorder.record(ev.RolloutJudged(now.step, position, index, verdict))
    return rollout, verdict


async def _rolled_out(
    practice: Practice, key: CallKey, problem: Problem, library: Library
) -> Rollout:
    job = practice.job(key, problem, library)
    seed = practice.seed(key)
    practice.recorder.emit(ev.RolloutStarted(key, problem.id))
    attempt, refs = await practice.rollouts.roll(job, practice.streaming(key))
    finished = ev.RolloutFinished(
        key.step,
        key.position,
        key.index,
        seed,
        attempt.status,
        None if attempt.answer == _last_text(attempt.messages) else attempt.answer,
        attempt.error,
        attempt.usage,
        attempt.elapsed_s,
        (attempt.answer or "")[-TAIL_CHARS:],
        refs,
    )
    await practice.recorder.record(finished)
    return Rollout(
        attempt,
        key.epoch,
        key.step,
        key.position,
        key.index,
        seed,
        job.policy_version,
        job.library_version,
    )


def _remembered(practice: Practice, now: StepState, done: ev.RolloutFinished) -> Rollout:
    """A rollout of an earlier process, its messages put together from the records."""
    failed = done.status == "failed"
    messages = () if failed else trajectory(practice.records, done.refs)
    attempt = Attempt(
        messages,
        _last_text(messages) if done.answer is None else done.answer,
        done.status,
        done.usage,
        done.elapsed_s,
        done.error,
    )
    return Rollout(
        attempt,
        now.epoch,
        done.step,
        done.position,
        done.index,
        done.seed,
        practice.recorder.state.policy_version,
        now.library_version,
    )


def _last_text(messages: Sequence[Message]) -> str | None:
    return messages[-1].content if messages else None
