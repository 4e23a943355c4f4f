"""Review in line mode, as `git add -p` does it: one operation, one key, one line.

After the operations come replies that could not be parsed; what a corrected one holds is asked
about at once. It works on dumb terminals, with screen readers and from scripts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
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
from studio.review.undo_stack import PAST
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


@dataclass(slots=True, eq=False)
class LineReview:
    """One person going through one run's open operations."""

    session: Session
    evidence: EvidenceLoader
    wait_for: WaitFor
    reviewer: str
    ask: Ask
    edit: Edit
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    settled_count: int = 0  # replies corrected or dropped in this sitting
    _decider: Decider = field(default_factory=lambda: Decider(restores=False))
    _shown_at: float = 0.0
    _decided: set[str] = field(default_factory=set)  # also where `u` came too late
    _later: set[str] = field(default_factory=set)  # ids of operations and of replies
    _reply_texts: dict[str, str] = field(default_factory=dict)  # as far as corrected, by id
    _wordings: dict[str, str] = field(default_factory=dict)  # not decided, by operation id

    @property
    def decided_count(self) -> int:
        """Operations decided in this sitting and not asked again since."""
        return len(self._decided)

    def run(self) -> bool:
        """Ask until nothing is left; False where the person quits or the input ends before."""
        while True:
            queue = self.wait_for(self.session.review_queue())
            operations = [op for op in queue.open if op.id not in self._later]
            replies = [reply for reply in queue.repairs if reply.id not in self._later]
            if operations:
                groups = self.evidence.operation_groups(operations[0])
                self.say(operation_text(operations[0], queue, groups))
                self._shown_at = self.clock()
                go_on = self._answer(operations[0], queue)
            elif replies:
                self.say("\n" + "\n".join(reply_lines(replies[0], len(queue.repairs))))
                go_on = self._answer_reply(replies[0], queue)
            else:
                return True
            if not go_on:
                return False

    def ask_again(self, names: Iterable[str]) -> int:
        """Ask once more about what was passed over among these; returns how many that are."""
        again = self._later.intersection(names)
        self._later -= again
        return len(again)

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
                    self.say(WEIGHTS_AS_A_WHOLE)
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
                    self.say("say why: r REASON")
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
                    self._view_groups(self.evidence.operation_groups(operation))
                case "l":
                    self._list(queue)
                case "q":
                    return False
                case _:
                    self.say(WEIGHTS_HELP if is_weights else HELP)

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
                    self.say(f"say why: {key} REASON")
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
                    self.say(REPLY_HELP)

    def _ask_key(self, prompt: str, at_end: str = "q") -> tuple[str, str]:
        """A key and the text behind it; `at_end` is the key where the input ends."""
        if (line := self.ask(prompt)) is None:
            return at_end, ""
        key, _, rest = line.strip().partition(" ")
        return key, rest.strip()

    def _resubmit(self, reply: UnparsedReply, text: str) -> bool:
        """Hand in a corrected reply; False where it is not understood, and asked about again."""
        try:
            if not text:
                before = self._reply_texts.get(reply.id) or self.evidence.reply_source(reply).reply
                opened = self._from_editor(with_comments(before, reply.reasons))
                text = without_comments(opened or "").strip()
            if not text:
                self.say("nothing was saved, so it is as it was")
                return False
            self._reply_texts[reply.id] = text
            found = self.wait_for(self.session.resubmit(reply.id, text, self.reviewer))
        except ConflictError as error:  # settled elsewhere meanwhile, or the run has ended
            self.say(sanitize(str(error)))
            if text:
                self.say(f"what you wrote:\n{sanitize(text)}")
            return True
        if found.problems:
            self.say(f"{reply.id}: still not understood, so nothing of it is taken")
            for problem in found.problems:
                self.say(f"  {one_line(problem, 400)}")
            return False
        self.settled_count += 1
        for duplicate in found.doubled:
            self.say(f"  {one_line(duplicate, 400)}")
        names = ", ".join(operation.id for operation in found.operations)
        self.say(f"{reply.id}: mended; it holds {names or 'nothing new'}")
        return True

    def _drop(self, reply: UnparsedReply, reason: str) -> bool:
        try:
            self.wait_for(self.session.drop(reply.id, reason, self.reviewer))
        except ConflictError as error:
            self.say(sanitize(str(error)))
            return True
        self.settled_count += 1
        self.say(f"{reply.id}: dropped; it stays counted as lost")
        return True

    def _view_reply(self, reply: UnparsedReply) -> None:
        try:
            found = self.evidence.reply_source(reply)
        except StudioError as error:
            self.say(sanitize(str(error)))
            return
        for message in found.prompt:
            self.say(f"\n=== prompt [{message.role}]\n{sanitize(message.content)}")
        if not found.prompt:
            self.say("\n=== prompt\n(its record is gone)")
        self._view_groups(self.evidence.groups(found.rollouts))
        proposer = sanitize(found.origin.proposer) or "(unknown)"
        self.say(f"\n=== reply of {proposer}\n{sanitize(found.reply)}")

    def _decide(self, operation: Operation, decision: Decision, queue: ReviewQueue) -> bool:
        took_s = round(self.clock() - self._shown_at, 3)
        decision = replace(decision, reviewer=self.reviewer, took_s=took_s)
        pairs = [(operation, decision)]
        try:
            result = self.wait_for(self._decider.decide(self.session, pairs, dict(queue.draft)))
        except ConflictError as error:  # decided and committed elsewhere meanwhile
            self.say(f"{error}")
            return True
        self._decided.add(operation.id)
        made = result.made[0].decision
        # The gate's note on what it rejects would say once more that this is a rejection.
        note = made.reason if made.reviewer == GATE else result.notes[0]
        note = f" ({sanitize(note)})" if note else ""
        self.say(f"{operation.id}: {_PAST_TENSE[made.action]}{note}")
        return True

    def _decide_edit(self, operation: Operation, decision: Decision, queue: ReviewQueue) -> bool:
        """Decide an edit once it fits and its new flags are accepted; False: not decided."""
        while True:
            if not decision.text or not decision.text.strip():
                self.say("nothing was saved, so nothing is decided")
                return False
            self._wordings[operation.id] = decision.text
            try:
                found = self.wait_for(check_edit(self.session, operation, decision))
            except ConflictError as error:  # decided and committed elsewhere meanwhile
                self.say(sanitize(str(error)))
                return True
            if found.objection:
                self.say(f"{sanitize(found.objection)}: not decided; edit again, or r REASON")
                return False
            if not found.flags:
                return self._decide(operation, decision, queue)
            for flag in found.flags:
                self.say(f"  flag      {flag_text(flag)}")
            key, rest = self._ask_anyway()
            if key == "y":
                return self._decide(operation, decision, queue)
            if key != "e":
                self.say("not decided")
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
            self.say(f"a {operation.kind} has no wording; m {operation.target} TEXT changes it")
            return False
        before = self._wordings.get(operation.id, operation.text)
        edit = Decision(operation.id, "edit", text=text or self._from_editor(before))
        return self._decide_edit(operation, edit, queue)

    def _merge(self, operation: Operation, queue: ReviewQueue, rest: str) -> bool:
        target, _, text = rest.partition(" ")
        known = dict(queue.draft)
        if target not in known:
            self.say(f"merge into which? m ID, one of: {', '.join(known) or 'none'}")
            return False
        text = text.strip() or self._from_editor(f"{known[target]}\n{operation.text}") or ""
        edit = Decision(operation.id, "edit", kind="modify", target=target, text=text)
        return self._decide_edit(operation, edit, queue)

    def _from_editor(self, text: str) -> str | None:
        try:
            return self.edit(text)
        except StudioError as error:  # a missing editor must not end the sitting
            self.say(f"{error}")
            return None

    def _undo(self) -> bool:
        steps = self._decider.sitting.steps
        if not steps:
            self.say("nothing was decided in this session")
            return False
        before, last = tuple(steps), steps[-1][0].id
        self._later.discard(last)
        try:
            undone = self.wait_for(self._decider.undo(self.session, {})).asked_again
        except StudioError as error:  # committed meanwhile: the one before may still be undone
            steps[:] = before[:-1]
            self.say(f"{error}")
            return False
        self._decided -= set(undone)
        self._later -= set(undone)
        self.say(f"asked again: {', '.join(undone)}")
        return True

    def _view_groups(self, groups: Sequence[GroupEvidence]) -> None:
        """Questions once, then what each rollout said; the rest of a prompt is all the same."""
        for group in groups:
            self.say(f"\n=== {group.id}\n{sanitize(group.question)}")
            for witness in group.witnesses:
                verdict = witness.verdict
                reward = "?" if verdict is None or verdict.reward is None else f"{verdict.reward:g}"
                self.say(f"\n--- {witness.id}  reward {reward}")
                try:
                    messages = self.evidence.messages(witness)
                except StudioError as error:  # one lost record must not end the sitting
                    self.say(f"{error}")
                    continue
                replies = [m for m in messages if m.role in ("assistant", "tool")]
                for message in replies:
                    mark = f"[{message.role}]\n" if len(replies) > 1 else ""
                    self.say(f"{mark}{sanitize(message.content)}")

    def _list(self, queue: ReviewQueue) -> None:
        for line in queue_lines(queue):
            self.say(line)


_PAST_TENSE = {**PAST, "defer": "deferred"}
