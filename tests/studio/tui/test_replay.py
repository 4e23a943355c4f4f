"""A replay on the screen: it streams, every page opens, and keys that decide say why not."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from engines.record.run_dir import Workspace
from studio.session.replay import ReplaySession
from studio.tui.app import StudioApp
from tests.studio.tui.stage import FakeSession, app_on, finished_workspace, held_workspace, picture

ALL_PAGES = "2345671"


class Ticks:
    """Time of which each `let` gives so many waits, as long as they were asked for."""

    def __init__(self) -> None:
        self._left = asyncio.Semaphore(0)

    def let(self, ticks: int) -> None:
        for _ in range(ticks):
            self._left.release()

    async def __call__(self, seconds: float) -> None:
        await self._left.acquire()


def written_files(workspace: Workspace) -> dict[Path, bytes]:
    """All but what is kept to be read faster, and is made anew at will."""
    found = (path for path in workspace.path.rglob("*") if path.is_file())
    kept = (path for path in found if not path.name.startswith(("catalogue", "index", ".lock")))
    return {path: path.read_bytes() for path in kept}


async def show(app: StudioApp, pilot: Pilot[Any], *keys: str) -> list[str]:
    """The screen once these keys have had their effect."""
    await pilot.press(*keys)
    await pilot.pause()
    await app.wait_for_requests()
    app.draw_frame()
    await pilot.pause()
    return picture(app)


@pytest.mark.parametrize("size", [(120, 36), (80, 24)])
async def test_a_replay_streams_on_every_page_and_says_that_it_is_one(
    size: tuple[int, int], tmp_path: Path
) -> None:
    workspace = finished_workspace(tmp_path)
    before = written_files(workspace)
    time = Ticks()
    session = ReplaySession(workspace, workspace.run("rehearsal"), 0.5, time)
    app = app_on(session, workspace)

    async with app.run_test(size=size) as pilot:
        see = partial(show, app, pilot)

        seen_streaming = False
        while not session.state.steps_finished:
            time.let(5)
            for key in ALL_PAGES if session.state.step and not seen_streaming else "1":
                assert "replay 0.5×" in (await see(key))[0]
                assert "OBSERVER" not in picture(app)[0]
            seen_streaming |= bool(session._subscribed & session._texts.keys())
        assert seen_streaming
        assert "replay 0.5× paused" in (await see("s", "p"))[0]
        here = session.state.events
        assert "replay 1× paused" in (await see("s", "plus"))[0]
        assert "replay 0.5× paused" in (await see("s", "minus"))[0]
        assert session.state.events == here
        for key in ("a", "r", "u", "c", "A", "t"):
            told = (await see("2", key))[-2]
            assert "can be decided" in told or "changes nothing" in told or "nothing" in told
        assert "changes nothing" in (await see("T"))[-2]
        assert "resumes nothing" in (await see("s", "r"))[-2]
        assert "no process" in (await see("s", "x"))[-2]
        assert "up to the end of the step" in (await see("s", "s"))[-2]
        while not session.paused:
            time.let(50)
            await see()
        assert session.state.steps_finished == 2
        await see("s", "p")
        while session.living:
            time.let(500)
            await see("1")
        assert "replay 0.5× over" in (await see())[0] and "FINISHED" in picture(app)[0]
        for key in ALL_PAGES:
            await see(key)
        assert "can be decided" in (await see("2", "a"))[-2]
    assert written_files(workspace) == before


async def test_at_the_end_of_a_replay_nothing_is_offered_that_it_cannot_do(tmp_path: Path) -> None:
    workspace = held_workspace(tmp_path)
    time = Ticks()
    session = ReplaySession(workspace, workspace.run("mine"), 10, time)
    app = app_on(session, workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        see = partial(show, app, pilot)

        steering = (await see("s"))[-1]
        assert all(word in steering for word in ("pause or go on", "faster", "slower"))
        assert not any(word in steering for word in ("stop", "resume", "pause now"))
        await see("escape")
        while session.living:
            time.let(500)
            await see("1")
        shown = await see("1")
        assert "HELD for review" in shown[0] and "NO PROCESS" not in shown[0]
        assert "the replay is over" in "\n".join(shown) and "no process" not in "\n".join(shown)
        footer = (await see("2"))[-1]
        assert "next open" in footer
        assert not any(word in footer for word in ("approve", "reject", "commit", "resume"))
        assert "studio attach mine" in (await see("s", "r"))[-2]


async def test_only_a_replay_has_a_speed(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    session = FakeSession(workspace.run("rehearsal"))
    app = app_on(session, workspace)  # type: ignore[arg-type]
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        await pilot.press("s", "plus")
        await pilot.pause()
        app.draw_frame()
        await pilot.pause()
        assert "only a replay has a speed: studio runs replay RUN" in picture(app)[-2]
    assert session.names() == []
