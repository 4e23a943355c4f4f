"""Boxes, the palette and questions that are left as soon as they are opened, or sooner.

A screen under a fast hand ended where one of them was asked for widgets that it had not yet, or no
longer.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from textual import events

from studio.session.session import EventReceived
from studio.tui.terminal.textual_parts import Box, Palette
from studio.tui.widgets.prompt import Prompt
from tests.studio.tui.stage import app_before_lesson


@pytest.mark.parametrize("opener", ["question_mark", "f2", "colon"])
async def test_a_key_that_comes_before_a_box_is_made_waits_for_it(
    tmp_path: Path, opener: str
) -> None:
    app, *_ = app_before_lesson(tmp_path)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("2")
        app._keys.extend(events.Key(key, None) for key in (opener, "escape"))
        await app.act_on_keys()
        assert len(app.screen_stack) == 2
        assert not app.screen.is_mounted
        await pilot.pause()
        await pilot.pause()
        assert len(app.screen_stack) == 1
        assert app._exception is None


async def test_a_palette_that_is_left_searches_for_nobody(tmp_path: Path) -> None:
    """A search that ends when the palette's list is gone would end the screen."""
    app, *_ = app_before_lesson(tmp_path)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("colon")
        palette = app.screen
        assert isinstance(palette, Palette)
        palette._gather_commands("zz")
        palette.dismiss()
        palette._gather_commands("zzz")
        searches = [w for w in app.workers if w.group == palette._GATHER_COMMANDS_GROUP]
        assert [search.is_cancelled for search in searches] == [True]
        palette._start_no_matches_countdown("zzz")
        await pilot.pause()
        palette._start_no_matches_countdown("zzz")
        assert app._exception is None


async def test_a_box_that_is_left_is_not_drawn_again(tmp_path: Path) -> None:
    app, session, coming = app_before_lesson(tmp_path)
    async with app.run_test(size=(120, 36)) as pilot:
        await session.push(EventReceived(coming.pop(0)))
        for way in ("2 A", "f2", "question_mark"):
            await pilot.press(*way.split())
            await app.wait_for_requests()
            box = app.screen
            assert isinstance(box, Box)
            removed = box.dismiss()
            box.post_message(events.Resize(app.size, app.size))
            box.call_after_refresh(box.query_one, "#no-such-thing")
            await removed
            await pilot.pause()
            assert app._exception is None


async def test_tab_does_not_leave_a_question_for_the_line_of_a_picker(tmp_path: Path) -> None:
    """Escape would then close the picker, whose line went on hearing keys out of sight."""
    app, *_ = app_before_lesson(tmp_path)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("4", "b")
        app.ask("which?")
        await pilot.press("tab")
        assert app.focused is not None
        assert isinstance(app.focused.parent, Prompt)
        await pilot.press("escape", "escape")
        assert app.focused is not None
        assert app.focused.id == "diff-list"
