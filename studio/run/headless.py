"""A run in this process: opened, practised, controllable from outside, and told about.

Owns signals and the order of opening and closing. `studio.run.assemble` knows the parts.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, ClassVar

from engines.core.errors import ConfigError, LockedError
from engines.core.events import DurableEvent, TextStreamed, TransientEvent, event_to_dict
from engines.core.state.run_state import RunState
from engines.data.checks import check_rows, doubts_line
from engines.pipeline.control import RunControl
from engines.pipeline.recorder import Listener
from engines.pipeline.run import practise
from engines.record.catalogue import write_run_row
from engines.record.lock import holder_pid
from engines.record.run_dir import RunDir, Workspace
from studio import exit_codes
from studio.config.loading import load_run
from studio.config.source import Source
from studio.estimate.cost import estimate, estimate_doubled
from studio.estimate.facts import gather_facts
from studio.estimate.text import (
    estimate_data,
    estimate_line,
    estimate_text,
    exceeded_limits_text,
    limits_text,
)
from studio.report.progress import Display, LinePrinter, to_stderr
from studio.report.summary import exit_code, summary_data, summary_text
from studio.report.tables import print_json, silence_stream
from studio.run.assemble import check_verifier, open_reviewers, open_run_context
from studio.run.budget import check_budget, limits_of, open_budget
from studio.run.cpu_meter import CpuMeter
from studio.run.detached import announce
from studio.run.held_out import set_power_lines
from studio.run.ignored_settings import ignored_settings
from studio.run.models import rehearsal_note, short_log_note
from studio.run.plan import RunPlan, plan_run
from studio.run.removed_limits import removed_budget_limits
from studio.run.verifier import masked_answers_warning
from studio.session.client import is_alive
from studio.session.server import serve

if TYPE_CHECKING:
    from engines.grpo.ranks.ranks import Ranks

TAKING_UP_S = 5.0
"""Two starts at the same moment: how long the second waits for the first to answer."""


def load_plan(
    workspace: Workspace,
    source: Source,
    *,
    name: str | None = None,
    restart_step: str | None = None,
    review: str | None = None,
    accept_changes: bool = False,
    default_review: str = "auto",
    keyless: bool = False,
    tell: Callable[[str], None] = to_stderr,
) -> RunPlan:
    """Read the run file and decide what to open; tells, on stderr or otherwise, what was assumed.

    With `keyless` no model can be asked, see `load_run`.

    Raises:
        StudioError: the run file, the data or the choice of run cannot be used.
    """
    if review is not None:
        open_reviewers(review, None)  # a finished run would never open it
    given = workspace.run(source.resume) if source.resume is not None else None
    file = str(given.run_file) if given else source.runfile or ""
    named = [] if name is None else [f"exp_id={name}"]
    loaded = load_run(
        file, [*source.overrides, *named], workspace.path, youtu=source.youtu, keyless=keyless
    )
    for warning in loaded.warnings:
        tell(f"note: {warning}")
    # A resumed run's own file may still say how it once began.
    step = None if given else loaded.config.practice.restart_step
    if restart_step is not None:
        step = _parse_restart_step(restart_step)
    plan = plan_run(
        loaded,
        workspace,
        restart_step=step,
        review=review,
        default_review=default_review,
        resume=given,
        accept_changes=accept_changes,
    )
    if plan.mode == "resume" and given is None:  # its own file would have been read
        for note in removed_budget_limits(plan.run.run_file, loaded.config):
            tell(f"note: {note}")
    if hidden := masked_answers_warning(plan.problems, loaded.mask):
        tell(f"note: {hidden}")
    tuned = loaded.config.practice.algorithm == "sft"  # turns of one conversation share a question
    if not tuned and (
        doubtful := doubts_line(check_rows(tuple(enumerate(plan.problems, start=1)), unit="row"))
    ):
        data = plan.loaded.config.data.practice
        tell(f"note: {data} has {doubtful} (studio data check {data})")
    return plan


async def run_headless(
    plan: RunPlan, *, json: bool, ready_fd: int | None = None, ranks: Ranks | None = None
) -> int:
    """Practise a planned run to its end and print how it went; returns the exit code.

    Args:
        plan: from `load_plan`.
        json: print the event stream on stdout.
        ready_fd: where to say that the run can be attached to, see `studio.run.detached`; None
            where nobody waits for that.
        ranks: the processes that train together; None: this one alone.

    Raises:
        StudioError: something could not be opened or recorded.
    """
    if ready_fd is not None and is_alive(plan.run):
        return _announce_holder(plan, ready_fd)
    if plan.mode == "finished":
        assert plan.state is not None
        _tell_plan(plan)
        if ready_fd is not None:
            announce(ready_fd, plan.run.run, 0, None)
        return _print_summary(plan, plan.state, json)
    with _StopSignals() as brakes:
        try:
            async with AsyncExitStack() as stack:
                watched = ready_fd is not None
                try:
                    practice = await open_run_context(
                        plan, stack, to_stderr, watched=watched, ranks=ranks
                    )
                except LockedError as error:
                    if ready_fd is None or error.place != str(plan.run.path):
                        raise
                    if not await _wait_for_holder(plan.run):
                        raise
                    return _announce_holder(plan, ready_fd)
                _tell_plan(plan, practice.pace_tokens_per_s)
                config = plan.loaded.config.practice
                if note := short_log_note(
                    practice.rollouts.policy, plan.problems, config.group_size
                ):
                    to_stderr(note)
                if (measured := practice.evaluation) is not None:
                    for line in set_power_lines(measured.sets, measured.measuring.k):
                        to_stderr(line if line.startswith(" ") else f"held out: {line}")
                if practice.budget is not None:
                    _tell_estimate(plan, practice.budget.remaining)
                brakes.control = practice.control
                await stack.enter_async_context(serve(practice, plan.run.socket))
                if ready_fd is not None:
                    announce(ready_fd, plan.run.run, os.getpid(), plan.run.log)
                meter = CpuMeter()
                with _progress_listener(practice.recorder.state, json) as listener:
                    practice.recorder.listen(meter)
                    practice.recorder.listen(_QuietListener(listener))
                    if plan.loaded.config.trains:
                        gc.freeze()  # a loaded model is a million objects that stay
                    await practise(practice)
                if plan.loaded.config.trains and meter.summary_line:
                    to_stderr(meter.summary_line)
        except asyncio.CancelledError:
            if not brakes.pulled or brakes.control is not None:
                raise
            to_stderr("studio: interrupted before practice began; nothing was spent")
            return exit_codes.INTERRUPTED
    write_run_row(plan.workspace, plan.run)
    return _print_summary(plan, practice.recorder.state, json)


def _announce_holder(plan: RunPlan, ready_fd: int) -> int:
    """Name the process that has the run already, and what of our words it does not go by."""
    left = ignored_settings(plan)
    if left:
        to_stderr(f"run {plan.run.run} goes on as it was started; not applied: {', '.join(left)}")
    else:
        to_stderr(f"run {plan.run.run} goes on already, as it was started")
    announce(ready_fd, plan.run.run, holder_pid(plan.run.path) or 0, None, left)
    return exit_codes.DONE


async def _wait_for_holder(run: RunDir) -> bool:
    """Whether who holds the run's lock can be attached to within a few seconds."""
    to_stderr(f"run {run.run} is held; looking whether its process answers")
    with suppress(TimeoutError):
        async with asyncio.timeout(TAKING_UP_S):
            while not is_alive(run):
                await asyncio.sleep(0.1)
            return True
    return False


async def dry_run(plan: RunPlan, *, json: bool) -> int:
    """Check everything that can be checked without asking a model, and print what it would cost.

    Raises:
        StudioError: something could not be opened.
    """
    if note := rehearsal_note(plan.loaded.config):
        to_stderr(note)
    check_budget(plan.loaded, plan.loaded.config)
    async with AsyncExitStack() as stack:
        await check_verifier(plan, stack)
    facts, notes = gather_facts(plan)
    found, variants = estimate(facts), estimate_doubled(facts)
    limits = limits_of(plan.loaded.config)
    if json:
        left = _budget_left(plan)
        print_json(
            {"run": plan.run.run, "mode": plan.mode, "budget_left": left}
            | estimate_data(found, variants, notes)
        )
        return exit_codes.DONE
    total, done = plan.sampler.total_steps, facts.steps_done
    print(f"run {plan.run.run}: {plan.mode}, {total - done} of {total} steps to be done")
    print(estimate_text(found, variants, notes))
    if limits:
        print(f"budget: {limits_text(limits)}")
        if short := exceeded_limits_text(found, _budget_left(plan)):
            print(f"the budget will likely not do: {short}")
    return exit_codes.DONE


def _budget_left(plan: RunPlan) -> dict[str, float]:
    budget = open_budget(plan.loaded, plan.loaded.config, plan.run.records, lambda _: None)
    return budget.remaining if budget is not None else {}


def _tell_estimate(plan: RunPlan, left: dict[str, float]) -> None:
    """What a run with a budget will likely cost, beside what is left of it."""
    found = estimate(gather_facts(plan)[0])
    to_stderr(f"budget: {limits_text(limits_of(plan.loaded.config))}")
    to_stderr(f"estimate: {estimate_line(found)}")
    if short := exceeded_limits_text(found, left):
        to_stderr(f"warning: the budget will likely not do: {short}; the run then ends with exit 5")


class _StopSignals:
    """Ctrl-C and SIGTERM end the run in good order, with everything recorded kept."""

    _REASONS: ClassVar = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}

    def __init__(self) -> None:
        self.control: RunControl | None = None
        self.pulled = False

    def __enter__(self) -> _StopSignals:
        self._loop = asyncio.get_running_loop()
        self._main = asyncio.current_task()
        for number, reason in self._REASONS.items():
            self._loop.add_signal_handler(number, self._on_signal, reason)
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._REASONS:
            self._loop.remove_signal_handler(number)

    def _on_signal(self, reason: str) -> None:
        self.pulled = True
        if self.control is not None:
            self.control.stop(reason)
        elif self._main is not None:
            self._main.cancel()


def _parse_restart_step(text: str) -> int | None:
    if text.lower() in ("null", "none"):
        return None
    if text.isdecimal() and len(text) <= 18:
        return int(text)
    raise ConfigError(
        f"--restart-step {text}", "it is neither null nor a whole number.", "Give null, 0 or N."
    )


def _tell_plan(plan: RunPlan, pace_tokens_per_s: float | None = None) -> None:
    what = {
        "new": f"run {plan.run.run}: new",
        "resume": f"run {plan.run.run}: resumed after step "
        f"{plan.state.steps_finished if plan.state else 0}",
        "fork": f"run {plan.run.run}: new, with the first {plan.adopted_steps} steps of "
        f"{plan.parent.run if plan.parent else ''}",
        "finished": f"run {plan.run.run} is finished; give more practice.epochs to go on, or "
        "--restart-step 0 for a new run",
    }
    to_stderr(what[plan.mode])
    if note := rehearsal_note(plan.loaded.config):
        to_stderr(note)
    if pace_tokens_per_s is not None:
        to_stderr(f"paced: each reply streams {pace_tokens_per_s:g} tokens a second, to be watched")
    if plan.mode != "finished":
        note, trains = "", plan.loaded.config.trains
        if plan.reviewer == "auto":
            each = "weight update within its bounds" if trains else "operation that fits"
            note = f" (every {each} is approved by itself)"
        elif plan.mode == "resume" and plan.reviewer == "wait":
            kept = plan.state is not None and plan.state.reviewer == plan.reviewer
            note = " (as the run began; --review auto lets it decide by itself)" if kept else ""
        to_stderr(f"review: {plan.reviewer}{note}")


def _print_summary(plan: RunPlan, state: RunState, json: bool) -> int:
    assert state.started is not None
    folder = plan.workspace.library(state.started.library)
    before, after = folder.at(state.started.library_version), folder.at(state.library_version)
    place = str(plan.run.path)
    try:
        if json:
            print_json(summary_data(state, before, after, place))
        else:
            print(summary_text(state, before, after, place), flush=True)
    except BrokenPipeError:
        silence_stream(sys.stdout)  # how the run went does not depend on who listens
    return exit_code(state)


class _QuietListener:
    """A listener that falls silent when nobody can be told any more.

    The run goes on: whoever listened can look at it with `studio ctl` and `studio runs`.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener: Listener | None = listener

    def __call__(self, event: DurableEvent | TransientEvent) -> None:
        if self._listener is None:
            return
        try:
            self._listener(event)
        except (OSError, ValueError):  # the reader left, the disk is full, the stream closed
            self._listener = None


@contextmanager
def _progress_listener(state: RunState, json: bool) -> Iterator[Listener]:
    """Who tells how the run goes: events on stdout, a display, or plain lines."""
    if json:
        yield _print_event
    elif sys.stderr.isatty():
        with Display(state, sys.stderr) as display:
            yield display
    else:
        yield LinePrinter(state, to_stderr)


def _print_event(event: DurableEvent | TransientEvent) -> None:
    if not isinstance(event, TextStreamed):  # a line a token helps no script
        print_json(event_to_dict(event))
