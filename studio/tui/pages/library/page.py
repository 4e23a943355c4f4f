"""Library: what has been learned; changes become operations in the same queue as all others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from textual.app import ComposeResult
from textual.containers import Container
from textual.widget import Widget

from engines.core.library import Library
from engines.core.types import Operation
from studio.session.session import Message
from studio.tui.drawing.lines import paragraph
from studio.tui.keymap import Key
from studio.tui.page import Page
from studio.tui.pages.library import view
from studio.tui.pages.library.loader import LibraryLoader, export_library
from studio.tui.pages.library.panes import EntryList, Side, SidePane
from studio.tui.pages.library.proposals import ProposalKeys
from studio.tui.pages.library.view import Item, LibraryState
from studio.tui.pages.text import display_text
from studio.tui.widgets.edit_box import EDIT_KEYS, EditBox
from studio.tui.widgets.row_list import RowList


class LibraryPage(Page):
    """The run's library with its draft; without a run, those of the workspace to read."""

    scope = "library"

    def __init__(self) -> None:
        super().__init__()
        self.contents: LibraryState | None = None
        self.loader = LibraryLoader(self)
        self.entries = EntryList(self, self.loader)
        self.side = SidePane(self, self.loader)
        self.proposals = ProposalKeys(self)
        self.history_of = ""  # an experience whose history is shown as soon as it is there
        self._chosen = ""  # a library of the workspace, where no run is open
        self._made_of: object = None  # what the contents was made of

    def compose(self) -> ComposeResult:
        with Container(id="library-panes"):
            yield self.entries.pane
            with Container(id="library-side"):
                yield self.side.about
                yield self.side.uses
                yield self.proposals.box

    def initial_focus(self) -> Widget:
        return self.proposals.box if self.proposals.is_asking else self.entries.pane

    def panes(self) -> list[Widget]:
        return [self.proposals.box] if self.proposals.is_asking else super().panes()

    def footer_keys(self) -> Sequence[Key]:
        return EDIT_KEYS if self.proposals.is_asking else ()

    # -- what is there ---------------------------------------------------------------------

    @property
    def library_name(self) -> str:
        """Of the library that is shown; "" where one is to be chosen, or the run has not begun."""
        if self.session is None:
            return self._chosen
        started = self.state.started if self.state is not None else None
        return started.library if started is not None else ""

    def open_at(self, target: str = "") -> None:
        self.loader.mark_due()
        if target and not self.go_to(target):
            if self.session is not None or self.contents is not None:
                self.entries.wanted = target
            elif target in {folder.name for folder in self.host.workspace.libraries()}:
                self._chosen = target

    def handle_message(self, message: Message) -> None:
        self.loader.handle_message(message)

    def _library_state(self) -> LibraryState | None:
        """What is known now; the same object while nothing of it changed."""
        if not self.loader.history:
            return None
        head, state = self.loader.history[-1][0], self.state
        draft: Library | None = None
        waiting: tuple[Operation, ...] = ()
        made: tuple[object, ...] = (head, id(self.loader.uses))
        if state is not None:
            waiting = state.open_operations
            made = (*made, waiting, state.reviewed_operations)
        if self.contents is not None and self._made_of == made:
            return self.contents
        if state is not None and state.reviewed_operations:
            # As the gate does: decisions stand on the head, whatever moved it.
            limit = state.settings.get("practice.library_limit")
            draft = head.commit(state.reviewed_operations, limit=limit).library
        self._made_of = made
        return LibraryState(head, draft, waiting, self.loader.uses)

    def draw(self) -> None:
        name = self.library_name
        if self.loader.shows_other_than(name):
            self.contents = None
            self.side.show("about")
        self.loader.reload_if_due(name)
        self.contents = contents = self._library_state()
        self.has_nothing = contents is None
        if contents is not None:
            self.entries.draw(contents)
            if self.history_of and self.entries.pane.key == self.history_of:
                self.history_of = ""
                self.side.show("about")
                self.action_history()
            self.side.draw(self.entries.item, contents)
            return
        self.side.clear()
        if self.entries.draw_libraries(name):
            hint = "No run is open: libraries can be read here. enter shows the experiences of one."
            about = self.side.about
            about.show_lines(paragraph(((hint, "dim"),), about.line_width))

    def on_row_list_moved(self, event: RowList.Moved) -> None:
        if event.rows is not self.entries.pane:
            return
        event.stop()
        if self.side.shows != "history" or self.loader.commits_of != event.key:
            self.side.show("about")
        if self.contents is not None:
            self.side.draw(self.entries.item, self.contents)
        if self.is_open:
            self.host.drafts.cursor = event.key

    # -- keys: changes ---------------------------------------------------------------------

    def _can_change(self, *, needs_one: bool = True, command: str = "edit") -> bool:
        if self.session is None:
            name = self.library_name or "NAME"
            one = f" {self.entries.item.id}" if self.entries.item is not None else " ID"
            self.host.tell(f"no run is open: studio library {command} {name}{one} does it by hand")
        elif self.contents is None:
            self.host.tell("the library is not read yet", "failed")
        elif needs_one and self.entries.item is None:
            self.host.tell("nothing is under the cursor", "failed")
        else:
            return True
        return False

    async def _ask_about(
        self, ask: Callable[[Item], Awaitable[None]], one: Item | None = None
    ) -> None:
        """Ask for a change of one, or of what is under the cursor, if it may be changed."""
        if self._can_change() and (one := one or self.entries.item) is not None:
            self.run_exclusive("asks", partial(ask, one))
            await asyncio.sleep(0)  # the box opens: the next key is the text's first letter

    async def action_edit(self) -> None:
        await self._ask_about(self.proposals.edit)

    def action_delete(self) -> None:
        if self._can_change() and (one := self.entries.item) is not None:
            asks = self.host.expect_question(self.proposals.delete(one))
            self.run_worker(asks, group="asks")

    def action_mark(self) -> None:
        if self.entries.item is not None and self.contents is not None:
            n = self.entries.toggle_mark(self.entries.item.id)
            text = {0: "none is marked", 1: "1 marked: mark another one, then M"}
            self.host.tell(text.get(n, f"{n} marked: M merges two"))

    async def action_merge(self) -> None:
        one, contents = self.entries.item, self.contents
        marked = [found for found in self.entries.items if found.id in self.entries.pane.chosen]
        if len(marked) in (0, 2):
            into = marked[0].id if marked else ""
            one = marked[1] if marked else one
        else:
            self.host.tell(f"{len(marked)} marked: M merges two; esc takes the marks away")
            return
        others = {found.id: found for found in view.items(contents)} if contents is not None else {}
        alike = self.loader.similar(contents.library, one) if contents is not None and one else None
        likeliest = alike[0][0] if alike else ""
        ask = partial(self.proposals.merge, others=others, likeliest=likeliest, into=into)
        await self._ask_about(ask, one)
        self.entries.forget_marks()

    def action_pin(self) -> None:
        if self._can_change(command="pin") and self.entries.item is not None:
            self.proposals.pin(self.entries.item)

    async def action_insert(self) -> None:
        if self._can_change(needs_one=False):
            self.run_exclusive("asks", self.proposals.insert)
            await asyncio.sleep(0)

    def on_edit_box_handed_in(self, event: EditBox.HandedIn) -> None:
        event.stop()
        self.proposals.answer(event.text)

    def on_edit_box_left(self, event: EditBox.Left) -> None:
        event.stop()
        self.proposals.answer(None)

    # -- keys: looking ---------------------------------------------------------------------

    def _toggle_side(self, side: Side) -> None:
        self.side.show("about" if self.side.shows == side else side)
        if self.contents is not None:
            self.side.draw(self.entries.item, self.contents)

    def action_uses(self) -> None:
        if self.contents is None:
            if self.session is None and self.entries.pane.key:
                self._chosen, self.loader.is_due = self.entries.pane.key, True
                self.filter_text = ""
                self.host.draw_now()
        elif self.side.shows == "uses" and self.app.focused is self.side.uses:
            if self.side.uses.key:
                self.host.open_page("inspect", self.side.uses.key)
        elif self.entries.item is not None and self.session is None:
            self.host.tell("no run is open: a library alone does not know who cites it")
        elif self.entries.item is not None:
            self.side.show("uses")
            self.side.draw(self.entries.item, self.contents)

    def action_history(self) -> None:
        if self.entries.item is not None and self.loader.folder is not None:
            if self.side.shows != "history":
                self.loader.request_commits(self.entries.item.id)
            self._toggle_side("history")

    def action_changed(self) -> None:
        if self.entries.item is not None:
            self._toggle_side("change")

    def action_sort(self) -> None:
        self.entries.choose_next_sort()
        self.host.draw_now()
        self.host.tell(f"sorted by {self.entries.sort}")

    def action_export(self) -> None:
        folder = self.loader.folder
        if folder is None or self.contents is None:
            self.host.tell("there is no library to export", "failed")
            return
        library = self.contents.library
        write = partial(export_library, self.host.workspace, folder, library)
        self.export_file(write, f"{library.name}@{library.version} is")

    # -- what every page has ---------------------------------------------------------------

    def go_to(self, name: str) -> bool:
        if self.contents is None or name not in {one.id for one in view.items(self.contents)}:
            return False
        if name not in {one.id for one in self.entries.items}:
            self.apply_filter("")
        return self.entries.pane.go_to(name)

    def go_back(self) -> bool:
        if self.side.shows != "about":
            self._toggle_side(self.side.shows)
        elif self.entries.pane.chosen:
            self.entries.forget_marks()
        elif not super().go_back():
            if self.session is not None or not self._chosen:
                return False
            self._chosen, self.loader.is_due = "", True
        return True

    def text_to_copy(self, whole: bool) -> str:
        if self.contents is None or self.app.focused is not self.entries.pane:
            return super().text_to_copy(whole)
        shown = self.entries.items if whole else filter(None, [self.entries.item])
        return "\n".join(f"{one.id}  {display_text(one.drafted or one.text)}" for one in shown)
