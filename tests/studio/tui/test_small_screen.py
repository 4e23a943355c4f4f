"""The last-action line, terminals that are too small, the budget in the header, the palette."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from textual.command import CommandList
from textual.widgets import Input, TextArea

from studio.tui.app import StudioApp
from studio.tui.terminal.textual_parts import Palette
from tests.studio.tui.stage import FakeSession, app_on, held_workspace, picture


def on_a_run(folder: Path) -> tuple[StudioApp, FakeSession]:
    workspace = held_workspace(folder)
    session = FakeSession(workspace.run("mine"))
    return app_on(session, workspace), session


async def test_what_was_told_is_there_again_when_the_terminal_has_grown(tmp_path: Path) -> None:
    app, _ = on_a_run(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("2")
        await pilot.pause()
        await pilot.resize_terminal(59, 15)
        await pilot.pause()
        assert "terminal is 59x15" in picture(app)[-2]
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert not picture(app)[-2].strip()


async def test_what_is_told_on_a_small_terminal_is_seen(tmp_path: Path) -> None:
    app, _ = on_a_run(tmp_path)
    async with app.run_test(size=(59, 15)) as pilot:
        await pilot.press("2")
        app.tell("refused: ann decides")
        app.draw_now()
        await pilot.pause()
        assert "refused: ann decides" in picture(app)[-2]


async def test_a_terminal_too_small_for_a_change_offers_no_decision_and_takes_none(
    tmp_path: Path,
) -> None:
    app, session = on_a_run(tmp_path)
    async with app.run_test(size=(50, 12)) as pilot:
        await pilot.press("2")
        await pilot.pause()
        assert "approve" not in picture(app)[-1]
        await pilot.press("a", "r", "c")
        await app.wait_for_requests()
        await pilot.pause()
        assert session.asked == []
        assert "60x16" in picture(app)[-2]
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert "approve" in picture(app)[-1]
        await pilot.press("a")
        await app.wait_for_requests()
        assert session.names() == ["decide"]


async def test_the_header_says_what_is_spent_of_each_limit(tmp_path: Path) -> None:
    app, session = on_a_run(tmp_path)
    session.budget = {"tokens": 50_000_000, "calls": 900}
    calls = session.state.total_usage.calls
    async with app.run_test(size=(200, 36)) as pilot:
        for _ in range(3):
            await pilot.pause()
        app.draw_now()
        await pilot.pause()
        assert "of 50.0M tok" in picture(app)[0]
        assert f"{calls} of 900 calls" in picture(app)[0]


async def test_a_run_without_a_budget_has_no_limits_in_the_header(tmp_path: Path) -> None:
    app, _ = on_a_run(tmp_path)
    async with app.run_test(size=(200, 36)) as pilot:
        for _ in range(3):
            await pilot.pause()
        app.draw_now()
        assert " of " not in picture(app)[0] and "calls" not in picture(app)[0]


async def until_found(app: StudioApp, wanted: str) -> None:
    async with asyncio.timeout(10):
        while not any(wanted in row for row in picture(app)):
            await asyncio.sleep(0)


@pytest.mark.parametrize("word", ["quit", "exit"])
async def test_the_palette_knows_other_words_for_leaving(tmp_path: Path, word: str) -> None:
    app, session = on_a_run(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("colon")
        await pilot.press(*word)
        await until_found(app, "detach (q)")
        await pilot.pause()
        await pilot.press("enter")
        await pilot.pause()
    assert session.closed


async def test_the_palette_says_where_nothing_is_found(tmp_path: Path) -> None:
    app, _ = on_a_run(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("colon")
        await pilot.press(*"xyzzy")
        await until_found(app, "nothing fits")
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, Palette)
        commands = app.screen.query_one(CommandList)
        commands.highlighted = 0
        commands._lines.clear()  # as before it is laid out
        commands._index_to_line.clear()
        app.screen._action_command_list("page_up")


async def test_nothing_blinks_and_nothing_is_animated(tmp_path: Path) -> None:
    app, _ = on_a_run(tmp_path)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("1")
        assert app.animation_level == "none"
        await pilot.press("colon")
        await pilot.pause()
        fields = [one for screen in app.screen_stack for one in screen.query(Input)]
        assert len(fields) > 1
        assert not any(field.cursor_blink for field in fields)
        assert not any(
            area.cursor_blink for screen in app.screen_stack for area in screen.query(TextArea)
        )
