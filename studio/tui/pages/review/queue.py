"""What waits on the review page and what was decided: the list, its cursor and a range in it.

Keeps the texts of the library as the standing decisions would leave it. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from engines.core.library import Experience, Library
from engines.core.state.run_state import RunState
from engines.core.state.use_counts import NO_USES, UseCounts
from engines.core.types import Operation
from studio.review.decider import Decider, Pair, draft_and_deleted, draft_texts
from studio.tui.drawing.cells import Glyphs
from studio.tui.drawing.lines import Line, Row, line, note_rows, paragraph
from studio.tui.page import Page
from studio.tui.pages.live.batch import current_batch
from studio.tui.pages.live.sentences import status_line
from studio.tui.pages.review.evidence_view import rollout_of
from studio.tui.pages.review.panes import ReviewPanes
from studio.tui.pages.review.view import SORTS, Item, excerpt, item_now, item_row, items


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
        return self.base.uses.get(op.target or "", NO_USES) if self.base is not None else NO_USES

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
