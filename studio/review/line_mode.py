"""Review in line mode, as `git add -p` does it: one operation, one key, one line.

After the operations come replies that could not be parsed; what a corrected one holds is asked
about at once. It works on dumb terminals, with screen readers and from scripts.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from engines.core.errors import ConflictError, StudioError
from engines.core.text.tool_text import said_text
from engines.core.types import GATE, Decision, Operation, OperationKind, UnparsedReply
from studio.render.words import DONE, count_text, misfit_text
from studio.review import decider, review_run, wording
from studio.review.evidence import EvidenceLoader, GroupEvidence
from studio.secrets.sanitize import one_line, sanitize
from studio.session.requests import Drop, Mend, Propose, Request, ReviewQueue
from studio.session.unparsed_replies import with_comments, without_comments

T = TypeVar("T")

Ask = Callable[[str], str | None]
"""Prints a prompt and returns a line, None at the end of the input."""

Edit = Callable[[str], str | None]
"""Lets a person edit a text; None when nothing was saved."""


@dataclass(slots=True, eq=False)
class LineReview:
    review: review_run.RunReview
    ask: Ask
    edit: Edit
    evidence: EvidenceLoader
    clock: Callable[[], float] = time.monotonic
    settled_count: int = 0  # replies corrected or dropped in this session
    _decider: decider.Decider = field(default_factory=decider.Decider)
    _shown_at: float = 0.0
    _decided: set[str] = field(default_factory=set)  # also where `u` came too late
    _later: dict[str, None] = field(default_factory=dict)  # operations and replies, newest last
    _texts: dict[str, str] = field(default_factory=dict)  # wordings and replies under way, by id
    _notes: dict[str, str] = field(default_factory=dict)  # they go with the decision
    _first: str = ""  # the operation to be asked about next, where it is open

    @property
    def decided_count(self) -> int:
        """Operations decided in this session and not asked again since."""
        return len(self._decided)

    def run(self) -> None:
        """Review until nothing is left, with `--wait` until the run ends; then close."""
        review, name = self.review, self.review.session.run.run
        review.wait_for(review.start_listening())
        follows = review.waits and review.has_process
        is_empty = review.wait_until_allowed(self._is_empty)
        if review.waits and not follows:
            review.tell(f"note: no process of run {name} goes on, so there is nothing to wait for")
        if is_empty:
            review.say(f"run {name}: nothing is open")
            if not follows:
                if review.has_process and (closing := review.closing_text()):
                    review.say(closing)
                return
        try:
            self._ask_until_left(follows)
        finally:
            review.say(f"run {name}: {self._counts_text()}")
            if closing := review.closing_text():
                review.say(closing)

    def _ask_until_left(self, follows: bool) -> None:
        review, settled = self.review, -1
        while review.wait_until_allowed(self.ask_all) and follows and not review.ended:
            state = review.session.state
            blocking = state.undecided_operations if state.under_review else ()
            passed_over = [op.id for op in blocking if op.id in self._later]
            if passed_over:
                self._ask_again(passed_over)
                count = count_text(len(passed_over), "operation")
                review.tell(f"the run holds for {count}: once more; q leaves")
                continue
            if settled != (settled := self.decided_count + self.settled_count):
                review.tell("waiting for the run's next step; Ctrl-C ends the waiting, not the run")
            review.wait_for(review.wait_for_change())

    def _is_empty(self) -> bool:
        queue = self.review.read_queue()
        return not queue.open and not queue.repairs

    def _ask_again(self, names: Iterable[str]) -> None:
        for name in names:
            self._later.pop(name, None)

    def _counts_text(self) -> str:
        state = self.review.session.state
        counts = f"{self.decided_count} decided, {len(state.open_operations)} open"
        if self.settled_count or state.repairs:
            settled = count_text(self.settled_count, "reply", "replies")
            counts += f"; {settled} settled, {len(state.repairs)} to mend"
        return counts

    @property
    def _person(self) -> str:
        return self.review.session.who

    def _say(self, text: str) -> None:
        self.review.say(text)

    def _send(self, request: Request[T]) -> T:
        return self.review.wait_for(self.review.session.send(request))

    def ask_all(self) -> bool:
        """Ask until nothing is left; False where the person quits or the input ends before."""
        while True:
            queue = self.review.read_queue()
            operations = [op for op in queue.open if op.id not in self._later]
            replies = [reply for reply in queue.repairs if reply.id not in self._later]
            if operations:
                asked = next((op for op in operations if op.id == self._first), operations[0])
                groups = self.evidence.operation_groups(asked)
                self._say(wording.operation_text(asked, queue, groups, self._note_on(asked, queue)))
                self._shown_at = self.clock()
                go_on = self._answer(asked, queue)
            elif replies:
                self._say("\n" + "\n".join(wording.reply_lines(replies[0], len(queue.repairs))))
                go_on = self._answer(replies[0], queue)
            else:
                return True
            if not go_on:
                return False

    def _note_on(self, operation: Operation, queue: ReviewQueue) -> str:
        return self._notes.get(operation.id, queue.notes.get(operation.id, ""))

    def _answer(self, asked: Operation | UnparsedReply, queue: ReviewQueue) -> bool:
        """Take commands until something else is to be shown; False ends the session."""
        is_weights = isinstance(asked, Operation) and asked.kind == "weights"
        keys, help_text = "a e E r R t m M p u n N o w l q", wording.HELP
        if isinstance(asked, UnparsedReply):
            keys, help_text = "e d o n l q", wording.REPLY_HELP
        elif is_weights:
            keys, help_text = wording.WEIGHTS_KEYS, wording.WEIGHTS_HELP
        while True:
            key, rest = self._ask_key(f"{asked.id}  {keys} h ? ")
            match key:
                case "q":
                    return False
                case "n":
                    self._later[asked.id] = None
                    return True
                case "l":
                    self._say("\n".join(wording.queue_lines(queue)))
                case "" | "h" | "?" | "help":
                    self._say(help_text)
                case _ if is_weights and key in ("e", "E", "t", "M", "p", "w"):
                    self._say(wording.WEIGHTS_AS_A_WHOLE)
                case _ if key not in keys.split():
                    self._say(wording.unknown_key_hint(key))
                case _:
                    try:
                        if isinstance(asked, UnparsedReply):
                            is_over = self._settle(key, rest, asked)
                        else:
                            is_over = self._carry_out(key, rest, asked, queue)
                    except ConflictError as error:  # decided elsewhere meanwhile, or the run ended
                        self._say(sanitize(str(error)))
                        is_over = True
                    if is_over:
                        return True

    def _carry_out(self, key: str, rest: str, operation: Operation, queue: ReviewQueue) -> bool:
        """Do what one key says; True where another operation is to be shown."""
        match key:
            case "a" if rest and operation.kind != "weights":
                return self._approve_parts(operation, queue, rest)
            case "a":
                return self._decide(operation, Decision(operation.id, "approve"), queue)
            case "e" | "E":
                return self._edit_operation(operation, queue, rest if key == "e" else "")
            case "r" | "R":
                if key == "R" and not rest:
                    rest = (self.ask(f"reject {operation.id} because: ") or "").strip()
                    if not rest:
                        self._say("not rejected: no reason was given")
                        return False
                return self._decide(operation, Decision(operation.id, "reject", reason=rest), queue)
            case "t":
                self._later[operation.id] = None
                return self._decide(operation, Decision(operation.id, "defer", reason=rest), queue)
            case "m":
                self._notes[operation.id] = rest
                noted = f"noted; it goes with the decision on {operation.id}"
                self._say(noted if rest else "no note")
            case "M":
                return self._merge(operation, queue, rest)
            case "p":
                return self._propose_pin(rest or operation.target or "", queue)
            case "u":
                return self._undo(queue)
            case "N" if self._later:
                self._first, _ = self._later.popitem()
                return True
            case "N":
                self._say("none was left for later in this session")
            case "o":
                self._view_groups(self.evidence.operation_groups(operation))
            case "w":
                for line in wording.whole_lines(operation, dict(queue.draft)):
                    self._say(line)
        return False

    def _approve_parts(self, operation: Operation, queue: ReviewQueue, listed: str) -> bool:
        before = dict(queue.draft).get(operation.target or "", "")
        parts = wording.changed_parts(before, operation.text) if operation.kind == "modify" else ()
        chosen = {int(word) for word in listed.split() if word.isdecimal()}
        if not all(word.isdecimal() for word in listed.split()) or len(parts) < 2:
            self._say("a alone approves it; a 1 3 takes parts of a change that has several")
        elif strange := sorted(chosen - {part.number for part in parts}):
            self._say(f"there is no part {strange[0]}: it has parts 1 to {len(parts)}")
        elif len(chosen) == len(parts):
            return self._decide(operation, Decision(operation.id, "approve"), queue)
        else:
            text = wording.text_with_parts(before, operation.text, chosen)
            return self._decide_edit(operation, Decision(operation.id, "edit", text=text), queue)
        return False

    def _propose_pin(self, name: str, queue: ReviewQueue) -> bool:
        """Propose to pin an experience, or to unpin one that is; it is asked about like others."""
        if name not in dict(queue.draft):
            known = ", ".join(each for each, _ in queue.draft) or "none"
            self._say(f"pin which? p ID, one of: {known}")
            return False
        kind: OperationKind = "unpin" if name in queue.pinned else "pin"
        made = self._send(Propose(Operation("", kind, name), self._person))
        self._say(f"{made.id} is open: {kind} {name}")
        self._first = made.id
        return True

    def _settle(self, key: str, rest: str, reply: UnparsedReply) -> bool:
        """Do what one key says about a reply that could not be parsed; True where it is over."""
        match key:
            case "e":
                return self._resubmit(reply, rest)
            case "d" if rest:
                self._send(Drop(reply.id, rest, self._person))
                self.settled_count += 1
                self._say(f"{reply.id}: dropped; it stays counted as lost")
                return True
            case "d":
                self._say("say why: d REASON")
            case "o":
                self._view_reply(reply)
        return False

    def _ask_key(self, prompt: str, at_end: str = "q") -> tuple[str, str]:
        """A key and the text behind it; `at_end` is the key where the input ends."""
        if (line := self.ask(prompt)) is None:
            return at_end, ""
        key, _, rest = line.strip().partition(" ")
        return key, rest.strip()

    def _resubmit(self, reply: UnparsedReply, text: str) -> bool:
        """Hand in a corrected reply; False where it is not understood, and asked about again."""
        if not text:
            before = self._texts.get(reply.id) or self.evidence.reply_source(reply).reply
            opened = self._from_editor(with_comments(before, reply.reasons))
            text = without_comments(opened or "").strip()
        if not text:
            self._say("nothing was saved, so it is as it was")
            return False
        self._texts[reply.id] = text
        try:
            resubmission = self._send(Mend(reply.id, text, self._person))
        except ConflictError:
            self._say(f"what you wrote:\n{sanitize(text)}")
            raise
        if resubmission.problems:
            self._say(f"{reply.id}: still not understood, so nothing of it is taken")
            for problem in resubmission.problems:
                self._say(f"  {one_line(problem, 400)}")
            return False
        self.settled_count += 1
        for duplicate in resubmission.doubled:
            self._say(f"  {one_line(duplicate, 400)}")
        names = ", ".join(operation.id for operation in resubmission.operations)
        self._say(f"{reply.id}: mended; it holds {names or 'nothing new'}")
        return True

    def _view_reply(self, reply: UnparsedReply) -> None:
        try:
            found = self.evidence.reply_source(reply)
        except StudioError as error:
            self._say(sanitize(str(error)))
            return
        for message in found.prompt:
            self._say(f"\n=== prompt [{message.role}]\n{sanitize(message.content)}")
        if not found.prompt:
            self._say("\n=== prompt\n(its record is gone)")
        self._view_groups(self.evidence.groups(found.rollouts))
        proposer = sanitize(found.origin.proposer) or "(unknown)"
        self._say(f"\n=== reply of {proposer}\n{sanitize(found.reply)}")

    def _decide(
        self,
        operation: Operation,
        decision: Decision,
        queue: ReviewQueue,
        others: Sequence[Operation] = (),
    ) -> bool:
        """Decide an operation; `others` are merged into it, as one record."""
        took_s = round(self.clock() - self._shown_at, 3)
        reason = decision.reason or self._note_on(operation, queue)
        decision = replace(decision, reviewer=self._person, took_s=took_s, reason=reason)
        pairs = wording.merge_decisions(operation, others, decision)
        result = self.review.wait_for(
            self._decider.decide(self.review.session, pairs, dict(queue.draft))
        )
        self._first = ""
        for entry in result.made:
            made = entry.decision
            self._decided.add(entry.id)
            self._notes.pop(entry.id, None)
            if made.reviewer == GATE:
                self._say(f"{entry.id} {misfit_text(sanitize(made.reason))} (u takes that back)")
                continue
            note = made.reason if others and made.action == "reject" else made.note
            self._say(f"{entry.id}: {DONE[made.action]}" + (f" ({sanitize(note)})" if note else ""))
        return True

    def _decide_edit(
        self,
        operation: Operation,
        decision: Decision,
        queue: ReviewQueue,
        others: Sequence[Operation] = (),
    ) -> bool:
        """Decide an edit once it fits and its new flags are accepted; False: not decided."""
        merged = [other.id for other in others]
        while decision.text and decision.text.strip():
            self._texts[operation.id] = decision.text
            checking = decider.check_wording(self.review.session, operation, decision, merged)
            objection, flags = self.review.wait_for(checking)
            if objection:
                self._say(f"{sanitize(objection)}: not decided; edit again, or r REASON")
                return False
            for flag in flags:
                self._say(f"  flag      {wording.flag_text(flag)}")
            key, rest = ("", "") if flags else ("y", "")
            while key not in ("y", "e", "n"):
                prompt = "approve anyway? y, e edit again, n ? "
                key, rest = self._ask_key(prompt, at_end="n")
            if key == "y":
                return self._decide(operation, decision, queue, others)
            if key == "n":
                self._say("not decided")
                return False
            decision = replace(decision, text=rest or self._from_editor(decision.text))
        self._say("nothing was saved, so nothing is decided")
        return False

    def _edit_operation(self, operation: Operation, queue: ReviewQueue, text: str) -> bool:
        if operation.kind not in ("add", "modify"):
            more = f"; M {operation.target} TEXT changes it" if "pin" not in operation.kind else ""
            self._say(f"a {operation.kind} has no wording{more}")
            return False
        before = self._texts.get(operation.id, operation.text)
        edit = Decision(operation.id, "edit", text=text or self._from_editor(before))
        return self._decide_edit(operation, edit, queue)

    def _merge(self, operation: Operation, queue: ReviewQueue, rest: str) -> bool:
        name, _, text = rest.partition(" ")
        known, text = dict(queue.draft), text.strip()
        mergeable = {op.id: op for op in queue.open if op.text and op.kind in ("add", "modify")}
        if (other := mergeable.get(name)) and operation.id in mergeable and other != operation:
            # A modify keeps its target, into which an addition goes.
            into_other = other.target is not None and operation.target is None
            first, gone = (other, operation) if into_other else (operation, other)
            if first.target and gone.target not in (None, first.target):
                self._say(f"{first.target} and {gone.target} are two experiences: edit one instead")
                return False
            text = text or self._from_editor(f"{first.text}\n{gone.text}") or ""
            return self._decide_edit(first, Decision(first.id, "edit", text=text), queue, [gone])
        if name not in known:
            names = ", ".join((*(n for n in mergeable if n != operation.id), *known)) or "none"
            self._say(f"merge with which? M ID, one of: {names}")
            return False
        text = text or self._from_editor(f"{known[name]}\n{operation.text}") or ""
        edit = Decision(operation.id, "edit", kind="modify", target=name, text=text)
        return self._decide_edit(operation, edit, queue)

    def _from_editor(self, text: str) -> str | None:
        try:
            return self.edit(text)
        except StudioError as error:  # a missing editor must not end the session
            self._say(f"{error}")
            return None

    def _undo(self, queue: ReviewQueue) -> bool:
        last = [one.id for step in self._decider.sitting.steps[-1:] for one in step]
        taking_back = self._decider.sitting.undo(self.review.session, dict(queue.draft))
        done = self.review.wait_for(taking_back)
        if done.failed:
            self._say(done.text)
            return False
        undone = done.asked_again
        self._decided.difference_update(undone, last)
        self._ask_again([*undone, *last])
        self._say(f"asked again: {', '.join(undone)}" if undone else done.text)
        return True

    def _view_groups(self, groups: Sequence[GroupEvidence]) -> None:
        """Questions once, then what each rollout said; the rest of a prompt is all the same."""
        for group in groups:
            self._say(f"\n=== {group.id}\n{sanitize(group.question)}")
            for witness in group.witnesses:
                reward = witness.verdict.reward if witness.verdict else None
                self._say(f"\n--- {witness.id}  reward {'?' if reward is None else f'{reward:g}'}")
                try:
                    messages = self.evidence.messages(witness)
                except StudioError as error:  # one lost record must not end the session
                    self._say(f"{error}")
                    continue
                replies = [m for m in messages if m.role in ("assistant", "tool")]
                for message in replies:
                    mark = f"[{message.speaker or message.role}]\n" if len(replies) > 1 else ""
                    self._say(mark + sanitize(said_text(message)))
