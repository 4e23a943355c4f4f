"""The list of what waits on the review page and what was decided, and the item under its cursor.

`ReviewLoader` reads what they need, `ItemQueue` keeps the library as the standing decisions would
leave it, `ChangePane` shows one item whole, with what it rests on and resembles. None decides
anything.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from engines.core import errors, library_notes
from engines.core.frozen import frozen
from engines.core.library import Library
from engines.core.state.run_state import RunState
from engines.core.types import UnparsedReply
from studio.review import decider, wording
from studio.secrets.sanitize import one_line
from studio.session.session import Session
from studio.tui.drawing.cells import GLYPHS
from studio.tui.drawing.lines import BLANK, Line, Row, holds_words, line, note_rows, paragraph
from studio.tui.page import Page
from studio.tui.pages.lists import Loader
from studio.tui.pages.live.view import current_batch, status_line
from studio.tui.pages.review import view
from studio.tui.pages.review.panes import ReviewPanes
from studio.tui.pages.review.view import Item, excerpt

if TYPE_CHECKING:
    from studio.review.evidence import EvidenceLoader, GroupEvidence


@frozen
class Findings:
    """The findings about one operation."""

    groups: "tuple[GroupEvidence, ...]" = ()
    near: tuple[wording.Near, ...] = ()
    answers: Mapping[str, str] = field(default_factory=dict)  # by rollout id, once opened


@frozen
class FindingsRequest:
    """One operation, to be looked at against the library as it stands."""

    item: Item
    texts: Mapping[str, str] = field(compare=False)
    stamp: int  # changes when the texts do
    opened: bool = False  # whole replies are wanted


class ReviewLoader:
    """Reads about the run that the page shows."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._base = Loader[tuple[str, int, library_notes.NotesMark], Library](
            page, lambda key: page.host.workspace.library(key[0]).at(key[1])
        )
        self.findings = Loader[FindingsRequest, Findings](
            page, lambda wanted: self.load_findings(wanted)
        )
        self.reset(None)

    def reset(self, session: Session | None) -> None:
        """Another run is shown, or none."""
        self._session = session
        self._evidence: EvidenceLoader | None = None
        self._base.forget()
        self.findings.forget()

    @property
    def base(self) -> Library | None:
        """The library that the standing decisions are about; None: it was not or cannot be read."""
        return self._base.value if not self.trouble else None

    @property
    def trouble(self) -> str:
        """Why the library cannot be read."""
        return self._base.trouble

    @property
    def knows_base(self) -> bool:
        """Whether the library was read, or cannot be."""
        return self.base is not None or bool(self.trouble)

    def find(self, item: Item) -> Findings | None:
        """Return the findings about an operation; None: they are not read yet, or cannot be."""
        key = self.findings.key
        return self.findings.value if key is not None and key.item.id == item.id else None

    def request_base(self) -> None:
        """Have the library read as it is, with its notes as far as they have come."""
        state = self._page.state
        if self._session is not None and state is not None and state.started is not None:
            mark = state.current.notes if state.current is not None else library_notes.NO_MARK
            self._base.request((state.started.library, state.base_version, mark))

    async def load_reply(self, unparsed: UnparsedReply) -> str | None:
        """Return the whole of a reply that waits to be mended; None where no run is shown.

        Raises StudioError: the run's journal or records cannot be read.
        """
        if self._session is None:
            return None
        source = await asyncio.to_thread(self._open_evidence().reply_source, unparsed)
        return source.reply

    # -- in a thread -------------------------------------------------------------------------

    def _open_evidence(self) -> "EvidenceLoader":
        if self._evidence is None:
            from studio.review.evidence import EvidenceLoader

            assert self._session is not None
            self._evidence = EvidenceLoader(self._session.run)
        return self._evidence

    def load_findings(self, wanted: FindingsRequest) -> Findings:
        """Read it. Raises StudioError, OSError."""
        item = wanted.item
        op = item.operation
        assert op is not None
        groups = self._open_evidence().operation_groups(op)
        answers = self._load_answers(groups) if wanted.opened else {}
        near = wording.find_alike(op, item.decision, item.after or item.before, wanted.texts)
        return Findings(groups, near, answers)

    def _load_answers(self, groups: "Sequence[GroupEvidence]") -> dict[str, str]:
        answers = {}
        for witness in (witness for group in groups for witness in group.witnesses):
            try:
                messages = self._open_evidence().messages(witness)
            except errors.StudioError:
                continue  # one lost record; its last words are in the journal
            replies = [m.content for m in messages if m.role == "assistant"]
            answers[witness.id] = replies[-1] if replies else ""
        return answers


class ItemQueue:
    """The items as they are listed, and where the person is among them."""

    def __init__(self, page: Page, panes: ReviewPanes, loader: ReviewLoader) -> None:
        self._page, self._panes, self._loader = page, panes, loader
        self._list = panes.operations
        self.sort = view.SORTS[0]
        self.draft = decider.Draft({})
        self.stamp = 0  # changes when the draft's texts do
        self.reset()

    def reset(self) -> None:
        """Another run is shown, or none."""
        self.decider = decider.Decider()
        self.everything: list[Item] = []  # whatever the filter shows
        self.items: list[Item] = []  # as they are listed
        self.has_new_lesson = False  # or a commit was made: the cursor goes to what is open
        self._lesson: object = None  # the one that was listed last
        self._anchor = ""  # where a range begins
        self._marked: set[str] = set()  # by a person, to be merged
        self.made_of: tuple[object, ...] = ()  # what the list was made of

    # -- what is listed ----------------------------------------------------------------------

    def draw(self) -> None:
        page, state, words = self._page, self._page.state, self._page.filter_text
        hint: Line = ()
        if words:
            text = f"nothing holds “{excerpt(words)}”: "
            hint = line(text, ("esc", "key"), " clears the filter")
        elif state is None or not (state.operations or state.repairs):
            hint = status_line(state, current_batch(state), page.host.session_status, None)
        notes = self.notes
        made_of = (state, state.events if state else 0, self.sort, words, self._loader.base,
                   hint, notes, self._list.line_width)  # fmt: skip
        if self.made_of == made_of:
            return
        self.made_of = made_of
        lesson = state and (state.step, state.under_review, state.library_version)
        self.has_new_lesson |= self._lesson is not None and lesson != self._lesson
        self._lesson = lesson
        self.everything = self._make_items(state) if state is not None else []
        self.items = self.everything
        if words:
            self.items = [i for i in self.everything if holds_words(view.search_text(i), words)]
        width = self._list.line_width - 2  # two cells are the cursor's
        rows = [view.item_row(item, width=width, has_note=item.id in notes) for item in self.items]
        rows = rows or note_rows(paragraph(hint, width))
        self._list.show_rows(rows, key=self._cursor_target())
        self.mark_range()
        self._say_counts(words)

    def _make_items(self, state: RunState) -> list[Item]:
        base, draft = self._loader.base, decider.Draft({})
        if base is not None:
            draft = decider.Draft({e.id: e.text for e in base.experiences}, {*base.pinned_ids})
        draft.apply(state.reviewed_operations)
        self.stamp += draft.texts != self.draft.texts
        self.draft = draft
        operations = state.operations.values()
        befores = {op.id: draft.texts.get(op.target or "", "") for op in operations}
        return view.items(state, sort=self.sort, befores=befores | draft.replaced)

    def _say_counts(self, words: str) -> None:
        state, total = self._page.state, len(self.everything)
        counts = f"{len(self.items)} of {total}" if words else f"{total}"
        what = "Weight update" if state is not None and state.step_trains else "Operations"
        later = sum(item.standing == "later" for item in self.items)
        self._list.border_title = f"{what} {counts}" + (f", {later} later" if later else "")
        safe = sum(item.is_safe for item in self.items)
        filtered = f"  filter: {excerpt(words)}" if words else ""
        self._list.say_below(f"{safe} safe (A)  sort: {self.sort}{filtered}")

    def current_item(self, item: Item) -> Item | None:
        """The same from the run's state now: a frame may not have been drawn since it changed."""
        state, name = self._page.state, item.id
        if state is not None and name in state.operations:
            return view.make_item(state.operations[name], state, item.before)
        is_reply = state is not None and name in state.repairs
        return Item(name, unparsed=state.repairs[name]) if state and is_reply else None

    @property
    def is_all_decided(self) -> bool:
        state = self._page.state
        if state is None or any(item.is_open for item in self.items):
            return False
        return not state.undecided_operations and any(item.decision for item in self.items)

    @property
    def notes(self) -> dict[str, str]:
        """By operation: those written here, and those that were put off with one."""
        state = self._page.state
        return {**(state.notes if state is not None else {}), **self._page.host.drafts.notes}

    # -- the cursor --------------------------------------------------------------------------

    @property
    def item(self) -> Item | None:
        name = self._list.key
        return next((item for item in self.items if item.id == name), None)

    @property
    def group(self) -> str:
        """The group that the operation under the cursor rests on first; "" where none is."""
        operation = self.item.operation if self.item is not None else None
        evidence = operation.evidence if operation is not None else ()
        rollout = view.rollout_of(self._panes.evidence.key) or next(iter(evidence), "")
        return rollout.rpartition("r")[0]

    def _cursor_target(self) -> str:
        """What the cursor belongs on: where it is, but on what is new once something is."""
        is_new, self.has_new_lesson = self.has_new_lesson, False
        first_open = next((item.id for item in self.items if item.is_open), "")
        is_typing = self._panes.editing is not None or self._page.host.is_asking
        if is_new and not is_typing and not self._anchor:
            return first_open or self._list.key
        # Where the person was before the screen was opened, else the first undecided one.
        left_at = self._page.host.drafts.cursor
        was_here = any(item.id == left_at for item in self.items)
        return self._list.key or (left_at if was_here else first_open)

    def go_to(self, name: str) -> bool:
        """Put the cursor on an item, without the filter where that hides it."""
        page, state = self._page, self._page.state
        if state is None or not (name in state.operations or name in state.repairs):
            return False
        self.has_new_lesson = False
        if page.is_attached and not self._list.go_to(name):
            if page.filter_text:
                page.filter_text = page.host.drafts.filter = ""
            page.draw()
            self._list.go_to(name)
        page.host.drafts.cursor = name
        return True

    def go_to_undecided(self, by: int) -> None:
        """The next undecided one from the cursor on, round the end."""
        names = [item.id for item in self.items][::by]
        if self._list.key not in names:
            return
        at = names.index(self._list.key) + 1
        waiting = {item.id for item in self.items if item.is_open} - self.decider.busy
        for name in names[at:] + names[:at]:
            if name in waiting:
                self._list.go_to(name)
                return
        if not self.is_all_decided:
            self._page.host.tell("nothing is undecided")

    # -- a range, and what is marked ---------------------------------------------------------

    @property
    def has_range(self) -> bool:
        return bool(self._anchor)

    @property
    def range_items(self) -> list[Item]:
        names = [item.id for item in self.items]
        if self._anchor not in names or self._list.key not in names:
            return []
        low, high = sorted((names.index(self._anchor), names.index(self._list.key)))
        return self.items[low : high + 1]

    def toggle_range(self) -> None:
        if self._anchor:
            self.leave_range()
        elif self.item is not None:
            self._anchor = self.item.id
            self.mark_range()
            self._page.host.tell("a range: move, then a or r; esc leaves it")

    def mark_range(self) -> None:
        """Show what the range holds after the cursor has moved, and what is marked."""
        names = {item.id for item in (*self.range_items, *self.marked_items)}
        if names != self._list.chosen:
            self._list.mark_range(frozenset(names))

    def leave_range(self) -> None:
        self._anchor = ""
        self.mark_range()

    @property
    def marked_items(self) -> list[Item]:
        """As they are now, in the order of the list."""
        return [item for item in self.items if item.id in self._marked]

    def toggle_mark(self, name: str) -> None:
        self._marked ^= {name}
        self.mark_range()

    def forget_marks(self) -> None:
        self._marked.clear()
        self.mark_range()


_LATE_S = 0.15
"""What was found for the one before stands so long: as a rule the next one's is there by then."""


class ChangePane:
    """The item under the cursor, whole, and the legend below the list."""

    def __init__(
        self, page: Page, panes: ReviewPanes, queue: ItemQueue, loader: ReviewLoader
    ) -> None:
        self.page, self.panes, self.queue, self.loader = page, panes, queue, loader
        self.mode = view.MODES[0]
        self.shows_all = False  # of a weight update
        self.reset()

    def reset(self) -> None:
        """Another run is shown, or none."""
        self.problems: dict[str, tuple[str, ...]] = {}  # of replies that were mended in vain
        self.lost_line = ""  # why the run's process is not heard just now
        self._made_of: tuple[object, ...] = ()  # what the panes were made of
        self._shown: tuple[str, float] = ("", 0.0)  # operation, and since when it is looked at

    @property
    def looked_at_s(self) -> float:
        return max(0.0, round(self.page.host.clock() - self._shown[1], 3))

    def draw(self) -> None:
        self.loader.request_base()
        item, panes, queue = self.queue.item, self.panes, self.queue
        banner = self._banner_lines()
        if item is None:
            empty = [line(("what an operation would change stands here", "dim"))]
            panes.change.show_change(None, banner or empty)
            self._made_of = ()
            self._show_findings()
            return
        opened, knows_base = panes.opened_evidence, self.loader.knows_base
        if item.operation is not None and knows_base:
            wanted = FindingsRequest(item, queue.draft.texts, queue.stamp, opened)
            self.loader.findings.request(wanted)
        findings, edits = self.loader.find(item), self.page.host.drafts.edits
        draft = edits.get(item.id, "") if panes.editing is None else ""
        made_of = (item, self.mode, self.shows_all, queue.made_of, findings, draft, banner,
                   panes.widths, self.problems.get(item.id), opened, knows_base)  # fmt: skip
        if made_of == self._made_of:
            return
        self._made_of = made_of
        # A decision is made on the item as it stands here: on none while its target is not known.
        token = item if item.unparsed is not None or knows_base else None
        several = item.operation is not None and item.operation.kind == "modify"
        has_parts = several and not item.decision and view.has_parts(item)
        panes.change.show_change(token, banner + self._lines(item, draft), has_parts=has_parts)
        if item.operation is not None and findings is None:
            self.page.set_timer(_LATE_S, self._show_findings)
        else:
            self._show_findings()
        if self._shown[0] != item.id:
            self._shown = (item.id, self.page.host.clock())

    def _lines(self, item: Item, draft: str) -> list[Line]:
        queue, panes, state = self.queue, self.panes, self.page.state
        place, width = (queue.items.index(item) + 1, len(queue.items)), panes.change.line_width
        if item.unparsed is not None:
            problems = self.problems.get(item.id, ())
            return view.unparsed_reply_lines(
                item.unparsed, place, width, problems=problems, draft=draft
            )
        assert state is not None and item.operation is not None
        is_pinned = item.operation.target in queue.draft.pinned
        return view.change_lines(
            item, state, at=place, mode=self.mode, width=width, base=self.loader.base,
            note=queue.notes.get(item.id, ""), draft=draft,
            pin=GLYPHS.pinned if is_pinned else "", whole=self.shows_all,
        )  # fmt: skip

    def _banner_lines(self) -> list[Line]:
        """What stands above every operation: who decides, what moved, what is left to do."""
        session, state = self.page.session, self.page.state
        if session is None or state is None:
            return []
        out: list[Line] = []
        if self.panes.objection:
            text = one_line(self.panes.objection, 2_000)
            out += [*paragraph([(text, "flag")], self.panes.change.line_width), BLANK]
        if self.lost_line:
            text = f"{excerpt(self.lost_line)}: trying again; nothing is lost"
            out.append(line((text, "failed")))
        elif session.label:
            out.append(line((f"{session.label}: you look on, nothing can be decided", "flag")))
        elif session.living and not session.controls:
            who = excerpt(session.controller) or "nobody"
            out.append(line((f"{who} decides; you look on (T takes over)", "flag")))
        if state.flagged_stale is not None:
            moved = f"the library has moved to v{state.flagged_stale} under this lesson: what it"
            out.append(line((f"{moved} touched is asked again", "flag")))
        if self.loader.trouble:
            out.append(line((one_line(self.loader.trouble, 300), "failed")))
        if self.queue.is_all_decided:
            out.append(line(("all decided: c commits, u takes the last one back", "flag")))
        return out

    def draw_legend(self) -> None:
        """What the signs mean and how this session goes, below the list where there is room."""
        session, queue = self.page.session, self.queue
        if self.panes.is_tabbed:
            return
        done, person = queue.decider.sitting.done, excerpt(self.page.host.person)
        now = line(("this session: ", "dim"), f"{done} done, by {person}")
        if queue.is_all_decided:
            now = line(("all decided: c commits", "flag"))
        elif session is not None and session.controls and not session.living:
            then = "c commits" if session.state.status == "finished" else "s r resumes"
            now = line((f"no process: decided here; {then}", "flag"))
        for number, each in enumerate(view.legend_lines(now)):
            self.panes.legend.show_line(number, each)

    def _show_findings(self) -> None:
        item, evidence, similar = self.queue.item, self.panes.evidence, self.panes.similar
        findings = self.loader.find(item) if item is not None else None
        if item is None or item.operation is None or findings is None:
            text = "what an operation rests on, and what it resembles, stands here"
            if item is not None and item.operation is not None:
                text = one_line(self.loader.findings.trouble, 400) or "looking …"
            for pane in (evidence, similar):
                pane.show_rows([_note(text)])
            evidence.say_below()
            return
        rows = view.evidence_rows(
            findings.groups, evidence.line_width, opened=self.panes.opened_evidence,
            answers=findings.answers,
        )  # fmt: skip
        evidence.show_rows(rows or [_note("no rollouts: it was not drawn from practice")])
        evidence.say_below(excerpt(view.record_files_text(findings.groups)))
        pinned, width = self.queue.draft.pinned, similar.line_width - 2
        near = view.similar_rows(findings.near, width, pinned, GLYPHS.pinned)
        similar.show_rows(near or [_note("nothing else in the library is like it")])


def _note(text: str) -> Row:
    return Row("", line((text, "dim")))
