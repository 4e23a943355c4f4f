"""Every key of the table as a command that can be found by its words.

A key of another page only opens that page: what has not been seen is not acted on.
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
    targets: dict[str, Widget] = {  # what an action is called on, by the scope of its key
        "global": screen,
        "loop": screen,
        "list": screen.focused or screen,
        host.page_name: page,
    }
    for key in host.keys:
        if key.id in _NOT_HERE:
            continue
        title = f"{_scope_name(key)}: {key.label} ({key.key_text})"
        call: Callable[[], object] = partial(_open_page, host, key)
        if target := targets.get(key.scope):
            call = partial(app.run_action, key.action, target)
        # What lists and other pages have is found by its words, and not listed unasked.
        near = key.scope in targets and key.scope != "list"
        yield SystemCommand(title, key.tooltip, call, near)
        if words := _ALSO.get(key.id):
            yield SystemCommand(f"{title}: {words}", key.tooltip, call, False)


def _scope_name(key: Key) -> str:
    if key.action.startswith("page("):
        return "open"
    return "screen" if key.scope == "global" else SCOPES[key.scope]


def _open_page(host: Host, key: Key) -> None:
    host.open_page(key.scope)
    host.tell(f"{key.key_text}: {key.tooltip}")
