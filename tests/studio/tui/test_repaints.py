"""What is drawn again is what changed, and nothing that changed is left as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widgets import Button, ContentSwitcher

from engines.core import events as ev
from engines.core.state.fold import fold
from engines.core.state.run_state import RunState
from studio.session.session import EventReceived
from studio.tui.app import StudioApp
from studio.tui.drawing.lines import line
from studio.tui.widgets.line_view import LineView
from tests.studio.tui.stage import (
    FakeSession,
    app_on,
    check_painted,
    finished_workspace,
    held_workspace,
    picture,
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


async def test_lines_that_were_scrolled_while_hidden_are_drawn_where_they_are() -> None:
    class Hiding(App[None]):
        def compose(self) -> ComposeResult:
            with ContentSwitcher(initial="shown"):
                yield LineView(id="shown")
                yield Button(id="other")

    app = Hiding()
    async with app.run_test(size=(20, 6)) as pilot:
        view, pages = app.query_one(LineView), app.query_one(ContentSwitcher)
        view.can_focus = False  # else Textual draws it again for its focus
        view.show_lines([line(f"line {number}") for number in range(30)])
        await pilot.pause()
        assert picture(app)[0] == "line 0"
        pages.current = "other"
        await pilot.pause()
        view.scroll_to(y=10, animate=False, force=True)
        pages.current = "shown"
        await pilot.pause()
        assert picture(app)[0] == "line 10"
        check_painted(app)


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
