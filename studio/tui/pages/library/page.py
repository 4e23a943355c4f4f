"""Library: what has been learned; changes become operations in the same queue as all others."""

import asyncio
from asyncio import Future, get_running_loop
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Literal

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Container
from textual.content import Content
from textual.widget import Widget

from engines.core.errors import RecordError, StudioError
from engines.core.events import LessonCommitted, LessonProposed, LessonReturned, StepFinished
from engines.core.library import Library
from engines.core.types import Operation
from engines.record.libraries import LibraryFolder, version_path
from engines.record.run_dir import Workspace
from studio.facts.library import ListedLibrary, history_facts, listed_library
from studio.library.citations import Citations
from studio.review.decider import toggle_pin
from studio.review.wording import Near, find_similar
from studio.secrets.sanitize import one_line
from studio.session.requests import Propose
from studio.session.session import EventReceived, Message, Session, SnapshotReceived
from studio.tui.drawing.cells import GLYPHS_UNICODE
from studio.tui.drawing.lines import Line, line, note_rows, paragraph
from studio.tui.keymap import Key
from studio.tui.page import Page, write_export
from studio.tui.pages.library import view
from studio.tui.pages.library.view import History, Item, LibraryState
from studio.tui.pages.loader import Loader
from studio.tui.pages.text import display_text
from studio.tui.widgets.edit_box import EDIT_KEYS, EditBox
from studio.tui.widgets.line_view import LineView, RowList

_MOVES_THE_HEAD = LessonCommitted | LessonReturned
_BRINGS_USES = StepFinished | LessonProposed | LessonCommitted
Side = Literal["about", "uses", "history"]


def list_libraries(workspace: Workspace) -> tuple[ListedLibrary, ...]:
    """Return every library of a workspace; one that cannot be read says why. Blocks."""
    listed = []
    for folder in workspace.libraries():
        try:
            listed.append(listed_library(folder))
        except StudioError as error:
            listed.append(ListedLibrary(folder.name, trouble=str(error)))
    return tuple(listed)


def load_commits(key: tuple[LibraryFolder, str]) -> list[str]:
    """Return what concerned an experience of a library, as it is printed. Blocks."""
    from studio.render.library_lines import history_lines

    return history_lines(history_facts(*key), rejections=False)


def export_library(workspace: Workspace, folder: LibraryFolder, library: Library) -> str:
    """Copy a version's file into `exports/` of the workspace; returns the path.

    Raises RecordError: it cannot be written, or the version's own file is not there.
    """
    source = version_path(folder.path, library.version)
    try:
        data = source.read_bytes()
    except OSError as error:
        raise RecordError(
            str(source), f"it could not be copied: {error.strerror}.", "Look at `studio doctor`."
        ) from error
    return write_export(workspace, f"{folder.name}-v{library.version:04d}.yaml", data)


class LibraryPage(Page):
    """The run's library with its draft; without a run, those of the workspace to read."""

    scope = "library"

    def __init__(self) -> None:
        super().__init__()
        self.list_pane = RowList(id="library-list", classes="pane")
        self.about = LineView(id="library-about", classes="pane")
        self.uses = RowList(id="library-uses", classes="pane")
        self.shows: Side = "about"
        self.proposals = ProposalKeys(self)
        self.sort: view.Sort = view.SORTS[0]
        self.contents: LibraryState | None = None
        self.items: tuple[Item, ...] = ()
        self.history_of = ""  # an experience whose history is shown as soon as it is there
        self._commits_of = ""  # the experience whose history was asked for last
        self._target = ""  # an id to go to as soon as it is known
        self._name = ""  # of the library that is shown
        self._chosen = ""  # a library of the workspace, where no run is open
        self._is_due = self._count_due = True
        self._history = Loader[LibraryFolder, tuple[History, dict[str, int]]](
            self, lambda folder: (folder.history(), dict(folder.labels()))
        )
        self._libraries = Loader[Workspace, tuple[ListedLibrary, ...]](self, list_libraries)
        self._citations = Loader[Session, Citations](self, self._count_citations)
        self._near = Loader[tuple[str, tuple[tuple[str, str], ...]], tuple[Near, ...]](
            self, lambda key: find_similar(*key)
        )
        self._commits = Loader[tuple[LibraryFolder, str], list[str]](self, load_commits)

    def compose(self) -> ComposeResult:
        with Container(id="library-panes"):
            yield self.list_pane
            with Container(id="library-side"):
                yield self.about
                yield self.uses
                yield self.proposals.box

    def initial_focus(self) -> Widget:
        return self.proposals.box if self.proposals.is_asking else self.list_pane

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

    @property
    def item(self) -> Item | None:
        key = self.list_pane.key
        return next((item for item in self.items if item.id == key), None)

    def open_at(self, target: str = "") -> None:
        self._is_due = self._count_due = True
        if target and not self.go_to(target):
            if self.session is not None or self.contents is not None:
                self._target = target
            elif target in {folder.name for folder in self.host.workspace.libraries()}:
                self._chosen = target

    def handle_message(self, message: Message) -> None:
        """Note what is to be read again once it can be seen."""
        is_new = isinstance(message, SnapshotReceived)
        event = message.event if isinstance(message, EventReceived) else None
        self._is_due |= is_new or isinstance(event, _MOVES_THE_HEAD)
        self._count_due |= is_new or isinstance(event, _BRINGS_USES)

    def _count_citations(self, session: Session) -> Citations:
        is_same = self._citations.key is session and self._citations.value is not None
        citations = self._citations.value if is_same else None
        citations = citations or Citations(session.run)
        citations.refresh()
        return citations

    def _library_state(self) -> LibraryState | None:
        """What is known now."""
        if self._history.value is None or not self._history.value[0]:
            return None
        head, state = self._history.value[0][-1][0], self.state
        uses = {}
        if self._citations.value is not None:
            names = {e.id for library, _ in self._history.value[0] for e in library.experiences}
            uses = self._citations.value.by_experience(names)
        if state is None:
            return LibraryState(head, uses=uses)
        draft = None
        if state.reviewed_operations:
            # As the gate does: decisions stand on the head, whatever moved it.
            limit = state.settings.get("practice.library_limit")
            draft = head.commit(state.reviewed_operations, limit=limit).library
        return LibraryState(head, draft, state.open_operations, uses)

    def draw(self) -> None:
        name, session, workspace = self.library_name, self.session, self.host.workspace
        if name != self._name:
            self._name, self._is_due, self._count_due = name, True, True
            self._history.forget()
            self._citations.forget()
            self.show_side("about")
        if self._is_due and name:
            self._history.request(workspace.library(name), again=True)
        elif self._is_due and session is None:
            self._libraries.request(workspace, again=True)
        self._is_due = False
        if self._count_due and session is not None and self._history.value is not None:
            self._count_due = False
            self._citations.request(session, again=True)
        self.contents = self._library_state()
        self.has_nothing = self.contents is None
        if self.contents is None:
            self._draw_libraries(name)
            return
        self._draw_list(self.contents)
        if self.history_of and self.list_pane.key == self.history_of:
            self.history_of = ""
            self.show_side("about")
            self.action_history()
        self._draw_side()

    def _draw_list(self, contents: LibraryState) -> None:
        from studio.render.library_lines import labels_text  # heavy, and the first frame needs none

        pane, words = self.list_pane, self.filter_text
        width = max(20, pane.line_width - 2)
        everything = view.items(contents, self.sort)
        self.items = tuple(item for item in everything if item.holds(words))
        rows = view.item_rows(
            self.items,
            width,
            pane.size.height,
            cited=bool(contents.uses),
            signs=GLYPHS_UNICODE,
        )
        target = self._target if self._target in {item.id for item in self.items} else None
        if target:
            self._target = ""
        nothing = "nothing has been learned yet; i proposes one"
        if words:
            nothing = f"nothing here holds {words!r}: esc clears the filter"
        pane.show_rows(rows or note_rows(paragraph([(nothing, "dim")], width)), target)
        labels = labels_text(self._history.value[1]) if self._history.value else ""
        pane.border_title = Text(
            view.title_text(contents, len(everything), len(self.items), labels)
        )
        marks = {item.mark for item in self.items}
        about = [f"{mark} {what}" for mark, what in view.MARK_WORDS.items() if mark in marks]
        if contents.open:
            about.append(f"{len(contents.open)} to decide in Review")
        if any(item.has_counts for item in self.items):
            about.append("+used -misled")
        if any(item.effect is not None for item in self.items):
            about.append("worth in points")
        if words:
            about.append(f"/ {one_line(words, 20)}")
        about.append(f"sort: {self.sort}")
        if self.session is None:
            about.append("read-only")
        if self._history.trouble:
            about.append("could not be read anew")
        pane.say_below("  ".join(about))

    def _draw_libraries(self, name: str) -> None:
        """No version is known: list the libraries there are, or say why none is."""
        pane, listed = self.list_pane, self._libraries.value
        self.items = ()
        self.about.border_title = None
        self.about.say_below()
        self.about.show_lines([])
        self.uses.show_rows([])
        pane.border_title = "Library"
        width = max(20, pane.line_width - 2)
        if self.session is None and not name and listed:
            pane.say_below("enter opens one")
            pane.show_rows(view.library_rows(listed, self.filter_text, width))
            hint = "No run is open: libraries can be read here. enter shows the experiences of one."
            self.about.show_lines(paragraph(((hint, "dim"),), self.about.line_width))
            return
        pane.say_below()
        text, style = "no library in this workspace yet: 0 starts a run that learns one", "dim"
        if trouble := self._history.trouble or self._libraries.trouble:
            text, style = one_line(trouble, 800), "failed"
        elif self.session is not None and not name:
            text = "the run has not begun: its library is not known yet"
        elif name or listed is None:
            text = "reading the library …"
        pane.show_rows(note_rows(paragraph(((text, style),), width)))

    # -- beside the list -------------------------------------------------------------------

    def show_side(self, side: Side) -> None:
        was, self.shows = self.shows, side
        if side == was:
            return
        self.uses.display, self.about.display = side == "uses", side != "uses"
        if side == "uses":
            self.uses.focus(scroll_visible=False)
            self.call_after_refresh(self.draw)  # only then its size is known
        elif was == "uses" and self.is_open:
            self.initial_focus().focus(scroll_visible=False)
        self.about.scroll_to(y=0, animate=False)

    def _draw_side(self) -> None:
        """Draw it for the experience under the cursor."""
        item, contents, about = self.item, self.contents, self.about
        if item is None or contents is None:
            about.border_title = None
            about.show_lines([])
            return
        name, experience = display_text(item.id), contents.library.get(item.id)
        if self.shows == "uses":
            self.uses.border_title = Text(f"{name}: uses")
            self.uses.say_below("enter opens one, esc")
            run = self.session.run.run if self.session is not None else ""
            known = self._citations.value.rollouts if self._citations.value is not None else {}
            width = max(20, self.uses.line_width - 2)
            self.uses.show_rows(view.use_rows(item, experience, run, width, known=known))
            return
        lines: list[Line]
        match self.shows:
            case "about":
                title, lines = name, self._about_lines(item, contents)
            case "history":
                title, commits = f"{name}: history", self._commits
                lines = [line((one_line(commits.trouble, 400) or "reading …", "dim"))]
                if commits.value is not None and commits.key and commits.key[1] == item.id:
                    texts = commits.value or ["no commit concerns it"]
                    lines = view.history_text_lines(texts, about.line_width)
        about.border_title = Text(title)
        about.say_below("" if self.shows == "about" else "esc")
        about.show_lines(lines)

    def _similar(self, item: Item, library: Library) -> tuple[Near, ...] | None:
        """Experiences most like this one; None: they are being looked for."""
        others = tuple((e.id, e.text) for e in library.experiences if e.id != item.id)
        self._near.request((item.text, others))
        return self._near.value if self._near.key == (item.text, others) else None

    def _about_lines(self, item: Item, contents: LibraryState) -> list[Line]:
        width, library = self.about.line_width, contents.library
        near, experience = self._similar(item, library), library.get(item.id)
        lines = view.detail_lines(item, experience, near, width, cited=bool(contents.uses))
        if self.session is None:
            command = f"studio library edit {library.name} {item.id}"
            lines += [(), *paragraph((("change it with ", "dim"), (command, "")), width)]
        return lines

    def on_row_list_moved(self, event: RowList.Moved) -> None:
        if event.rows is not self.list_pane:
            return
        event.stop()
        if self.shows != "history" or event.key != self._commits_of:
            self.show_side("about")
        self._draw_side()
        if self.is_open:
            self.host.drafts.cursor = event.key

    # -- keys: changes ---------------------------------------------------------------------

    def _item_to_change(self, command: str = "edit") -> Item | None:
        """What is under the cursor, if it may be changed; tells why not."""
        item = self.item
        if self.session is None:
            where = f"{self.library_name or 'NAME'} {item.id if item is not None else 'ID'}"
            self.host.tell(f"no run is open: studio library {command} {where} does it by hand")
            return None
        if self.contents is None:
            self.host.tell("the library is not read yet", "failed")
            return None
        if item is None:
            self.host.tell("nothing is under the cursor", "failed")
        return item

    async def _ask(self, ask: Callable[[], Awaitable[None]]) -> None:
        self.run_exclusive("asks", ask)
        await asyncio.sleep(0)  # the box opens: the next key is the text's first letter

    async def action_edit(self) -> None:
        if (item := self._item_to_change()) is not None:
            await self._ask(partial(self.proposals.edit, item))

    def action_delete(self) -> None:
        if (item := self._item_to_change()) is not None:
            asks = self.proposals.delete(item)
            self.run_worker(asks, group="asks")

    def _forget_marks(self) -> None:
        self.list_pane.mark_range(frozenset())

    def action_mark(self) -> None:
        if self.item is not None:
            self.list_pane.mark_range(self.list_pane.chosen ^ {self.item.id})
            self.host.tell(f"{len(self.list_pane.chosen)} marked: M merges two")

    async def action_merge(self) -> None:
        marked = [item for item in self.items if item.id in self.list_pane.chosen]
        if len(marked) not in (0, 2):
            self.host.tell(f"{len(marked)} marked: M merges two; esc takes the marks away")
            return
        item = self._item_to_change()
        if item is None or self.contents is None:
            return
        into, item = (marked[0].id, marked[1]) if marked else ("", item)
        others = {other.id: other for other in view.items(self.contents)}
        near = self._similar(item, self.contents.library)
        likeliest = near[0][0] if near else ""
        await self._ask(partial(self.proposals.merge, item, others, likeliest, into))
        self._forget_marks()

    def action_pin(self) -> None:
        if (item := self._item_to_change("pin")) is not None:
            person, pinned = self.host.person, item.pinned
            self.host.ask_run(partial(toggle_pin, target=item.id, pinned=pinned, person=person))

    async def action_insert(self) -> None:
        if self.session is None or self.contents is None:
            self._item_to_change()  # tells why not
        else:
            await self._ask(self.proposals.insert)

    def on_edit_box_handed_in(self, event: EditBox.HandedIn) -> None:
        event.stop()
        self.proposals.answer(event.text)

    def on_edit_box_left(self, event: EditBox.Left) -> None:
        event.stop()
        self.proposals.answer(None)

    # -- keys: looking ---------------------------------------------------------------------

    def _toggle_side(self, side: Side) -> None:
        self.show_side("about" if self.shows == side else side)
        self._draw_side()

    def action_uses(self) -> None:
        if self.contents is None:
            if self.session is None and self.list_pane.key:
                self._choose_library(self.list_pane.key)
        elif self.shows == "uses" and self.app.focused is self.uses:
            if self.uses.key:
                self.host.open_page("inspect", self.uses.key)
        elif self.item is not None and self.session is None:
            self.host.tell("no run is open: a library alone does not know who cites it")
        elif self.item is not None:
            self.show_side("uses")
            self._draw_side()

    def _choose_library(self, name: str) -> None:
        self._chosen, self._is_due, self.filter_text = name, True, ""
        self.host.draw_now()

    def action_history(self) -> None:
        if self.item is not None and self._history.key is not None:
            self._commits_of = self.item.id
            self._commits.request((self._history.key, self.item.id), again=True)
            self._toggle_side("history")

    def action_changed(self) -> None:
        """Compare the versions between which its wording changed last."""
        if self.item is None or self._history.value is None:
            return
        name, history = self.item.id, [library for library, _ in self._history.value[0]]
        for older, newer in reversed(list(pairwise(history))):
            before, after = older.get(name), newer.get(name)
            if (before and before.text) != (after and after.text):
                versions = f"{older.name}@{older.version} {newer.name}@{newer.version}"
                self.host.open_page("diff", versions)
                return
        self.host.tell(f"no commit has changed {name}")

    def action_sort(self) -> None:
        self.sort = view.SORTS[(view.SORTS.index(self.sort) + 1) % len(view.SORTS)]
        self.host.draw_now()
        self.host.tell(f"sorted by {self.sort}")

    def action_export(self) -> None:
        if self._history.key is None or self.contents is None:
            self.host.tell("there is no library to export", "failed")
            return
        library = self.contents.library
        write = partial(export_library, self.host.workspace, self._history.key, library)
        self.export_file(write, f"{library.name}@{library.version} is")

    # -- what every page has ---------------------------------------------------------------

    def go_to(self, name: str) -> bool:
        if self.contents is None or name not in {item.id for item in view.items(self.contents)}:
            return False
        if name not in {item.id for item in self.items}:
            self.apply_filter("")
        return self.list_pane.go_to(name)

    def go_back(self) -> bool:
        if self.shows != "about":
            self._toggle_side(self.shows)
        elif self.list_pane.chosen:
            self._forget_marks()
        elif not super().go_back():
            if self.session is not None or not self._chosen:
                return False
            self._choose_library("")
        return True

    def text_to_copy(self, whole: bool) -> str:
        if self.contents is None or self.app.focused is not self.list_pane:
            return super().text_to_copy(whole)
        shown = self.items if whole else filter(None, [self.item])
        return "\n".join(f"{item.id}  {display_text(item.wording)}" for item in shown)


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

    async def edit(self, item: Item) -> None:
        key = ("modify", item.id)
        title = f"{display_text(item.id)}: new wording"
        text = await self._ask_wording(title, key, item.wording)
        if text in ("", item.wording):
            self._page.host.tell(f"{item.id} stays as it is")
        else:
            self._propose(key, Operation("", "modify", item.id, text))

    async def delete(self, item: Item) -> None:
        host, name = self._page.host, display_text(item.id)
        lines = [line((f"{name}  ", "title"), display_text(item.wording)), ()]
        if item.won_count:
            lines.append(line((f"{item.won_count} rollouts that cite it won.", "flag")))
        lines.append(
            line("It is decided in 2 Review like any other operation; its id is never reused.")
        )
        if await host.confirm(f"Propose to delete {name}?", lines, {"d": "propose"}):
            self._propose(("delete", item.id), Operation("", "delete", item.id))
        else:
            host.tell(f"{item.id} stays")

    async def merge(
        self, item: Item, others: dict[str, Item], likeliest: str, into: str = ""
    ) -> None:
        """Two operations: the other takes this one's wording in, and this one goes.

        `others` are all there are, by id; `likeliest` is offered to merge `into`, where that
        is not known.
        """
        host = self._page.host
        into = into or (await host.ask(f"merge {item.id} into:", likeliest) or "").strip()
        other = others.get(into)
        if other is None or other.id == item.id:
            itself, unknown = "it cannot be merged into itself", "there is no such experience"
            host.tell(f"{into or item.id}: {itself if other else unknown}", "failed")
            return
        key = (f"merge {item.id}", other.id)
        title = f"{display_text(other.id)} with {display_text(item.id)} in it"
        text = await self._ask_wording(title, key, f"{other.wording} {item.wording}")
        if not text:
            host.tell(f"{item.id} stays")
            return
        why = f"merged: {item.id} into {other.id}"
        changes = [Operation("", "delete", item.id, "", why)]
        if text != other.wording:
            changes.insert(0, Operation("", "modify", other.id, text, why))
        self._propose(key, *changes)

    async def insert(self) -> None:
        if text := await self._ask_wording("new experience", ("add", None), ""):
            self._propose(("add", None), Operation("", "add", None, text))
        else:
            self._page.host.tell("nothing was proposed")

    async def _ask_wording(self, title: str, key: _Key, text: str) -> str:
        """Ask for a wording in the box; "" where it was left. What was typed is kept."""
        page, box, wording = self._page, self.box, get_running_loop().create_future()
        self._wording = wording
        box.border_title, box.border_subtitle = Content(title), "enter proposes it, esc leaves"
        page.add_class("-editing")
        box.open(self._typed.get(key, text))
        begun = box.text
        page.host.draw_now()
        try:
            answer: str | None = await wording
            if answer is not None or box.text != begun:
                self._typed[key] = box.text
            if not box.text.strip():
                del self._typed[key]
            return " ".join((answer or "").split())
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

    def _propose(self, key: _Key, *operations: Operation) -> None:
        """Ask the run; what was typed is kept until it was taken."""

        async def ask(session: Session) -> str:
            made = []
            for operation in operations:
                own = replace(operation, proposer=self._page.host.person)
                made.append(await session.send(Propose(own, session.who)))
            self._typed.pop(key, None)
            names = " and ".join(operation.id for operation in made)
            flagged = " (flagged)" if any(operation.is_flagged for operation in made) else ""
            return f"{names}{flagged} to be decided in 2 Review"

        self._page.host.ask_run(ask)
