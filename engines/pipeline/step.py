"""One step of practice, from its batch to its commit.

Reads as the diagram in the README does:

    batch ─ rollouts ─ verdicts ─ reflection (per group, no barrier)
          ─ lesson (proposes, changes nothing) ─ review ─ commit ─ evaluation

Every stage first looks at what the journal already holds of this step, so that the
same function starts a step and takes up one that was cut anywhere.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from engines.core import errors, events
from engines.core import events as ev
from engines.core.frozen import frozen
from engines.core.library import Library
from engines.core.state.run_state import StepState
from engines.core.text import citations, tool_text
from engines.core.types import CallKey, Group, Lesson, Problem, Reflection, Rollout, Verdict
from engines.core.waiting import gather_all
from engines.pipeline import reviewers, worsened
from engines.pipeline.context import RunContext
from engines.pipeline.effect.effect_gate import compare_lessons
from engines.pipeline.evaluation import evaluate, statistics
from engines.pipeline.replay_training import last_answer, load_rollout, replay_training
from engines.record.derived.run_state import keep_usage
from engines.record.ledger import read_trajectory

TAIL_CHARS = 200
"""Of an answer, kept in the journal for display; the whole is in the records."""


@frozen
class _Batch:
    """What all tries of a step share.

    With `rejoin` a try that is known takes part once more, so that those which are not come
    out as they would have: they are decoded in the same company.
    """

    now: StepState
    library: Library
    rejoin: bool
    judged: tuple[asyncio.Future[Group], ...]  # by position, each once its rewards are known
    sizes: tuple[int, ...]  # tries of each problem


async def practise_step(practice: RunContext, step: int) -> None:
    """Practise one batch and commit what was approved of it; else raises HoldExpired."""
    now = await _begin_step(practice, step)
    if now.lesson is None and not now.committed:
        await _propose(practice, now, await _practise_batch(practice, now))
    if not now.committed:
        await practice.try_lesson(step)
        waiting = {"open": len(practice.recorder.state.open_operations)}
        practice.recorder.emit(ev.StageEntered(now.step, "review", waiting))
        await practice.gate.review(step)
    if not now.committed:  # the review may have found the step's commit in the library
        await practice.gate.commit(step)
    await practice.publish()
    measured = practice.evaluation
    if measured is not None and measured.is_due(step, practice.sampler.ends_epoch(step)):
        await practice.evaluate(measured, step)
        await practice.roll_back_if_worse(step)
    await worsened.show_worsened(practice, step)
    await practice.recorder.record(ev.StepFinished(now.epoch, step))
    await practice.save_if_due(step)
    practice.ledger.release_files()


async def _begin_step(practice: RunContext, step: int) -> StepState:
    """The step under way, begun now or by an earlier process."""
    recorder = practice.recorder
    if recorder.state.current is None:
        library = await practice.gate.follow_head(step)
        started = ev.StepStarted(
            epoch=practice.sampler.epoch_of(step),
            step=step,
            problems=tuple(problem.id for problem in practice.batch(step)),
            policy_version=recorder.state.policy_version,
            library_version=library.version,
            notes=library.notes.mark,
            tries=practice.planned_tries(step),
            learns=practice.learns(step),
        )
        await recorder.record(started)
    now = recorder.state.current
    assert now is not None and now.step == step
    return now


async def _practise_batch(practice: RunContext, now: StepState) -> list[tuple[Group, Reflection]]:
    """Roll out, judge and reflect on every problem at once, in sample order."""
    problems, loop = practice.batch(now.step), asyncio.get_running_loop()
    sizes = now.tries or (practice.group_size,) * len(now.problems)
    rejoin = practice.cohort and len(now.rollouts) < sum(sizes)
    judged = tuple(loop.create_future() for _ in problems)
    library = _visible_library(practice, now)
    await practice.writer.prepare(library)
    batch = _Batch(now, library, rejoin, judged, sizes)
    return await gather_all(
        _practise_group(practice, batch, position, problem)
        for position, problem in enumerate(problems)
    )


def _visible_library(practice: RunContext, now: StepState) -> Library:
    """The library the step began with, as far as it may know of it."""
    started, library = practice.recorder.state.started, practice.gate.at(now.library_version)
    assert started is not None
    notes = library.notes.as_of(now.notes).without_own(started.run, now.step, started.notes)
    return replace(library, notes=notes)


async def _practise_group(
    practice: RunContext, batch: _Batch, position: int, problem: Problem
) -> tuple[Group, Reflection]:
    """Roll out, judge and reflect on one problem.

    Only a group that may be one too many of its kind waits for the rewards of those before it.
    """
    now = batch.now
    judge = evaluate.GroupJudge(practice.verifier, problem, batch.sizes[position])
    try:
        tries = await gather_all(
            _practise_rollout(practice, batch, problem, judge, position, index)
            for index in range(batch.sizes[position])
        )
    except errors.AnswersPending as pending:  # who waits for its rewards would wait for ever
        batch.judged[position].set_exception(pending)
        batch.judged[position].exception()  # asked for, or asyncio complains that nobody did
        raise
    group = Group(
        problem=problem,
        epoch=now.epoch,
        step=now.step,
        position=position,
        rollouts=tuple(rollout for rollout, _ in tries),
        verdicts=tuple(verdict for _, verdict in tries),
    )
    batch.judged[position].set_result(group)
    reflection = now.reflections.get(position)
    if reflection is None:
        await practice.control.wait_while_paused()
        earlier = batch.judged[:position]
        reflection = await practice.engine.reflect(group, batch.library, earlier)
        await practice.recorder.record(ev.GroupReflected(now.step, position, reflection))
        practice.outage.report_reflection(reflection, practice.recorder.state)
    return group, reflection


async def _practise_rollout(
    practice: RunContext,
    batch: _Batch,
    problem: Problem,
    judge: evaluate.GroupJudge,
    position: int,
    index: int,
) -> tuple[Rollout, Verdict]:
    """One try at one problem, and its verdict: as soon as it ends, or as soon as all have."""
    now = batch.now
    key = CallKey("rollout", now.epoch, now.step, position, index)
    done = now.rollouts.get((position, index))
    if done is None:
        try:
            rollout = await _roll_out(practice, key, problem, batch.library)
        except errors.AnswersPending as pending:
            judge.miss(pending)
            raise
    else:
        if batch.rejoin:
            # Its result is known, and nothing comes of it: its replies are taken from the records,
            # and asked for beside. What a policy that decodes many tries at once gives the others
            # depends, by rounding, on who is among them.
            await practice.rollouts.roll_out(practice.job(key, problem, batch.library))
        rollout = load_rollout(practice.records, now, done)

    known = now.verdicts.get((position, index))
    verdict = await judge.judge(rollout, known)
    if known is None:
        judged = ev.RolloutJudged(now.step, position, index, verdict)
        await practice.recorder.record(judged)
        practice.outage.report_verdict(judged, now)
    return rollout, verdict


async def _propose(
    practice: RunContext, now: StepState, batch: Sequence[tuple[Group, Reflection]]
) -> None:
    """Consolidate the batch into a lesson and journal it whole, before any question is asked."""
    practice.recorder.emit(ev.StageEntered(now.step, "consolidation"))
    groups = [group for group, _ in batch]
    if now.step == 1 and practice.group_size and practice.recorder.state.trains_weights:
        informative = sum(group.informative for group in groups)
        if warning := statistics.low_contrast_warning(informative, len(groups)):
            practice.tell(warning)
    reflections = [reflection for _, reflection in batch]
    library = _visible_library(practice, now)
    if now.choice is None:
        lesson = await worsened.consolidate_with_worsened(
            practice, practice.engine, now, groups, reflections, library
        )
        if practice.drafts > 1 and now.learns != "weights":
            await _choose_lesson(practice, now, groups, lesson, library)
    if now.choice is not None:
        lesson = now.choice.drafts[now.choice.chosen].lesson
    await practice.recorder.record(ev.LessonProposed(now.step, lesson))
    practice.outage.report_lesson(lesson)
    await asyncio.sleep(0)  # where this lesson ends the run, it ends here, uncommitted


async def _choose_lesson(
    practice: RunContext, now: StepState, batch: Sequence[Group], first: Lesson, library: Library
) -> None:
    """Draw further lessons from the batch, and journal which of all does best."""
    assert practice.engine_of_draft is not None and practice.effects is not None
    drafts = [ev.LessonDraft(first)]
    judged = [asyncio.ensure_future(asyncio.sleep(0, group)) for group in batch]
    for number in range(1, practice.drafts):
        engine = practice.engine_of_draft(number)
        reflections = await gather_all(
            engine.reflect(group, library, judged[:at]) for at, group in enumerate(batch)
        )
        lesson = await worsened.consolidate_with_worsened(
            practice, engine, now, batch, reflections, library
        )
        drafts.append(ev.LessonDraft(lesson, tuple(reflections)))
    head = practice.gate.library
    practice.recorder.emit(ev.StageEntered(now.step, "choice", {"lessons": len(drafts)}))
    await practice.recorder.record(await compare_lessons(practice.effects, now, head, drafts))


async def _roll_out(
    practice: RunContext, key: CallKey, problem: Problem, library: Library
) -> Rollout:
    job, seed = practice.job(key, problem, library), practice.seed(key)
    emit = practice.recorder.emit
    attempt, refs = await practice.rollouts.roll_out(
        job,
        on_text=lambda text: emit(ev.TextStreamed(key, text)),
        on_start=lambda: emit(ev.RolloutStarted(key, problem.id)),
    )
    cited = citations.cited_experiences(attempt.messages, citations.guidance_ids(job.guidance))
    # A try that failed hands no messages on; what it said until then is recorded.
    turns, calls, failed = tool_text.count_acts(
        attempt.messages or read_trajectory(practice.records, refs)
    )
    finished = ev.RolloutFinished(
        step=key.step,
        position=key.position,
        index=key.index,
        seed=seed,
        status=attempt.status,
        answer=None if attempt.answer == last_answer(attempt.messages, cited) else attempt.answer,
        error=attempt.error,
        usage=attempt.usage,
        elapsed_s=attempt.elapsed_s,
        tail=(attempt.answer or "")[-TAIL_CHARS:],
        refs=refs,
        shown=job.shown,
        cited=cited,
        turns=turns,
        tool_calls=calls,
        failed_calls=failed,
    )
    await practice.recorder.record(finished)
    practice.outage.report_rollout(finished, practice.recorder.state)
    return Rollout.from_job(job, attempt, seed)


Ending = Literal["finished", "stopped", "held", "failed", "budget", "waiting"]


async def practise(practice: RunContext) -> Ending:
    """Practise until the last step or whatever ends the run before; journals which it was."""
    main = asyncio.current_task()
    assert main is not None
    practice.control.set_main_task(main)
    try:
        ending = await _run_steps(practice)
        reason = practice.control.stop_reason if ending == "stopped" else ""
    except reviewers.HoldExpired:
        ending, reason = "held", "operations are left to decide"
    except errors.AnswersPending as pending:
        ending, reason = "waiting", pending.reason
    except asyncio.CancelledError:
        if not practice.control.stop_reason:
            raise
        main.uncancel()
        ending, reason = practice.control.ending, practice.control.stop_reason
    practice.control.ended = True
    paid = practice.paid_before + practice.ledger.paid
    ended = events.RunEnded(ending, reason, paid=paid, remarks=practice.remarks())
    with practice.recorder.carrying_out(practice.control.stop_request):
        await practice.recorder.record(ended)
    return ending


async def _run_steps(practice: RunContext) -> Ending:
    state = practice.recorder.state
    await practice.publish()
    if practice.history and state.steps_finished:
        practice.recorder.emit(events.StageEntered(state.steps_finished, "restore"))
    await replay_training(practice.engine, practice.history, practice.problems, practice.tell)
    practice.engine.plan(practice.sampler.total_steps)
    await practice.save_if_due(state.steps_finished)  # cut between the two
    assert state.started is not None
    begun_with = state.started.forked_steps  # 0 unless the run adopted steps of another
    if practice.evaluation and state.steps_finished == begun_with and state.current is None:
        await practice.evaluate(practice.evaluation, begun_with)
    for step in range(state.steps_finished + 1, practice.sampler.total_steps + 1):
        await practice.control.wait_while_paused()
        if await practice.recorder.roll(step - 1):
            await asyncio.to_thread(keep_usage, practice.records)
        await practise_step(practice, step)
        if await practice.control.finish_step(step) and step < practice.sampler.total_steps:
            return "stopped"
    await practice.measure_cells()
    return "finished"
