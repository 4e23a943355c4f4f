"""A whole run: every step that is not done yet, and how it ended."""

import asyncio
from typing import Literal

from engines.core.errors import AnswersPending
from engines.core.events import RunEnded, StageEntered
from engines.pipeline.context import RunContext
from engines.pipeline.replay_training import replay_training
from engines.pipeline.reviewers import HoldExpired
from engines.pipeline.step import practise_step
from engines.record.derived.usage import keep_usage

Ending = Literal["finished", "stopped", "held", "failed", "budget", "waiting"]


async def practise(practice: RunContext) -> Ending:
    """Practise until the last step or whatever ends the run before; journals which it was."""
    main = asyncio.current_task()
    assert main is not None
    practice.control.set_main_task(main)
    try:
        ending = await _run_steps(practice)
        reason = practice.control.stop_reason if ending == "stopped" else ""
    except HoldExpired:
        ending, reason = "held", "operations are left to decide"
    except AnswersPending as pending:
        ending, reason = "waiting", pending.reason
    except asyncio.CancelledError:
        if not practice.control.stop_reason:
            raise
        main.uncancel()
        ending, reason = practice.control.ending, practice.control.stop_reason
    practice.control.ended = True
    paid = practice.paid_before + practice.ledger.paid
    ended = RunEnded(ending, reason, paid=paid, remarks=practice.remarks())
    with practice.recorder.carrying_out(practice.control.stop_request):
        await practice.recorder.record(ended)
    return ending


async def _run_steps(practice: RunContext) -> Ending:
    state = practice.recorder.state
    await practice.publish()
    if practice.history and state.steps_finished:
        practice.recorder.emit(StageEntered(state.steps_finished, "restore"))
    await replay_training(practice.engine, practice.history, practice.problems, practice.tell)
    practice.tell_if_any(practice.engine.plan(practice.sampler.total_steps))
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
