"""What is drawn again is what changed, and nothing that changed is left as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot

from engines.core import events as ev
from engines.core.state.fold import fold
from engines.core.state.run_state import RunState
from studio.session.base import EventReceived
from studio.tui.app import StudioApp
from tests.studio.tui.stage import (
    FakeSession,
    app_on,
    check_painted,
    finished_workspace,
    held_workspace,
)


async def look_at_all_pages(app: StudioApp, pilot: Pilot[int]) -> None:
    for key in "0123456":
        await pilot.press(key)
        await pilot.pause()
        app.draw_now()
        await pilot.pause()
        check_painted(app)


@pytest.mark.parametrize("size", [(120, 36), (80, 24)])
async def test_what_changed_while_another_page_was_open_is_drawn(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    workspace = finished_workspace(tmp_path)
    run = workspace.run("rehearsal")
    session = FakeSession(run)
    session.state = RunState()
    coming = [e.event for e in run.entries() if not isinstance(e.event, ev.RunEnded)]
    lessons = [at for at, event in enumerate(coming) if isinstance(event, ev.LessonProposed)]
    for event in coming[: lessons[0]]:
        fold(session.state, event)
    app = app_on(session, workspace)
    async with app.run_test(size=size) as pilot:
        await look_at_all_pages(app, pilot)
        for start, end in ((lessons[0], lessons[1]), (lessons[1], len(coming))):
            for event in coming[start:end]:
                await session.push(EventReceived(event))
            await look_at_all_pages(app, pilot)


async def test_a_wording_under_way_is_whole_after_the_terminal_changes_size(
    tmp_path: Path,
) -> None:
    workspace = held_workspace(tmp_path)
    app = app_on(FakeSession(workspace.run("mine")), workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("2", "e", *"EXTRAwords")
        for size in ((60, 16), (120, 36), (80, 24), (120, 36)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            app.draw_now()
            await pilot.pause()
            check_painted(app)
