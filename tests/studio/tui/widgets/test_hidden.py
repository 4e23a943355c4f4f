"""Whatever changed of a widget while it was hidden is drawn once it is shown.

Each widget of the screen that draws itself is found by its class: a new one is looked at as well,
and fails here until `change` knows how it is changed.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from textual.app import App, ComposeResult
from textual.containers import Vertical
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Button, ContentSwitcher, Input, TextArea

import studio.tui
from studio.tui.drawing.canvas import PaneModel, StreamCanvas
from studio.tui.drawing.lines import Row, line
from studio.tui.page import Page
from studio.tui.widgets.line_view import Activity, Chrome, LineView, RowList
from tests.studio.tui.stage import check_painted, picture

SIZES = ((40, 9), (30, 7), (40, 9))


def drawing_widgets() -> list[type[Widget]]:
    """Classes of the screen that are no mere frame around other widgets."""
    for module in pkgutil.walk_packages(studio.tui.__path__, "studio.tui."):
        importlib.import_module(module.name)
    found: list[type[Widget]] = []
    todo = [Widget]
    while todo:
        for cls in todo.pop().__subclasses__():
            todo.append(cls)
            own = cls.__module__.startswith("studio.tui.")
            draws = "render_line" in vars(cls) or not cls.__subclasses__()
            if own and draws and not issubclass(cls, Screen | Page) and "compose" not in vars(cls):
                found.append(cls)
    return sorted(set(found), key=lambda cls: cls.__name__)


def make(cls: type[Widget]) -> Widget:
    needed = [
        parameter
        for parameter in inspect.signature(cls).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    given = {p.name: "made" if p.annotation in ("str", str) else Mock(scope="made") for p in needed}
    return cls(**given)


def change(widget: Widget, texts: list[str]) -> None:
    """Let it show these lines."""
    match widget:
        case StreamCanvas():
            widget.set_panes([PaneModel(f"r{at}", f"r{at}") for at in range(len(texts))])
            for at, text in enumerate(texts):
                widget.reset(f"r{at}", text)
            widget.flush()
        case Chrome():
            for at in range(2):
                widget.show_line(at, line(texts[at] if at < len(texts) else ""))
        case Activity():
            widget.clock_text = lambda at: ""
            widget.clear_lines()
            for text in texts:
                widget.say(text)
            widget.draw()
        case RowList():
            widget.show_rows([Row(text, line(text)) for text in texts])
        case LineView():
            widget.show_lines([line(text) for text in texts])
        case Input():
            widget.value = texts[0]
        case TextArea():
            widget.display = True
            widget.text = "\n".join(texts)
        case _:
            pytest.fail(f"how is {type(widget).__name__} changed?")


class Hiding(App[None]):
    def __init__(self, shown: Widget) -> None:
        super().__init__()
        self.shown = shown
        shown.can_focus = False  # else Textual draws it again as the focus comes and goes

    def compose(self) -> ComposeResult:
        with ContentSwitcher(initial="page", id="pages"):
            yield Vertical(self.shown, id="page")  # of what it hides itself it draws all again
            yield Button(id="other")

    async def switch(self, to: str, pilot: Pilot[None]) -> None:
        self.query_one("#pages", ContentSwitcher).current = to
        for _ in range(2):  # it is arranged, then drawn at its size: however long a frame takes
            drawn = asyncio.Event()
            self.call_after_refresh(drawn.set)
            await drawn.wait()
            await pilot.pause()


def texts(word: str, count: int) -> list[str]:
    return [f"{word} {at}" for at in range(count)]


CHANGES: dict[str, Callable[[int], list[str]]] = {
    "as many lines": lambda at: texts(f"new{at}", 3),
    "more lines": lambda at: texts(f"more{at}", 30),
    "fewer lines": lambda at: texts(f"few{at}", 1),
}


@pytest.mark.parametrize("cls", drawing_widgets(), ids=lambda cls: cls.__name__)
async def test_what_changed_while_it_was_hidden_is_drawn_as_if_it_were_new(
    cls: type[Widget],
) -> None:
    app = Hiding(make(cls))
    async with app.run_test(size=SIZES[0]) as pilot:
        change(app.shown, texts("old", 3))
        await pilot.pause()
        assert "old 0" in "\n".join(picture(app))
        for at, (name, made) in enumerate(CHANGES.items()):
            await app.switch("other", pilot)
            change(app.shown, made(at))
            if at:  # the terminal changes size meanwhile
                await pilot.resize_terminal(*SIZES[at])
                await pilot.pause()
            await app.switch("page", pilot)
            seen = picture(app)
            check_painted(app)
            assert not any("old" in row for row in seen), name
            fresh: Any = Hiding(make(cls))
            async with fresh.run_test(size=app.size) as other:
                change(fresh.shown, made(at))
                await other.pause()
                assert [row.strip() for row in seen] == [row.strip() for row in picture(fresh)], (
                    name
                )


def test_every_widget_of_the_screen_is_looked_at() -> None:
    names = {cls.__name__ for cls in drawing_widgets()}
    assert {"Chrome", "LineView", "Activity", "StreamCanvas", "EditBox"} <= names
