"""Textual's app and widgets where the screen needs what Textual keeps private.

Only this folder touches such parts: pyproject.toml pins Textual's minor version for it, and
`tests/studio/tui/terminal/test_textual_parts.py` lists them.
"""

import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from rich.text import Text
from textual import events
from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual._xterm_parser import XTermParser
from textual.app import App, ComposeResult
from textual.await_complete import AwaitComplete
from textual.command import CommandInput, CommandList, CommandPalette
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.geometry import Size
from textual.messages import TerminalSupportsSynchronizedOutput
from textual.reactive import Reactive
from textual.screen import ModalScreen, Screen
from textual.scroll_view import ScrollView
from textual.widget import Widget
from textual.widgets import Input, LoadingIndicator, TextArea
from textual.widgets.option_list import Option

from studio.secrets.sanitize import sanitize
from studio.tui.keymap import Key, offer_keys
from studio.tui.terminal import frames, terminal

T = TypeVar("T")
MOST_HITS = 60
"""So many are listed in the palette."""
_keys_of_sequence = XTermParser._sequence_to_key_events


def _escape_first(parser: XTermParser, sequence: str, alt: bool = False) -> Iterable[events.Key]:
    """Escape and the key that a person typed right after it: nothing here listens to alt.

    Textual takes both for alt and that key, or for a sign that a Mac writes so.
    """
    known = isinstance(ANSI_SEQUENCES_KEYS.get(sequence), tuple)
    begins = sequence[1:] in ("[", "]", "O", "P", "_", "^")  # a longer sequence
    if alt or (len(sequence) == 2 and sequence[0] == "\x1b" and not (known or begins)):
        yield events.Key("escape", "\x1b")
        sequence = sequence[-1]
    yield from _keys_of_sequence(parser, sequence)


XTermParser._sequence_to_key_events = _escape_first  # type: ignore


class TerminalApp(App[int], inherit_bindings=False):  # Textual's own ctrl+q is not wanted
    def __init__(self, environ: Mapping[str, str], clock: Callable[[], float]) -> None:
        super().__init__(ansi_color=None)
        self.animation_level = "none"
        self.environ, self.clock = environ, clock
        self.frame_clock = frames.FrameClock()
        self.last_key = 0.0  # when one was pressed, by the clock
        self._is_size_told = False  # the driver said which one it began with
        # What had the focus when a key came: several may come before the first is acted on.
        self._aims: WeakKeyDictionary[events.Key, Widget | None] = WeakKeyDictionary()
        self._keys: deque[events.Key] = deque()  # that no widget took

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key) and not event.is_forwarded:
            self.last_key = self.clock()
            self._aims[event] = self.focused
        elif isinstance(event, events.Resize):
            event = terminal.with_current_size(self, event)
            self.frame_clock.buffer.forget()  # the terminal has moved its rows about
            was_told, self._is_size_told = self._is_size_told, True
            if event.size == self.size:
                if not was_told:
                    return  # all is laid out for it
                # It has its old one again, of which Textual draws nothing.
                self.call_after_refresh(self.redraw_all)
        await super().on_event(event)

    async def on_key(self, event: events.Key) -> None:
        """Act on a key that no widget took, after all that came before it."""
        event.prevent_default()
        self._keys.append(event)
        await self.act_on_keys()

    async def act_on_keys(self) -> None:
        """Act on the keys that came, in their order."""
        while self._keys:
            if not self.screen.is_mounted:  # it would be left, or asked, before its widgets exist
                self.screen.call_later(self.call_later, self.act_on_keys)
                return
            await self._act_on(self._keys.popleft())

    async def _act_on(self, event: events.Key) -> None:
        focused = self.focused
        if isinstance(focused, Input | TextArea) and self._aims.get(event, focused) is not focused:
            # The key before it asked for a text, and this one is its beginning.
            again = events.Key(event.key, event.character)
            self._aims[again] = focused
            focused._forward_event(again)
            return
        base = self.screen_stack[0]
        assert isinstance(base, FirstScreen)
        if isinstance(self.screen, Box) and self.screen.refuses(event):
            return
        if len(self.screen_stack) == 1 and await base.take_key(event.key):
            return
        if not await self._check_bindings(event.key):
            base.miss_key(event.key)

    def start_frames(self) -> None:
        """Begin the beat at which everything is drawn; without a terminal (tests) unpaced."""
        if hasattr(self._driver, "_writer_thread"):
            self.frame_clock.pace(self._driver, self.environ)
        self.set_interval(frames.BEAT_S, self.frame_clock.beat, name="clock")

    def _display(self, screen: Screen[Any], renderable: Any) -> None:
        update = frames.compact_update(renderable, self.frame_clock.buffer, self.size)
        super()._display(screen, update)
        if isinstance(update, frames.CompactUpdate) and update.written:
            self.frame_clock.record_written(update.written)

    def on_terminal_supports_synchronized_output(
        self, message: TerminalSupportsSynchronizedOutput
    ) -> None:
        if (pacer := self.frame_clock.pacer) is not None:
            pacer.record_answer(message.time)  # as the driver's thread read it

    def redraw_all(self) -> None:
        """Draw every cell again: something else wrote on the terminal."""
        self.frame_clock.buffer.forget()
        self.refresh(repaint=True, layout=True)
        self.screen.refresh(repaint=True)

    def send_to_terminal(self, sequence: str) -> None:
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


class FirstScreen(Screen[None], inherit_bindings=False):  # tab is a key of the table
    """The screen that an app opens with; Textual would style each widget three times for it."""

    def __init__(self, app: App[Any], *, id: str) -> None:
        super().__init__(id=id)
        width, height = app.size
        across, down = app.HORIZONTAL_BREAKPOINTS or [], app.VERTICAL_BREAKPOINTS or []
        fits = [*self._get_breakpoint_classes(width, across)]
        self.add_class(*fits, *self._get_breakpoint_classes(height, down), update=False)
        self.stack_updates = 1  # as if it had been resumed: its size is not ignored
        self._is_new = True

    async def take_key(self, pressed: str) -> bool:
        """Whether the key belongs to the one before it, and was acted on."""
        return False

    def miss_key(self, pressed: str) -> None:
        """The key does nothing here."""

    # Textual's own draws the whole screen whenever the focus moves; the two widgets do that.
    focused: Reactive[Widget | None] = Reactive(None, repaint=False)

    def on_screen_resume(self, event: events.ScreenResume) -> None:
        if self._is_new:  # what was styled when it was mounted is drawn when its size is told
            self._is_new = False
            event.prevent_default()

    def _screen_resized(self, size: Size) -> None:
        if size != self.outer_size:  # Textual tells each size twice
            super()._screen_resized(size)


class FixedView(ScrollView):
    """A scroll view whose place never follows what is in it; its bars must take no room.

    Textual would lay out and draw the whole screen anew whenever lines come or go.
    """

    def set_content_size(self, size: Size) -> None:
        self.set_reactive(Widget.virtual_size, size)
        self._scroll_update(size)

    def _refresh_scrollbars(self) -> None:
        is_higher = self.virtual_size.height > self.container_size.height
        self.set_reactive(Widget.show_vertical_scrollbar, is_higher)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        if round(old_value) != round(new_value):
            self.refresh()


class Box(ModalScreen[T]):
    """A screen over the page, which is left once however often its key is pressed."""

    @property
    def offered(self) -> Sequence[Key]:
        """The keys that are heard in it."""
        return ()

    def refuses(self, event: events.Key) -> bool:
        """Whether a key came too early to be meant for it; then says so."""
        return False

    def call_after_refresh(self, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
        def call() -> Any:  # not once it was left: its widgets are gone
            return callback(*args, **kwargs) if self in self.app.screen_stack else None

        return super().call_after_refresh(call)

    def dismiss(self, result: T | None = None) -> AwaitComplete:
        # Textual would pop whatever is on top by then, and fail on the last one.
        return super().dismiss(result) if self.is_active else AwaitComplete()


class Palette(CommandPalette):
    """Textual's command palette, without its icon and blinking, and a line where nothing fits."""

    offered = offer_keys({"enter": "does it", "escape": "leaves", "down": "next", "up": "previous"})

    def compose(self) -> ComposeResult:
        with Vertical(id="--container"):
            with Horizontal(id="--input"):
                yield CommandInput(placeholder=self._placeholder, select_on_focus=False)
            with Vertical(id="--results"):
                yield CommandList()
                yield LoadingIndicator()

    def on_mount(self) -> None:
        self.query_one(CommandInput).cursor_blink = False

    def dismiss(self, result: Any = None) -> AwaitComplete:
        self._cancel_gather_commands()
        return super().dismiss(result) if self.is_active else AwaitComplete()

    def _gather_commands(self, search_value: str) -> Any:
        # What was typed after it was left: the list is gone by the time that a search ends.
        return super()._gather_commands(search_value) if self.is_active else None

    def _action_command_list(self, action: str) -> None:
        # A list that was not laid out yet has no pages: Textual ends with a KeyError.
        if "page" not in action or self.query_one(CommandList)._index_to_line:
            super()._action_command_list(action)

    def _start_no_matches_countdown(self, search_value: str) -> None:
        """At once: an empty list looks as if the search were still going on."""
        if not self.is_active:
            return
        if search_value:
            none = Option(Content("nothing fits"), disabled=True, id=self._NO_MATCHES)
            self.query_one(CommandList).clear_options().add_option(none)
        self._list_visible = bool(search_value)


def is_visible(widget: Widget) -> bool:
    """Whether neither it nor what it is in is hidden."""
    return all(node.display for node in widget.ancestors_with_self if isinstance(node, Widget))


def make_compact(field: Input | TextArea) -> None:
    """Do what `compact=True` does, which styles the field before it has a place on the screen."""
    field.set_reactive(type(field).compact, True)
    field.add_class("-textual-compact", update=False)


def border_title(pane: Widget) -> Content:
    """A pane's title as content; Textual's property returns it as markup only."""
    found = getattr(pane, "_border_title", None)
    return found if isinstance(found, Content) else Content("")


def has_synchronized_output(app: App[Any]) -> bool:
    """Whether the terminal said that it draws a frame at once."""
    return bool(getattr(app, "_sync_available", False))
