"""The brakes of a run, and the recorder that everything passes through."""

from __future__ import annotations

import asyncio

import pytest

from engines.core import events as ev
from engines.core.errors import RecordError
from engines.core.state.fold import fold_events
from engines.pipeline.control import RunControl
from engines.pipeline.recorder import Recorder
from engines.record.journal import Entry
from tests.support.builders import a_run, a_step


class Log:
    """An event log in memory that can be broken."""

    def __init__(self) -> None:
        self.events: list[ev.DurableEvent] = []
        self.broken = False

    async def append(self, event: ev.DurableEvent, request: str = "") -> Entry:
        if self.broken:
            raise RecordError("journal", "cannot be written (full).", "Make room.")
        self.events.append(event)
        return Entry(len(self.events), 0.0, event)


def a_recorder() -> tuple[Recorder, Log]:
    log = Log()
    return Recorder(log, fold_events([a_run(), a_step()])), log


async def test_listeners_hear_an_event_after_disk_and_state() -> None:
    recorder, log = a_recorder()
    heard: list[tuple[object, int, bool]] = []
    stop = recorder.listen(
        lambda event: heard.append((event, len(log.events), recorder.state.status == "paused"))
    )
    await recorder.record(ev.RunPaused())
    stop()
    await recorder.record(ev.RunContinued())
    assert heard == [(ev.RunPaused(), 1, True)]


async def test_what_could_not_be_written_has_not_happened() -> None:
    recorder, log = a_recorder()
    heard: list[object] = []
    recorder.listen(heard.append)
    log.broken = True
    with pytest.raises(RecordError):
        await recorder.record(ev.RunPaused())
    assert (recorder.state.status, heard) == ("running", [])


async def test_a_transient_event_is_passed_on_and_not_written() -> None:
    recorder, log = a_recorder()
    heard: list[object] = []
    recorder.listen(heard.append)
    recorder.emit(ev.StageEntered(1, "review"))
    assert (heard, log.events) == ([ev.StageEntered(1, "review")], [])


async def test_a_pause_holds_whatever_is_to_begin_until_it_ends() -> None:
    recorder, log = a_recorder()
    control = RunControl(recorder)
    await control.pause()
    await control.pause()  # the second one changes nothing
    waiting = asyncio.create_task(control.wait_while_paused())
    await asyncio.sleep(0)
    assert not waiting.done()
    await control.resume()
    await waiting
    assert log.events == [ev.RunPaused(), ev.RunContinued()]


async def test_a_stepped_run_pauses_again_after_its_step() -> None:
    recorder, log = a_recorder()
    control = RunControl(recorder)
    await control.pause()
    await control.step()
    await control.wait_while_paused()
    await recorder.record(ev.StepFinished(1, 1))
    assert await control.finish_step(1) is False
    assert log.events[-1] == ev.RunPaused()


@pytest.mark.parametrize("first", ["stop", "drive"])
async def test_a_stop_cancels_the_run_also_when_it_comes_before_it(first: str) -> None:
    control = RunControl(a_recorder()[0])
    begun, got_through = asyncio.Event(), []

    async def run() -> None:
        main = asyncio.current_task()
        assert main is not None
        control.set_main_task(main)
        begun.set()
        await asyncio.Event().wait()
        got_through.append(True)

    if first == "stop":
        control.stop("signal")
    task = asyncio.create_task(run())
    await begun.wait()
    if first == "drive":
        control.stop("signal")
    await asyncio.wait([task], timeout=10)
    assert task.cancelled() and not got_through
    assert control.stop_reason == "signal"


async def test_a_stop_that_comes_while_the_ending_is_recorded_changes_nothing() -> None:
    control = RunControl(a_recorder()[0])
    task = asyncio.create_task(asyncio.Event().wait())
    control.set_main_task(task)
    control.ended = True
    control.stop("Ctrl-C")
    await asyncio.sleep(0)
    assert not task.cancelling()
    assert control.stop_reason == ""
    task.cancel()


async def test_a_stop_after_the_step_lets_the_step_end() -> None:
    control = RunControl(a_recorder()[0])
    await control.pause()
    control.stop("ctl", after_step=True)
    await control.wait_while_paused()  # a paused run has to go on to reach its end
    assert await control.finish_step(1) is True


async def test_a_run_that_is_given_up_ends_although_it_was_to_stop_after_its_step() -> None:
    recorder, _ = a_recorder()
    control = RunControl(recorder)
    control.stop("after this step", after_step=True)
    main: asyncio.Task[object] = asyncio.ensure_future(asyncio.sleep(60))
    control.set_main_task(main)
    control.give_up("budget", "budget.calls=1: 1 spent")
    assert await asyncio.gather(main, return_exceptions=True)
    assert main.cancelled()
    assert (control.ending, control.stop_after_step) == ("budget", False)


async def test_the_first_reason_to_end_counts() -> None:
    recorder, _ = a_recorder()
    control = RunControl(recorder)
    control.give_up("failed", "the last 16 rollouts failed")
    control.give_up("budget", "budget.calls=1: 1 spent")
    control.stop("Ctrl-C")
    assert (control.ending, control.stop_reason) == ("failed", "the last 16 rollouts failed")

    other = RunControl(recorder)
    other.stop("Ctrl-C")
    other.give_up("failed", "the last 16 rollouts failed")
    assert (other.ending, other.stop_reason) == ("stopped", "Ctrl-C")
