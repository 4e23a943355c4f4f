"""A run in this process: opened, practised, open to requests, and reported on as it goes."""

import asyncio
import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from engines.core import errors, events
from engines.core.state.run_state import RunState
from engines.pipeline import recorder, step
from engines.pipeline.context import RunContext
from engines.pipeline.control import RunControl
from engines.pipeline.effect.effect_gate import choice_problems
from engines.record.derived.catalogue import refresh_catalogue
from engines.record.lock import holder_pid
from engines.record.run_dir import RunDir
from studio import exit_codes, process
from studio.config.scripted import played_note, rehearsal_note
from studio.facts.next_command import command_after_run
from studio.facts.run import end_facts, existing_places, run_facts
from studio.render.json import print_json, print_result
from studio.render.lines import tell_next, to_stderr
from studio.render.run_lines import summary_text
from studio.report.progress import LinePrinter
from studio.run import assemble, detached, held_out
from studio.run.new_or_resume import RunPlan
from studio.session import control_socket, server

if TYPE_CHECKING:
    from engines.grpo.ranks.accelerated import AcceleratedRanks

HOLDER_TIMEOUT_S = 5.0
"""Two starts at the same moment: how long the second waits for the first to answer."""
TellEstimate = Callable[[RunPlan, dict[str, float]], None]
"""`studio.estimate.cost.tell_estimate`, which is a layer above this package."""


async def run_headless(
    plan: RunPlan,
    *,
    json: bool,
    tell_estimate: TellEstimate,
    ready_fd: int | None = None,
    ranks: "AcceleratedRanks | None" = None,
    tells_next: bool = True,
) -> int:
    """Practise a planned run to its end and print how it went; returns the exit code.

    Where a budget is set, `tell_estimate` is called with what is left of each limit. `ready_fd` is
    the pipe of a process that waits for the run, see `studio.run.detached`. `ranks` train
    together; None: this process alone. `tells_next`: what to do next is printed at the end.
    """
    # A second start attaches to the process of the first instead of failing at its lock.
    if ready_fd is not None and control_socket.is_alive(plan.run):
        return _announce_holder(plan, ready_fd)
    if plan.mode == "finished":
        assert plan.state is not None
        _tell_plan(plan)
        if ready_fd is not None:
            detached.announce(ready_fd, plan.run.run, 0, None)
        return _print_summary(plan, plan.state, json, tells_next)
    signals = _StopSignals()
    with process.on_stop_signal(signals):
        try:
            async with AsyncExitStack() as stack:
                try:
                    context = await assemble.open_run_context(
                        plan, stack, to_stderr, watched=ready_fd is not None, ranks=ranks
                    )
                # Another process took the lock since, and does not answer yet.
                except errors.LockedError as error:
                    if ready_fd is None or error.place != str(plan.run.path):
                        raise
                    if not await _wait_for_holder(plan.run):
                        raise
                    return _announce_holder(plan, ready_fd)
                _tell_context(plan, context)
                if context.budget is not None:
                    tell_estimate(plan, context.budget.remaining)
                # From here on a signal stops the run in order; before, it cancels this task.
                signals.control = context.control
                await stack.enter_async_context(server.serve(context, plan.run.socket))
                if ready_fd is not None:
                    detached.announce(ready_fd, plan.run.run, os.getpid(), plan.run.log)
                await _practise(context, json)
        except asyncio.CancelledError:
            # Not ours: a test or a caller cancelled this task.
            if not signals.received or signals.control is not None:
                raise
            to_stderr("studio: interrupted before practice began; nothing was spent")
            return exit_codes.INTERRUPTED
    refresh_catalogue(plan.workspace)
    return _print_summary(plan, context.recorder.state, json, tells_next)


async def _practise(context: RunContext, json: bool) -> None:
    """Carry the run out, and tell on stdout or stderr how it goes."""
    listener = _print_event if json else LinePrinter(context.recorder.state, to_stderr)
    with _spare_what_is_open():
        context.recorder.listen(QuietListener(listener))
        await step.practise(context)


@contextmanager
def _spare_what_is_open() -> Iterator[None]:
    """No search for garbage in a model or a large library, which are a million objects.

    It takes a tenth of a second, in which no request is answered.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _announce_holder(plan: RunPlan, ready_fd: int) -> int:
    """Name the process that has the run already."""
    run = plan.run
    to_stderr(f"run {run.run} goes on as it was started: no setting of this command is applied")
    detached.announce(ready_fd, run.run, holder_pid(run.path) or 0, None)
    return exit_codes.DONE


async def _wait_for_holder(run: RunDir) -> bool:
    """Whether the process that holds the run's lock can be attached to within a few seconds."""
    to_stderr(f"run {run.run} is held; looking whether its process answers")
    with suppress(TimeoutError):
        async with asyncio.timeout(HOLDER_TIMEOUT_S):
            while not control_socket.is_alive(run):
                await asyncio.sleep(0.1)  # a socket that is not there yet cannot be waited for
            return True
    return False


@dataclass(slots=True)
class _StopSignals:
    """Ctrl-C and SIGTERM end the run in order; everything recorded is kept."""

    main: asyncio.Task[Any] | None = field(default_factory=asyncio.current_task)
    control: RunControl | None = None
    received: bool = False

    def __call__(self, reason: str) -> None:
        self.received = True
        if self.control is not None:
            self.control.stop(reason)
        elif self.main is not None:
            self.main.cancel()


def _tell_context(plan: RunPlan, context: RunContext) -> None:
    """What a person should know before anything is spent."""
    _tell_plan(plan, context.pace_tokens_per_s)
    if context.effects is not None and context.effects.by_itself:
        gate, drafts, batch = context.effects, context.drafts, [p.id for p in context.batch(1)]
        chosen_by = [p.id for p in choice_problems(gate, 1, batch)] if drafts > 1 else []
        error = gate.error / context.sampler.total_steps
        to_stderr(
            f"gate: {held_out.trial_text(gate.describe(1, error, gate.apart(batch, chosen_by)))}"
        )
    if (evaluation := context.evaluation) is not None:
        for line in held_out.set_power_lines(evaluation.sets, evaluation.measuring.k):
            to_stderr(line if line.startswith(" ") else f"held out: {line}")


def _tell_plan(plan: RunPlan, pace_tokens_per_s: float | None = None) -> None:
    done, parent = plan.state.steps_finished if plan.state else 0, plan.parent
    what = {
        "new": ": new",
        "resume": f": resumed after step {done}",
        "fork": f": new, with the first {plan.adopted_steps} steps of {parent and parent.run}",
        "finished": " is finished; give more practice.epochs to go on, or --restart-step 0 for a "
        "new run",
    }
    to_stderr(f"run {plan.run.run}{what[plan.mode]}")
    loaded = plan.loaded
    for note in filter(None, (rehearsal_note(loaded.config), played_note(loaded.tape))):
        to_stderr(note)
    if pace_tokens_per_s is not None:
        to_stderr(f"paced: each reply streams {pace_tokens_per_s:g} tokens a second, to be watched")
    if plan.mode != "finished":
        note, trains = "", plan.loaded.config.trains
        if plan.reviewer == "auto":
            rejects = ", ".join(plan.loaded.config.review.rejects)
            reflects = plan.loaded.config.practice.reflects
            kinds = ("weight update within its bounds", trains), ("operation that fits", reflects)
            each = " and every ".join(kind for kind, is_learned in kinds if is_learned)
            but = f", but for those flagged {rejects}" if rejects and reflects else ""
            note = f" (every {each} is approved by itself{but})"
        to_stderr(f"review: {plan.reviewer}{note}")


def _print_summary(plan: RunPlan, state: RunState, json: bool, tells_next: bool) -> int:
    assert state.started is not None
    folder = plan.workspace.library(state.started.library)
    before, after = folder.at(state.started.library_version), folder.at(state.library_version)
    places = existing_places(plan.run, plan.workspace, state)
    facts = run_facts(state, places=places)
    try:
        end = end_facts(facts, before, after)
        print_result(end, summary_text(end), json=json)
    except BrokenPipeError:
        process.silence_stream(sys.stdout)  # the exit code does not depend on who reads
    if tells_next and not json:
        tell_next(command_after_run(state), plan.workspace.path)
    return exit_codes.run_exit_code(state)


class QuietListener:
    """A listener that stops once its output fails; `studio ctl` can still look at the run."""

    def __init__(self, listener: recorder.Listener) -> None:
        self._listener: recorder.Listener | None = listener

    def __call__(self, event: events.DurableEvent | events.TransientEvent) -> None:
        if self._listener is None:
            return
        try:
            self._listener(event)
        except (OSError, ValueError):  # the reader left, the disk is full, the stream closed
            self._listener = None


def _print_event(event: events.DurableEvent | events.TransientEvent) -> None:
    if event.__class__ is not events.TextStreamed:  # a line for each token helps no script
        print_json(events.event_to_dict(event))
