"""Review in line mode, as `git add -p` does it: one operation, one key, one line.

After the operations come replies that could not be understood, to be mended or dropped;
what a mended one holds is asked at once, like any other operation.

Owns the questions and what is printed. Where decisions go is the desk's business; it
works on dumb terminals, with screen readers and from scripts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from engines.core.errors import ConflictError, StudioError
from engines.core.text.similarity import format_changes, similarity, word_diff
from engines.core.types import GATE, Decision, Flag, Operation, UnparsedReply
from studio.review.evidence import EvidenceLoader, GroupEvidence
from studio.secrets.sanitize import one_line, sanitize
from studio.session.offline import ReviewQueue, ReviewSession
from studio.session.unparsed_replies import with_comments, without_comments

WHOLE = "a weight update is approved or rejected as a whole: a, or r REASON"

HELP = """\
a            approve
e [TEXT]     edit: change the wording (in $EDITOR without TEXT), then approve it
m ID [TEXT]  merge: make it a modification of experience ID (in $EDITOR without TEXT)
r REASON     reject
d [REASON]   defer: leave it open without holding the run up
u            undo the last decision of this sitting (again: the one before)
n            leave it for later and show the next
v            view the rollouts it rests on, whole
l            list what is open, and the library as it would become
q            quit; go on later with the same command"""

WEIGHTS_HELP = "\n".join(line for line in HELP.splitlines() if line[:2] not in ("e ", "m ", "d "))

REPAIR_HELP = """\
e [TEXT]     mend: change the reply (in $EDITOR without TEXT), and read it again
r REASON     drop it: nobody can understand it, it stays lost (also: x REASON)
v            view the whole reply, the prompt, and the rollouts behind it
n            leave it for later and show the next
l            list what is open, and the library as it would become
q            quit; go on later with the same command"""

Ask = Callable[[str], str | None]
"""Prints a prompt and returns a line, None at the end of the input."""

Edit = Callable[[str], str | None]
"""Lets a person edit a text; None when nothing was saved."""


class LineReview:
    """One person going through one run's open operations."""

    def __init__(
        self,
        desk: ReviewSession,
        room: EvidenceLoader,
        *,
        reviewer: str,
        ask: Ask,
        edit: Edit,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._desk, self._room = desk, room
        self._reviewer = reviewer
        self._ask, self._edit, self._say = ask, edit, say
        self._clock = clock
        self._shown_at = 0.0
        self._made: list[str] = []  # operation ids that `u` takes back, the last one first
        self._decided: set[str] = set()  # all of this sitting, also where `u` came too late
        self._later: set[str] = set()  # ids of operations and of replies
        self._texts: dict[str, str] = {}  # replies as far as they are mended, by id
        self._drafts: dict[str, str] = {}  # wordings that were not decided, by operation id
        self.settled = 0  # replies mended or dropped in this sitting

    @property
    def decided_count(self) -> int:
        """Operations decided in this sitting and not asked again since."""
        return len(self._decided)

    def run(self) -> bool:
        """Ask until nothing is left; False where the person quits or the input ends before."""
        while True:
            sheet = self._desk.review_queue()
            operations = [op for op in sheet.open if op.id not in self._later]
            repairs = [found for found in sheet.repairs if found.id not in self._later]
            if operations:
                self._show(operations[0], len(sheet.open), sheet)
                self._shown_at = self._clock()
                if not self._answer(operations[0], sheet):
                    return False
            elif repairs:
                self._say("\n" + "\n".join(unparsed_reply_lines(repairs[0], len(sheet.repairs))))
                if not self._answer_reply(repairs[0], sheet):
                    return False
            else:
                return True

    def _answer(self, operation: Operation, sheet: ReviewQueue) -> bool:
        """Take one command; False ends the sitting."""
        while True:
            keys = "a r u n v l q" if operation.kind == "weights" else "a e m r d u n v l q"
            line = self._ask(f"{operation.id}  {keys} ? ")
            if line is None:
                return False
            key, _, rest = line.strip().partition(" ")
            rest = rest.strip()
            match key:
                case "a":
                    return self._decide(Decision(operation.id, "approve"))
                case "e" | "m" | "d" if operation.kind == "weights":
                    self._say(WHOLE)
                case "e":
                    if self._edit_operation(operation, rest):
                        return True
                case "m":
                    if self._merge(operation, sheet, rest):
                        return True
                case "r" if rest:
                    return self._decide(Decision(operation.id, "reject", reason=rest))
                case "r":
                    self._say("say why: r REASON")
                case "d":
                    self._later.add(operation.id)
                    return self._decide(Decision(operation.id, "defer", reason=rest))
                case "u":
                    if self._undo():
                        return True
                case "n":
                    self._later.add(operation.id)
                    return True
                case "v":
                    self._view(operation)
                case "l":
                    self._list(sheet)
                case "q":
                    return False
                case _:
                    self._say(WEIGHTS_HELP if operation.kind == "weights" else HELP)

    def _answer_reply(self, repair: UnparsedReply, sheet: ReviewQueue) -> bool:
        """Take one command about a reply that could not be understood."""
        while True:
            line = self._ask(f"{repair.id}  e r v n l q ? ")
            if line is None:
                return False
            key, _, rest = line.strip().partition(" ")
            rest = rest.strip()
            match key:
                case "e":
                    if self._resubmit(repair, rest):
                        return True
                case "r" | "x" if rest:
                    return self._drop(repair, rest)
                case "r" | "x":
                    self._say(f"say why: {key} REASON")
                case "n":
                    self._later.add(repair.id)
                    return True
                case "v":
                    self._view_reply(repair)
                case "l":
                    self._list(sheet)
                case "q":
                    return False
                case _:
                    self._say(REPAIR_HELP)

    def _resubmit(self, repair: UnparsedReply, text: str) -> bool:
        """Resubmit a reply; False where it is still not understood, and asked about again."""
        try:
            if not text:
                before = self._texts.get(repair.id) or self._room.reply_source(repair).reply
                opened = self._from_editor(with_comments(before, repair.reasons))
                text = without_comments(opened or "").strip()
            if not text:
                self._say("nothing was saved, so it is as it was")
                return False
            self._texts[repair.id] = text
            found = self._desk.resubmit(repair.id, text, self._reviewer)
        except ConflictError as error:  # settled elsewhere meanwhile, or the run has ended
            self._say(sanitize(str(error)))
            if text:
                self._say(f"what you wrote:\n{sanitize(text)}")
            return True
        if found.problems:
            self._say(f"{repair.id}: still not understood, so nothing of it is taken")
            for problem in found.problems:
                self._say(f"  {one_line(problem, 400)}")
            return False
        self.settled += 1
        for told in found.doubled:
            self._say(f"  {one_line(told, 400)}")
        names = ", ".join(operation.id for operation in found.operations)
        self._say(f"{repair.id}: mended; it holds {names or 'nothing new'}")
        return True

    def _drop(self, repair: UnparsedReply, reason: str) -> bool:
        try:
            self._desk.drop(repair.id, reason, self._reviewer)
        except ConflictError as error:
            self._say(sanitize(str(error)))
            return True
        self.settled += 1
        self._say(f"{repair.id}: dropped; it stays counted as lost")
        return True

    def _view_reply(self, repair: UnparsedReply) -> None:
        try:
            found = self._room.reply_source(repair)
        except StudioError as error:
            self._say(sanitize(str(error)))
            return
        for message in found.prompt:
            self._say(f"\n=== prompt [{message.role}]\n{sanitize(message.content)}")
        if not found.prompt:
            self._say("\n=== prompt\n(its record is gone)")
        self._view_evidence(found.rollouts)
        self._say(
            f"\n=== reply of "
            f"{sanitize(found.origin.proposer) or '(unknown)'}\n{sanitize(found.reply)}"
        )

    def _decide(self, decision: Decision) -> bool:
        took_s = round(self._clock() - self._shown_at, 3)
        decision = replace(decision, reviewer=self._reviewer, took_s=took_s)
        try:
            made, note = self._desk.decide(decision)
        except ConflictError as error:  # decided and committed elsewhere meanwhile
            self._say(f"{error}")
            return True
        self._made = [name for name in self._made if name != decision.operation_id]
        self._made.append(decision.operation_id)
        self._decided.add(decision.operation_id)
        if made.reviewer == GATE:
            note = made.reason  # its note would say once more that this is a rejection
        self._say(
            f"{made.operation_id}: "
            f"{_past_tense(made.action)}{f' ({sanitize(note)})' if note else ''}"
        )
        return True

    def _decide_edit(self, operation: Operation, decision: Decision) -> bool:
        """Decide an edit once it fits and its new flags are accepted; False: not decided."""
        while True:
            if not decision.text or not decision.text.strip():
                self._say("nothing was saved, so nothing is decided")
                return False
            self._drafts[operation.id] = decision.text
            try:
                found = self._desk.lint(decision)
            except ConflictError as error:  # decided and committed elsewhere meanwhile
                self._say(sanitize(str(error)))
                return True
            if found.objection:
                self._say(f"{sanitize(found.objection)}: not decided; edit again, or r REASON")
                return False
            new = [flag for flag in found.flags if flag not in operation.flags]
            if not new:
                return self._decide(decision)
            for flag in new:
                self._say(f"  flag      {flag_text(flag)}")
            key, rest = self._ask_anyway()
            if key == "y":
                return self._decide(decision)
            if key != "e":
                self._say("not decided")
                return False
            decision = replace(decision, text=rest or self._from_editor(decision.text))

    def _ask_anyway(self) -> tuple[str, str]:
        """`y`, `n` or `e`, the latter with the text behind it; the end of the input is an n."""
        while (line := self._ask("approve anyway? y, e edit again, n ? ")) is not None:
            key, _, rest = line.strip().partition(" ")
            if key in ("y", "e", "n"):
                return key, rest.strip()
        return "n", ""

    def _edit_operation(self, operation: Operation, text: str) -> bool:
        if operation.kind in ("delete", "keep"):
            self._say(f"a {operation.kind} has no wording; m {operation.target} TEXT changes it")
            return False
        before = self._drafts.get(operation.id, operation.text)
        wanted = text or self._from_editor(before)
        return self._decide_edit(operation, Decision(operation.id, "edit", text=wanted))

    def _merge(self, operation: Operation, sheet: ReviewQueue, rest: str) -> bool:
        target, _, text = rest.partition(" ")
        known = dict(sheet.draft)
        if target not in known:
            self._say(f"merge into which? m ID, one of: {', '.join(known) or 'none'}")
            return False
        proposed = f"{known[target]}\n{operation.text}"
        wanted = text.strip() or self._from_editor(proposed)
        edit = Decision(operation.id, "edit", kind="modify", target=target, text=wanted)
        return self._decide_edit(operation, edit)

    def _from_editor(self, text: str) -> str | None:
        try:
            return self._edit(text)
        except StudioError as error:  # a missing editor must not end the sitting
            self._say(f"{error}")
            return None

    def _undo(self) -> bool:
        if not self._made:
            self._say("nothing was decided in this sitting")
            return False
        last = self._made.pop()
        self._later.discard(last)
        try:
            undone = self._desk.undo(last)
        except StudioError as error:
            self._say(f"{error}")
            return False
        self._made = [name for name in self._made if name not in undone]
        self._decided -= set(undone)
        self._later -= set(undone)
        self._say(f"asked again: {', '.join(undone)}")
        return True

    def _show(self, operation: Operation, left: int, sheet: ReviewQueue) -> None:
        texts = dict(sheet.draft)
        lines = [
            "",
            f"{operation.id}  {operation.kind.upper()} {operation.target or ''}".rstrip()
            + f"  ({left} open)",
        ]
        if sheet.stale is not None:
            lines.append(f"  ! the library has moved to v{sheet.stale} since this was proposed")
        lines += [f"  {line}" for line in change_lines(operation, texts)]
        lines.append(f"  why       {sanitize(operation.rationale) or '(no reason given)'}")
        prompt = f", prompt {operation.prompt_hash}" if operation.prompt_hash else ""
        lines.append(f"  proposed  by {sanitize(operation.proposer) or '(unknown)'}{prompt}")
        lines += [f"  flag      {flag_text(flag)}" for flag in operation.flags]
        for group in self._evidence_groups(operation):
            # A batch may have hundreds of rollouts: of each group a line, and v shows all.
            lines += evidence_lines(group)[: 1 if operation.kind == "weights" else None]
        near = nearest_text(operation, texts)
        if near is not None:
            lines.append(f"  similar   {near[0]} {near[1]:.2f}  {one_line(texts[near[0]], 90)}")
        self._say("\n".join(lines))

    def _view(self, operation: Operation) -> None:
        self._view_groups(self._evidence_groups(operation))

    def _evidence_groups(self, operation: Operation) -> tuple[GroupEvidence, ...]:
        if operation.kind == "weights":  # of all groups of its step, which it does not name
            return self._room.operation_groups(operation)
        return self._room.groups(operation.evidence)

    def _view_evidence(self, rollouts: Sequence[str]) -> None:
        """Questions once, then what each rollout said; the rest of a prompt is all the same."""
        self._view_groups(self._room.groups(rollouts))

    def _view_groups(self, groups: Sequence[GroupEvidence]) -> None:
        for group in groups:
            self._say(f"\n=== {group.id}\n{sanitize(group.question)}")
            for witness in group.witnesses:
                verdict = witness.verdict
                reward = "?" if verdict is None or verdict.reward is None else f"{verdict.reward:g}"
                self._say(f"\n--- {witness.id}  reward {reward}")
                try:
                    messages = self._room.messages(witness)
                except StudioError as error:  # one lost record must not end the sitting
                    self._say(f"{error}")
                    continue
                said = [m for m in messages if m.role in ("assistant", "tool")]
                for message in said:
                    mark = f"[{message.role}]\n" if len(said) > 1 else ""
                    self._say(f"{mark}{sanitize(message.content)}")

    def _list(self, sheet: ReviewQueue) -> None:
        for operation in sheet.open:
            what = operation.text or operation.target or ""
            self._say(f"{operation.id:8} {operation.kind:7} {one_line(what, 90)}")
        for repair in sheet.repairs:
            self._say(f"{repair.id:8} to mend {one_line(' '.join(repair.reasons), 90)}")
        if not sheet.draft and any(op.kind == "weights" for op in sheet.open):
            return
        empty = "" if sheet.draft else " empty"
        self._say(f"the library as it would become:{empty}")
        for name, text in sheet.draft:
            self._say(f"  {name}  {sanitize(text)}")


def change_lines(operation: Operation, texts: dict[str, str]) -> list[str]:
    """What the operation would do to the draft, in words that need no colour."""
    before = texts.get(operation.target or "", "")
    match operation.kind:
        case "add":
            return [f"+ {sanitize(operation.text)}"]
        case "modify":
            return [f"~ {sanitize(format_changes(word_diff(before, operation.text)))}"]
        case "delete":
            return [f"- {sanitize(before)}"]
        case "keep":
            return [f"= {sanitize(before)}"]
        case "weights":
            return [f"^ {sanitize(figure)}" for figure in operation.text.split(", ")]


def unparsed_reply_lines(repair: UnparsedReply, left: int) -> list[str]:
    """A reply that waits to be mended: what it is, what is wrong, how it begins."""
    several = f"  ({left} to mend)" if left > 1 else ""
    lines = [f"{repair.id}  {repair.kind} reply that could not be understood{several}"]
    lines += [f"  wrong     {one_line(reason, 400)}" for reason in repair.reasons[:10]]
    if len(repair.reasons) > 10:
        lines.append(f"  wrong     … and {len(repair.reasons) - 10} more")
    return [*lines, f"  reply     {one_line(repair.reply, 160)}"]


def flag_text(flag: Flag) -> str:
    """`duplicate (0.91): of E3`."""
    score = "" if flag.score is None else f" ({flag.score:.2f})"
    detail = f": {one_line(flag.detail, 200)}" if flag.detail else ""
    return f"{flag.name}{score}{detail}"


def evidence_lines(group: GroupEvidence) -> list[str]:
    lines = [f"  {group.id}  {group.won} of {group.n} won  {one_line(group.question, 90)}"]
    for witness in group.witnesses:
        answer = witness.rollout.tail or witness.rollout.error or ""
        critique = witness.verdict.critique if witness.verdict and witness.verdict.critique else ""
        last = answer.strip().rsplit("\n", 1)[-1]
        tail = f"  ({one_line(critique, 60)})" if critique else ""
        lines.append(f"    {witness.sign} r{witness.rollout.index}  {one_line(last, 60)}{tail}")
    return lines


def nearest_text(operation: Operation, texts: dict[str, str]) -> tuple[str, float] | None:
    """The other experience most like an operation's text, if any is like it at all."""
    others = [(name, text) for name, text in texts.items() if name != operation.target]
    if not operation.text or not others or operation.kind == "weights":
        return None
    name, score = max(
        ((name, similarity(operation.text, text)) for name, text in others), key=lambda p: p[1]
    )
    return (name, score) if score >= 0.3 else None


def _past_tense(action: str) -> str:
    return {
        "approve": "approved",
        "edit": "approved as edited",
        "reject": "rejected",
        "defer": "deferred",
    }[action]
