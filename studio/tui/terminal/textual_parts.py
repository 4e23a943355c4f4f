"""Textual's app and widgets where the screen needs what Textual keeps private.

Only this folder touches such parts: pyproject.toml pins Textual's minor version for it, and
`tests/studio/tui/terminal/test_textual_parts.py` lists them.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any

from rich.text import Text
from textual import events
from textual.app import App
from textual.command import CommandInput, CommandList, CommandPalette
from textual.content import Content
from textual.widget import Widget
from textual.widgets.option_list import Option

from studio.secrets.sanitize import sanitize
from studio.tui.terminal.frame_clock import FrameClock
from studio.tui.terminal.terminal import with_current_size


class TerminalApp(App[int], inherit_bindings=False):  # Textual's own ctrl+q is not wanted
    """An app that follows its terminal."""

    frame_clock: FrameClock  # from the first frame on

    def __init__(self, environ: Mapping[str, str], clock: Callable[[], float]) -> None:
        super().__init__(ansi_color=None)
        self.animation_level = "none"
        self.environ, self.clock = environ, clock
        self.last_key = 0.0  # when one was pressed, by the clock

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key):
            self.last_key = self.clock()
        elif isinstance(event, events.Resize) and hasattr(self, "frame_clock"):
            event = with_current_size(self, event)
            self.frame_clock.buffer.forget()  # the terminal has moved its rows about
            if event.size == self.size:  # it has its old one again: Textual draws nothing then
                self.call_after_refresh(self.redraw_all)
        await super().on_event(event)

    def redraw_all(self) -> None:
        """Draw every cell again: something else wrote on the terminal."""
        self.frame_clock.buffer.forget()
        self.refresh(repaint=True, layout=True)
        self.screen.refresh(repaint=True)

    def send_to_terminal(self, sequence: str) -> None:
        """Write a control sequence, beside what is drawn."""
        if self._driver is not None and not self.is_headless:
            self._driver.write(sequence)

    def report_bug(self, error: Exception) -> None:
        """Leave with the traceback of an error that no handler of Textual saw."""
        self._handle_exception(error)

    def _fatal_error(self) -> None:
        """A bug: its traceback goes out after the terminal is restored, and without values.

        Textual's own prints local variables, among which are texts of models and keys.
        """
        self._exit_renderables.append(Text(sanitize(traceback.format_exc())))
        self._close_messages_no_wait()


class Palette(CommandPalette):
    """Textual's command palette, without blinking, and with a line where nothing is found."""

    def on_mount(self) -> None:
        self.query_one(CommandInput).cursor_blink = False

    def _start_no_matches_countdown(self, search_value: str) -> None:
        """At once: an empty list looks as if the search were still going on."""
        if search_value:
            none = Option(Content("no command has this name"), disabled=True, id=self._NO_MATCHES)
            self.query_one(CommandList).clear_options().add_option(none)
        self._list_visible = bool(search_value)


def border_title(pane: Widget) -> Content:
    """A pane's title as content; Textual's property returns it as markup only."""
    found = getattr(pane, "_border_title", None)
    return found if isinstance(found, Content) else Content("")


def has_synchronized_output(app: App[Any]) -> bool:
    """Whether the terminal said that it draws a frame at once."""
    return bool(getattr(app, "_sync_available", False))
