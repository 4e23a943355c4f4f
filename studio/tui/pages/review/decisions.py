"""The keys of the review page that decide one operation, and those that take back.

Nothing counts as decided before the run has said so (`studio.review.actions`), and only what
has been painted is decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engines.core.types import GATE, Decision, DecisionAction, Operation
from studio.review.actions import ActionResult, Pair
from studio.session.base import Session
from studio.tui.page import Page
from studio.tui.pages.review.change_pane import ChangePane
from studio.tui.pages.review.panes import ReviewPanes
from studio.tui.pages.review.queue import ItemQueue
from studio.tui.pages.review.view import Item, cannot_decide_text
from studio.tui.pages.training_view import WHOLE


class DecisionKeys:
    """Approve, reject, put off, note, undo and redo."""

    def __init__(
        self, page: Page, panes: ReviewPanes, queue: ItemQueue, change: ChangePane
    ) -> None:
        self._page, self._panes, self._item_queue, self._change = page, panes, queue, change
        self._warned_of_draft = ""  # the operation whose approval waits for a second press

    # -- what may be decided -------------------------------------------------------------------

    def require_session(self) -> Session | None:
        """The session, where this screen may decide; tells why not."""
        host, session, state = self._page.host, self._page.session, self._page.state
        if session is None or state is None:
            host.tell("no run is open here: 5 lists them, 0 starts one", "failed")
        elif host.is_small:
            host.tell("deciding wants 60x16: too little is seen here", "failed")
        elif not session.controls:
            why = cannot_decide_text(
                living=session.living, driver=session.controller, status=state.status
            )
            host.tell(why, "failed")
        else:
            return session
        return None

    def painted_item(self) -> Item | None:
        """What is under the cursor, where it may be decided: it has been drawn."""
        if self.require_session() is None:
            return None
        host, item = self._page.host, self._item_queue.item
        if item is None:
            host.tell("there is nothing to decide here")
        elif item.id in self._item_queue.decider.busy:
            host.tell(f"{item.id} is being decided")
        elif item != self._item_queue.current_item(item) or not self._change.has_painted(item):
            host.tell(f"{item.id} is shown only now: press again")
            self._page.draw()
        else:
            return item
        return None

    def painted_operation(self) -> tuple[Item, Operation] | None:
        """The same, where it is an operation."""
        if (item := self.painted_item()) is None:
            return None
        if item.operation is None:
            self._page.host.tell(f"{item.id} is a reply to mend: e mends it, D lets it go")
            return None
        return item, item.operation

    def is_all_or_nothing(self, op: Operation) -> bool:
        """Whether it can only be taken or left; then says so."""
        if op.kind == "weights":
            self._page.host.tell(f"{WHOLE}: a or r", "failed")
            return True
        return False

    def has_draft(self, name: str) -> bool:
        """Whether a wording of an operation was begun and not handed in."""
        return any(key.partition(">")[0] == name for key in self._page.host.drafts.edits)

    # -- deciding ------------------------------------------------------------------------------

    def make_decision(self, op: Operation, action: DecisionAction, reason: str = "") -> Decision:
        host = self._page.host
        note = reason or host.drafts.notes.get(op.id, "")
        took_s = self._change.looked_at_s
        return Decision(op.id, action, reason=note, reviewer=host.person, took_s=took_s)

    def decide(self, action: DecisionAction) -> None:
        if (here := self.painted_operation()) is None:
            return
        item, op = here
        if action == "defer" and self.is_all_or_nothing(op):
            return
        host, standing = self._page.host, item.decision
        if standing is not None and (
            standing.action == action or (standing.action, action) == ("edit", "approve")
        ):
            host.tell(f"{op.id} is {item.standing} already; u takes it back")
            return
        if action == "approve" and self.has_draft(op.id) and self._warned_of_draft != op.id:
            self._warned_of_draft = op.id
            host.tell(
                "you have a wording of your own: e takes it up, a again approves as proposed",
                "flag",
            )
            return
        decision = self.make_decision(op, action)
        if action == "approve" and standing is not None and standing.reviewer == GATE:
            if (session := self.require_session()) is not None:
                self._item_queue.decider.busy.add(op.id)
                host.queue_request(self._approve_if_fits(session, op, decision))
            return
        self.submit([(op, decision)])

    async def _approve_if_fits(self, session: Session, op: Operation, asked: Decision) -> None:
        """What the gate rejected is asked again only where it would say something else."""
        try:
            found = await session.preview(asked)
            if found.objection:
                text = f"{op.id} still does not fit: {found.objection} (e rewords it, r rejects it)"
                self._page.host.tell(text, "failed")
                return
            await self.send(session, [(op, asked)])
        finally:
            self._item_queue.decider.busy.discard(op.id)

    def submit(self, pairs: Sequence[Pair]) -> None:
        """Queue decisions; nothing of them is shown as made before the run says so."""
        if (session := self.require_session()) is None:
            return
        self._item_queue.decider.busy |= {op.id for op, _ in pairs}
        self._page.host.queue_request(self.send(session, pairs))

    async def send(self, session: Session, pairs: Sequence[Pair]) -> None:
        """Hand decisions in now, and forget the drafts of those that were made."""
        decider = self._item_queue.decider
        try:
            outcome = await decider.decide(session, pairs, self._item_queue.texts)
        finally:
            decider.busy -= {op.id for op, _ in pairs}
        drafts = self._page.host.drafts
        for made in outcome.made:
            drafts.notes.pop(made.id, None)
            for key in [k for k in drafts.edits if k.partition(">")[0] == made.id]:
                del drafts.edits[key]
        drafts.mark_changed()
        self._show_outcome(outcome)
        # The message that the cursor has moved comes only after the save.
        drafts.cursor = self._panes.operations.key or drafts.cursor
        # Once it is drawn: nobody need wait for this file.
        self._page.app.call_after_refresh(drafts.save)

    def _show_outcome(self, outcome: ActionResult) -> None:
        """Say what came of it, and go where it leads, unless the person went elsewhere."""
        panes, queue = self._panes, self._item_queue
        self._page.host.tell(outcome.text, "failed" if outcome.failed else "")
        names = {made.id for made in outcome.made}
        if panes.editing is not None and panes.editing.item.id in names:
            panes.close_box()
        self._page.draw()
        if panes.editing is None:
            if outcome.go_to:
                queue.go_to(outcome.go_to)
            elif panes.operations.key in names and not (outcome.failed and len(names) == 1):
                queue.go_to_undecided(1)
        self._page.draw()

    # -- a reason, a note --------------------------------------------------------------------

    async def reject_because(self, op: Operation) -> None:
        host = self._page.host
        reason = await host.ask(f"reject {op.id} because:", host.drafts.notes.get(op.id, ""))
        if reason is None or not reason.strip():
            host.tell(f"{op.id} is not rejected: no reason was given")
            return
        self.submit([(op, self.make_decision(op, "reject", reason.strip()))])

    async def ask_note(self, item: Item, op: Operation) -> None:
        """Ask for a note; it goes with the decision, or into the one that stands."""
        host, drafts = self._page.host, self._page.host.drafts
        before = drafts.notes.get(op.id) or (item.decision.reason if item.decision else "")
        text = await host.ask(f"note on {op.id}:", before)
        if text is None:
            return
        text = text.strip()
        here = self._item_queue.item
        decision = here.decision if here is not None and here.id == op.id else item.decision
        if decision is not None:
            anew = replace(decision, reason=text, reviewer=host.person, at=0.0,
                           assigned=None, flags=())  # fmt: skip
            self.submit([(op, anew)])
            return
        drafts.notes.pop(op.id, None)
        if text:
            drafts.notes[op.id] = text
        drafts.mark_changed()
        host.tell(f"noted; it goes with the decision on {op.id}" if text else "no note")
        self._page.draw()

    # -- taking back ---------------------------------------------------------------------------

    def undo(self) -> None:
        if (session := self.require_session()) is not None:
            self._page.host.queue_request(self._undo(session))

    async def _undo(self, session: Session) -> None:
        person = self._page.host.person
        self._show_outcome(
            await self._item_queue.decider.undo(session, self._item_queue.texts, person)
        )

    def redo(self) -> None:
        if (session := self.require_session()) is not None:
            self._page.host.queue_request(self._redo(session))

    async def _redo(self, session: Session) -> None:
        outcome = await self._item_queue.decider.redo(session)
        self._show_outcome(replace(outcome, made=()))
