"""Every key of the table as a command that can be found by its words.

Owns which commands there are. A key of another page opens that page and stops there: what
has not been seen is not acted on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from textual.app import App, SystemCommand
from textual.widget import Widget

from studio.tui.host import Host
from studio.tui.keymap import SCOPES, Key

_NOT_HERE = frozenset({"global.palette", "global.interrupt"})
"""One is open already, the other a key that is pressed twice."""

_ALSO = {"global.detach": "quit, exit"}
"""Words that people look for."""


def commands(app: App[Any], host: Host, page: Widget) -> Iterator[SystemCommand]:
    """All commands, those of the open page and the panes by what they do there."""
    screen = app.screen_stack[0]
    focused = screen.focused

    def find_target(key: Key) -> Widget | None:
        """What the action is called on; None where another page has the key."""
        if key.scope in ("global", "loop"):
            return screen
        if key.scope == "list":
            return focused if focused is not None else screen
        return page if key.scope == host.page_name else None

    def call(key: Key) -> Callable[[], object]:
        target = find_target(key)
        if target is None:
            return partial(_open_page, host, key)
        return partial(app.run_action, key.action, target)

    for key in host.keys:
        if key.id in _NOT_HERE:
            continue
        title = f"{_scope_name(key)}: {key.label} ({key.key_text})"
        # What lists and other pages have is found by its words, and not listed unasked.
        near = key.scope in ("global", "loop", host.page_name)
        yield SystemCommand(title, key.tooltip, call(key), near)
        if words := _ALSO.get(key.id):
            yield SystemCommand(f"{title}: {words}", key.tooltip, call(key), False)


def _scope_name(key: Key) -> str:
    if key.action.startswith("page("):
        return "open"
    return "screen" if key.scope == "global" else SCOPES[key.scope]


def _open_page(host: Host, key: Key) -> None:
    host.open_page(key.scope)
    host.tell(f"{key.key_text}: {key.tooltip}")
