"""Every key of the table as a command that can be found by its words.

Owns which commands there are. A key of another page opens that page and stops there: what
has not been seen is not acted on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from textual.app import SystemCommand
from textual.widget import Widget

from studio.tui.keymap import SCOPES, Key

if TYPE_CHECKING:
    from studio.tui.app import StudioApp

_NOT_HERE = frozenset({"global.palette", "global.interrupt"})
"""One is open already, the other a key that is pressed twice."""


def commands(app: StudioApp) -> Iterator[SystemCommand]:
    """All commands, those of the open page and the panes by what they do there."""
    focused = app.screen_stack[0].focused
    for key in app.keys:
        if key.id in _NOT_HERE:
            continue
        title = f"{_of(key)}: {key.label} ({key.written})"
        # What lists and other pages have is found by its words, and not listed unasked.
        near = key.scope in ("global", "loop", app.page_name)
        yield SystemCommand(title, key.tooltip, _doing(app, key, focused), near)


def _of(key: Key) -> str:
    if key.action.startswith("page("):
        return "open"
    return "screen" if key.scope == "global" else SCOPES[key.scope]


def _doing(app: StudioApp, key: Key, focused: Widget | None) -> Callable[[], object]:
    if key.scope in ("global", "loop"):
        return partial(app.run_action, key.action, app)
    if key.scope == "list":
        return partial(app.run_action, key.action, focused if focused is not None else app)
    if key.scope == app.page_name:
        return partial(app.run_action, key.action, app.page())

    def open_page() -> None:
        app.open_page(key.scope)
        app.tell(f"{key.written}: {key.tooltip}")

    return open_page
