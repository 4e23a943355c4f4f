"""Two thousand keys at a person's speed over every page and dialog, with a run under way behind.

Nothing waits between keys for what the one before asked: a dialog's key comes twice, a page's key
reaches the next page. `tests.bench.hour` does the same for twenty thousand in a real terminal.
"""

from __future__ import annotations

import random
import string
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.keys import _character_to_key

from engines.core import events as ev
from engines.core.state.fold import fold
from engines.core.types import Decision, DecisionPreview, Flag
from studio.session.session import EventReceived, TextPiece, TextReceived
from studio.tui.app import StudioApp
from studio.tui.help import GuideScreen, HelpScreen, SettingsScreen
from studio.tui.keymap import KEYS
from studio.tui.pages.lists import Picker
from studio.tui.pages.review.panes import ReviewPanes
from studio.tui.terminal.textual_parts import Palette
from studio.tui.widgets.edit_box import EditBox
from studio.tui.widgets.prompt import Confirm, Prompt, TickList, is_visible
from tests.studio.tui.stage import FakeSession, app_before_lesson, check_painted

LEAVES = {"global.detach", "global.interrupt", "global.redraw"}
PRESSED = [name.strip() for key in KEYS if key.id not in LEAVES for name in key.keys.split(",")]
TWICE = ("A", "s", "s", "c", "colon", "question_mark", "f2", "e", "M", "R", "m", "slash", "g", "v")
"""Open a dialog or a box; whoever holds them down meets its keys, too."""
CHARACTERS = {_character_to_key(character): character for character in string.printable}
ANSWERS = ("enter", "enter", "escape", "escape", "y", "n", "space", "x", "j")


WAYS_IN = {
    "Approve": "2 A",
    "Commit": "2 c",
    "merge": "2 home space j space M",
    "edit": "2 e x",
    "edit question": "2 e x enter",
    "reject": "2 R",
    "note": "2 m",
    "Take": "2 home j j tab space",
    "propose": "3 home p",
    "Propose to delete": "3 home d",
    "SettingsScreen": "f2",
    "HelpScreen": "question_mark",
    "help filter": "question_mark slash r e enter",
    "Palette": "colon d i f enter",
    "GuideScreen": "colon g l o s s a r y enter",
    "filter": "slash s t enter",
    "go to": "g s 1 p 0 enter",
    "pane": "ctrl+w s",
    "Stop": "s x",
    "base": "4 b",
    "lay over": "7 b",
    "key=value": "0 G e",
}
"""What leads from a page to each dialog and box, by what `watch_openings` calls it."""


def watch_openings(patch: pytest.MonkeyPatch, opened: set[str]) -> None:
    """Note what is opened by the first words of its title, or by its class."""

    def watch(owner: type, method: str, name: Callable[..., str]) -> None:
        made = getattr(owner, method)

        def noting(self: Any, *given: Any, **named: Any) -> Any:
            done = made(self, *given, **named)
            opened.add(name(self, *given, **named))
            return done

        patch.setattr(owner, method, noting)

    watch(Prompt, "ask", lambda self, label, *_: f"{self.id} {label}")
    watch(Confirm, "__init__", lambda self, title, *_: title)
    watch(TickList, "__init__", lambda self, title, *_, **__: title(1, 2))
    for screen in (HelpScreen, GuideScreen, SettingsScreen, Palette):
        watch(screen, "__init__", lambda self, *_, **__: type(self).__name__)
    watch(ReviewPanes, "open_box", lambda self, editing, _: "merge" if editing.others else "edit")
    watch(EditBox, "release", lambda self, asks=False: "edit question" if asks else "")
    watch(Picker, "open", lambda self, side, *_: "lay over" if side == "over" else side)
    watch(FakeSession, "propose", lambda self, _: "propose")


def was_opened(name: str, opened: set[str]) -> bool:
    starts = {"filter": "prompt filter", "help filter": "help-filter", "go to": "prompt go to"}
    starts |= {one: f"prompt {one}" for one in ("reject", "note", "pane", "key=value")}
    return any(one.startswith(starts.get(name, name)) for one in opened)


def with_a_modify(event: ev.DurableEvent, session: FakeSession) -> ev.LessonProposed:
    """The lesson with one more operation, which changes what its first one adds in two places."""
    assert isinstance(event, ev.LessonProposed)
    first = event.lesson.operations[0]
    session.state.decisions[first.id] = Decision(first.id, "approve", assigned="E1")
    text = f"Always {first.text} Every time."
    more = replace(first, id=f"op{event.step}.9", kind="modify", target="E1", text=text)
    operations = (*event.lesson.operations, more)
    return replace(event, lesson=replace(event.lesson, operations=operations))


def keys_of_a_person(chance: random.Random) -> list[str]:
    """A few keys in one go."""
    what = chance.random()
    if what < 0.15:
        way = chance.choice([*WAYS_IN.values(), "1 K"]).split()
        return ["escape"] * 4 + way + chance.choices(ANSWERS, k=chance.randint(1, 4))
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
        name = _character_to_key(key) if len(key) == 1 else key
        pressed = events.Key(name, CHARACTERS.get(name))
        pressed.set_sender(app)
        app._driver.send_message(pressed)


async def type_keys(seed: int, count: int) -> set[str]:
    """Returns what of `WAYS_IN` was never opened."""
    with pytest.MonkeyPatch.context() as patch:
        opened: set[str] = set()
        watch_openings(patch, opened)
        await _type_keys(seed, count, opened)
    return {name for name in WAYS_IN if not was_opened(name, opened)}


async def _type_keys(seed: int, count: int, opened: set[str]) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        app, session, coming = app_before_lesson(Path(folder))
        app.leave = lambda: None  # type: ignore[method-assign]
        async with app.run_test(size=(120, 36)) as pilot:
            app.navigation.page("review").in_editor = lambda text: None  # type: ignore[attr-defined]
            app.navigation.page("start").action_check = lambda: None  # type: ignore[attr-defined]
            session.objected = flagged = DecisionPreview(flags=(Flag("leak"),))
            await session.push(EventReceived(with_a_modify(coming.pop(0), session)))
            for way in chance.sample([*WAYS_IN.values()], len(WAYS_IN)):  # in any order
                await pilot.press(*["escape"] * 4, *way.split())
                await app.wait_for_requests()
            pressed = 0
            while pressed < count:
                keys = keys_of_a_person(chance)
                session.objected = chance.choice(
                    (flagged, DecisionPreview("E1 says so"), DecisionPreview())
                )
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
                is_seen = app.focused is None or is_visible(app.focused)
                assert is_seen or isinstance(app.screen, Palette), keys  # which appears when filled
                if chance.random() < 0.02:
                    await pilot.resize_terminal(chance.randint(60, 200), chance.randint(16, 50))
                if chance.random() < 0.05:
                    await app.wait_for_requests()
                    app.draw_frame()
                    await pilot.pause()
                    check_painted(app)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [1, 2])
async def test_two_thousand_keys_at_typing_speed_end_no_screen(seed: int) -> None:
    assert not await type_keys(seed, 1_000)


async def test_letters_typed_right_after_e_go_into_the_wording(tmp_path: Path) -> None:
    app, session, coming = app_before_lesson(tmp_path)
    fold(session.state, coming.pop(0))
    async with app.run_test(size=(120, 36)) as pilot:
        for page, box in (("2", "#review-edit"), ("3", "#library-edit")):
            await pilot.press(page)
            type_at_once(app, ["e" if page == "2" else "i", *"hello2"])
            await pilot.pause()
            await pilot.pause()
            assert app.page_name == {"2": "review", "3": "library"}[page]
            assert app.query_one(box, EditBox).text.endswith("hello2")
            await pilot.press("escape")
