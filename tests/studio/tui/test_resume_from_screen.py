"""A run is resumed from the screen that has just decided in it: its lock is given back first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from textual.pilot import Pilot

from engines.core import events as ev
from engines.core.errors import StudioError
from engines.record.lock import is_held, write_lock
from engines.record.run_dir import RunDir, Workspace
from studio.run import detached
from studio.run.detached import ReadyRun, RefusedStart
from studio.session.live import LiveSession
from studio.session.offline import OfflineSession
from studio.session.session import Session
from studio.tui.app import StudioApp
from tests.studio.tui.stage import app_on, held_workspace, picture

Opened = Callable[[Workspace, RunDir], Session]


def stored(workspace: Workspace, run: RunDir) -> Session:
    return OfflineSession(workspace, run, "ann")


def attached(workspace: Workspace, run: RunDir) -> Session:
    """As the app opens a run: nobody answers, so that the journal is decided in."""
    return LiveSession(run, "ann", fallback=lambda: OfflineSession(workspace, run, "ann"))


either = pytest.mark.parametrize("opened", [stored, attached])


@dataclass
class Started:
    """A process on its way; it says nothing until the test lets it."""

    outcome: ReadyRun | RefusedStart
    told: asyncio.Event = field(default_factory=asyncio.Event)
    stage: str = ""

    async def wait_ready(self) -> ReadyRun | RefusedStart:
        await self.told.wait()
        return self.outcome


@dataclass
class Processes:
    """Stands for `studio.run.detached`: a process takes its run's lock, as a real one would."""

    run: RunDir
    outcome: ReadyRun | RefusedStart
    error: StudioError | None = None
    asked: list[list[str]] = field(default_factory=list)
    decided: list[int] = field(default_factory=list)  # in the journal, when each was started
    begun: list[Started] = field(default_factory=list)

    def start(self, arguments: Sequence[str], workspace: Path) -> Started:
        if self.error is not None:
            raise self.error
        self.asked.append(list(arguments))
        with write_lock(self.run.path):  # refused while the screen holds the run
            self.decided.append(decisions(self.run))
        self.begun.append(Started(self.outcome))
        return self.begun[-1]


def decisions(run: RunDir) -> int:
    return sum(isinstance(entry.event, ev.OperationDecided) for entry in run.entries())


@dataclass
class Sitting:
    """A person at the screen of the held run `mine`."""

    app: StudioApp
    pilot: Pilot[int]
    run: RunDir
    processes: Processes

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.app.wait_for_requests()
        await self.pilot.pause()

    @property
    def text(self) -> str:
        return "\n".join(picture(self.app))


@asynccontextmanager
async def sitting(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    opened: Opened = stored,
    outcome: ReadyRun | RefusedStart | None = None,
) -> AsyncIterator[Sitting]:
    workspace = held_workspace(folder)
    run = workspace.run("mine")
    app = app_on(opened(workspace, run), workspace)
    processes = Processes(run, outcome or ReadyRun("mine", 0))
    monkeypatch.setattr(detached, "start", processes.start)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        made = Sitting(app, pilot, run, processes)
        async with asyncio.timeout(20):
            while not app.session_status.drives or app.session_status.opening:
                await pilot.pause()
        await made.press("2")
        yield made


@either
async def test_r_gives_the_run_back_before_its_process_begins_and_keeps_what_is_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Opened
) -> None:
    async with sitting(tmp_path, monkeypatch, opened) as seat:
        await seat.press("a")
        assert is_held(seat.run.path)  # the person sits here, and the run is theirs
        await seat.press("1", "s", "r")
        assert seat.processes.asked == [["--resume", "mine"]]
        assert seat.processes.decided == [1]
        assert not is_held(seat.run.path)
        assert "STARTING" in seat.text


async def test_what_was_asked_before_r_is_decided_before_the_process_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sitting(tmp_path, monkeypatch) as seat:
        await seat.pilot.press("a", "1", "s", "r")  # in one go, with nothing awaited between
        await seat.app.wait_for_requests()
        assert seat.processes.decided == [1]


async def test_a_second_r_starts_no_second_process_until_the_first_was_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = RefusedStart("studio: run mine: its journal is damaged.", 4)
    async with sitting(tmp_path, monkeypatch, outcome=refused) as seat:
        await seat.press("1", "s", "r", "s", "r", "s", "r")
        assert len(seat.processes.asked) == 1
        assert "it is being started already" in seat.text
        seat.processes.begun[0].told.set()
        await seat.press("1", "s", "r")
        assert len(seat.processes.asked) == 2


async def test_a_refused_start_is_told_whole_and_deciding_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = RefusedStart("studio: run mine: its journal is damaged.\nTry studio doctor.", 4)
    async with sitting(tmp_path, monkeypatch, outcome=refused) as seat:
        await seat.press("a")
        await seat.press("1", "s", "r")
        seat.processes.begun[0].told.set()
        await seat.press()
        assert seat.app.page_name == "start"
        assert "its journal is damaged" in seat.text and "Try studio doctor" in seat.text
        assert "STARTING" not in seat.text
        await seat.press("2", "a")
        assert decisions(seat.run) == 2


async def test_a_process_that_the_system_will_not_start_is_told_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sitting(tmp_path, monkeypatch) as seat:
        seat.processes.error = StudioError("studio headless", "it cannot be started: no.", "Wait.")
        await seat.press("1", "s", "r")
        assert "studio headless: it cannot be started: no. Wait." in seat.text
        assert "STARTING" not in seat.text
        seat.processes.error = None
        await seat.press("1", "s", "r")
        assert seat.processes.asked == [["--resume", "mine"]]


async def test_once_the_process_is_there_the_screen_is_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sitting(tmp_path, monkeypatch) as seat:
        before = seat.app.session
        await seat.press("1", "s", "r")
        seat.processes.begun[0].told.set()
        async with asyncio.timeout(20):
            while seat.app.session is before or seat.app.session is None:
                await seat.pilot.pause()
        assert isinstance(seat.app.session, LiveSession)
        assert seat.app.attachment.shown_run == "mine"
        seat.app.draw_now()  # as the next beat of the clock does
        assert "STARTING" not in seat.text
