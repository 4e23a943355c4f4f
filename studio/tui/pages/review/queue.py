"""The list of what waits on the review page and what was decided, and the item under its cursor.

`ItemQueue` keeps the texts of the library as the standing decisions would leave it, `ChangePane`
shows one item whole, with what it rests on and resembles. Neither decides anything.
"""

from collections.abc import Sequence

from engines.core.library import Experience, Library
from engines.core.library_notes import NO_USES, UseCounts
from engines.core.state.run_state import RunState
from engines.core.types import Operation
from studio.review.decider import Decider, Pair, draft_and_deleted, draft_texts
from studio.secrets.sanitize import one_line
from studio.tui.drawing.cells import Glyphs
from studio.tui.drawing.lines import BLANK, Line, Row, line, note_rows, paragraph
from studio.tui.page import Page
from studio.tui.pages.live.batch import current_batch
from studio.tui.pages.live.view import status_line
from studio.tui.pages.review.loader import FindingsRequest, ReviewLoader
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
    source_lines,
    unparsed_reply_lines,
    wordings,
)


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
        self._rows: dict[str, tuple[tuple[object, ...], Row]] = {}  # from what, and how drawn
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
            self.pinned = pinned_ids(self.base, reviewed)
            if texts != self.texts:
                self.texts = texts
                self.stamp += 1
        # Two cells are the cursor's. Asked once: a queue may hold thousands.
        width, signs = self._list.line_width - 2, self._panes.signs
        notes = self.notes
        rows = [self._row(item, width, signs, item.id in notes) for item in self.items]
        rows = rows or note_rows(paragraph(hint, width))
        self._list.show_rows(rows, key=self._cursor_target())
        self.mark_range()
        shown = f"{len(self.items)} of {n}" if page.filter_text else f"{n}"
        what = "Weight update" if state is not None and state.step_trains else "Operations"
        later = sum(item.standing == "later" for item in self.items)
        self._list.border_title = f"{what} {shown}" + (f", {later} later" if later else "")

    def _row(self, item: Item, width: int, signs: Glyphs, has_note: bool) -> Row:
        """As it was drawn before, where nothing of it is new."""
        text = ""
        if (op := item.operation) is not None:
            # What is about to be deleted still stands in its own row.
            text = self.texts.get(op.target or "", "") or self._deleted.get(op.id, "")
        made_of = (item, text, signs, width, has_note)
        known = self._rows.get(item.id)
        if known is None or known[0] != made_of:
            row = item_row(item, text, signs, width=width, has_note=has_note)
            known = self._rows[item.id] = (made_of, row)
        return known[1]

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

    def target_uses(self, op: Operation) -> UseCounts:
        uses = self.base.notes.uses if self.base is not None else {}
        return uses.get(op.target or "", NO_USES)

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
        session = self._page.session
        if session is None or not any(item.decision for item in self.items):
            return False
        if any(item.is_open for item in self.items):
            return False  # as a rule one of the first
        return not session.state.undecided_operations

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


def pinned_ids(base: Library | None, reviewed: Sequence[Pair]) -> frozenset[str]:
    """What is pinned in the library, with the pins that are decided and not committed yet."""
    found = set(base.pinned_ids if base is not None else ())
    for operation, decision in reviewed:
        if decision.action == "approve" and operation.kind in ("pin", "unpin"):
            found -= {operation.target or ""}
            found |= {operation.target or ""} if operation.kind == "pin" else set()
    return frozenset(found)


_LATE_S = 0.15


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
        self._legend_of: object = None  # what the legend was made of
        self._looking_for = ""  # the operation whose findings are late, and are said to be
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
            self._show_findings(None)
            self._made_of = ()
            panes.place("", None)
            return
        self.loader.request_findings(self._findings_request(item))
        drafts = self.page.host.drafts
        draft = drafts.edits.get(item.id, "") if panes.editing is None else ""
        queue = self.queue
        made_of = (item, self.mode, self.shows_all, queue.made_of, queue.stamp, self.loader.found,
                   queue.notes.get(item.id), draft, banner, panes.widths,
                   self.problems.get(item.id), panes.opened_evidence)  # fmt: skip
        # What was found for the one before stands until this one's is there: it is a moment,
        # and drawing that nothing is known yet would cost as much as what is.
        is_early = self._is_looking(item) and self._looking_for != item.id
        about = (self.mode, self.shows_all, self.loader.found is None)
        if made_of == self._made_of:
            if not is_early:
                panes.place(item.id, about)
            return
        self._made_of = made_of
        if item.unparsed is not None:
            lines = unparsed_reply_lines(
                item.unparsed, self._place(item), panes.change.line_width,
                problems=self.problems.get(item.id, ()), draft=draft,
            )  # fmt: skip
        else:
            lines = self._change_lines(item, draft)
        op = item.operation
        can_have_parts = op is not None and op.kind == "modify" and not item.decision
        several = can_have_parts and has_parts(item, self.queue.texts_without(item))
        panes.change.show_change(self._token(item), [*banner, *lines], has_parts=several)
        if is_early:
            self.page.set_timer(_LATE_S, lambda: self._say_looking(item))
        else:
            self._show_findings(item)
            panes.place(item.id, about)
        if self._shown[0] != item.id:
            self._shown = (item.id, self.page.host.clock())

    def _is_looking(self, item: Item) -> bool:
        return item.operation is not None and self.loader.found is None

    def _say_looking(self, item: Item) -> None:
        """Reading takes long: what is shown of the one before would mislead."""
        if self.page.is_open and self.queue.item == item and self._is_looking(item):
            self._looking_for, self._made_of = item.id, ()
            self.draw()

    def _place(self, item: Item) -> tuple[int, int]:
        """Where it stands in the list, from 1, and how long that is."""
        return self.queue.items.index(item) + 1, len(self.queue.items)

    def _change_lines(self, item: Item, draft: str) -> list[Line]:
        state, op, found = self.page.state, item.operation, self.loader.found
        assert state is not None and op is not None
        texts = self.queue.texts_without(item)
        changes = found.changes if found is not None else None
        before, after, _ = wordings(item, texts)
        mode = self.mode
        if mode == "words" and changes is None and before and is_long(before, after):
            mode = "lines"  # until the word diff has been made
        return change_lines(
            item, texts, state, at=self._place(item), mode=mode,
            width=self.panes.change.line_width, changes=changes,
            note=self.queue.notes.get(item.id, ""), draft=draft,
            target=self.queue.target_experience(op), compact=self.panes.is_tabbed,
            pin=self.panes.signs.pinned if op.target in self.queue.pinned else "",
            uses=self.queue.target_uses(op), whole=self.shows_all, signs=self.panes.signs,
        )  # fmt: skip

    def _findings_request(self, item: Item) -> FindingsRequest | None:
        if (op := item.operation) is None or not self.loader.knows_base:
            return None
        texts = self.queue.texts_without(item)
        before, after, _ = wordings(item, texts)
        differ = bool(before) and before != after and is_long(before, after)
        return FindingsRequest(
            op, texts, self.queue.stamp, before, after, differ, self.panes.opened_evidence
        )

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
        """What the signs mean, below the list where there is room."""
        page, queue = self.page, self.queue
        session, sitting = page.session, queue.decider.sitting
        made_of = (queue.made_of, sitting.done, session and (session.controls, session.living))
        if self.panes.is_tabbed or made_of == self._legend_of:
            return
        self._legend_of = made_of
        now = "all decided: c commits" if queue.is_all_decided else ""
        if not now and session is not None and session.controls and not session.living:
            over = session.state.status == "finished"
            now = "no process: decided here" + ("; c commits" if over else ", s r resumes")
        lines = legend_lines(
            queue.items, words=page.filter_text, sort=queue.sort, done=sitting.done,
            person=page.host.person, now=now, signs=self.panes.signs,
        )  # fmt: skip
        for number, each in enumerate(lines):
            self.panes.legend.show_line(number, each)

    def _show_findings(self, item: Item | None) -> None:
        panes, found, op = self.panes, self.loader.found, item.operation if item else None
        if op is None or found is None:
            text = "what an operation rests on, and what it resembles, stands here"
            if op is not None:
                text = "looking …"
            elif item is not None:
                text = "nothing was drawn from this reply yet"
            for pane in (panes.evidence, panes.similar):
                pane.show_rows([_note(text)])
            panes.evidence.say_below()
        else:
            rows = evidence_rows(
                found.groups, panes.evidence.line_width, opened=panes.opened_evidence,
                answers=found.answers, signs=panes.signs,
            )  # fmt: skip
            if found.trouble:
                rows.insert(0, _note(one_line(found.trouble, 400), "failed"))
            nothing = "nothing else in the library is like it"
            no_rollouts = "no rollouts: it was not drawn from practice"
            if op.kind == "weights":
                nothing = "a weight update is like no experience"
                no_rollouts = "no rollout of its step is in the journal"
            panes.evidence.show_rows(rows or [_note(no_rollouts)])
            panes.evidence.say_below(excerpt(record_files_text(found.groups)))
            width, pinned = panes.similar.line_width - 2, self.queue.pinned
            deleting = {
                each.operation.target or "": each.id
                for each in self.queue.items
                if each.operation and each.operation.kind == "delete" and each.standing == "open"
            }
            near = similar_rows(found.near, width, pinned, panes.signs.pinned, deleting)
            panes.similar.show_rows(near or [_note(nothing)])
        self._show_source(op)

    def _show_source(self, op: Operation | None) -> None:
        pane, found, state = self.panes.source, self.loader.found, self.page.state
        if op is None or state is None:
            pane.show_rows([])
            return
        target = self.queue.target_experience(op)
        lines = source_lines(op, state, target, pane.line_width - 2)
        if found is not None and (files := record_files_text(found.groups)):
            lines.append(line(("records   ", "dim"), excerpt(files)))
        pane.show_rows([Row(str(n), each) for n, each in enumerate(lines)])


def _note(text: str, style: str = "dim") -> Row:
    return Row("", line((text, style)))
