"""Which page is open, where escape leads back to, and the ways between panes."""

from collections import deque
from collections.abc import Awaitable
from typing import Any

from textual.app import App
from textual.content import Content
from textual.widget import Widget
from textual.widgets import ContentSwitcher

from studio.tui.page import Host, Page
from studio.tui.terminal.textual_parts import border_title

_LETTERS = "asdfghjklqwertyuiop"


class Navigation:
    """Opens pages and moves the focus; `app` and `host` are the same object."""

    def __init__(self, app: App[Any], host: Host) -> None:
        self._app, self._host = app, host
        self.page_name = "start"
        self._pages: list[Page] = []  # once they are mounted; none goes
        self.trail: deque[tuple[str, str]] = deque(maxlen=21)  # (page, id) to go back to
        self.is_drawn = False  # the first frame was, so that every page has its parts

    def page(self, name: str | None = None) -> Page:
        return self._app.screen_stack[0].query_one(f"#{name or self.page_name}", Page)

    @property
    def pages(self) -> list[Page]:
        if not self._pages:  # asked for at every message of a run
            self._pages = list(self._app.screen_stack[0].query(Page))
        return self._pages

    def open_page(self, name: str, target: str = "", *, keep_trail: bool = False) -> None:
        """Show a page, perhaps at an id; `keep_trail`: escape does not come back from there."""
        if target and not keep_trail and name != self.page_name:
            # Only who went after something comes back; number keys go where they say.
            self.trail.append((self.page_name, self._host.drafts.cursor))
        if name != self.page_name and self.is_drawn:
            self._host.forget_message(also_errors=False)
        self.page_name = name
        page = self.page(name)
        page.open_at(target)
        if self.is_drawn:  # before it is shown: what it held when it was left may be long past
            page.draw()
        base = self._app.screen_stack[0]
        base.query_one("#pages", ContentSwitcher).current = name
        if (home := page.initial_focus()) is not None and not self._host.is_asking:
            # At once, where `Widget.focus` waits its turn: the next key may have come already,
            # and it is this page's.
            base.set_focus(home, scroll_visible=False)
        self._host.drafts.page = name
        self._app.call_after_refresh(self._host.draw_now)

    def go_back(self) -> None:
        """Close what is open on the page, else go where the person came from."""
        if self.page().go_back():
            self._host.draw_now()
        elif self.trail:
            self.open_page(*self.trail.pop(), keep_trail=True)
        else:
            self._host.tell("nothing is open here to close: q leaves, 1-7 are pages")

    def ask_filter(self) -> None:
        page = self.page()
        asked = self._host.ask("filter:", page.filter_text)

        async def apply_answer() -> None:
            if (text := await asked) is not None:
                page.apply_filter(text.strip())
                self._host.draw_now()

        self._app.run_worker(apply_answer())

    def ask_target(self) -> None:
        """Ask for an id and go there; `g` again is the top of what has the focus now."""
        before = self._app.focused

        def go_to_top(key: str) -> bool:
            if key == "g" and before is not None and hasattr(before, "action_move_to_end"):
                before.action_move_to_end(-1)
                return True
            return False

        self._app.run_worker(self._go_to(self._host.ask("go to (g: top):", shortcut=go_to_top)))

    async def _go_to(self, asked: Awaitable[str | None]) -> None:
        target = (await asked or "").strip()
        if not target:
            return
        if self.page().go_to(target):
            self._host.draw_now()
        elif page := next((page for page in self.pages if page.go_to(target)), None):
            self.open_page(page.scope, target)
        else:
            self._host.tell(f"{target}: nothing has this name", "failed")

    def focus_page(self) -> None:
        """Give the focus to the open page where nothing has it."""
        if self._app.focused is None and (home := self.page().initial_focus()) is not None:
            home.focus(scroll_visible=False)

    def move_pane_focus(self, by: int) -> None:
        panes = self.page().panes()
        if not panes:
            return
        focused = self._app.focused
        at = panes.index(focused) if focused in panes else -by
        panes[(at + by) % len(panes)].focus(scroll_visible=False)

    def jump_to_pane(self) -> None:
        """Put letters on the panes; the next key chooses."""
        panes = self.page().panes()
        letters = _LETTERS[: len(panes)]
        # As content, in and out: text in a title is never markup.
        titles = [border_title(pane) for pane in panes]
        for letter, pane, title in zip(letters, panes, titles, strict=False):
            pane.border_title = Content(f"({letter}) ") + title
        chosen: list[Widget] = []

        def choose_pane(key: str) -> bool:
            if key in letters:
                chosen.append(panes[letters.index(key)])
            return True

        asked = self._host.ask("pane:", shortcut=choose_pane)

        async def go_to_pane() -> None:
            try:
                await asked
            finally:
                for pane, title in zip(panes, titles, strict=True):
                    if border_title(pane).plain[4:] == title.plain:  # else it has a new one by now
                        pane.border_title = title
            if chosen:
                chosen[0].focus(scroll_visible=False)

        self._app.run_worker(go_to_pane())
