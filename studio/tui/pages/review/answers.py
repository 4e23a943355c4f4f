"""The keys of the review page that decide, one operation or many, take back and commit.

Nothing counts as decided before the run has said so (`studio.review.actions`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from engines.core.types import GATE, Decision, DecisionAction, Operation
from studio.review.actions import ActionResult, Pair
from studio.session.base import Session
from studio.tui.drawing.lines import Line, line
from studio.tui.keymap import Key
from studio.tui.pages.review.change_view import flag_text
from studio.tui.pages.review.panes import ReviewPanes
from studio.tui.pages.review.view import (
    VERBS,
    Item,
    cannot_decide_text,
    commit_lines,
    count_standings,
    counts_text,
    excerpt,
    items,
)
from studio.tui.pages.training_view import WHOLE

_OF_WORDINGS = ("review.edit", "review.editor", "review.merge", "review.later", "review.safe")


class ReviewDecisions(ReviewPanes):
    """Approve, reject, put off, note; ranges and all that is safe; undo, redo and commit."""

    def usable_keys(self, keys: Sequence[Key]) -> Sequence[Key]:
        """Nothing is decided on a terminal that shows too little of it."""
        if self.host.is_small:
            return ()
        if (state := self.state) is not None and state.trains_weights:
            # A weight update has no wording, no likeness and no later.
            return [key for key in keys if key.id not in _OF_WORDINGS]
        return keys

    # -- deciding ------------------------------------------------------------------------------

    def _deciding_session(self) -> Session | None:
        """The session, where this screen may decide."""
        session = self.session
        if session is None:
            self.host.tell("no run is open here: 5 lists them, 0 starts one", "failed")
        elif self.host.is_small:
            self.host.tell("deciding wants 60x16: too little is seen here", "failed")
        elif not session.controls:
            why = cannot_decide_text(
                living=session.living, driver=session.controller, status=session.state.status
            )
            self.host.tell(why, "failed")
        else:
            return session
        return None

    def _decidable_item(self) -> Item | None:
        """What is under the cursor, where it may be decided: it has been drawn."""
        if self._deciding_session() is None:
            return None
        item = self.item
        if item is None:
            self.host.tell("there is nothing to decide here")
        elif item.id in self.deciding.busy:
            self.host.tell(f"{item.id} is being decided")
        elif item != self._current_item(item) or not self.change.has_painted(
            self._decision_token(item)
        ):
            self.host.tell(f"{item.id} is shown only now: press again")
            self.draw()
        else:
            return item
        return None

    def _current_item(self, item: Item) -> Item | None:
        """The same from the run's state now: a frame may not have been drawn since it changed."""
        state, name = self.state, item.id
        if state is None:
            return None
        if item.repair is not None:
            return Item(name, repair=state.repairs.get(name))
        decision = self.deciding.just.get(name) or state.decisions.get(name)
        return Item(
            name,
            state.operations.get(name),
            decision,
            deferred=name in state.deferred,
            is_own=name in state.own,
        )

    def _decidable_operation(self) -> tuple[Item, Operation] | None:
        item = self._decidable_item()
        if item is None:
            return None
        if item.operation is None:
            self.host.tell(f"{item.id} is a reply to mend: e mends it, D lets it go")
            return None
        return item, item.operation

    def _make_decision(self, op: Operation, action: DecisionAction, reason: str = "") -> Decision:
        took_s = max(0.0, round(self.host.clock() - self._shown[1], 3))
        note = reason or self.host.drafts.notes.get(op.id, "")
        person = self.host.person
        return Decision(op.id, action, reason=note, reviewer=person, took_s=took_s)

    def action_approve(self) -> None:
        self._decide("approve")

    def action_reject(self) -> None:
        self._decide("reject")

    def action_later(self) -> None:
        self._decide("defer")

    def _decide(self, action: DecisionAction) -> None:
        if self._anchor and action != "defer":
            self.run_worker(self._decide_range(action))
            return
        if (here := self._decidable_operation()) is None:
            return
        item, op = here
        if action == "defer" and self._is_all_or_nothing(op):
            return
        standing = item.decision
        if standing is not None and (
            standing.action == action or (standing.action, action) == ("edit", "approve")
        ):
            self.host.tell(f"{op.id} is {item.standing} already; u takes it back")
            return
        if action == "approve" and self._has_wording(op.id) and self._said_draft != op.id:
            self._said_draft = op.id
            self.host.tell(
                "you have a wording of your own: e takes it up, a again approves as proposed",
                "flag",
            )
            return
        decision = self._make_decision(op, action)
        if action == "approve" and standing is not None and standing.reviewer == GATE:
            if (session := self._deciding_session()) is not None:
                self.deciding.busy.add(op.id)
                self.host.queue_request(self._approve_if_fits(session, op, decision))
            return
        self._submit_decisions([(op, decision)])

    def _is_all_or_nothing(self, op: Operation) -> bool:
        """Whether it can only be taken or left; then says so."""
        if op.kind == "weights":
            self.host.tell(f"{WHOLE}: a or r", "failed")
            return True
        return False

    def _has_wording(self, name: str) -> bool:
        """Whether a wording of an operation was begun and not handed in."""
        return any(key.partition(">")[0] == name for key in self.host.drafts.edits)

    async def _approve_if_fits(self, session: Session, op: Operation, asked: Decision) -> None:
        """What the gate rejected is asked again only where it would say something else."""
        try:
            found = await session.preview(asked)
            if found.objection:
                text = f"{op.id} still does not fit: {found.objection} (e rewords it, r rejects it)"
                self.host.tell(text, "failed")
                return
            await self._send_decisions(session, [(op, asked)])
        finally:
            self.deciding.busy.discard(op.id)

    def _submit_decisions(self, pairs: Sequence[Pair]) -> None:
        """Queue decisions; nothing of them is shown as made before the run says so."""
        if (session := self._deciding_session()) is None:
            return
        self.deciding.busy |= {op.id for op, _ in pairs}
        self.host.queue_request(self._send_decisions(session, pairs))

    async def _send_decisions(self, session: Session, pairs: Sequence[Pair]) -> None:
        try:
            outcome = await self.deciding.decide(session, pairs, self._texts)
        finally:
            self.deciding.busy -= {op.id for op, _ in pairs}
        drafts = self.host.drafts
        for made in outcome.made:
            drafts.notes.pop(made.id, None)
            for key in [k for k in drafts.edits if k.partition(">")[0] == made.id]:
                del drafts.edits[key]
        drafts.mark_changed()
        self._show_outcome(outcome)
        drafts.cursor = (
            self.operation_list.key or drafts.cursor
        )  # its own message comes after the save
        # Once it is drawn: nobody need wait for this file.
        self.app.call_after_refresh(drafts.save)

    def _show_outcome(self, outcome: ActionResult) -> None:
        """Say what came of it, and go where it leads, unless the person went elsewhere."""
        self.host.tell(outcome.text, "failed" if outcome.failed else "")
        names = {made.id for made in outcome.made}
        if self._editing is not None and self._editing.item.id in names:
            self._close_box()
        self.draw()
        if self._editing is None:
            if outcome.go_to:
                self.go_to(outcome.go_to)
            elif self.operation_list.key in names and not (outcome.failed and len(names) == 1):
                self._go_to_undecided(1)
        self.draw()

    def action_reject_because(self) -> None:
        if (here := self._decidable_operation()) is not None:
            self.run_worker(self._reject_because(here[1]))

    async def _reject_because(self, op: Operation) -> None:
        note = self.host.drafts.notes.get(op.id, "")
        reason = await self.host.ask(f"reject {op.id} because:", note)
        if reason is None or not reason.strip():
            self.host.tell(f"{op.id} is not rejected: no reason was given")
            return
        self._submit_decisions([(op, self._make_decision(op, "reject", reason.strip()))])

    def action_note(self) -> None:
        if (here := self._decidable_operation()) is not None:
            self.run_worker(self._ask_note(*here))

    async def _ask_note(self, item: Item, op: Operation) -> None:
        drafts = self.host.drafts
        before = drafts.notes.get(op.id) or (item.decision.reason if item.decision else "")
        text = await self.host.ask(f"note on {op.id}:", before)
        if text is None:
            return
        text = text.strip()
        decision = self.item.decision if self.item and self.item.id == op.id else item.decision
        if decision is not None:
            anew = replace(decision, reason=text, reviewer=self.host.person, at=0.0,
                           assigned=None, flags=())  # fmt: skip
            self._submit_decisions([(op, anew)])
            return
        drafts.notes.pop(op.id, None)
        if text:
            drafts.notes[op.id] = text
        drafts.mark_changed()
        self.host.tell(f"noted; it goes with the decision on {op.id}" if text else "no note")
        self.draw()

    # -- many at once ----------------------------------------------------------------------------

    def action_range(self) -> None:
        if self._anchor:
            self._leave_range()
        elif self.item is not None:
            self._anchor = self.item.id
            self._show_range()
            self.host.tell("a range: move, then a or r; esc leaves it")

    async def _decide_range(self, action: DecisionAction) -> None:
        if self._deciding_session() is None:
            return
        chosen = [
            item for item in self._range_items() if item.is_open and item.operation is not None
        ]
        if action == "approve":
            chosen = [item for item in chosen if not self._has_wording(item.id)]
        word = "Approve" if action == "approve" else "Reject"
        if not chosen:
            self.host.tell("nothing in the range is undecided")
            self._leave_range()
            return
        await self._decide_all(chosen, action, f"{word} these {len(chosen)}?")
        self._leave_range()

    def action_approve_safe(self) -> None:
        if self._deciding_session() is not None:
            self.run_worker(self._approve_safe())

    async def _approve_safe(self) -> None:
        # Nor is what somebody has begun to reword approved in passing.
        safe = [item for item in self._items if item.is_safe and not self._has_wording(item.id)]
        if not safe:
            self.host.tell(
                "nothing is safe: what is left is flagged, deletes, is being reworded, "
                "is a weight update or a reply to mend"
            )
            return
        title = f"Approve {len(safe)} safe operation{'s' if len(safe) > 1 else ''}?"
        await self._decide_all(safe, "approve", title)

    async def _decide_all(self, chosen: Sequence[Item], action: DecisionAction, title: str) -> None:
        """Decide what was listed, and still is as it was when it was."""
        since = self.host.clock()
        key = {"enter": "approves them" if action == "approve" else "rejects them"}
        if not await self.host.confirm(title, [self._item_line(item) for item in chosen], key):
            self.host.tell("nothing was decided")
            return
        now = {item.id: item for item in self._current_items()}
        same = [item for item in chosen if now.get(item.id) == item]
        took_s = round(max(0.0, self.host.clock() - since) / len(chosen), 3)
        notes, person = self.host.drafts.notes, self.host.person
        pairs = [
            (
                op,
                Decision(
                    op.id, action, reason=notes.get(op.id, ""), reviewer=person, took_s=took_s
                ),
            )
            for item in same
            if (op := item.operation) is not None and op.id not in self.deciding.busy
        ]
        if pairs:
            self._submit_decisions(pairs)
        else:
            self.host.tell("they were decided meanwhile")

    def _current_items(self) -> list[Item]:
        return items(self.state, self.deciding.just) if self.state is not None else []

    def _item_line(self, item: Item) -> Line:
        op = item.operation
        assert op is not None
        before = self._texts.get(op.target or "", "")
        flags = ("  FLAG " + ", ".join(flag_text(flag) for flag in op.flags)) if op.flags else ""
        target = excerpt(op.target or "new")
        return line((f"{VERBS[op.kind]} {target:<5} ", "title"), excerpt(op.text or before),
                    (flags, "flag"))  # fmt: skip

    # -- taking back, and the commit -----------------------------------------------------------

    def action_undo(self) -> None:
        if (session := self._deciding_session()) is not None:
            self.host.queue_request(self._undo(session))

    async def _undo(self, session: Session) -> None:
        outcome = await self.deciding.undo(session, self._texts, self.host.person)
        self._show_outcome(outcome)

    def action_redo(self) -> None:
        if (session := self._deciding_session()) is not None:
            self.host.queue_request(self._redo(session))

    async def _redo(self, session: Session) -> None:
        outcome = await self.deciding.redo(session)
        self._show_outcome(replace(outcome, made=()))

    def action_commit(self) -> None:
        if (session := self._deciding_session()) is not None:
            # In turn: decisions whose keys came before it belong to it, those after it do not.
            self.host.queue_request(self._commit(session))

    async def _commit(self, session: Session) -> None:
        state, found = session.state, self._current_items()
        waiting = [i.operation for i in found if i.operation is not None and i.is_open]
        if not any(item.operation for item in found):
            self.host.tell("there is nothing to commit")
        elif any(op.kind == "weights" for op in waiting):
            self.host.tell(f"{WHOLE}, and not put off: a or r, then c", "failed")
        elif self._undecided_count(session) or self._hidden_count(found):
            self.run_worker(self._confirm_commit(session))
        else:
            await self._send_commit(session, self.deciding.decisions(state))

    def _undecided_count(self, session: Session) -> int:
        decided = self.deciding.decisions(session.state)
        return sum(op.id not in decided for op in session.state.undecided_operations)

    def _hidden_count(self, found: Sequence[Item]) -> int:
        """How many that are decided the filter keeps out of sight."""
        seen = {item.id for item in self._items}
        return sum(item.decision is not None and item.id not in seen for item in found)

    async def _confirm_commit(self, session: Session) -> None:
        await self.host.wait_for_requests()  # what was asked in the same breath
        found = self._current_items()
        left, hidden = self._undecided_count(session), self._hidden_count(found)
        shown = self.deciding.decisions(session.state)
        title = f"Commit, with {left} undecided?" if left else f"Commit, with {hidden} hidden?"
        lines = commit_lines(session.state, found, hidden)
        if not await self.host.confirm(title, lines, {"enter": "commits"}):
            self.host.tell("nothing was committed")
            return
        self.host.queue_request(self._send_commit(session, shown))

    async def _send_commit(self, session: Session, shown: Mapping[str, Decision]) -> None:
        """Commit what was shown, and nothing else."""
        if dict(shown) != self.deciding.decisions(session.state):
            self.host.tell("something else is decided by now: c shows it again", "failed")
            return
        made = count_standings(self._current_items())
        text = counts_text({k: v for k, v in made.items() if k not in ("open", "later")})
        told = await session.commit()
        self.host.tell(f"{text}: {told}")
        self.host.drafts.save()
        self.draw()
