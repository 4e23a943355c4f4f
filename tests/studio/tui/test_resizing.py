"""A screen whose size changed shows what one of that size would have shown from the beginning."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.app import App, ComposeResult
from textual.events import Resize
from textual.geometry import Size
from textual.pilot import Pilot

from studio.tui.app import StudioApp
from studio.tui.drawing.lines import line
from studio.tui.widgets.line_view import LineView
from tests.studio.tui.stage import FakeSession, app_on, finished_workspace, picture

WIDE, NARROW = (120, 36), (80, 24)


async def drawn(app: StudioApp, pilot: Pilot[int]) -> list[str]:
    """What is drawn once the next frame has come."""
    for _ in range(2):
        await pilot.pause()
        app.frame_clock.tick()
        await pilot.pause()
    return picture(app)


@pytest.mark.parametrize(("first", "then"), [(WIDE, NARROW), (NARROW, WIDE)])
async def test_a_page_that_opens_after_a_resize_is_folded_for_the_new_width(
    tmp_path: Path, first: tuple[int, int], then: tuple[int, int]
) -> None:
    workspace = finished_workspace(tmp_path)
    run = workspace.run("rehearsal")
    app = app_on(FakeSession(run, living=False), workspace)
    async with app.run_test(size=then) as pilot:
        fresh = await drawn(app, pilot)
    assert any("How it ended" in row for row in fresh)
    app = app_on(FakeSession(run, living=False), workspace)
    async with app.run_test(size=first) as pilot:
        await drawn(app, pilot)
        await pilot.press("5")
        await drawn(app, pilot)
        await pilot.resize_terminal(*then)
        await drawn(app, pilot)
        await pilot.press("1")
        assert await drawn(app, pilot) == fresh
        await pilot.resize_terminal(*first)
        await drawn(app, pilot)
        await pilot.resize_terminal(*then)
        assert await drawn(app, pilot) == fresh


class Folding(App[None]):
    """One pane that can be hidden, and who draws it when it asks for that."""

    def compose(self) -> ComposeResult:
        yield LineView()

    def redraw_soon(self) -> None:
        pane = self.query_one(LineView)
        pane.show_lines([line(f"{pane.line_width} cells")])


async def test_a_size_that_is_told_late_is_not_taken_for_the_newest(tmp_path: Path) -> None:
    """Textual's signal handler, interrupted by itself, tells the older size last."""
    workspace = finished_workspace(tmp_path)
    app = app_on(FakeSession(workspace.run("rehearsal"), living=False), workspace)
    async with app.run_test(size=WIDE) as pilot:
        await pilot.resize_terminal(*NARROW)
        late = Size(70, 20)
        app.post_message(Resize(late, late))
        rows = await drawn(app, pilot)
        assert app.size == Size(*NARROW)
        assert len(rows) == NARROW[1]


async def test_a_pane_that_was_hidden_when_it_was_told_something_is_folded_for_its_width() -> None:
    app = Folding()
    async with app.run_test(size=NARROW) as pilot:
        await pilot.pause()
        pane = app.query_one(LineView)
        assert pane.text() == "80 cells"
        pane.display = False
        await pilot.pause()
        await pilot.resize_terminal(*WIDE)
        app.redraw_soon()  # of a pane that was hidden nobody has told it the new width yet
        pane.display = True
        await pilot.pause()
        assert pane.text() == "120 cells"
