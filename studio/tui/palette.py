"""Every key of the table as a command that can be found by its words.

Owns which commands there are. A key of another page opens that page and stops there: what
has not been seen is not acted on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from textual.app import SystemCommand
from textual.command import CommandInput, CommandList, CommandPalette
from textual.content import Content
from textual.widget import Widget
from textual.widgets.option_list import Option

from studio.tui.keymap import SCOPES, Key

if TYPE_CHECKING:
    from studio.tui.app import StudioApp

_NOT_HERE = frozenset({"global.palette", "global.interrupt"})
"""One is open already, the other a key that is pressed twice."""

_ALSO = {"global.detach": "quit, exit"}
"""Words that people look for."""


class Palette(CommandPalette):
    """Textual's, without blinking, and with a line where nothing is found."""

    def on_mount(self) -> None:
        self.query_one(CommandInput).cursor_blink = False

    def _start_no_matches_countdown(self, search_value: str) -> None:
        """At once: an empty list looks as if the search were still going on."""
        if search_value:
            none = Option(Content("nothing is called so"), disabled=True, id=self._NO_MATCHES)
            self.query_one(CommandList).clear_options().add_option(none)
        self._list_visible = bool(search_value)


def commands(app: StudioApp) -> Iterator[SystemCommand]:
    """All commands, those of the open page and the panes by what they do there."""
    focused = app.screen_stack[0].focused
    for key in app.keys:
        if key.id in _NOT_HERE:
            continue
        title = f"{_scope_name(key)}: {key.label} ({key.key_text})"
        # What lists and other pages have is found by its words, and not listed unasked.
        near = key.scope in ("global", "loop", app.page_name)
        yield SystemCommand(title, key.tooltip, _command_callback(app, key, focused), near)
        if words := _ALSO.get(key.id):
            yield SystemCommand(
                f"{title}: {words}", key.tooltip, _command_callback(app, key, focused), False
            )


def _scope_name(key: Key) -> str:
    if key.action.startswith("page("):
        return "open"
    return "screen" if key.scope == "global" else SCOPES[key.scope]


def _command_callback(app: StudioApp, key: Key, focused: Widget | None) -> Callable[[], object]:
    if key.scope in ("global", "loop"):
        return partial(app.run_action, key.action, app)
    if key.scope == "list":
        return partial(app.run_action, key.action, focused if focused is not None else app)
    if key.scope == app.page_name:
        return partial(app.run_action, key.action, app.page())

    def open_page() -> None:
        app.open_page(key.scope)
        app.tell(f"{key.key_text}: {key.tooltip}")

    return open_page
