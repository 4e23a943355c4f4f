"""The list of what waits on the review page and what was decided, and the item under its cursor.

`ReviewLoader` reads what they need, `ItemQueue` keeps the texts of the library as the standing
decisions would leave it, `ChangePane` shows one item whole, with what it rests on and resembles.
None decides anything.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from engines.core.errors import StudioError
from engines.core.library import Experience, Library
from engines.core.library_notes import NO_MARK, NO_USES, NotesMark
from engines.core.state.run_state import RunState
from engines.core.text.similarity import Change, word_diff
from engines.core.types import Operation, UnparsedReply
from studio.review.decider import Decider, Pair, draft_and_deleted, draft_texts
from studio.review.wording import Near, find_similar
from studio.secrets.sanitize import one_line
from studio.session.session import Session
from studio.tui.drawing.lines import BLANK, Line, Row, line, note_rows, paragraph
from studio.tui.page import Page
from studio.tui.pages.live.view import current_batch, status_line
from studio.tui.pages.loader import Loader
from studio.tui.pages.review.panes import ReviewPanes
from studio.tui.pages.review.view import (
    MODES,
    SORTS,
    Item,
    change_lines,
    evidence_rows,
    excerpt,
    has_parts,
    is_long,
    item_now,
    item_row,
    items,
    legend_lines,
    record_files_text,
    rollout_of,
    similar_rows,
    unparsed_reply_lines,
    wordings,
)

if TYPE_CHECKING:
    from studio.review.evidence import EvidenceLoader, GroupEvidence

_KEPT = 400
"""Operations whose evidence is kept; more of them are read again."""


@dataclass(frozen=True, slots=True)
class Findings:
    """The findings about one operation. `trouble` says why some of it could not be read."""

    groups: "tuple[GroupEvidence, ...]" = ()
    near: tuple[Near, ...] = ()
    changes: tuple[Change, ...] | None = None  # of a long text; None: it is short
    answers: Mapping[str, str] = field(default_factory=dict)  # by rollout id, once opened
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class FindingsRequest:
    """One operation, to be looked at against the library as it stands."""

    operation: Operation
    texts: Mapping[str, str] = field(compare=False)
    stamp: int  # changes when the texts do
    before: str = ""
    after: str = ""
    opened: bool = False  # whole replies are wanted


class ReviewLoader:
    """Reads about the run that the page shows."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._base = Loader[tuple[str, int, NotesMark], Library](page, self._load_base)
        self._findings = Loader[FindingsRequest, Findings](
            page, lambda wanted: self.load_findings(wanted)
        )
        self.reset(None)

    def reset(self, session: Session | None) -> None:
        """Another run is shown, or none."""
        self._session = session
        self._wanted = ""  # the operation under the cursor
        self._evidence: EvidenceLoader | None = None
        self._load_groups = lru_cache(_KEPT)(
            lambda operation: self._open_evidence().operation_groups(operation)
        )
        self._base.forget()
        self._findings.forget()

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

    @property
    def found(self) -> Findings | None:
        """The findings for the operation under the cursor; None: they are not read yet."""
        key = self._findings.key
        is_of_it = key is not None and key.operation.id == self._wanted
        return self._findings.value if is_of_it else None

    def request_base(self) -> None:
        """Have the library read as it is, with its notes as far as they have come."""
        state = self._page.state
        if self._session is not None and state is not None and state.started is not None:
            mark = state.current.notes if state.current is not None else NO_MARK
            self._base.request((state.started.library, state.base_version, mark))

    def request_findings(self, wanted: FindingsRequest | None) -> None:
        """Have `found` be what is wanted."""
        self._wanted = wanted.operation.id if wanted is not None else ""
        if wanted is not None:
            self._findings.request(wanted)

    async def load_reply(self, unparsed: UnparsedReply) -> str | None:
        """Return the whole of a reply that waits to be mended; None where no run is shown.

        Raises StudioError: the run's journal or records cannot be read.
        """
        if self._session is None:
            return None
        source = await asyncio.to_thread(self._open_evidence().reply_source, unparsed)
        return source.reply

    # -- in a thread -------------------------------------------------------------------------

    def _load_base(self, key: tuple[str, int, NotesMark]) -> Library:
        return self._page.host.workspace.library(key[0]).at(key[1])

    def _open_evidence(self) -> "EvidenceLoader":
        if self._evidence is None:
            from studio.review.evidence import EvidenceLoader

            assert self._session is not None
            self._evidence = EvidenceLoader(self._session.run)
        return self._evidence

    def load_findings(self, wanted: FindingsRequest) -> Findings:
        """Read it; an error is told in the findings."""
        trouble = ""
        groups: tuple[GroupEvidence, ...] = ()
        answers: dict[str, str] = {}
        try:
            groups = self._load_groups(wanted.operation)
            if wanted.opened:
                answers = self._load_answers(groups)
        except StudioError as error:
            trouble = str(error)
        except OSError as error:
            trouble = f"{error.filename}: {error.strerror or error}"
        before, after, op = wanted.before, wanted.after, wanted.operation
        others = [(name, text) for name, text in wanted.texts.items() if name != op.target]
        near = find_similar(after or before, others) if op.kind != "weights" else ()
        changes = None
        if before and before != after and is_long(before, after):
            changes = word_diff(before, after)
        return Findings(groups, near, changes, answers, trouble)

    def _load_answers(self, groups: "tuple[GroupEvidence, ...]") -> dict[str, str]:
        answers = {}
        for witness in (witness for group in groups for witness in group.witnesses):
            try:
                messages = self._open_evidence().messages(witness)
            except StudioError:
                continue  # one lost record; its last words are in the journal
            replies = [m.content for m in messages if m.role == "assistant"]
            answers[witness.id] = replies[-1] if replies else ""
        return answers


class ItemQueue:
    """The items as they are listed, and where the person is among them."""

    def __init__(self, page: Page, panes: ReviewPanes) -> None:
        self._page, self._panes, self._list = page, panes, panes.operations
        self.sort = SORTS[0]
        self.stamp = 0  # changes when the texts do
        self.texts: dict[str, str] = {}
        self.pinned: frozenset[str] = frozenset()  # as the decisions would leave it
        self.items: list[Item] = []
        self.reset()

    def reset(self) -> None:
        """Another run is shown, or none."""
        self.decider = Decider()
        self.base: Library | None = None  # that the decisions are about; None: not read
        self.has_new_lesson = False  # or a commit was made: the cursor goes to what is open
        self._lesson: object = None  # the one that was listed last
        self._anchor = ""  # where a range begins
        self._marked: set[str] = set()  # by a person, to be merged
        self._deleted: dict[str, str] = {}  # what decisions delete, by operation id
        self.made_of: tuple[object, ...] = ()  # what the list was made of

    # -- what is listed ----------------------------------------------------------------------

    def draw(self) -> None:
        page, state = self._page, self._page.state
        hint: Line = ()
        if page.filter_text:
            text = f"nothing holds “{excerpt(page.filter_text)}”: "
            hint = line(text, ("esc", "key"), " clears the filter")
        elif state is None or not (state.operations or state.repairs):
            hint = status_line(state, current_batch(state), page.host.session_status, None)
        made_of = (state, state.events if state else 0, self.sort,
                   page.filter_text, self.base, hint, {**page.host.drafts.notes},
                   self._list.line_width, self._panes.signs)  # fmt: skip
        if self.made_of == made_of:
            return
        self.made_of = made_of
        lesson = state and (state.step, state.under_review, state.library_version)
        self.has_new_lesson |= self._lesson is not None and lesson != self._lesson
        self._lesson = lesson
        self.items, n = [], 0
        if state is not None:
            reviewed = decided_pairs(state)
            texts, self._deleted = draft_and_deleted(self._base_texts, reviewed)
            self.items = items(
                state, sort=self.sort, words=page.filter_text,
                texts={**dict(self._base_texts), **texts} if page.filter_text else None,
            )  # fmt: skip
            n = len(state.operations) + len(state.repairs)
            pinned = set(self.base.pinned_ids if self.base is not None else ())
            for operation, decision in reviewed:
                if decision.action == "approve" and operation.kind == "pin":
                    pinned.add(operation.target or "")
                elif decision.action == "approve" and operation.kind == "unpin":
                    pinned.discard(operation.target or "")
            self.pinned = frozenset(pinned)
            if texts != self.texts:
                self.texts = texts
                self.stamp += 1
        # Two cells are the cursor's. Asked once: a queue may hold thousands.
        width, signs, notes = self._list.line_width - 2, self._panes.signs, self.notes
        rows = []
        for item in self.items:
            op, text = item.operation, ""
            if op is not None:  # what is about to be deleted still stands in its own row
                text = self.texts.get(op.target or "", "") or self._deleted.get(op.id, "")
            rows.append(item_row(item, text, signs, width=width, has_note=item.id in notes))
        rows = rows or note_rows(paragraph(hint, width))
        self._list.show_rows(rows, key=self._cursor_target())
        self.mark_range()
        shown = f"{len(self.items)} of {n}" if page.filter_text else f"{n}"
        what = "Weight update" if state is not None and state.step_trains else "Operations"
        later = sum(item.standing == "later" for item in self.items)
        self._list.border_title = f"{what} {shown}" + (f", {later} later" if later else "")
        safe = sum(item.is_safe for item in self.items)
        words = f"  filter: {excerpt(page.filter_text)}" if page.filter_text else ""
        self._list.say_below(f"{safe} safe (A)  sort: {self.sort}{words}")

    @property
    def _base_texts(self) -> list[tuple[str, str]]:
        return [(e.id, e.text) for e in self.base.experiences] if self.base else []

    def texts_without(self, item: Item) -> dict[str, str]:
        """Of the library as the other decisions leave it."""
        state = self._page.state
        if state is None or item.decision is None or item.decision.action in ("reject", "defer"):
            return self.texts
        return draft_texts(self._base_texts, decided_pairs(state, without=item.id))

    def target_experience(self, op: Operation) -> Experience | None:
        return self.base.get(op.target) if self.base is not None and op.target else None

    # -- as it stands now --------------------------------------------------------------------

    def current_items(self) -> list[Item]:
        """All of them, whatever the filter shows, from the run's state now."""
        state = self._page.state
        return items(state) if state is not None else []

    def current_item(self, item: Item) -> Item | None:
        """The same from the run's state now: a frame may not have been drawn since it changed."""
        state = self._page.state
        return item_now(item.id, state) if state else None

    def hidden_count(self, found: Sequence[Item]) -> int:
        """How many that are decided the filter keeps out of sight."""
        seen = {item.id for item in self.items}
        return sum(item.decision is not None and item.id not in seen for item in found)

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
        shown = rollout_of(self._panes.evidence.key) or next(iter(evidence), "")
        return shown.rpartition("r")[0]

    def _cursor_target(self) -> str:
        """What the cursor belongs on: where it is, but on what is new once something is."""
        anew, self.has_new_lesson = self.has_new_lesson, False
        first_open = next((item.id for item in self.items if item.is_open), "")
        is_typing = self._panes.editing is not None or self._page.host.is_asking
        if anew and not is_typing and not self._anchor:
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
        names = [item.id for item in self.items]
        if self._list.key not in names:
            return
        at = names.index(self._list.key)
        order = self.items[at + 1 :] + self.items[: at + 1]
        if by < 0:
            order = self.items[:at][::-1] + self.items[at:][::-1]
        busy = self.decider.busy
        following = next((item for item in order if item.is_open and item.id not in busy), None)
        if following is not None:
            self._list.go_to(following.id)
        elif not self.is_all_decided:
            self._page.host.tell("nothing is undecided")

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


def decided_pairs(state: RunState, without: str = "") -> list[Pair]:
    """Standing decisions in the order in which they were made."""
    return [
        (state.operations[name], decision)
        for name, decision in state.decisions.items()
        if name in state.operations and name != without
    ]


_LATE_S = 0.15
"""What was found for the one before stands so long: as a rule the next one's is there by then."""


class ChangePane:
    """The item under the cursor, whole, and the legend below the list."""

    def __init__(
        self, page: Page, panes: ReviewPanes, queue: ItemQueue, loader: ReviewLoader
    ) -> None:
        self.page, self.panes, self.queue, self.loader = page, panes, queue, loader
        self.mode = MODES[0]
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

    def has_painted(self, item: Item) -> bool:
        token = self._token(item)
        return token is not None and token == self.panes.change.painted

    def _token(self, item: Item) -> object:
        """What a decision about it is made on; None while it is not known."""
        if item.unparsed is not None:
            return (item.id, item.unparsed)
        op = item.operation
        assert op is not None
        if not self.loader.knows_base:
            return None
        now = self.queue.texts.get(op.target or "")
        return (op.id, op.kind, op.target, op.text, op.flags, now)

    def draw(self) -> None:
        self.loader.request_base()
        item, state, panes = self.queue.item, self.page.state, self.panes
        banner = self._banner_lines()
        if item is None or state is None:
            empty = [line(("what an operation would change stands here", "dim"))]
            panes.change.show_change(None, banner or empty)
            self._made_of = ()
            self._show_findings()
            return
        self.loader.request_findings(self._findings_request(item))
        found, drafts = self.loader.found, self.page.host.drafts
        draft = drafts.edits.get(item.id, "") if panes.editing is None else ""
        made_of = (item, self.mode, self.shows_all, self.queue.made_of, self.queue.stamp, found,
                   self.queue.notes.get(item.id), draft, banner, panes.widths,
                   self.problems.get(item.id), panes.opened_evidence)  # fmt: skip
        if made_of == self._made_of:
            return
        self._made_of = made_of
        place = self.queue.items.index(item) + 1, len(self.queue.items)
        several = False
        if item.operation is None:
            assert item.unparsed is not None
            lines = unparsed_reply_lines(
                item.unparsed, place, panes.change.line_width,
                problems=self.problems.get(item.id, ()), draft=draft,
            )  # fmt: skip
        else:
            lines = self._change_lines(item, item.operation, state, place, draft)
            can_have_parts = item.operation.kind == "modify" and not item.decision
            several = can_have_parts and has_parts(item, self.queue.texts)
        panes.change.show_change(self._token(item), [*banner, *lines], has_parts=several)
        if item.operation is not None and found is None:
            self.page.set_timer(_LATE_S, self._show_findings)
        else:
            self._show_findings()
        if self._shown[0] != item.id:
            self._shown = (item.id, self.page.host.clock())

    def _change_lines(
        self, item: Item, op: Operation, state: RunState, place: tuple[int, int], draft: str
    ) -> list[Line]:
        texts, queue, panes, found = (
            self.queue.texts_without(item), self.queue, self.panes, self.loader.found
        )  # fmt: skip
        changes = found.changes if found is not None else None
        before, after, _ = wordings(item, texts)
        mode = self.mode
        if mode == "words" and changes is None and before and is_long(before, after):
            mode = "lines"  # until the word diff has been made
        return change_lines(
            item, texts, state, at=place, mode=mode, width=panes.change.line_width,
            changes=changes, note=queue.notes.get(item.id, ""), draft=draft,
            target=queue.target_experience(op),
            pin=panes.signs.pinned if op.target in queue.pinned else "",
            uses=queue.base.notes.uses.get(op.target or "", NO_USES) if queue.base else NO_USES,
            whole=self.shows_all, signs=panes.signs,
        )  # fmt: skip

    def _findings_request(self, item: Item) -> FindingsRequest | None:
        if (op := item.operation) is None or not self.loader.knows_base:
            return None
        texts = self.queue.texts_without(item)
        before, after, _ = wordings(item, texts)
        opened = self.panes.opened_evidence
        return FindingsRequest(op, texts, self.queue.stamp, before, after, opened)

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
        for number, each in enumerate(legend_lines(now, self.panes.signs)):
            self.panes.legend.show_line(number, each)

    def _show_findings(self) -> None:
        panes, found, item = self.panes, self.loader.found, self.queue.item
        op = item.operation if item is not None else None
        panes.evidence.say_below()
        if op is None or found is None:
            text = "looking …"
            if op is None:
                text = "what an operation rests on, and what it resembles, stands here"
            for pane in (panes.evidence, panes.similar):
                pane.show_rows([_note(text)])
            return
        rows = evidence_rows(
            found.groups, panes.evidence.line_width, opened=panes.opened_evidence,
            answers=found.answers, signs=panes.signs,
        ) or [_note("no rollouts: it was not drawn from practice")]  # fmt: skip
        if found.trouble:
            rows.insert(0, _note(one_line(found.trouble, 400), "failed"))
        panes.evidence.show_rows(rows)
        files = excerpt(record_files_text(found.groups))
        panes.evidence.say_below(files)
        width, pinned = panes.similar.line_width - 2, self.queue.pinned
        near = similar_rows(found.near, width, pinned, panes.signs.pinned)
        panes.similar.show_rows(near or [_note("nothing else in the library is like it")])


def _note(text: str, style: str = "dim") -> Row:
    return Row("", line((text, style)))
