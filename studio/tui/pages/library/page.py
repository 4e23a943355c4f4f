"""Library: what has been learned; changes become operations in the same queue as all others."""

import asyncio
from asyncio import Future, get_running_loop
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Literal

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Container
from textual.content import Content
from textual.widget import Widget

from engines.core.library import Library
from engines.core.library_notes import NO_USES
from engines.core.types import Operation, OperationKind
from studio.review.decider import toggle_pin
from studio.secrets.sanitize import one_line
from studio.session.requests import Propose
from studio.session.session import Message, Session
from studio.tui.drawing.cells import choose_glyphs
from studio.tui.drawing.lines import Line, line, note_rows, paragraph
from studio.tui.keymap import Key
from studio.tui.page import Page
from studio.tui.pages.library import view
from studio.tui.pages.library.loader import LibraryLoader, export_library
from studio.tui.pages.library.view import Item, LibraryState
from studio.tui.pages.text import display_text
from studio.tui.widgets.edit_box import EDIT_KEYS, EditBox
from studio.tui.widgets.line_view import LineView, RowList


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
            asks = self.proposals.delete(one)
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

    def _toggle_side(self, side: "Side") -> None:
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


Side = Literal["about", "uses", "history", "change"]


class EntryList:
    def __init__(self, page: Page, loader: LibraryLoader) -> None:
        self._page, self._loader = page, loader
        self.pane = RowList(id="library-list", classes="pane")
        self.sort: view.Sort = view.SORTS[0]
        self.items: tuple[Item, ...] = ()
        self.wanted = ""  # an id to go to as soon as it is known
        self._made_of: object = None  # what the list was made of

    @property
    def item(self) -> Item | None:
        key = self.pane.key
        return next((one for one in self.items if one.id == key), None)

    def choose_next_sort(self) -> None:
        known = {
            "uses": bool(self._loader.uses),
            "worth": any(one.effect is not None for one in self.items),
        }
        offered = [sort for sort in view.SORTS if known.get(sort, True)]
        at = offered.index(self.sort) if self.sort in offered else 0
        self.sort = offered[(at + 1) % len(offered)]

    def toggle_mark(self, name: str) -> int:
        """Mark one for a merge, or take its mark away; how many are marked."""
        self.pane.mark_range(self.pane.chosen ^ {name})
        return len(self.pane.chosen)

    def forget_marks(self) -> None:
        self.pane.mark_range(frozenset())

    def draw(self, contents: LibraryState) -> None:
        from studio.render.library_lines import labels_text  # heavy, and the first frame needs none

        pane, words = self.pane, self._page.filter_text
        width = max(20, pane.line_width - 2)
        size = width, pane.size.height
        made_of = (id(contents), self.sort, words, size)
        if self._made_of != made_of or not pane.rows:
            self._made_of = made_of
            self.items = view.items(contents, self.sort, words)
            signs = choose_glyphs(self._page.app.has_class("-ascii"))
            rows = view.item_rows(self.items, *size, cited=bool(self._loader.uses), signs=signs)
            wanted = self.wanted if self.wanted in {one.id for one in self.items} else None
            nothing = paragraph([(self._nothing_text(contents), "dim")], width)
            pane.show_rows(rows or note_rows(nothing), wanted)
            if wanted:
                self.wanted = ""
        held = {e.id for e in contents.library.experiences}
        added = sum(e.id not in held for e in contents.draft.experiences) if contents.draft else 0
        labels = labels_text(self._loader.labels)
        title = view.title_text(contents, len(held) + added, len(self.items), labels)
        pane.border_title = Text(title)
        marks = {one.mark for one in self.items}
        about = [f"{mark} {what}" for mark, what in view.MARK_WORDS.items() if mark in marks]
        if additions := sum(operation.kind == "add" for operation in contents.open):
            what = "additions" if additions > 1 else "addition"
            about.append(f"{additions} {what} to decide (2)")
        about += ["+used -misled"] * any(one.counts != NO_USES for one in self.items)
        about += ["worth in points"] * any(one.effect is not None for one in self.items)
        about += [f"/ {one_line(words, 20)}"] if words else []
        about.append(f"sort: {self.sort}")
        if self._page.session is None:
            about.append("read-only")
        if self._loader.trouble:
            about.append("could not be read anew")
        pane.say_below("  ".join(about))

    def _nothing_text(self, contents: LibraryState) -> str:
        if words := self._page.filter_text:
            return f"nothing here holds {words!r}: esc clears the filter"
        waiting = len(contents.open)
        wait = f"{waiting} operation{'s' * (waiting > 1)} to decide"
        more = "; i proposes one" if self._page.session is not None else ""
        return f"nothing has been learned yet{f'; {wait} in 2 Review' if waiting else ''}{more}"

    def draw_libraries(self, name: str) -> bool:
        """No version is known: list the libraries there are, or say why none is.

        `name` is of the library that is shown, "" where one is to be chosen. Returns whether
        there are libraries to choose from.
        """
        pane, loader, page = self.pane, self._loader, self._page
        self.items, self._made_of = (), None
        width = max(20, pane.line_width - 2)
        if page.session is None and not name and loader.libraries:
            pane.border_title = "Libraries"
            pane.say_below("enter opens one")
            pane.show_rows(view.library_rows(loader.libraries, page.filter_text, width))
            return True
        pane.border_title = "Library"
        pane.say_below()
        text, style = "no library in this workspace yet: 0 starts a run that learns one", "dim"
        if loader.trouble:
            text, style = one_line(loader.trouble, 800), "failed"
        elif page.session is not None and not name:
            text = "the run has not begun: its library is not known yet"
        elif name or loader.libraries is None:
            text = "reading the library …"
        pane.show_rows(note_rows(paragraph(((text, style),), width)))
        return False


class SidePane:
    def __init__(self, page: Page, loader: LibraryLoader) -> None:
        self._page, self._loader = page, loader
        self.about = LineView(id="library-about", classes="pane")
        self.uses = RowList(id="library-uses", classes="pane")
        self.shows: Side = "about"

    def show(self, side: Side) -> None:
        if side == self.shows:
            return
        was, self.shows = self.shows, side
        self.uses.display, self.about.display = side == "uses", side != "uses"
        if side == "uses":
            self.uses.focus(scroll_visible=False)
            # Only then its size is known.
            self._page.call_after_refresh(self._page.draw)
        elif was == "uses" and self._page.is_open and (home := self._page.initial_focus()):
            home.focus(scroll_visible=False)
        self.about.scroll_to(y=0, animate=False)

    def clear(self) -> None:
        self.about.border_title = None
        self.about.say_below()
        self.about.show_lines([])
        self.uses.show_rows([])

    def draw(self, one: Item | None, contents: LibraryState) -> None:
        """Draw it for one experience; None: nothing is under the cursor."""
        if one is None:
            self.clear()
            return
        about, name = self.about, display_text(one.id)
        match self.shows:
            case "uses":
                self._draw_uses(one, contents)
                return
            case "about":
                title, lines = name, self._about_lines(one, contents)
            case "change":
                title = f"{name}: its last change"
                lines = view.last_change_lines(self._loader.history, one.id, about.line_width)
                lines = lines or [line((f"no commit has changed {name}", "dim"))]
            case "history":
                title, lines = f"{name}: history", self._history_lines()
        about.border_title = Text(title)
        about.say_below("" if self.shows == "about" else "esc")
        about.show_lines(lines)

    def _about_lines(self, one: Item, contents: LibraryState) -> list[Line]:
        width, loader = self.about.line_width, self._loader
        alike = loader.similar(contents.library, one)
        experience = contents.library.get(one.id)
        cited, past = bool(loader.uses), loader.history
        lines = view.detail_lines(one, experience, alike, width, cited=cited, history=past)
        if self._page.session is None:
            command = f"studio library edit {contents.library.name} {one.id}"
            lines += [(), *paragraph((("change it with ", "dim"), (command, "")), width)]
        return lines

    def _history_lines(self) -> list[Line]:
        commits = self._loader.commits
        if commits is None:
            return [line(("reading …", "dim"))]
        texts = commits or ["no commit concerns it"]
        return view.history_text_lines(texts, self.about.line_width)

    def _draw_uses(self, one: Item, contents: LibraryState) -> None:
        pane, session, citations = self.uses, self._page.session, self._loader.citations
        pane.border_title = Text(f"{display_text(one.id)}: uses")
        pane.say_below("enter opens one, esc")
        rows = view.use_rows(
            one,
            contents.library.get(one.id),
            session.run.run if session is not None else "",
            max(20, pane.line_width - 2),
            known=citations.rollouts if citations is not None else {},
        )
        pane.show_rows(rows)


_Key = tuple[str, str | None]  # what a wording is for: the change and its target


class ProposalKeys:
    """Each asks for what it needs, one at a time."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.box = EditBox(id="library-edit", classes="pane")
        self._typed: dict[_Key, str] = {}  # wordings that were not taken yet
        self._wording: Future[str | None] | None = None  # asked for in the box

    @property
    def is_asking(self) -> bool:
        return self._wording is not None

    async def edit(self, one: Item) -> None:
        now = one.drafted or one.text
        key = ("modify", one.id)
        text = await self._ask_wording(f"{display_text(one.id)}: new wording", key, now)
        if text is None or " ".join(text.split()) in ("", now):
            self._page.host.tell(f"{one.id} stays as it is")
            return
        self._propose(self._make_operation("modify", one.id, text))

    async def delete(self, one: Item) -> None:
        host, name = self._page.host, display_text(one.id)
        experience = line((f"{name}  ", "title"), display_text(one.drafted or one.text))
        lines = [experience, ()]
        if one.won_count:
            lines.append(line((f"{one.won_count} rollouts that cite it won.", "flag")))
        lines.append(
            line("It is decided in 2 Review like any other operation; its id is never reused.")
        )
        if await host.confirm(f"Propose to delete {name}?", lines, {"d": "propose"}):
            self._propose(self._make_operation("delete", one.id, ""))
        else:
            host.tell(f"{one.id} stays")

    async def merge(
        self, one: Item, others: dict[str, Item], likeliest: str, into: str = ""
    ) -> None:
        """Two operations: the other takes this one's wording in, and this one goes.

        `others` are all there are, by id; `likeliest` is offered to merge `into`, where that
        is not known.
        """
        host = self._page.host
        into = into or (await host.ask(f"merge {one.id} into:", likeliest) or "").strip()
        other = others.get(into)
        if not into:
            host.tell(f"{one.id} stays")
            return
        if other is None or other.id == one.id:
            itself, unknown = "it cannot be merged into itself", "there is no such experience"
            host.tell(f"{into}: {itself if other else unknown}", "failed")
            return
        now = other.drafted or other.text
        key = (f"merge {one.id}", other.id)
        joined = f"{now} {one.drafted or one.text}"
        title = f"{display_text(other.id)} with {display_text(one.id)} in it"
        text = await self._ask_wording(title, key, joined)
        if text is None or not text.strip():
            host.tell(f"{one.id} stays")
            return
        why = f"merged: {one.id} into {other.id}"
        changes = [self._make_operation("delete", one.id, "", why)]
        if " ".join(text.split()) != now:
            changes.insert(0, self._make_operation("modify", other.id, text, why))
        self._propose(*changes, typed=key)

    def pin(self, one: Item) -> None:
        host = self._page.host
        pin = partial(toggle_pin, target=one.id, pinned=one.pinned, person=host.person)
        host.ask_run(pin)

    async def insert(self) -> None:
        text = await self._ask_wording("new experience", ("add", None), "")
        if text is None or not text.strip():
            self._page.host.tell("nothing was proposed")
            return
        self._propose(self._make_operation("add", None, text))

    async def _ask_wording(self, title: str, key: _Key, text: str) -> str | None:
        """Ask for a wording in the box; None where it was left. What was typed is kept."""
        page, box, wording = self._page, self.box, get_running_loop().create_future()
        self._wording = wording
        box.border_title, box.border_subtitle = Content(title), "enter proposes it, esc leaves"
        page.add_class("-editing")
        box.open(self._typed.get(key, text))
        begun = box.text
        page.host.draw_now()
        try:
            found: str | None = await wording
            if not box.text.strip():
                self._typed.pop(key, None)
            elif box.text != begun or found is not None:
                self._typed[key] = box.text
            return found
        finally:
            if self._wording is wording and page.children:  # else it is torn down
                self._wording = None
                box.close()
                page.remove_class("-editing")
                if page.is_open and (home := page.initial_focus()) is not None:
                    home.focus(scroll_visible=False)
                    page.call_after_refresh(page.draw_if_open)

    def answer(self, text: str | None) -> None:
        if self._wording is not None and not self._wording.done():
            self._wording.set_result(text)

    def _make_operation(
        self, kind: OperationKind, target: str | None, text: str, why: str = ""
    ) -> Operation:
        person = self._page.host.person
        return Operation("", kind, target, " ".join(text.split()), why, proposer=person)

    def _propose(self, *operations: Operation, typed: _Key | None = None) -> None:
        """Ask the run; what was typed is kept until it was taken."""
        key = typed or (operations[0].kind, operations[0].target)

        async def ask(session: Session) -> str:
            made = [await session.send(Propose(operation, session.who)) for operation in operations]
            self._typed.pop(key, None)
            names = " and ".join(one.id for one in made)
            flagged = " (flagged)" if any(one.is_flagged for one in made) else ""
            return f"{names}{flagged} {'is' if len(made) == 1 else 'are'} to be decided in 2 Review"

        self._page.host.ask_run(ask)
