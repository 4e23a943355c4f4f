"""Review in line mode, as `git add -p` does it: one operation, one key, one line.

After the operations come replies that could not be parsed, to be corrected or dropped; what a
corrected reply holds is asked about at once, like any other operation.

Owns the questions. What is printed is `studio.review.line_text`'s, and where decisions go the
session's. It works on dumb terminals, with screen readers and from scripts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from engines.core.errors import ConflictError, StudioError
from engines.core.types import GATE, Decision, Operation, UnparsedReply
from studio.review.actions import Decider, check_edit
from studio.review.evidence import EvidenceLoader, GroupEvidence
from studio.review.line_text import (
    HELP,
    REPLY_HELP,
    WEIGHTS_AS_A_WHOLE,
    WEIGHTS_HELP,
    flag_text,
    operation_text,
    queue_lines,
    reply_lines,
)
from studio.secrets.sanitize import one_line, sanitize
from studio.session.base import ReviewQueue, Session
from studio.session.unparsed_replies import with_comments, without_comments

T = TypeVar("T")

Ask = Callable[[str], str | None]
"""Prints a prompt and returns a line, None at the end of the input."""

Edit = Callable[[str], str | None]
"""Lets a person edit a text; None when nothing was saved."""


class WaitFor(Protocol):
    """Runs a coroutine of the session's event loop, and waits for its result."""

    def __call__(self, coroutine: Coroutine[Any, Any, T], /) -> T: ...


class LineReview:
    """One person going through one run's open operations."""

    def __init__(
        self,
        session: Session,
        evidence: EvidenceLoader,
        *,
        wait_for: WaitFor,
        reviewer: str,
        ask: Ask,
        edit: Edit,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session, self._evidence, self._wait_for = session, evidence, wait_for
        self._reviewer = reviewer
        self._ask, self._edit, self._say = ask, edit, say
        self._clock = clock
        self._decider = Decider(restores=False)
        self._shown_at = 0.0
        self._decided: set[str] = set()  # of this sitting, also where `u` came too late
        self._later: set[str] = set()  # ids of operations and of replies
        self._reply_texts: dict[str, str] = {}  # replies as far as they are corrected, by id
        self._wordings: dict[str, str] = {}  # that were not decided, by operation id
        self.settled_count = 0  # replies corrected or dropped in this sitting

    @property
    def decided_count(self) -> int:
        """Operations decided in this sitting and not asked again since."""
        return len(self._decided)

    def run(self) -> bool:
        """Ask until nothing is left; False where the person quits or the input ends before."""
        while True:
            queue = self._wait_for(self._session.review_queue())
            operations = [op for op in queue.open if op.id not in self._later]
            replies = [reply for reply in queue.repairs if reply.id not in self._later]
            if operations:
                groups = self._evidence.operation_groups(operations[0])
                self._say(operation_text(operations[0], queue, groups))
                self._shown_at = self._clock()
                go_on = self._answer(operations[0], queue)
            elif replies:
                self._say("\n" + "\n".join(reply_lines(replies[0], len(queue.repairs))))
                go_on = self._answer_reply(replies[0], queue)
            else:
                return True
            if not go_on:
                return False

    def _answer(self, operation: Operation, queue: ReviewQueue) -> bool:
        """Take one command; False ends the sitting."""
        is_weights = operation.kind == "weights"
        keys = "a r u n v l q" if is_weights else "a e m r d u n v l q"
        while True:
            key, rest = self._ask_key(f"{operation.id}  {keys} ? ")
            match key:
                case "a":
                    return self._decide(operation, Decision(operation.id, "approve"), queue)
                case "e" | "m" | "d" if is_weights:
                    self._say(WEIGHTS_AS_A_WHOLE)
                case "e":
                    if self._edit_operation(operation, queue, rest):
                        return True
                case "m":
                    if self._merge(operation, queue, rest):
                        return True
                case "r" if rest:
                    decision = Decision(operation.id, "reject", reason=rest)
                    return self._decide(operation, decision, queue)
                case "r":
                    self._say("say why: r REASON")
                case "d":
                    self._later.add(operation.id)
                    decision = Decision(operation.id, "defer", reason=rest)
                    return self._decide(operation, decision, queue)
                case "u":
                    if self._undo():
                        return True
                case "n":
                    self._later.add(operation.id)
                    return True
                case "v":
                    self._view_groups(self._evidence.operation_groups(operation))
                case "l":
                    self._list(queue)
                case "q":
                    return False
                case _:
                    self._say(WEIGHTS_HELP if is_weights else HELP)

    def _answer_reply(self, reply: UnparsedReply, queue: ReviewQueue) -> bool:
        """Take one command about a reply that could not be parsed; False ends the sitting."""
        while True:
            key, rest = self._ask_key(f"{reply.id}  e r v n l q ? ")
            match key:
                case "e":
                    if self._resubmit(reply, rest):
                        return True
                case "r" | "x" if rest:
                    return self._drop(reply, rest)
                case "r" | "x":
                    self._say(f"say why: {key} REASON")
                case "n":
                    self._later.add(reply.id)
                    return True
                case "v":
                    self._view_reply(reply)
                case "l":
                    self._list(queue)
                case "q":
                    return False
                case _:
                    self._say(REPLY_HELP)

    def _ask_key(self, prompt: str, at_end: str = "q") -> tuple[str, str]:
        """A key and the text behind it; `at_end` is the key where the input ends."""
        if (line := self._ask(prompt)) is None:
            return at_end, ""
        key, _, rest = line.strip().partition(" ")
        return key, rest.strip()

    def _resubmit(self, reply: UnparsedReply, text: str) -> bool:
        """Hand in a corrected reply; False where it is not understood, and asked about again."""
        try:
            if not text:
                source = self._evidence.reply_source
                before = self._reply_texts.get(reply.id) or source(reply).reply
                opened = self._from_editor(with_comments(before, reply.reasons))
                text = without_comments(opened or "").strip()
            if not text:
                self._say("nothing was saved, so it is as it was")
                return False
            self._reply_texts[reply.id] = text
            found = self._wait_for(self._session.resubmit(reply.id, text, self._reviewer))
        except ConflictError as error:  # settled elsewhere meanwhile, or the run has ended
            self._say(sanitize(str(error)))
            if text:
                self._say(f"what you wrote:\n{sanitize(text)}")
            return True
        if found.problems:
            self._say(f"{reply.id}: still not understood, so nothing of it is taken")
            for problem in found.problems:
                self._say(f"  {one_line(problem, 400)}")
            return False
        self.settled_count += 1
        for duplicate in found.doubled:
            self._say(f"  {one_line(duplicate, 400)}")
        names = ", ".join(operation.id for operation in found.operations)
        self._say(f"{reply.id}: mended; it holds {names or 'nothing new'}")
        return True

    def _drop(self, reply: UnparsedReply, reason: str) -> bool:
        try:
            self._wait_for(self._session.drop(reply.id, reason, self._reviewer))
        except ConflictError as error:
            self._say(sanitize(str(error)))
            return True
        self.settled_count += 1
        self._say(f"{reply.id}: dropped; it stays counted as lost")
        return True

    def _view_reply(self, reply: UnparsedReply) -> None:
        try:
            found = self._evidence.reply_source(reply)
        except StudioError as error:
            self._say(sanitize(str(error)))
            return
        for message in found.prompt:
            self._say(f"\n=== prompt [{message.role}]\n{sanitize(message.content)}")
        if not found.prompt:
            self._say("\n=== prompt\n(its record is gone)")
        self._view_groups(self._evidence.groups(found.rollouts))
        proposer = sanitize(found.origin.proposer) or "(unknown)"
        self._say(f"\n=== reply of {proposer}\n{sanitize(found.reply)}")

    def _decide(self, operation: Operation, decision: Decision, queue: ReviewQueue) -> bool:
        took_s = round(self._clock() - self._shown_at, 3)
        decision = replace(decision, reviewer=self._reviewer, took_s=took_s)
        pairs = [(operation, decision)]
        try:
            result = self._wait_for(self._decider.decide(self._session, pairs, dict(queue.draft)))
        except ConflictError as error:  # decided and committed elsewhere meanwhile
            self._say(f"{error}")
            return True
        self._decided.add(operation.id)
        made = result.made[0].decision
        # The gate's note on what it rejects would say once more that this is a rejection.
        note = made.reason if made.reviewer == GATE else result.notes[0]
        note = f" ({sanitize(note)})" if note else ""
        self._say(f"{operation.id}: {_PAST_TENSE[made.action]}{note}")
        return True

    def _decide_edit(self, operation: Operation, decision: Decision, queue: ReviewQueue) -> bool:
        """Decide an edit once it fits and its new flags are accepted; False: not decided."""
        while True:
            if not decision.text or not decision.text.strip():
                self._say("nothing was saved, so nothing is decided")
                return False
            self._wordings[operation.id] = decision.text
            try:
                found = self._wait_for(check_edit(self._session, operation, decision))
            except ConflictError as error:  # decided and committed elsewhere meanwhile
                self._say(sanitize(str(error)))
                return True
            if found.objection:
                self._say(f"{sanitize(found.objection)}: not decided; edit again, or r REASON")
                return False
            if not found.flags:
                return self._decide(operation, decision, queue)
            for flag in found.flags:
                self._say(f"  flag      {flag_text(flag)}")
            key, rest = self._ask_anyway()
            if key == "y":
                return self._decide(operation, decision, queue)
            if key != "e":
                self._say("not decided")
                return False
            decision = replace(decision, text=rest or self._from_editor(decision.text))

    def _ask_anyway(self) -> tuple[str, str]:
        """`y`, `n` or `e`, the latter with the text behind it; the end of the input is an n."""
        while True:
            key, rest = self._ask_key("approve anyway? y, e edit again, n ? ", at_end="n")
            if key in ("y", "e", "n"):
                return key, rest

    def _edit_operation(self, operation: Operation, queue: ReviewQueue, text: str) -> bool:
        if operation.kind in ("delete", "keep"):
            self._say(f"a {operation.kind} has no wording; m {operation.target} TEXT changes it")
            return False
        before = self._wordings.get(operation.id, operation.text)
        edit = Decision(operation.id, "edit", text=text or self._from_editor(before))
        return self._decide_edit(operation, edit, queue)

    def _merge(self, operation: Operation, queue: ReviewQueue, rest: str) -> bool:
        target, _, text = rest.partition(" ")
        known = dict(queue.draft)
        if target not in known:
            self._say(f"merge into which? m ID, one of: {', '.join(known) or 'none'}")
            return False
        text = text.strip() or self._from_editor(f"{known[target]}\n{operation.text}") or ""
        edit = Decision(operation.id, "edit", kind="modify", target=target, text=text)
        return self._decide_edit(operation, edit, queue)

    def _from_editor(self, text: str) -> str | None:
        try:
            return self._edit(text)
        except StudioError as error:  # a missing editor must not end the sitting
            self._say(f"{error}")
            return None

    def _undo(self) -> bool:
        steps = self._decider.sitting.steps
        if not steps:
            self._say("nothing was decided in this sitting")
            return False
        before, last = tuple(steps), steps[-1][0].id
        self._later.discard(last)
        try:
            undone = self._wait_for(self._decider.undo(self._session, {})).asked_again
        except StudioError as error:  # committed meanwhile: the one before may still be undone
            steps[:] = before[:-1]
            self._say(f"{error}")
            return False
        self._decided -= set(undone)
        self._later -= set(undone)
        self._say(f"asked again: {', '.join(undone)}")
        return True

    def _view_groups(self, groups: Sequence[GroupEvidence]) -> None:
        """Questions once, then what each rollout said; the rest of a prompt is all the same."""
        for group in groups:
            self._say(f"\n=== {group.id}\n{sanitize(group.question)}")
            for witness in group.witnesses:
                verdict = witness.verdict
                reward = "?" if verdict is None or verdict.reward is None else f"{verdict.reward:g}"
                self._say(f"\n--- {witness.id}  reward {reward}")
                try:
                    messages = self._evidence.messages(witness)
                except StudioError as error:  # one lost record must not end the sitting
                    self._say(f"{error}")
                    continue
                replies = [m for m in messages if m.role in ("assistant", "tool")]
                for message in replies:
                    mark = f"[{message.role}]\n" if len(replies) > 1 else ""
                    self._say(f"{mark}{sanitize(message.content)}")

    def _list(self, queue: ReviewQueue) -> None:
        for line in queue_lines(queue):
            self._say(line)


_PAST_TENSE = {
    "approve": "approved",
    "edit": "approved as edited",
    "reject": "rejected",
    "defer": "deferred",
}
