"""What the terminal shows is what the screen holds: from the first beat, resized, resumed."""

from __future__ import annotations

import random
import unicodedata
from pathlib import Path
from typing import Any

import pyte
import pytest
from rich.segment import Segment
from rich.style import Style
from textual._compositor import LayoutUpdate
from textual.geometry import Region, Size
from textual.strip import Strip

from engines.core import events as ev
from engines.core.types import CallKey
from studio.session.session import EventReceived, TextPiece, TextReceived
from studio.tui.app import StudioApp
from studio.tui.drawing.cells import pad
from studio.tui.terminal.frames import ScreenBuffer, compact_update
from tests.studio.tui.stage import FakeSession, app_on, held_workspace, picture


async def test_text_that_streams_is_on_the_screen_after_one_beat_without_a_key(
    tmp_path: Path,
) -> None:
    workspace = held_workspace(tmp_path)
    session = FakeSession(workspace.run("mine"))
    app = app_on(session, workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        terminal = Terminal(app, 120, 36)
        step = ev.StepStarted(1, 2, ("p1", "p2"), 1, 0)
        began = ev.RolloutStarted(CallKey("rollout", 1, 2, 0, 0), "p1")
        await session.push(EventReceived(step), EventReceived(began))
        app.frame_clock.tick()
        await pilot.pause()
        await session.push(TextReceived((TextPiece("s2p0r0", 0, "Three primes divide it."),)))
        app.frame_clock.tick()
        await pilot.pause()
        assert "Three primes" in "\n".join(terminal.text)


class Terminal:
    """A terminal of changing size that an app is painted on, as the frame clock does it."""

    def __init__(self, app: StudioApp, columns: int, rows: int) -> None:
        self.app = app
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.Stream(self.screen)
        app._display = self._display  # type: ignore[method-assign]

    def _display(self, screen: Any, update: Any) -> None:
        of, size = self.app.frame_clock.buffer, self.app.size
        if update is not None:
            self.stream.feed(compact_update(update, of, size).render_segments(self.app.console))

    @property
    def text(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display]


SIZES = (
    (120, 30),
    (80, 30),
    (80, 24),
    (60, 16),
    (59, 15),
    (120, 36),
    (100, 30),
    (80, 24),
    (140, 45),
    (120, 36),
)


@pytest.mark.parametrize("streaming", [False, True])
async def test_after_every_resize_the_terminal_shows_what_the_screen_holds(
    tmp_path: Path, streaming: bool
) -> None:
    workspace = held_workspace(tmp_path)
    session = FakeSession(workspace.run("mine"))
    app = app_on(session, workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        terminal = Terminal(app, 120, 36)
        await pilot.press("1" if streaming else "2")
        if streaming:
            await session.push(EventReceived(ev.StepStarted(1, 2, ("p1", "p2"), 1, 0)))
        offset = 0
        for columns, rows in SIZES:
            terminal.screen.resize(rows, columns)  # drops rows from the top where it gets lower
            await pilot.resize_terminal(columns, rows)
            for _ in range(3):
                if streaming:
                    text = f"word {offset} of a text that goes on. "
                    await session.push(TextReceived((TextPiece("s2p0r0", offset, text),)))
                    offset += len(text)
                app.frame_clock.tick()
                await pilot.pause()
            app.screen._on_timer_update()  # what waits for its frame
            assert terminal.text == picture(app), (columns, rows)


async def test_a_terminal_that_has_its_old_size_again_is_drawn_anew(tmp_path: Path) -> None:
    workspace = held_workspace(tmp_path)
    app = app_on(FakeSession(workspace.run("mine")), workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        terminal = Terminal(app, 120, 36)
        await pilot.press("2")
        terminal.screen.resize(24, 80)  # and back before the app has looked
        terminal.screen.resize(36, 120)
        await pilot.resize_terminal(120, 36)
        await pilot.pause()
        app.screen._on_timer_update()
        assert terminal.text == picture(app)


async def test_what_is_back_in_the_foreground_is_drawn_whole(tmp_path: Path) -> None:
    workspace = held_workspace(tmp_path)
    app = app_on(FakeSession(workspace.run("mine")), workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        terminal = Terminal(app, 120, 36)
        await pilot.press("2")
        terminal.screen.reset()  # the shell, or an editor, was there meanwhile
        app.app_resume_signal.publish(app)
        await pilot.pause()
        app.screen._on_timer_update()
        assert terminal.text == picture(app)


# -- widths that terminals dispute -------------------------------------------------------


class Disputing:
    """A row of a terminal that gives characters other widths than the screen does.

    Marks of Mc and Me take a cell of their own, emoji one cell: as tmux 3.3 with its tables.
    """

    def __init__(self, columns: int) -> None:
        self.cells = [" "] * columns

    def feed(self, data: str) -> None:
        x, at = 0, 0
        while at < len(data):
            if data[at] == "\x1b":
                end = at + 2
                while not data[end].isalpha():
                    end += 1
                number = data[at + 2 : end].split(";")
                if data[end] == "H":
                    x = int(number[1]) - 1
                elif data[end] == "C":
                    x += int(number[0])
                elif data[end] == "X":
                    for each in range(x, min(len(self.cells), x + int(number[0]))):
                        self._clear(each)
                at = end + 1
                continue
            x = self._draw(data[at], x)
            at += 1

    def _draw(self, char: str, x: int) -> int:
        kind = unicodedata.category(char)
        if kind == "Mn" and x:
            self.cells[x - 1] += char
            return x
        wide = unicodedata.east_asian_width(char) in "WF" and char < "\U0001f000"
        for each in range(x, min(len(self.cells), x + 1 + wide)):
            self._clear(each)
        if x < len(self.cells):
            self.cells[x] = char
        if wide and x + 1 < len(self.cells):
            self.cells[x + 1] = ""
        return x + 1 + wide

    def _clear(self, x: int) -> None:
        """A wide character that is half drawn over is gone whole."""
        if self.cells[x] == "" and x:
            self.cells[x - 1] = " "
        if x + 1 < len(self.cells) and self.cells[x + 1] == "":
            self.cells[x + 1] = " "
        self.cells[x] = " "


WORDS = (
    "plain ",
    "हिन्दी ",
    "किताब ",
    "1\u20e3 ",
    "😀 ",
    "中文 ",
    "e\u0301 ",
    "\U0001faf8",
    "कि",
    "│",
)


def test_where_widths_are_disputed_what_is_sent_in_pieces_is_a_full_repaint() -> None:
    chance = random.Random(5)
    columns = 24
    size = Size(columns, 1)
    for _ in range(40):
        here, shown = ScreenBuffer(), Disputing(columns)
        for turn in range(12):
            text = pad("".join(chance.choice(WORDS) for _ in range(8)), columns - 2) + "│"
            text += "ab"[turn % 2]
            update = _row(text, size)
            shown.feed(compact_update(update, here, size).render_segments(_console()))
            whole = Disputing(columns)
            whole.feed(
                compact_update(_row(text, size), ScreenBuffer(), size).render_segments(_console())
            )
            assert shown.cells == whole.cells, text
            assert shown.cells[-2:] == ["│", "ab"[turn % 2]]


def _row(text: str, size: Size) -> LayoutUpdate:
    return LayoutUpdate([[Strip([Segment(text, Style())])]], Region(0, 0, *size))


def _console() -> Any:
    from rich.console import Console

    return Console(color_system="truecolor", force_terminal=True)
