"""Draws the open page and the lines around it: in the next frame for events, at once for keys."""

from dataclasses import replace

from textual.geometry import Size
from textual.widgets import TextArea

from studio.secrets.sanitize import sanitize
from studio.tui.actions import MainScreen
from studio.tui.attachment import Attachment
from studio.tui.drawing.cells import cell_width, fit
from studio.tui.drawing.lines import Line, crop_line, line
from studio.tui.header import SessionStatus, header_line, tab_presses, tabs_line
from studio.tui.keymap import Key, keys_of_scope
from studio.tui.navigation import Navigation
from studio.tui.page import Host
from studio.tui.pages.demo_hint import DemoHints, is_demo
from studio.tui.terminal.notify import Notifier
from studio.tui.terminal.textual_parts import TerminalApp
from studio.tui.widgets.line_view import Chrome, footer_line, footer_presses

RATE_S = 1.0
"""Between two drawings of a rate that falls because nothing comes."""


MESSAGE_S, ERROR_S = 8.0, 20.0
"""How long the line above the keys says something; what went wrong stands longer."""
SEEN_S = 2.0
"""So long a message stands although the run has gone on from what it speaks of."""


def is_small(size: Size) -> bool:
    """Whether a terminal is smaller than what the pages are made for."""
    return size.width < 60 or size.height < 16


class Painter:
    """The drawing of one app; `app` and `host` are the same object."""

    def __init__(
        self, app: TerminalApp, host: Host, navigation: Navigation, attachment: Attachment
    ) -> None:
        self._app, self._host = app, host
        self._navigation, self._attachment = navigation, attachment
        self.notifier = Notifier(host, app.send_to_terminal)
        self._is_dirty = False
        self._shows_rate, self._chrome_at = False, 0.0
        self._last_action: Line = ()
        self._told_at = 0.0
        self._told_of: object = None  # where the run stood then
        self._is_told_small = False  # it was said since the terminal is too small

    def redraw_soon(self) -> None:
        self._is_dirty = True

    def draw_frame(self) -> None:
        """Called by the frame clock, at most ten times a second."""
        now, drafts = self._host.clock(), self._host.drafts
        self.notifier.tick(self._attachment.state, now, self._app.last_key)
        drafts.save_if_due(now)
        if drafts.trouble:
            self._host.tell(drafts.trouble, "failed")
            drafts.trouble = ""
        if not self._is_mounted:
            return  # the screen is being left, and a frame was under way
        if self._last_action:
            age_s, went_wrong = now - self._told_at, bool(self._last_action[0][1])
            is_old = age_s >= (ERROR_S if went_wrong else MESSAGE_S)
            is_old |= age_s >= SEEN_S and self._told_of != self._standing
            is_answered = self._app.last_key > self._told_at  # a key was pressed since
            is_old |= age_s >= (MESSAGE_S if went_wrong else SEEN_S) and is_answered
            if is_old:
                self.forget_message()
        if self._is_dirty:
            self.draw_now()
        elif self._shows_rate and now - self._chrome_at >= RATE_S:
            self.draw_chrome()  # nothing comes any more, and the rate is to say so
        elif is_demo(self._attachment.state):
            self._draw_demo_hint()  # it follows the cursor, which no event tells of

    def draw_now(self) -> None:
        self._is_dirty = False
        if self._is_mounted:
            self._navigation.page().draw()
            self.draw_chrome()  # its keys follow from what is on the page

    @property
    def _is_mounted(self) -> bool:
        """Whether there is something to draw on; not so while the screen is left."""
        screens = self._app.screen_stack
        # Asked at each beat: a query would look at every widget of all pages.
        return bool(screens) and any(child.id == "top" for child in screens[0].children)

    def draw_chrome(self) -> None:
        if not self._is_mounted:
            return
        top, size = self._app.screen_stack[0].query_one("#top", Chrome), self._app.size
        state, status = self._attachment.state, self._host.session_status
        self._shows_rate, self._chrome_at = status.tokens_per_s is not None, self._host.clock()
        name, page, keys = self._navigation.page_name, self._navigation.page(), self._host.keys
        top.show_line(0, header_line(state, status, size.width))
        tabs = tabs_line(state, name, size.width)
        top.show_line(1, tabs, tab_presses(tabs))
        self._draw_demo_hint()
        base = self._app.screen_stack[0]
        shown = base.heard_keys if isinstance(base, MainScreen) else ()
        if not shown:
            shown = [*page.usable_keys(keys_of_scope(name, keys)), *self._common_keys(status)]
        self._bottom.show_line(1, footer_line(shown, size.width), footer_presses(shown))
        shown_action = self._last_action
        if not is_small(size):
            self._is_told_small = False
        elif not self._is_told_small:
            text = f"terminal is {size.width}x{size.height}, studio wants 80x24"
            shown_action = line((f" {text} (works from 60x16)", "flag"))
        self._bottom.show_line(0, shown_action)

    def _draw_demo_hint(self) -> None:
        """A third line, where a demo is shown and there is room for it."""
        state, size = self._attachment.state, self._app.size
        top = self._app.screen_stack[0].query_one("#top", Chrome)
        shown = state is not None and is_demo(state) and not is_small(size)
        top.set_class(shown, "-hinting")  # lays the page out anew, and only where it differs
        if state is not None and shown:
            types = isinstance(self._app.focused, TextArea)
            hint = DemoHints(self._host.keys).hint(
                state, self._navigation.page_name, self._host.drafts.cursor, types=types
            )
            top.show_line(2, crop_line(line((" look: ", "flag"), hint), size.width))

    def _common_keys(self, status: SessionStatus) -> list[Key]:
        """Those of every page that are of use now; of a run to resume this one comes first."""
        keys, state, left_out = self._host.keys, self._attachment.state, set()
        if not status.living:
            left_out.add("global.steer")
        page = self._navigation.page()
        has_some = page.scope == "review" and not page.has_nothing and not self._host.is_small
        if status.replay or (not status.ready and not has_some):
            left_out.add("global.commit")
        shown = [key for key in keys_of_scope("global", keys) if key.id not in left_out]
        can_resume = state is not None and state.started and state.ending != "finished"
        if can_resume and not status.living and (page.scope == "live" or page.has_nothing):
            loop = keys_of_scope("loop", keys)
            shown += [replace(key, rank=10) for key in loop if key.id == "loop.resume"]
        return shown

    @property
    def _bottom(self) -> Chrome:
        return self._app.screen_stack[0].query_one("#bottom", Chrome)

    @property
    def _standing(self) -> object:
        """What a message speaks of: the run, what it does, and whether its process is there."""
        state, session = self._attachment.state, self._attachment.session
        return session, state.status if state else "", self._attachment.is_living

    def forget_message(self, *, also_errors: bool = True) -> None:
        """It is not true any more: a page was opened, or the run has gone on."""
        if also_errors or not (self._last_action and self._last_action[0][1]):
            self._last_action = ()
            self._bottom.show_line(0, ())

    def tell(self, text: str, style: str = "") -> None:
        path = self._host.workspace.path
        # What failed needs the line for what happened; a file that was written has to be found.
        text = text.replace(f"{path.absolute()}/", f"{path}/")
        if style == "failed":
            text = text.replace(f"{path}/", "")
        elif cell_width(text) >= self._app.size.width:  # its end names the file
            text = text.replace(f"{path}/", f".../{path.absolute().name}/")
        self._last_action = ((" " + fit(sanitize(text), 400), style),)
        self._told_at, self._told_of = self._host.clock(), self._standing
        self._is_told_small = is_small(self._app.size)
        self._bottom.show_line(0, self._last_action)
