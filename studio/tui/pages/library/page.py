"""Library: what has been learned; changes become operations in the same queue as all others."""

from __future__ import annotations

import asyncio
from asyncio import Future, get_running_loop
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.content import Content
from textual.widget import Widget
from textual.worker import Worker

from engines.core.errors import StudioError
from engines.core.library import Library
from engines.core.types import Operation, OperationKind
from engines.record.libraries import LibraryFolder
from studio.library.citations import Citation, Citations
from studio.secrets.sanitize import one_line
from studio.session.base import EventReceived, Message, Session, SnapshotReceived
from studio.tui.drawing.lines import Line, Row, line, paragraph
from studio.tui.keymap import Key, bindings
from studio.tui.page import Page
from studio.tui.pages.diff.view import display_text
from studio.tui.pages.library import view
from studio.tui.pages.library.view import History, Item, LibraryState
from studio.tui.widgets.edit_box import EDIT_KEYS, EditBox
from studio.tui.widgets.line_view import LineView
from studio.tui.widgets.row_list import RowList

Side = Literal["about", "uses", "history", "change"]
_MOVES_THE_HEAD = ("LessonCommitted", "LessonReturned")
_BRINGS_USES = ("StepFinished", "LessonProposed", "LessonCommitted")


class LibraryPage(Page):
    """The run's library with its draft; without a run, those of the workspace to read."""

    scope = "library"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings("library")]
    SCOPED_CSS = False  # the size classes stand on the screen
    DEFAULT_CSS = """
    LibraryPage { layout: vertical; }
    LibraryPage #library-panes { layout: horizontal; height: 1fr; }
    LibraryPage #library-list { width: 11fr; height: 1fr; }
    LibraryPage #library-side { width: 9fr; height: 1fr; }
    LibraryPage #library-about, LibraryPage #library-uses { height: 1fr; width: 1fr; }
    LibraryPage #library-uses { display: none; }
    .-short LibraryPage.-editing #library-about { display: none; }
    .-flat LibraryPage.-editing #library-about { display: none; }
    LibraryPage.-editing #library-uses { display: none; }
    .-narrow LibraryPage #library-panes, .-tiny LibraryPage #library-panes { layout: vertical; }
    .-narrow LibraryPage #library-list, .-tiny LibraryPage #library-list { width: 1fr; }
    .-narrow LibraryPage #library-side, .-tiny LibraryPage #library-side { width: 1fr; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.sort: view.Sort = view.SORTS[0]
        self.side: Side = "about"
        self.shelf: LibraryState | None = None
        self.listed: tuple[Item, ...] = ()
        self._folder: LibraryFolder | None = None
        self._history: History = ()
        self._trouble = ""
        self._due = self._count_due = True
        self._reading = False
        self._counting = False
        self._citations: Citations | None = None
        self._uses: Mapping[str, tuple[Citation, ...]] = {}
        self._near: dict[tuple[str, str], tuple[tuple[str, float], ...]] = {}
        self._looking: tuple[str, str] | None = None  # what is compared with the others now
        self._told: list[str] | None = None  # the history of the one under the cursor
        self._typed: dict[tuple[str, str | None], str] = {}  # wordings that were refused
        self._wording: Future[str | None] | None = None  # asked for in the box
        self._wanted = ""  # an id to go to as soon as it is known
        self._chosen = ""  # a library of the workspace, where no run is open
        self._found: tuple[Mapping[str, Any], ...] | None = None
        self._made: object = None  # what the shelf was made of
        self._list_made: object = None  # and the list

    def compose(self) -> ComposeResult:
        with Container(id="library-panes"):
            yield RowList(id="library-list", classes="pane")
            with Container(id="library-side"):
                yield LineView(id="library-about", classes="pane")
                yield RowList(id="library-uses", classes="pane")
                box = EditBox(id="library-edit")
                box.add_class("pane")
                yield box

    @property
    def entries(self) -> RowList:
        return self.query_one("#library-list", RowList)

    @property
    def about(self) -> LineView:
        return self.query_one("#library-about", LineView)

    @property
    def uses(self) -> RowList:
        return self.query_one("#library-uses", RowList)

    @property
    def box(self) -> EditBox:
        return self.query_one("#library-edit", EditBox)

    def initial_focus(self) -> Widget:
        return self.entries if self._wording is None else self.box

    def panes(self) -> list[Widget]:
        return super().panes() if self._wording is None else [self.box]

    def footer_keys(self) -> Sequence[Key]:
        return EDIT_KEYS if self._wording is not None else ()

    # -- what is there ---------------------------------------------------------------------

    @property
    def library_name(self) -> str:
        """Of the library that is shown; "" where one is to be chosen, or the run has not begun."""
        state = self.state
        if self.session is None:
            return self._chosen
        return state.started.library if state is not None and state.started is not None else ""

    @property
    def item(self) -> Item | None:
        """What is under the cursor."""
        key = self.entries.key
        return next((one for one in self.listed if one.id == key), None)

    def open_at(self, target: str = "") -> None:
        self._due = self._count_due = True
        if target and not self.go_to(target):
            if self.session is not None or self.shelf is not None:
                self._wanted = target
            elif target in {folder.name for folder in self.host.workspace.libraries()}:
                self._chosen = target

    def handle_message(self, message: Message) -> None:
        if isinstance(message, SnapshotReceived):
            self._due = self._count_due = True
        elif isinstance(message, EventReceived):
            kind = type(message.event).__name__
            self._due |= kind in _MOVES_THE_HEAD
            self._count_due |= kind in _BRINGS_USES

    def _reload_if_due(self) -> None:
        """Read again what is no longer what is shown; called where it can be seen."""
        name = self.library_name
        if self._folder is not None and self._folder.name != name:
            self._folder, self._history, self.shelf = None, (), None
            self._uses, self._citations, self._trouble = {}, None, ""
            self._show_side("about")
            self._due = self._count_due = True
        if self._due and not self._reading:
            self._due = False
            if name:
                self._reading = True
                self._run_in_group("library", partial(self._read, name))
            elif self.session is None:
                self._run_in_group("libraries", self._list_libraries)
        if self._count_due and not self._counting and self.session is not None and self._history:
            self._count_due, self._counting = False, True
            self._run_in_group("citations", partial(self._count_citations, self.session))

    async def _read(self, name: str) -> None:
        folder = self._folder or self.host.workspace.library(name)
        try:
            history = await asyncio.to_thread(folder.history)
        except StudioError as error:
            self._trouble = str(error)
        else:
            if name == self.library_name:  # else another run was opened meanwhile
                self._folder, self._history, self._trouble = folder, history, ""
        finally:
            self._reading = False
        self._draw_if_open()

    async def _list_libraries(self) -> None:
        from studio.tui.pages import library_loader

        try:
            self._found = await asyncio.to_thread(
                library_loader.list_libraries, self.host.workspace
            )
        except StudioError as error:
            self._trouble = str(error)
        self._draw_if_open()

    async def _count_citations(self, session: Session) -> None:
        citations = self._citations or Citations(session.run)
        try:
            await asyncio.to_thread(citations.refresh)
        except StudioError as error:
            self.host.tell(f"uses could not be counted: {error}", "failed")
        finally:
            self._counting = False
        if session is self.session:
            self._citations = citations
            names = {e.id for library, _ in self._history for e in library.experiences}
            self._uses = citations.by_experience(names)
            self._draw_if_open()

    def _run_in_group(self, group: str, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Run it beside the screen, in place of what its group was about.

        A callable, since a coroutine that is replaced before it began is never awaited.
        """
        _: Worker[None] = self.run_worker(work, group=group, exclusive=True)

    def _draw_if_open(self) -> None:
        if self.is_open:
            self.host.draw_now()

    def _library_state(self) -> LibraryState | None:
        """What is known now; the same object while nothing of it changed."""
        if not self._history:
            return None
        head, state = self._history[-1][0], self.state
        draft: Library | None = None
        waiting: tuple[Operation, ...] = ()
        made: tuple[object, ...] = (head, id(self._uses))
        if state is not None:
            waiting = state.open_operations
            made = (*made, waiting, state.reviewed_operations)
        if self.shelf is not None and self._made == made:
            return self.shelf
        if state is not None and state.reviewed_operations:
            # As the gate does: decisions stand on the head, whatever moved it.
            limit = state.settings.get("practice.library_limit")
            draft = head.commit(state.reviewed_operations, limit=limit).library
        self._made = made
        return LibraryState(head, draft, waiting, self._uses)

    # -- drawing ---------------------------------------------------------------------------

    def draw(self) -> None:
        self._reload_if_due()
        shelf = self._library_state()
        if shelf is None:
            self.shelf, self.listed = None, ()
            self._draw_empty()
            return
        before = self.shelf
        self.shelf = shelf
        self._draw_list(shelf, anew=shelf is not before)
        self._draw_side()

    def _draw_empty(self) -> None:
        """No version is known: a list of libraries, or a sentence that says why not."""
        pane, width = self.entries, max(20, self.entries.line_width - 2)
        self.about.border_title = None
        self.about.border_subtitle = None
        if self.session is None and not self._chosen and self._found:
            pane.border_title = "Libraries"
            pane.border_subtitle = "enter opens one"
            pane.show_rows(view.library_rows(self._found, self.filter_text, width))
            told = "No run is open: libraries can be read here. enter shows the experiences of one."
            self.about.show_lines(paragraph(((told, "dim"),), self.about.line_width))
            return
        told, style = self._empty_text()
        pane.border_title, pane.border_subtitle = "Library", None
        pane.show_rows([Row("", row) for row in paragraph(((told, style),), width)])
        self.about.show_lines([])

    def _empty_text(self) -> tuple[str, str]:
        if self._trouble:
            return one_line(self._trouble, 800), "failed"
        if self.session is not None and not self.library_name:
            return "the run has not begun: its library is not known yet", "dim"
        if self.library_name or self._found is None:
            return "reading the library …", "dim"
        return "no library in this workspace yet: 0 starts a run that learns one", "dim"

    def _draw_list(self, shelf: LibraryState, *, anew: bool) -> None:
        pane = self.entries
        width = max(20, pane.line_width - 2)
        made = (self.sort, self.filter_text, width)
        if anew or self._list_made != made or not pane.rows:
            self.listed = view.items(shelf, self.sort, self.filter_text)
            self._list_made = made
            rows = view.item_rows(self.listed, width, cited=bool(self._uses))
            if not rows:
                rows = [
                    Row("", row) for row in paragraph(((self._no_entries_text(), "dim"),), width)
                ]
            wanted = self._wanted if self._wanted in {one.id for one in self.listed} else None
            pane.show_rows(rows, wanted)
            if wanted:
                self._wanted = ""
        held = {e.id for e in shelf.library.experiences}
        added = sum(e.id not in held for e in shelf.draft.experiences) if shelf.draft else 0
        total = len(held) + added
        pane.border_title = Text(view.title_text(shelf, total, len(self.listed)))
        told = [f"/ {one_line(self.filter_text, 20)}"] if self.filter_text else []
        told += [f"sort: {self.sort}"]
        added = sum(operation.kind == "add" for operation in shelf.open)
        if added:
            told.insert(0, f"{added} additions wait (2)" if added > 1 else "1 addition waits (2)")
        if self.session is None:
            told.append("read-only")
        if self._trouble:
            told.append("could not be read anew")
        pane.border_subtitle = Text("  ".join(told))

    def _no_entries_text(self) -> str:
        if self.filter_text:
            return f"nothing here holds {self.filter_text!r}: esc clears the filter"
        waiting = len(self.shelf.open) if self.shelf is not None else 0
        wait = "1 operation waits" if waiting == 1 else f"{waiting} operations wait"
        more = "; i proposes one" if self.session is not None else ""
        return f"nothing has been learned yet{f'; {wait} in 2 Review' if waiting else ''}{more}"

    def _draw_side(self) -> None:
        one, about = self.item, self.about
        if self.side == "uses":
            self._draw_uses()
            return
        width = about.line_width
        if one is None or self.shelf is None:
            about.border_title = about.border_subtitle = None
            about.show_lines([])
            return
        name = display_text(one.id)
        lines: list[Line]
        if self.side == "about":
            alike = self._near.get((self.shelf.library.content_hash, one.id))
            if alike is None:
                self._start_find_similar(one)
            experience = self.shelf.library.get(one.id)
            lines = view.detail_lines(one, experience, alike, width, cited=bool(self._uses))
            if self.session is None:
                told = f"studio library edit {self.library_name} {one.id}"
                lines += [(), *paragraph((("change it with ", "dim"), (told, "")), width)]
            about.border_title = Text(name)
            about.border_subtitle = None
        elif self.side == "change":
            lines = view.last_change_lines(self._history, one.id, width)
            lines = lines or [line((f"no commit has changed {name}", "dim"))]
            about.border_title = Text(f"{name}: its last change")
            about.border_subtitle = "esc"
        else:
            told_lines = self._told
            lines = (
                [line(("reading …", "dim"))]
                if told_lines is None
                else view.history_text_lines(told_lines or ["no commit concerns it"], width)
            )
            about.border_title = Text(f"{name}: history")
            about.border_subtitle = "esc"
        about.show_lines(lines)

    def _draw_uses(self) -> None:
        one, pane = self.item, self.uses
        if one is None or self.shelf is None:
            pane.show_rows([])
            return
        run = self.session.run.run if self.session is not None else ""
        unread = self._citations.unread if self._citations is not None else 0
        experience = self.shelf.library.get(one.id)
        pane.border_title = Text(f"{display_text(one.id)}: uses")
        pane.border_subtitle = "enter opens one, esc"
        known = self._citations.rollouts if self._citations is not None else {}
        width = max(20, pane.line_width - 2)
        pane.show_rows(view.use_rows(one, experience, run, width, known=known, unread=unread))

    def _show_side(self, side: Side) -> None:
        """What the second pane shows."""
        if side == self.side:
            return
        was, self.side = self.side, side
        self.uses.display, self.about.display = side == "uses", side != "uses"
        if side == "uses":
            self.uses.focus(scroll_visible=False)
            self.call_after_refresh(self._draw_side)  # only then its size is known
        elif was == "uses" and self.is_open:
            self.entries.focus(scroll_visible=False)
        self.about.scroll_to(y=0, animate=False)

    def _start_find_similar(self, one: Item) -> None:
        wanted = (self.shelf.library.content_hash, one.id) if self.shelf is not None else None
        if self.shelf is not None and wanted != self._looking:
            self._looking = wanted
            self._run_in_group("near", partial(self._find_similar, self.shelf.library, one))

    async def _find_similar(self, library: Library, one: Item) -> None:
        others = [(e.id, e.text) for e in library.experiences]
        found = await asyncio.to_thread(view.find_similar, one.id, one.text, others)
        if len(self._near) > 2_000:
            self._near.clear()
        self._near[library.content_hash, one.id] = found
        self._looking = None
        if self.is_open and self.shelf is not None:
            self._draw_side()

    def on_row_list_moved(self, event: RowList.Moved) -> None:
        if event.rows is not self.entries:
            return
        event.stop()
        self._told = None
        if self.side != "about":
            self._show_side("about")
        if self.shelf is not None:
            self._draw_side()
        if self.is_open:
            self.host.drafts.cursor = event.key

    # -- keys: changes ---------------------------------------------------------------------

    def _can_change(self, *, needs_one: bool = True) -> bool:
        if self.session is None:
            name = self.library_name or "NAME"
            one = f" {self.item.id}" if self.item is not None else " ID"
            self.host.tell(f"no run is open: studio library edit {name}{one} changes it by hand")
        elif self.shelf is None:
            self.host.tell("the library is not read yet", "failed")
        elif needs_one and self.item is None:
            self.host.tell("nothing is under the cursor", "failed")
        else:
            return True
        return False

    def action_edit(self) -> None:
        if self._can_change() and self.item is not None:
            self._run_in_group("asks", partial(self._edit, self.item))

    async def _edit(self, one: Item) -> None:
        now = one.drafted or one.text
        key = ("modify", one.id)
        text = await self._ask_wording(f"{display_text(one.id)}: new wording", key, now)
        if text is None or " ".join(text.split()) in ("", now):
            self.host.tell(f"{one.id} stays as it is")
            return
        self._propose(self._make_operation("modify", one.id, text))

    def action_delete(self) -> None:
        if self._can_change() and self.item is not None:
            self._run_in_group("asks", partial(self._delete, self.item))

    async def _delete(self, one: Item) -> None:
        told = [
            line((f"{display_text(one.id)}  ", "title"), display_text(one.drafted or one.text)),
            (),
        ]
        width = max(20, min(96, self.app.size.width * 8 // 10 - 4))
        lines = [row for part in told for row in paragraph(part, width)]
        if one.won_count:
            lines.append(line((f"{one.won_count} rollouts that cite it won.", "flag")))
        lines.append(line("It waits in 2 Review like any other operation; its id is never reused."))
        if await self.host.confirm(
            f"Propose to delete {display_text(one.id)}?", lines, {"d": "propose"}
        ):
            self._propose(self._make_operation("delete", one.id, ""))
        else:
            self.host.tell(f"{one.id} stays")

    def action_merge(self) -> None:
        if self._can_change() and self.item is not None:
            self._run_in_group("asks", partial(self._merge, self.item))

    async def _merge(self, one: Item) -> None:
        """Two operations: the other takes this one's wording in, and this one goes."""
        assert self.shelf is not None
        alike = self._near.get((self.shelf.library.content_hash, one.id)) or ()
        into = await self.host.ask(f"merge {one.id} into:", alike[0][0] if alike else "")
        into = (into or "").strip()
        if not into:
            self.host.tell(f"{one.id} stays")
            return
        every = {found.id: found for found in view.items(self.shelf)}
        other = every.get(into)
        if other is None or other.id == one.id:
            what = (
                "it cannot be merged into itself"
                if into == one.id
                else "there is no such experience"
            )
            self.host.tell(f"{into}: {what}", "failed")
            return
        now = other.drafted or other.text
        key = (f"merge {one.id}", other.id)
        joined = f"{now} {one.drafted or one.text}"
        title = f"{display_text(other.id)} with {display_text(one.id)} in it"
        text = await self._ask_wording(title, key, joined)
        if text is None or not text.strip():
            self.host.tell(f"{one.id} stays")
            return
        why = f"merged: {one.id} into {other.id}"
        changes = [self._make_operation("delete", one.id, "", why)]
        if " ".join(text.split()) != now:
            changes.insert(0, self._make_operation("modify", other.id, text, why))
        self._propose(*changes, typed=key)

    def action_insert(self) -> None:
        if self._can_change(needs_one=False):
            self._run_in_group("asks", self._insert)

    async def _insert(self) -> None:
        key = ("add", None)
        text = await self._ask_wording("new experience", key, "")
        if text is None or not text.strip():
            self.host.tell("nothing was proposed")
            return
        self._propose(self._make_operation("add", None, text))

    async def _ask_wording(self, title: str, key: tuple[str, str | None], text: str) -> str | None:
        """Ask for a wording in the box; None where it was left. What was typed is kept."""
        box, wording = self.box, get_running_loop().create_future()
        self._wording = wording
        box.border_title, box.border_subtitle = Content(title), "enter proposes it, esc leaves"
        self.add_class("-editing")
        box.open(self._typed.get(key, text))
        begun = box.text
        self.host.draw_now()
        try:
            found: str | None = await wording
            if not box.text.strip():
                self._typed.pop(key, None)
            elif box.text != begun or found is not None:
                self._typed[key] = box.text
            return found
        finally:
            if self._wording is wording and self.query("#library-list"):  # else it is torn down
                self._wording = None
                box.close()
                self.remove_class("-editing")
                if self.is_open:
                    self.entries.focus(scroll_visible=False)
                    self.call_after_refresh(self._draw_if_open)

    def on_edit_box_handed_in(self, event: EditBox.HandedIn) -> None:
        event.stop()
        if self._wording is not None and not self._wording.done():
            self._wording.set_result(event.text)

    def on_edit_box_left(self, event: EditBox.Left) -> None:
        event.stop()
        if self._wording is not None and not self._wording.done():
            self._wording.set_result(None)

    def _make_operation(
        self, kind: OperationKind, target: str | None, text: str, why: str = ""
    ) -> Operation:
        person = self.host.person
        return Operation("", kind, target, " ".join(text.split()), why, proposer=person)

    def _propose(self, *operations: Operation, typed: tuple[str, str | None] | None = None) -> None:
        """Ask the run; what was typed is kept until it was taken."""
        typed = typed or (operations[0].kind, operations[0].target)

        async def ask(session: Session) -> str:
            made = [await session.propose(operation) for operation in operations]
            self._typed.pop(typed, None)
            names = " and ".join(one.id for one in made)
            flagged = " (flagged)" if any(one.flags for one in made) else ""
            return f"{names}{flagged} {'waits' if len(made) == 1 else 'wait'} in 2 Review"

        self.host.ask_run(ask)

    # -- keys: looking ---------------------------------------------------------------------

    def action_uses(self) -> None:
        if self.shelf is None:
            if self.session is None and self.entries.key:
                self._chosen, self._due = self.entries.key, True
                self.filter_text = ""
                self.host.draw_now()
            return
        if self.side == "uses" and self.app.focused is self.uses:
            if self.uses.key:
                self.host.open_page("inspect", self.uses.key)
            return
        if self.item is None:
            return
        if self.session is None:
            self.host.tell("no run is open: a library alone does not know who cites it")
            return
        self._show_side("uses")
        self._draw_side()

    def action_history(self) -> None:
        if self.item is None or self._folder is None:
            return
        self._told = None
        self._show_side("about" if self.side == "history" else "history")
        if self.side == "history":
            self._run_in_group("history", partial(self._read_history, self.item.id))
        self._draw_side()

    async def _read_history(self, name: str) -> None:
        from studio.tui.pages import library_loader

        assert self._folder is not None
        try:
            told = await asyncio.to_thread(library_loader.load_history_lines, self._folder, name)
        except StudioError as error:
            told = [str(error)]
        if self.item is not None and self.item.id == name:
            self._told = told
            self._draw_side()

    def action_changed(self) -> None:
        if self.item is not None:
            self._show_side("about" if self.side == "change" else "change")
            self._draw_side()

    def action_sort(self) -> None:
        offered = [sort for sort in view.SORTS if sort != "uses" or self._uses]
        at = offered.index(self.sort) if self.sort in offered else 0
        self.sort = offered[(at + 1) % len(offered)]
        self.host.draw_now()
        self.host.tell(f"sorted by {self.sort}")

    def action_export(self) -> None:
        if self._folder is None or self.shelf is None:
            self.host.tell("there is no library to export", "failed")
            return
        self._run_in_group("export", partial(self._export, self._folder, self.shelf.library))

    async def _export(self, folder: LibraryFolder, library: Library) -> None:
        from studio.tui.pages import library_loader

        try:
            path = await asyncio.to_thread(
                library_loader.export_library, self.host.workspace, folder, library
            )
        except StudioError as error:
            self.host.tell(str(error), "failed")
        else:
            self.host.tell(f"{library.name}@{library.version} is written to {path}")

    # -- what every page has ---------------------------------------------------------------

    def go_to(self, name: str) -> bool:
        if self.shelf is None:
            return False
        if name not in {one.id for one in self.listed}:
            if name not in {one.id for one in view.items(self.shelf)}:
                return False
            self.apply_filter("")
        return self.entries.go_to(name)

    def go_back(self) -> bool:
        if self.side != "about":
            self._show_side("about")
            self._draw_side()
            return True
        if super().go_back():
            return True
        if self.session is None and self._chosen:
            self._chosen, self._due = "", True
            return True
        return False

    def text_to_copy(self, whole: bool) -> str:
        if self.shelf is None or self.app.focused is not self.entries:
            return super().text_to_copy(whole)
        if whole:
            return "\n".join(
                f"{one.id}  {display_text(one.drafted or one.text)}" for one in self.listed
            )
        one = self.item
        return f"{one.id}  {display_text(one.drafted or one.text)}" if one is not None else ""
