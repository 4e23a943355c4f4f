"""Library: what has been learned; changes become operations in the same queue as all others."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Literal

import orjson
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Container
from textual.widget import Widget

from engines.core import errors, events
from engines.core.frozen import frozen
from engines.core.library import Experience, Library
from engines.core.library_notes import NO_USES, Effect, UseCounts
from engines.core.text.similarity import word_count, word_diff
from engines.core.types import Operation, Tell, rollout_id
from engines.record.journal import HEAD_BYTES, Place, read
from engines.record.libraries import LibraryFolder, version_path
from engines.record.run_dir import RunDir, Workspace
from studio.facts.library import ListedLibrary, history_facts, listed_library, prompt_tokens
from studio.render.library_lines import history_lines, labels_text, list_lines, origin_line
from studio.render.words import count_text, prompt_tokens_text
from studio.review.decider import toggle_pin
from studio.review.wording import Near, find_similar
from studio.secrets.sanitize import one_line
from studio.session.requests import Propose
from studio.session.session import EventReceived, Message, Session, SnapshotReceived
from studio.tui.drawing import cells
from studio.tui.drawing import lines as drawing
from studio.tui.drawing.lines import Line, Row, Span, display_text, holds_words, line, paragraph
from studio.tui.keymap import Key
from studio.tui.pages.lists import ListPage, Loader
from studio.tui.widgets import edit_box, line_view

# -- who cites what ----------------------------------------------------------------------------

_CITATION_KINDS = re.compile(rb'"kind":"(?:StepStarted|RolloutFinished|RolloutJudged)"')


@frozen
class Citation:
    """One rollout, and the experiences that it cites as `[E14]`; `reward` None where it has none.

    A model that was not asked to cite may never do it: then there is no use to show.
    """

    rollout: str
    epoch: int
    reward: float | None
    cited: tuple[str, ...] = ()

    @property
    def sign(self) -> str:
        return "?" if self.reward is None else "+" if self.reward >= 0.5 else "-"


def read_citations(run: RunDir) -> dict[str, Citation]:
    """Return the rollouts of a run by id, as its journal tells of them. Blocks."""
    citations: dict[str, Citation] = {}
    epoch = 0

    def take(path: Path, place: Place) -> None:
        nonlocal epoch
        body = place.line.body
        if not _CITATION_KINDS.search(body, 0, HEAD_BYTES):
            return
        data = orjson.loads(body)  # making events of all takes five times as long
        if data["kind"] == "StepStarted":
            epoch = data["epoch"]
            return
        name = rollout_id(data["step"], data["position"], data["index"])
        before = citations.get(name, Citation(name, epoch, None))
        if data["kind"] == "RolloutFinished":
            citations[name] = replace(before, cited=tuple(data.get("cited") or ()))
        else:
            citations[name] = replace(before, reward=data["verdict"]["reward"])

    read(run.journal, take)
    return citations


# -- a library as values -----------------------------------------------------------------------

_SIGNS = {"+": "won", "-": "lost", "?": "queued"}
_VERDICTS = {"helps": "won", "hurts": "lost"}
MARKS = {"+": "added", "-": "removed", "~": "flag", "?": "flag", " ": ""}
MARK_WORDS = {"?": "to decide", "+": "added", "~": "reworded", "-": "deleted"}


@frozen
class LibraryState:
    """What is known of one library; `draft` is None where no decision waits for a commit."""

    library: Library
    draft: Library | None = None
    open: tuple[Operation, ...] = ()
    citations: Mapping[str, Citation] = field(default_factory=dict)  # by rollout


@frozen
class Item:
    """One experience with what a commit would make of it.

    `mark`: "+" is added, "~" reworded and "-" deleted by the draft, "?" an undecided operation
    is about it, " " nothing waits.
    """

    id: str
    text: str  # as it stands in the library; of an addition, as it would
    drafted: str | None  # the wording the draft gives it, None where it gives no other
    mark: str
    waiting: tuple[Operation, ...] = ()
    uses: tuple[Citation, ...] = ()
    pinned: bool = False  # as the draft has it
    counts: UseCounts = NO_USES  # of the wording in the library, over all runs
    effect: Effect | None = None  # of that wording; None: it was not measured

    @property
    def wording(self) -> str:
        """As it would stand after the commit."""
        return self.drafted or self.text

    @property
    def won_count(self) -> int:
        return sum(use.sign == "+" for use in self.uses)

    @property
    def uses_text(self) -> str:
        if not self.uses:
            return "none of this run"
        lost = sum(use.sign == "-" for use in self.uses)
        text = f"{count_text(len(self.uses), 'rollout')}: {self.won_count} won, {lost} lost"
        unknown = len(self.uses) - self.won_count - lost
        return f"{text}, {unknown} not judged" if unknown else text


def items(contents: LibraryState, sort: str = "id") -> tuple[Item, ...]:
    """The experiences, those the draft adds included.

    Sorted by id, most uses first, most worth first, or longest first.
    """
    library, after = contents.library, contents.draft or contents.library
    before, drafted = ({e.id: e.text for e in each.experiences} for each in (library, after))
    waiting: dict[str | None, list[Operation]] = {}
    for operation in contents.open:
        waiting.setdefault(operation.target, []).append(operation)
    uses: dict[str, list[Citation]] = {}
    for citation in contents.citations.values():
        for name in citation.cited:
            uses.setdefault(name, []).append(citation)
    listed = []
    for name in {**before, **drafted}:
        text, new = before.get(name), drafted.get(name)
        mark = "?" if name in waiting else " "
        if text is None:
            mark = "+"
        elif new is None:
            mark = "-"
        elif new != text:
            mark = "~"
        item = Item(
            id=name,
            text=text or new or "",
            drafted=new if mark == "~" else None,
            mark=mark,
            waiting=tuple(waiting.get(name, ())),
            uses=tuple(uses.get(name, ())),
            pinned=name in after.pinned_ids,
            counts=library.notes.uses.get(name, NO_USES),
            effect=library.notes.effects.get(name),
        )
        listed.append(item)
    match sort:  # by id: the order of a library is that of birth
        case "uses":
            listed.sort(key=lambda item: (-item.counts.used, -len(item.uses), -item.won_count))
        case "worth":
            listed.sort(key=lambda item: -item.effect.difference if item.effect else 2.0)
        case "length":
            listed.sort(key=lambda item: -word_count(item.text))
    return tuple(listed)


# -- how it is drawn ---------------------------------------------------------------------------


def item_rows(listed: Sequence[Item], width: int) -> list[Row]:
    """A row each: its mark, its wording, how often it was used and misled, its worth."""
    room = min(12, max((cells.cell_width(display_text(item.id)) for item in listed), default=0))
    is_counted = any(item.counts != NO_USES for item in listed)
    is_measured = any(item.effect is not None for item in listed)
    rows = []
    for item in listed:
        figures = count_text(word_count(item.text), "word")
        if is_counted:
            figures = f"{f'+{item.counts.used}':>4} {f'-{item.counts.misled}':>3}"
        if is_measured:
            figures += _worth_cell(item.effect)
        pin = cells.GLYPHS.pinned if item.pinned else " "
        head = f"{item.mark} {cells.pad(display_text(item.id), room)}{pin} "
        style = MARKS[item.mark] if item.mark in "+-" else ""
        text = cells.fit(display_text(" ".join(item.wording.split())), width)
        left = line((head, MARKS[item.mark]), (text, style))
        rows.append(Row(item.id, drawing.spread(left, line((figures, "dim")), width)))
    return rows


def _worth_cell(effect: Effect | None) -> str:
    """An effect in points, and whether that is sure: `  +10 +`, `   -3 ?`."""
    if effect is None:
        return " " * 7
    sure = {"helps": "+", "hurts": "-"}.get(effect.verdict, "?")
    return f"{100 * effect.difference:>+5.0f} {sure}"


def title_text(contents: LibraryState, total: int, listed: int, labels: str) -> str:
    """`lib v13  prod v9  34 experiences  748 tokens a call`; with a draft's version, if any."""
    library, draft = contents.library, contents.draft
    version = f"v{library.version}"
    if draft is not None and draft.version != library.version:
        version += f" -> v{draft.version} drafted"
    held = count_text(total, "experience")
    if listed != total:
        held = f"{listed} of {held}"
    tokens = prompt_tokens_text(library.guidance_tokens, total)
    return "  ".join(filter(None, (f"{library.name} {version}", labels, held, tokens)))


def detail_lines(
    item: Item, experience: Experience | None, near: Sequence[Near] | None, width: int
) -> list[Line]:
    """One experience: what it says and would say, where it comes from, what it did.

    `experience` is None of one that the draft adds, `near` while similar ones are looked for.
    """
    parts: list[tuple[str, str | Iterable[Span]]] = [("text", display_text(item.text))]
    if item.drafted is not None:
        words = word_diff(display_text(item.text), display_text(item.drafted))
        parts.append(("draft", drawing.change_spans(words)))
    elif item.mark == "+":
        parts.append(("draft", [("it is added with the next commit", "added")]))
    elif item.mark == "-":
        parts.append(("draft", [("it is deleted with the next commit", "removed")]))
    for operation in item.waiting:
        what = f"{operation.id} {operation.kind}" + (" flagged" if operation.is_flagged else "")
        parts.append(("open", [(f"{what} (2 Review)", "flag")]))
    if item.pinned:
        parts.append(("pinned", "nothing may change or delete it (p unpins it)"))
    if experience is not None:
        tokens = prompt_tokens(item.text)
        parts.append(("length", f"{word_count(item.text)} words, about {tokens} tokens a prompt"))
    if item.counts != NO_USES:
        parts.append(("attempts", drawing.count_spans(item.counts)))
    if item.effect is not None:
        parts.append(("worth", [(item.effect.worth, _VERDICTS.get(item.effect.verdict, "queued"))]))
    if item.uses:
        parts.append(("cited by", f"{item.uses_text} (enter)"))
    wordings = experience.history if experience is not None else ()
    if wordings:
        changes = ", ".join(f"v{mark.version} {mark.kind}" for mark in wordings)
        parts.append(("history", f"{changes} (H in full, D the last)"))
        parts.append(("from", display_text(origin_line(wordings[-1]))))
        parts.append(("why", display_text(wordings[-1].rationale)))
    elif experience is not None:
        parts.append(("from", f"v{experience.born}, it came with the library"))
    if near is None:
        parts.append(("similar", [("comparing …", "dim")]))
    else:
        alike = "  ".join(f"{display_text(name)} {score:.2f}" for name, score, _ in near)
        parts.append(("similar", alike or "none"))
    out: list[Line] = []
    for label, spans in parts:
        if spans:
            out += drawing.labelled_lines(label, spans, width)
    return out


def use_rows(
    item: Item,
    experience: Experience | None,
    run: str,
    width: int,
    citations: Mapping[str, Citation],
) -> list[Row]:
    """The rollouts that cite an experience, then those of this run that it was drawn from.

    Evidence of other runs cannot be opened from here.
    """
    rows = [Row("", line((item.uses_text, "dim")))]
    rows += [_use_row(use.rollout, use, width) for use in item.uses]
    cited = {use.rollout for use in item.uses}
    evidence: list[str] = []
    for mark in experience.history if experience is not None else ():
        if mark.run == run:
            evidence += [name for name in mark.evidence if name not in cited]
    if evidence:
        rows.append(Row("", line(("drawn from", "dim"))))
    for name in dict.fromkeys(evidence):
        rows.append(_use_row(name, citations.get(name), width))
    return rows


def _use_row(rollout: str, use: Citation | None, width: int) -> Row:
    text, style = f"  {display_text(rollout)}", ""
    if use is not None:
        reward = "not judged" if use.reward is None else f"{use.reward:.2f}"
        text = f"{use.sign} {cells.pad(display_text(rollout), 10)} {reward}  epoch {use.epoch}"
        style = _SIGNS[use.sign]
    return Row(rollout, line((cells.fit(text, width), style)))


def library_rows(listed: Sequence[ListedLibrary], words: str, width: int) -> list[Row]:
    """The libraries of a workspace, as `studio library list` prints them."""
    rows = []
    for facts in listed:
        (text,) = list_lines([facts])
        span = (text, "")
        if facts.trouble:
            span = (f"{facts.library}  {facts.trouble}", "failed")
        if holds_words(facts.library, words):
            rows.append(
                Row(facts.library, line((cells.fit(display_text(span[0]), width), span[1])))
            )
    return rows


def list_libraries(workspace: Workspace) -> tuple[ListedLibrary, ...]:
    """Return every library of a workspace; one that cannot be read says why. Blocks."""
    listed = []
    for folder in workspace.libraries():
        try:
            listed.append(listed_library(folder))
        except errors.StudioError as error:
            listed.append(ListedLibrary(folder.name, trouble=str(error)))
    return tuple(listed)


# -- the page ----------------------------------------------------------------------------------

_MOVES_THE_HEAD = events.LessonCommitted | events.LessonReturned
_BRINGS_USES = events.StepFinished | events.LessonProposed | events.LessonCommitted
Side = Literal["about", "uses", "history"]


@frozen
class Versions:
    """All versions of a library, the head last, and its labels."""

    libraries: tuple[Library, ...]
    labels: Mapping[str, int]


@frozen
class Wording:
    """A text that is asked for in the box, and what is done with it."""

    key: tuple[str, str]  # what it is for: the change and its target
    propose: Tell  # "" where nothing stands in the box
    begun: str  # what stood in the box as it was opened


class LibraryPage(ListPage):
    """The run's library with its draft; without a run, those of the workspace to read."""

    scope = "library"
    sorts = ("id", "uses", "worth", "length")

    def __init__(self) -> None:
        super().__init__()
        self.uses = line_view.RowList(id="library-uses", classes="pane")
        self.box = edit_box.EditBox(id="library-edit")
        self.shows: Side = "about"
        self.contents: LibraryState | None = None
        self.items: tuple[Item, ...] = ()
        self.wording: Wording | None = None  # that is asked for now
        self._typed: dict[tuple[str, str], str] = {}  # wordings that were not taken yet
        self._target = ""  # an id to go to as soon as it is known
        self._name = ""  # of the library that is shown
        self._chosen = ""  # a library of the workspace, where no run is open
        self._is_due = self._count_due = True
        self._versions = Loader[LibraryFolder, Versions](
            self, lambda folder: Versions(folder.versions(), dict(folder.labels()))
        )
        self._libraries = Loader[Workspace, tuple[ListedLibrary, ...]](self, list_libraries)
        self._citations = Loader[RunDir, dict[str, Citation]](self, read_citations)
        self._near = Loader[tuple[str, tuple[tuple[str, str], ...]], tuple[Near, ...]](
            self, lambda key: find_similar(*key)
        )
        # What concerned an experience, as it is printed.
        self._commits = Loader[tuple[LibraryFolder, str], list[str]](
            self, lambda key: history_lines(history_facts(*key), rejections=False)
        )

    def compose(self) -> ComposeResult:
        with Container(id="library-panes"):
            yield self.list_pane
            with Container(id="library-side"):
                yield self.detail_pane
                yield self.uses
                yield self.box

    def initial_focus(self) -> Widget:
        return self.list_pane if self.wording is None else self.box

    def panes(self) -> list[Widget]:
        return super().panes() if self.wording is None else [self.box]

    def footer_keys(self) -> Sequence[Key]:
        return () if self.wording is None else edit_box.EDIT_KEYS

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

    def _library_state(self) -> LibraryState | None:
        """What is known now."""
        if self._versions.value is None or not self._versions.value.libraries:
            return None
        head, state = self._versions.value.libraries[-1], self.state
        citations = self._citations.value or {}
        if state is None:
            return LibraryState(head)
        draft = None
        if state.reviewed_operations:
            # As the gate does: decisions stand on the head, whatever moved it.
            limit = state.settings.get("practice.library_limit")
            draft = head.commit(state.reviewed_operations, limit=limit).library
        return LibraryState(head, draft, state.open_operations, citations)

    def draw(self) -> None:
        name, session, workspace = self.library_name, self.session, self.host.workspace
        if name != self._name:
            self._name, self._is_due, self._count_due = name, True, True
            self._versions.forget()
            self._citations.forget()
            self.show_side("about")
        if self._is_due and name:
            self._versions.request(workspace.library(name), again=True)
        elif self._is_due and session is None:
            self._libraries.request(workspace, again=True)
        self._is_due = False
        if self._count_due and session is not None and self._versions.value is not None:
            self._count_due = False
            self._citations.request(session.run, again=True)
        self.contents = self._library_state()
        self.has_nothing = self.contents is None
        if self.contents is None:
            self._draw_libraries()
        else:
            self._draw_list(self.contents)
        self.draw_detail()

    def _draw_list(self, contents: LibraryState) -> None:
        everything = items(contents, self.sort)
        self.items = tuple(
            item
            for item in everything
            if holds_words(f"{item.id} {item.text} {item.wording}", self.filter_text)
        )
        target = self._target if any(item.id == self._target for item in self.items) else None
        if target:
            self._target = ""
        marks = {item.mark for item in self.items}
        notes = [f"{mark} {what}" for mark, what in MARK_WORDS.items() if mark in marks]
        if contents.open:
            notes.append(f"{len(contents.open)} to decide in Review")
        if any(item.counts != NO_USES for item in self.items):
            notes.append("+used -misled")
        if any(item.effect is not None for item in self.items):
            notes.append("worth in points")
        if self.session is None:
            notes.append("read-only")
        labels = labels_text(self._versions.value.labels) if self._versions.value else ""
        self.show_list(
            item_rows(self.items, self.list_width),
            self._versions,
            title_text(contents, len(everything), len(self.items), labels),
            nothing=line(("nothing has been learned yet; i proposes one", "dim")),
            notes=notes,
            key=target,
        )

    def _draw_libraries(self) -> None:
        """No version is known: list the libraries there are, or say why none is."""
        self.items = ()
        reader: Loader[LibraryFolder, Versions] | Loader[Workspace, tuple[ListedLibrary, ...]]
        reader, rows = self._versions, list[Row]()
        text = "the run has not begun: its library is not known yet"
        if self.session is None and not self.library_name:
            reader = self._libraries
            rows = library_rows(reader.value or (), self.filter_text, self.list_width)
            text = "no library in this workspace yet: 0 starts a run that learns one"
        self.show_list(rows, reader, "Library", nothing=line((text, "dim")))

    # -- beside the list -------------------------------------------------------------------

    def show_side(self, side: Side) -> None:
        was, self.shows = self.shows, side
        if side == was:
            return
        self.uses.display, self.detail_pane.display = side == "uses", side != "uses"
        if side == "uses":
            self.uses.focus(scroll_visible=False)
            self.call_after_refresh(self.draw)  # only then its size is known
        elif was == "uses" and self.is_open:
            self.initial_focus().focus(scroll_visible=False)
        self.detail_pane.scroll_to(y=0, animate=False)

    def draw_detail(self) -> None:
        item, contents, pane = self.item, self.contents, self.detail_pane
        if item is None or contents is None:
            hint = ""
            if self.session is None and self.list_pane.key:
                hint = "No run is open: libraries can be read here. enter shows the experiences."
            pane.border_title = None
            pane.say_below()
            pane.show_lines(paragraph([(hint, "dim")], pane.line_width))
            return
        name, experience = display_text(item.id), contents.library.get(item.id)
        if self.shows == "uses":
            run = self.session.run.run if self.session is not None else ""
            width = max(20, self.uses.line_width - 2)
            self.uses.border_title = Text(f"{name}: uses")
            self.uses.say_below("enter opens one, esc")
            self.uses.show_rows(use_rows(item, experience, run, width, contents.citations))
            return
        if self.shows == "history":
            pane.border_title = Text(f"{name}: history")
            pane.say_below("esc")
            pane.show_lines(self._history_lines(item))
            return
        near = self._similar(item, contents.library)
        lines = detail_lines(item, experience, near, pane.line_width)
        if self.session is None:
            command = f"studio library edit {contents.library.name} {item.id}"
            lines += paragraph([("change it with ", "dim"), (command, "")], pane.line_width)
        pane.border_title = Text(name)
        pane.say_below()
        pane.show_lines(lines)

    def _history_lines(self, item: Item) -> list[Line]:
        commits, width = self._commits, self.detail_pane.line_width
        if commits.value is None or not commits.key or commits.key[1] != item.id:
            return paragraph([(one_line(commits.trouble, 400) or "reading …", "dim")], width)
        out: list[Line] = []
        for text in commits.value or ["no commit concerns it"]:
            style = "" if text.startswith(" ") else "title"
            out += paragraph([(display_text(text), style)], width, "    ")
        return out

    def _similar(self, item: Item, library: Library) -> tuple[Near, ...] | None:
        """Experiences most like this one; None: they are being looked for."""
        others = tuple((e.id, e.text) for e in library.experiences if e.id != item.id)
        self._near.request((item.text, others))
        return self._near.value if self._near.key == (item.text, others) else None

    def on_row_list_moved(self, event: line_view.RowList.Moved) -> None:
        if event.rows is self.list_pane and event.is_current:
            self.show_side("about")
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
        elif item is None:
            self.host.tell("nothing is under the cursor", "failed")
        return item

    def action_edit(self) -> None:
        if (item := self._item_to_change()) is None:
            return
        name, before = item.id, item.wording

        def propose(text: str) -> None:
            if text in ("", before):
                self.host.tell(f"{name} stays as it is")
            else:
                self._propose(("modify", name), Operation("", "modify", name, text))

        self._ask_wording(f"{display_text(name)}: new wording", ("modify", name), before, propose)

    def action_insert(self) -> None:
        if self.session is None or self.contents is None:
            self._item_to_change()  # tells why not
            return

        def propose(text: str) -> None:
            if text:
                self._propose(("add", ""), Operation("", "add", None, text))
            else:
                self.host.tell("nothing was proposed")

        self._ask_wording("new experience", ("add", ""), "", propose)

    def action_delete(self) -> None:
        if (item := self._item_to_change()) is not None:
            self.run_exclusive("asks", partial(self._ask_deletion, item))

    async def _ask_deletion(self, item: Item) -> None:
        name = display_text(item.id)
        lines = [line((f"{name}  ", "title"), display_text(item.wording)), ()]
        if item.won_count:
            lines.append(line((f"{item.won_count} rollouts that cite it won.", "flag")))
        text = "It is decided in 2 Review like any other operation; its id is never reused."
        lines.append(line(text))
        if await self.host.confirm(f"Propose to delete {name}?", lines, {"d": "propose"}):
            self._propose(("delete", item.id), Operation("", "delete", item.id))
        else:
            self.host.tell(f"{item.id} stays")

    def action_mark(self) -> None:
        if self.item is not None:
            self.list_pane.mark_range(self.list_pane.chosen ^ {self.item.id})
            self.host.tell(f"{len(self.list_pane.chosen)} marked: M merges two")

    def action_merge(self) -> None:
        marked = [item for item in self.items if item.id in self.list_pane.chosen]
        if len(marked) not in (0, 2):
            self.host.tell(f"{len(marked)} marked: M merges two; esc takes the marks away")
            return
        item = self._item_to_change()
        if item is None or self.contents is None:
            return
        self.list_pane.mark_range(frozenset())
        if marked:
            self._merge(marked[1], marked[0])
            return
        near = self._similar(item, self.contents.library)
        asked = self.host.ask(f"merge {item.id} into:", near[0][0] if near else "")
        others = {other.id: other for other in items(self.contents)}

        async def merge() -> None:
            into = (await asked or "").strip()
            if into in others and into != item.id:
                self._merge(item, others[into])
            elif into == item.id:
                self.host.tell(f"{into}: it cannot be merged into itself", "failed")
            else:
                self.host.tell(f"{into or item.id}: there is no such experience", "failed")

        self.run_exclusive("asks", merge)

    def _merge(self, item: Item, other: Item) -> None:
        """Two operations: the other takes this one's wording in, and this one goes."""
        key, why = (f"merge {item.id}", other.id), f"merged: {item.id} into {other.id}"

        def propose(text: str) -> None:
            changes = [Operation("", "delete", item.id, "", why)]
            if text != other.wording:
                changes.insert(0, Operation("", "modify", other.id, text, why))
            if text:
                self._propose(key, *changes)
            else:
                self.host.tell(f"{item.id} stays")

        title = f"{display_text(other.id)} with {display_text(item.id)} in it"
        self._ask_wording(title, key, f"{other.wording} {item.wording}", propose)

    def action_pin(self) -> None:
        if (item := self._item_to_change("pin")) is not None:
            person, pinned = self.host.person, item.pinned
            self.host.ask_run(partial(toggle_pin, target=item.id, pinned=pinned, person=person))

    def _ask_wording(self, title: str, key: tuple[str, str], text: str, propose: Tell) -> None:
        """Ask for a wording in the box; what is typed is kept until it was taken."""
        self.box.border_title = Text(title)
        self.box.border_subtitle = "enter proposes it, esc leaves"
        self.add_class("-editing")
        self.box.open(self._typed.get(key, text))
        self.wording = Wording(key, propose, self.box.text)
        self.host.draw_now()

    def on_edit_box_handed_in(self, event: edit_box.EditBox.HandedIn) -> None:
        event.stop()
        self._leave_box(" ".join(event.text.split()))

    def on_edit_box_left(self, event: edit_box.EditBox.Left) -> None:
        event.stop()
        self._leave_box("")

    def _leave_box(self, text: str) -> None:
        wording, self.wording = self.wording, None
        if wording is None:
            return
        if not self.box.text.strip():
            self._typed.pop(wording.key, None)
        elif self.box.text != wording.begun:
            self._typed[wording.key] = self.box.text
        self.box.close()
        self.remove_class("-editing")
        if self.is_open:
            self.initial_focus().focus(scroll_visible=False)
            self.call_after_refresh(self.draw_if_open)
        wording.propose(text)

    def _propose(self, key: tuple[str, str], *operations: Operation) -> None:
        """Ask the run; what was typed is kept until it was taken."""

        async def ask(session: Session) -> str:
            proposed = []
            for operation in operations:
                own = replace(operation, proposer=self.host.person)
                proposed.append(await session.send(Propose(own, session.who)))
            self._typed.pop(key, None)
            names = " and ".join(operation.id for operation in proposed)
            flagged = " (flagged)" if any(each.is_flagged for each in proposed) else ""
            return f"{names}{flagged} to be decided in 2 Review"

        self.host.ask_run(ask)

    # -- keys: looking ---------------------------------------------------------------------

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
            self.draw_detail()

    def _choose_library(self, name: str) -> None:
        self._chosen, self._is_due, self.filter_text = name, True, ""
        self.host.draw_now()

    def action_history(self) -> None:
        if self.item is not None and self._versions.key is not None:
            self._commits.request((self._versions.key, self.item.id), again=True)
            self.show_side("about" if self.shows == "history" else "history")
            self.draw_detail()

    def action_changed(self) -> None:
        """Compare the versions between which its wording changed last."""
        if self.item is None or self._versions.value is None:
            return
        name = self.item.id
        for older, newer in reversed([*pairwise(self._versions.value.libraries)]):
            before, after = older.get(name), newer.get(name)
            if (before and before.text) != (after and after.text):
                versions = f"{older.name}@{older.version} {newer.name}@{newer.version}"
                self.host.open_page("diff", versions)
                return
        self.host.tell(f"no commit has changed {name}")

    def action_export(self) -> None:
        if self._versions.key is None or self.contents is None:
            self.host.tell("there is no library to export", "failed")
            return
        library = self.contents.library
        file = version_path(self._versions.key.path, library.version)
        name = f"{library.name}-v{library.version:04d}.yaml"
        self.export_file(name, file.read_bytes, f"{library.name}@{library.version} is")

    # -- what every page has ---------------------------------------------------------------

    def go_back(self) -> bool:
        if self.shows != "about":
            self.show_side("about")
            self.draw_detail()
        elif self.list_pane.chosen:
            self.list_pane.mark_range(frozenset())
        elif not super().go_back():
            if self.session is not None or not self._chosen:
                return False
            self._choose_library("")
        return True

    def text_to_copy(self, whole: bool) -> str:
        if self.contents is None or self.app.focused is not self.list_pane:
            return super().text_to_copy(whole)
        copied = self.items if whole else filter(None, [self.item])
        return "\n".join(f"{item.id}  {display_text(item.wording)}" for item in copied)
