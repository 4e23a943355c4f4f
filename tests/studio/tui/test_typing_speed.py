"""Two thousand keys at a person's speed over every page and dialog, with a run under way behind.

Nothing waits between keys for what the one before asked: a dialog's key comes twice, a page's key
reaches the next page. `tests.bench.hour` does the same for twenty thousand in a real terminal.
"""

from __future__ import annotations

import random
import tempfile
import unicodedata
from pathlib import Path

import pytest
from textual import events
from textual.keys import _character_to_key, _get_unicode_name_from_key

from engines.core import events as ev
from engines.core.state.fold import fold
from engines.core.state.run_state import RunState
from studio.session.base import EventReceived, TextPiece, TextReceived
from studio.tui.app import StudioApp
from studio.tui.keymap import KEYS
from tests.studio.tui.stage import FakeSession, app_on, check_painted, finished_workspace

LEAVES = {"global.detach", "global.interrupt", "global.redraw"}
PRESSED = [name.strip() for key in KEYS if key.id not in LEAVES for name in key.keys.split(",")]
TWICE = ("A", "s", "x", "c", "colon", "question_mark", "f2", "e", "M", "R", "m", "slash", "g", "v")
"""Open a dialog or a box; whoever holds them down meets its keys, too."""
ANSWERS = ("enter", "enter", "escape", "escape", "y", "n", "space", "x", "j")


def keys_of_a_person(chance: random.Random) -> list[str]:
    """A few keys in one go."""
    what = chance.random()
    if what < 0.3:
        opener = chance.choice(TWICE)
        return [opener] * chance.randint(1, 2) + chance.choices(ANSWERS, k=chance.randint(1, 4))
    if what < 0.4:
        return ["escape", "escape", chance.choice("1234567")]
    return chance.choices(PRESSED, k=chance.randint(1, 4))


def type_at_once(app: StudioApp, keys: list[str]) -> None:
    """As a terminal hands over what was typed: nothing waits for what a key does."""
    assert app._driver is not None
    for key in keys:
        name = _character_to_key(key) if len(key) == 1 and not key.isalnum() else key
        try:
            character = unicodedata.lookup(_get_unicode_name_from_key(name))
        except KeyError:
            character = key if len(key) == 1 else None
        pressed = events.Key(name, character)
        pressed.set_sender(app)
        app._driver.send_message(pressed)


async def type_keys(seed: int, count: int) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        workspace = finished_workspace(Path(folder))
        run = workspace.run("rehearsal")
        session = FakeSession(run)
        coming = [e.event for e in run.entries() if not isinstance(e.event, ev.RunEnded)]
        session.state = RunState()
        while not isinstance(coming[0], ev.LessonProposed):
            fold(session.state, coming.pop(0))
        app = app_on(session, workspace)
        app.start_run = lambda arguments: None  # type: ignore[method-assign]
        app.attach = lambda run: None  # type: ignore[method-assign]
        app.leave = lambda: None  # type: ignore[method-assign]
        async with app.run_test(size=(120, 36)) as pilot:
            app.navigation.page("review").wording.in_editor = lambda text: None  # type: ignore[attr-defined]
            app.navigation.page("start").action_check = lambda: None  # type: ignore[attr-defined]
            pressed = 0
            while pressed < count:
                keys = keys_of_a_person(chance)
                type_at_once(app, keys)
                await pilot.pause()
                pressed += len(keys)
                piece = TextPiece(
                    f"s1p{pressed % 6}r{pressed % 4}", 0, "so " * chance.randint(1, 9)
                )
                messages: list[EventReceived | TextReceived] = [TextReceived((piece,))]
                if coming and chance.random() < 0.2:
                    messages.append(EventReceived(coming.pop(0)))
                await session.push(*messages)
                assert app._exception is None, keys
                if chance.random() < 0.02:
                    await pilot.resize_terminal(chance.randint(60, 200), chance.randint(16, 50))
                if chance.random() < 0.05:
                    await app.wait_for_requests()
                    app.painter.draw_frame()
                    await pilot.pause()
                    check_painted(app)


@pytest.mark.parametrize("seed", [1, 2])
async def test_two_thousand_keys_at_typing_speed_end_no_screen(seed: int) -> None:
    await type_keys(seed, 1_000)
