"""The keys of the review page that decide one operation or many, those that take back, the commit.

Nothing counts as decided before the run has said so (`studio.review.decider`), and only what
has been painted is decided. What concerns many is shown before it is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from shlex import quote

from engines.core.events import EffectMeasured
from engines.core.types import GATE, Decision, DecisionAction, Operation
from studio.review.decider import ActionResult, Pair, toggle_pin
from studio.session.requests import Commit, Preview, TryOperations
from studio.session.session import Session
from studio.tui.drawing.lines import Line, paragraph
from studio.tui.pages.review import view
from studio.tui.pages.review.change_pane import ChangePane
from studio.tui.pages.review.change_view import decided_lines, item_rows
from studio.tui.pages.review.view import Item
from studio.tui.pages.training_view import WHOLE
from studio.tui.widgets.confirm import choose


class DecisionKeys:
    """Approve, reject, put off, note, undo and redo; a range, all that is safe, and the commit."""

    def __init__(self, change: ChangePane) -> None:
        self.change = change
        self._page, self._panes, self._review_queue = change.page, change.panes, change.queue
        self._too_early = ""  # what is said of a key while a decision is under way
        self._warned_of_draft = ""  # the operation whose approval waits for a second press
        self._asked_to_try: set[str] = set()  # operations without a verdict yet

    # -- what may be decided -------------------------------------------------------------------

    def require_session(self) -> Session | None:
        """The session, where this screen may decide; tells why not."""
        host, session, state = self._page.host, self._page.session, self._page.state
        if session is None or state is None:
            host.tell("no run is open here: 5 lists them, 0 starts one", "failed")
        elif host.is_small:
            host.tell("deciding wants 60x16: too little is seen here", "failed")
        elif session.label:
            host.tell(f"{session.label}: nothing can be decided in it", "failed")
        elif session.living and not session.controls:
            who = view.excerpt(session.controller) or "nobody"
            host.tell(f"{who} decides in this run; T takes over", "failed")
        # Without a process nobody else decides: what is asked waits until the record is open.
        else:
            return session
        return None

    def painted_item(self) -> Item | None:
        """What is under the cursor, where it may be decided: it has been drawn."""
        if self.require_session() is None:
            return None
        host, item = self._page.host, self._review_queue.item
        if item is None:
            host.tell("there is nothing to decide here")
        elif item.id in self._review_queue.decider.busy:
            self._too_early = "; a key came too early: press again"
            host.tell(f"{item.id} is being decided")
        elif item != self._review_queue.current_item(item) or not self.change.has_painted(item):
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
            self._page.host.tell(f"{item.id} is a reply to mend: e mends it, d lets it go")
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

    def make_decision(self, op: Operation, action: DecisionAction, reason: str = "") -> Decision:
        host = self._page.host
        note = reason or self._review_queue.notes.get(op.id, "")
        took_s = self.change.looked_at_s
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
            text = "you have a wording of your own: e takes it up, a again approves as proposed"
            host.tell(text, "flag")
            return
        decision = self.make_decision(op, action)
        if action == "approve" and standing is not None and standing.reviewer == GATE:
            if (session := self.require_session()) is not None:
                self._review_queue.decider.busy.add(op.id)
                host.queue_request(self._approve_if_fits(session, op, decision))
            return
        self.submit([(op, decision)])

    async def _approve_if_fits(self, session: Session, op: Operation, asked: Decision) -> None:
        """What the gate rejected is asked again only where it would say something else."""
        try:
            (found,) = await session.send(Preview((asked,)))
            if found.objection:
                text = f"{op.id} still does not fit: {found.objection} (e rewords it, r rejects it)"
                self._page.host.tell(text, "failed")
                return
            await self.send(session, [(op, asked)])
        finally:
            self._review_queue.decider.busy.discard(op.id)

    def submit(self, pairs: Sequence[Pair]) -> None:
        """Queue decisions; nothing of them is shown as made before the run says so."""
        if (session := self.require_session()) is None:
            return
        self._review_queue.decider.busy |= {op.id for op, _ in pairs}
        self._page.host.queue_request(self.send(session, pairs))

    async def send(self, session: Session, pairs: Sequence[Pair], text: str = "") -> bool:
        """Hand decisions in now, and forget the drafts of those that were made.

        `text` is what is told where all of them are taken; returns whether they are.
        """
        decider = self._review_queue.decider
        try:
            outcome = await decider.decide(session, pairs, self._review_queue.texts)
        finally:
            decider.busy -= {op.id for op, _ in pairs}
        drafts = self._page.host.drafts
        for made in outcome.made:
            drafts.notes.pop(made.id, None)
            for key in [k for k in drafts.edits if k.partition(">")[0] == made.id]:
                del drafts.edits[key]
        self._show_outcome(outcome if outcome.failed or not text else replace(outcome, text=text))
        # The message that the cursor has moved comes only after the save.
        drafts.cursor = self._panes.operations.key or drafts.cursor
        # Once it is drawn: nobody need wait for this file.
        self._page.app.call_after_refresh(drafts.save)
        return not outcome.failed

    def _show_outcome(self, outcome: ActionResult) -> None:
        """Say what came of it, and go where it leads, unless the person went elsewhere."""
        panes, queue = self._panes, self._review_queue
        text, self._too_early = outcome.text + self._too_early, ""
        self._page.host.tell(text, "failed" if outcome.failed else "")
        names = {made.id for made in outcome.made}
        if panes.editing is not None and panes.editing.item.id in names:
            panes.close_box()
        queue.draw()  # the list alone: the cursor leaves what was decided at once
        if panes.editing is None:
            if outcome.go_to:
                queue.go_to(outcome.go_to)
            elif panes.operations.key in names and not (outcome.failed and len(names) == 1):
                queue.go_to_undecided(1)
        self._page.draw()

    async def reject_because(self, op: Operation) -> None:
        host = self._page.host
        reason = await host.ask(f"reject {op.id} because:", self._review_queue.notes.get(op.id, ""))
        if reason is None or not reason.strip():
            host.tell(f"{op.id} is not rejected: no reason was given")
            return
        self.submit([(op, self.make_decision(op, "reject", reason.strip()))])

    async def ask_note(self, item: Item, op: Operation) -> None:
        """Ask for a note; it goes with the decision, or into the one that stands."""
        host, drafts = self._page.host, self._page.host.drafts
        said = item.decision.reason if item.decision else ""
        before = self._review_queue.notes.get(op.id) or said
        text = await host.ask(f"note on {op.id}:", before)
        if text is None:
            return
        text, here = text.strip(), self._review_queue.item
        decision = here.decision if here is not None and here.id == op.id else item.decision
        if decision is not None:
            noted = replace(decision, reason=text, reviewer=host.person, at=0.0)
            self.submit([(op, replace(noted, assigned=None, flags=()))])
            return
        drafts.notes.pop(op.id, None)
        if text:
            drafts.notes[op.id] = text
        host.tell(f"noted; it goes with the decision on {op.id}" if text else "no note")
        self._page.draw()

    def pin(self) -> None:
        """Pin what is under the cursor's target, or the similar one there; or unpin it."""
        queue, session, host = self._review_queue, self.require_session(), self._page.host
        item, similar = queue.item, self._panes.similar
        op = item.operation if item is not None else None
        target = similar.key if self._page.app.focused is similar else (op and op.target) or ""
        if session is None:
            return
        if target not in queue.texts:
            host.tell("p pins an experience of the library: this one is no change of any", "failed")
            return
        waiting = next(
            (one for one in queue.items if one.operation is not None and one.is_open
             and one.operation.kind in view.PINS and one.operation.target == target), None
        )  # fmt: skip
        if waiting is not None:
            queue.go_to(waiting.id)
            host.tell(f"{waiting.id} is open already: a approves it")
            return
        is_pinned = target in queue.pinned
        host.ask_run(partial(toggle_pin, target=target, pinned=is_pinned, person=host.person))

    def try_operations(self) -> None:
        """Have the run try those of the range, else what is under the cursor."""
        session, queue = self.require_session(), self._review_queue
        here = queue.range_items if queue.has_range else [queue.item]
        names = [item.id for item in here if item is not None and item.operation is not None]
        if session is None or not names:
            return
        if session.living:
            self._page.host.queue_request(self._try(session, names))
            return
        command = f"studio gate {quote(session.run.run)} {' '.join(names)}"
        self._page.host.tell(f"no process of the run goes on; in a shell: {command}")

    async def _try(self, session: Session, names: Sequence[str]) -> None:
        self._asked_to_try.update(names)
        facts = await session.send(TryOperations(tuple(names)))
        smallest, most = facts["smallest_effect"], facts["most_rollouts"]
        sees = "" if smallest is None else f", likely to show {smallest:.2f} or more"
        if not facts["operations"]:
            self._asked_to_try.difference_update(names)
            self._page.host.tell(f"{', '.join(names)}: tried already, as the library is")
        elif self._asked_to_try.issuperset(names):  # else a verdict has come before this answer
            self._page.host.tell(f"trying {', '.join(names)}: at most {most} rollouts{sees}")

    def tell_of_trial(self, event: EffectMeasured) -> None:
        """The verdict takes the place of the line that said what is being tried."""
        if self._asked_to_try & {*event.operations}:
            self._asked_to_try.difference_update(event.operations)
            self._page.host.tell(f"{', '.join(event.operations)} tried: {event.effect.verdict}")

    def undo(self, *, again: bool) -> None:
        if (session := self.require_session()) is not None:
            self._page.host.queue_request((self._redo if again else self._undo)(session))

    async def _undo(self, session: Session) -> None:
        decider, person = self._review_queue.decider, self._page.host.person
        self._show_outcome(await decider.undo(session, self._review_queue.texts, person))

    async def _redo(self, session: Session) -> None:
        outcome = await self._review_queue.decider.redo(session)
        self._show_outcome(replace(outcome, made=()))

    # -- many at once --------------------------------------------------------------------------

    async def decide_range(self, action: DecisionAction) -> None:
        if self.require_session() is None:
            return
        chosen = [one for one in self._review_queue.range_items if one.is_open and one.operation]
        if action == "approve":
            chosen = [item for item in chosen if not self.has_draft(item.id)]
        if chosen:
            await self._decide_all(chosen, action, "operation")
        else:
            self._page.host.tell("nothing in the range is undecided")
        self._review_queue.leave_range()

    async def approve_safe(self) -> None:
        # Nor is what somebody has begun to reword approved in passing.
        found = self._review_queue.items
        if safe := [item for item in found if item.is_safe and not self.has_draft(item.id)]:
            await self._decide_all(safe, "approve", "safe operation")
        else:
            self._page.host.tell(self._nothing_safe_text())

    def _nothing_safe_text(self) -> str:
        found = self._review_queue.items
        if not found:
            return "there is nothing to decide here"
        if not any(item.is_open for item in found):
            return "every operation here is decided: c commits, u takes the last one back"
        return (
            "nothing is safe: what is left is flagged, deletes, is being reworded, "
            "is a weight update or a reply to mend"
        )

    async def _decide_all(self, chosen: Sequence[Item], action: DecisionAction, what: str) -> None:
        """Decide what was listed and left ticked, and still is as it was when it was listed."""
        host, word = self._page.host, "Approve" if action == "approve" else "Reject"
        since = host.clock()
        left = await choose(
            self._page.app,
            lambda n, of: f"{word} {n}{f' of {of}' * (n < of)} {what}{'s' * (of > 1)}?",
            lambda width: item_rows(chosen, self._review_queue.texts_without, width),
            enter=f"{word.lower()} what is ticked",
        )
        if left is None:
            host.tell("nothing was decided")
            return
        now = {item.id: item for item in self._review_queue.current_items()}
        took_s = round(max(0.0, host.clock() - since) / len(left), 3)
        pairs = [
            (op, replace(self.make_decision(op, action), took_s=took_s))
            for item in chosen
            if item.id in left and now.get(item.id) == item and (op := item.operation) is not None
            and op.id not in self._review_queue.decider.busy
        ]  # fmt: skip
        if pairs:
            self.submit(pairs)
        else:
            host.tell("they were decided meanwhile")

    async def commit(self, session: Session) -> None:
        """Commit; after a look at it where something is left undecided or out of sight."""
        queue, found = self._review_queue, self._review_queue.current_items()
        waiting = [i.operation for i in found if i.operation is not None and i.is_open]
        if not any(item.operation for item in found):
            self._page.host.tell("there is nothing to commit")
        elif any(op.kind == "weights" for op in waiting):
            self._page.host.tell(f"{WHOLE}, and not put off: a or r, then c", "failed")
        elif session.state.undecided_operations or queue.hidden_count(found):
            # Not awaited: requests come in turn, and the person may take long to answer.
            asks = self._page.host.expect_question(self._confirm_commit(session))
            self._page.run_worker(asks)
        else:
            # In turn, but not awaited: no question is asked, so keys are acted on again.
            self._page.host.queue_request(self._send_commit(session, dict(session.state.decisions)))

    async def _confirm_commit(self, session: Session) -> None:
        host, queue = self._page.host, self._review_queue
        await host.wait_for_requests()  # what was asked in the same breath
        found, shown = queue.current_items(), dict(session.state.decisions)
        left, hidden = len(session.state.undecided_operations), queue.hidden_count(found)
        title = f"Commit, with {left} undecided?" if left else f"Commit, with {hidden} hidden?"
        counts, signs = view.commit_lines(session.state, found, hidden), self._panes.signs

        def lines(width: int) -> list[Line]:
            decided = decided_lines(found, queue.texts_without, width, signs)
            return [row for each in counts for row in paragraph(each, width, " " * 11)] + [*decided]

        if not await host.confirm(title, lines, {"enter": "commits"}):
            host.tell("nothing was committed")
            return
        host.queue_request(self._send_commit(session, shown))

    async def _send_commit(self, session: Session, shown: Mapping[str, Decision]) -> None:
        """Commit what was shown, and nothing else."""
        host, queue = self._page.host, self._review_queue
        if shown != session.state.decisions:
            host.tell("something else is decided by now: c shows it again", "failed")
            return
        counts = view.count_standings(queue.current_items())
        decided = {k: v for k, v in counts.items() if v and k not in ("open", "later")}
        answer = await session.send(Commit(session.state.step, session.who))
        host.tell(f"{view.counts_text(decided)}; {answer}" if decided else answer)
        host.drafts.save()
        self._page.draw()
