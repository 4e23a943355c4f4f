"""Decisions about many operations at once, and the commit: both are shown before they are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engines.core.types import Decision, DecisionAction
from studio.session.base import Session
from studio.tui.drawing.lines import Line, line
from studio.tui.page import Page
from studio.tui.pages.review.change_view import flag_text
from studio.tui.pages.review.decisions import DecisionKeys
from studio.tui.pages.review.queue import ItemQueue
from studio.tui.pages.review.view import (
    VERBS,
    Item,
    commit_lines,
    count_standings,
    counts_text,
    excerpt,
)
from studio.tui.pages.training_view import WHOLE


class BatchKeys:
    """A range, all that is safe, and what is decided as a whole."""

    def __init__(self, page: Page, queue: ItemQueue, decisions: DecisionKeys) -> None:
        self._page, self._item_queue, self._decisions = page, queue, decisions

    # -- many at once --------------------------------------------------------------------------

    async def decide_range(self, action: DecisionAction) -> None:
        if self._decisions.require_session() is None:
            return
        chosen = [
            item
            for item in self._item_queue.range_items
            if item.is_open and item.operation is not None
        ]
        if action == "approve":
            chosen = [item for item in chosen if not self._decisions.has_draft(item.id)]
        word = "Approve" if action == "approve" else "Reject"
        if chosen:
            await self._decide_all(chosen, action, f"{word} these {len(chosen)}?")
        else:
            self._page.host.tell("nothing in the range is undecided")
        self._item_queue.leave_range()

    async def approve_safe(self) -> None:
        # Nor is what somebody has begun to reword approved in passing.
        safe = [
            item
            for item in self._item_queue.items
            if item.is_safe and not self._decisions.has_draft(item.id)
        ]
        if not safe:
            self._page.host.tell(
                "nothing is safe: what is left is flagged, deletes, is being reworded, "
                "is a weight update or a reply to mend"
            )
            return
        title = f"Approve {len(safe)} safe operation{'s' if len(safe) > 1 else ''}?"
        await self._decide_all(safe, "approve", title)

    async def _decide_all(self, chosen: Sequence[Item], action: DecisionAction, title: str) -> None:
        """Decide what was listed, and still is as it was when it was."""
        host = self._page.host
        since = host.clock()
        key = {"enter": "approves them" if action == "approve" else "rejects them"}
        if not await host.confirm(title, [self._item_line(item) for item in chosen], key):
            host.tell("nothing was decided")
            return
        now = {item.id: item for item in self._item_queue.current_items()}
        took_s = round(max(0.0, host.clock() - since) / len(chosen), 3)
        pairs = [
            (op, Decision(op.id, action, reason=host.drafts.notes.get(op.id, ""),
                          reviewer=host.person, took_s=took_s))
            for item in chosen
            if now.get(item.id) == item and (op := item.operation) is not None
            and op.id not in self._item_queue.decider.busy
        ]  # fmt: skip
        if pairs:
            self._decisions.submit(pairs)
        else:
            host.tell("they were decided meanwhile")

    def _item_line(self, item: Item) -> Line:
        op = item.operation
        assert op is not None
        before = self._item_queue.texts.get(op.target or "", "")
        flags = ("  FLAG " + ", ".join(flag_text(flag) for flag in op.flags)) if op.flags else ""
        target = excerpt(op.target or "new")
        return line((f"{VERBS[op.kind]} {target:<5} ", "title"), excerpt(op.text or before),
                    (flags, "flag"))  # fmt: skip

    # -- the commit ----------------------------------------------------------------------------

    async def commit(self, session: Session) -> None:
        """Commit; after a look at it where something is left undecided or out of sight."""
        queue, found = self._item_queue, self._item_queue.current_items()
        waiting = [i.operation for i in found if i.operation is not None and i.is_open]
        if not any(item.operation for item in found):
            self._page.host.tell("there is nothing to commit")
        elif any(op.kind == "weights" for op in waiting):
            self._page.host.tell(f"{WHOLE}, and not put off: a or r, then c", "failed")
        elif queue.undecided_count(session) or queue.hidden_count(found):
            # Not awaited: requests come in turn, and the person may take long to answer.
            self._page.run_worker(self._confirm_commit(session))
        else:
            await self._send_commit(session, queue.decisions(session))

    async def _confirm_commit(self, session: Session) -> None:
        host, queue = self._page.host, self._item_queue
        await host.wait_for_requests()  # what was asked in the same breath
        found, shown = queue.current_items(), queue.decisions(session)
        left, hidden = queue.undecided_count(session), queue.hidden_count(found)
        title = f"Commit, with {left} undecided?" if left else f"Commit, with {hidden} hidden?"
        lines = commit_lines(session.state, found, hidden)
        if not await host.confirm(title, lines, {"enter": "commits"}):
            host.tell("nothing was committed")
            return
        host.queue_request(self._send_commit(session, shown))

    async def _send_commit(self, session: Session, shown: Mapping[str, Decision]) -> None:
        """Commit what was shown, and nothing else."""
        host, queue = self._page.host, self._item_queue
        if dict(shown) != queue.decisions(session):
            host.tell("something else is decided by now: c shows it again", "failed")
            return
        made = count_standings(queue.current_items())
        text = counts_text({k: v for k, v in made.items() if k not in ("open", "later")})
        told = await session.commit()
        host.tell(f"{text}: {told}")
        host.drafts.save()
        self._page.draw()
