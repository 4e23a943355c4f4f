"""Review in line mode, as `git add -p` does it: one operation, one key, one line.

Owns the questions and what is printed. Where decisions go is the desk's business; it
works on dumb terminals, with screen readers and from scripts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from engines.core.errors import ConflictError, StudioError
from engines.core.similarity import marked, similarity, word_diff
from engines.core.types import Decision, Operation
from studio.desk import Desk, Sheet
from studio.evidence import EvidenceRoom, GroupEvidence
from studio.inert import inert, one_line

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

Ask = Callable[[str], str | None]
"""Prints a prompt and returns a line, None at the end of the input."""

Edit = Callable[[str], str | None]
"""Lets a person edit a text; None when nothing was saved."""


class Sitting:
    """One person going through one run's open operations."""

    def __init__(
        self,
        desk: Desk,
        room: EvidenceRoom,
        *,
        reviewer: str,
        ask: Ask,
        edit: Edit,
        say: Callable[[str], None],
    ) -> None:
        self._desk, self._room = desk, room
        self._reviewer = reviewer
        self._ask, self._edit, self._say = ask, edit, say
        self._made: list[str] = []  # operation ids decided in this sitting, in order
        self._later: set[str] = set()

    @property
    def decided(self) -> int:
        """Operations decided in this sitting and not asked again since."""
        return len(self._made)

    def run(self) -> None:
        """Ask until nothing is left, the person quits, or the input ends."""
        while True:
            sheet = self._desk.sheet()
            left = [op for op in sheet.open if op.id not in self._later]
            if not left:
                return
            self._show(left[0], len(left), sheet)
            if not self._answer(left[0], sheet):
                return

    def _answer(self, operation: Operation, sheet: Sheet) -> bool:
        """Take one command; False ends the sitting."""
        while True:
            line = self._ask(f"{operation.id}  a e m r d u n v l q ? ")
            if line is None:
                return False
            key, _, rest = line.strip().partition(" ")
            rest = rest.strip()
            match key:
                case "a":
                    return self._decide(Decision(operation.id, "approve"))
                case "e":
                    if self._edited(operation, sheet, rest):
                        return True
                case "m":
                    if self._merged(operation, sheet, rest):
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
                    self._say(HELP)

    def _decide(self, decision: Decision) -> bool:
        try:
            made, note = self._desk.decide(replace(decision, reviewer=self._reviewer))
        except ConflictError as error:  # decided and committed elsewhere meanwhile
            self._say(f"{error}")
            return True
        self._made = [name for name in self._made if name != decision.operation_id]
        self._made.append(decision.operation_id)
        self._say(f"{made.operation_id}: {_past(made.action)}{f' ({inert(note)})' if note else ''}")
        return True

    def _edited(self, operation: Operation, sheet: Sheet, text: str) -> bool:
        if operation.kind in ("delete", "keep"):
            self._say(f"a {operation.kind} has no wording; m {operation.target} TEXT changes it")
            return False
        wanted = text or self._from_editor(operation.text)
        if not wanted or not wanted.strip():
            self._say("nothing was saved, so nothing is decided")
            return False
        return self._decide(Decision(operation.id, "edit", text=wanted))

    def _merged(self, operation: Operation, sheet: Sheet, rest: str) -> bool:
        target, _, text = rest.partition(" ")
        known = dict(sheet.draft)
        if target not in known:
            self._say(f"merge into which? m ID, one of: {', '.join(known) or 'none'}")
            return False
        proposed = f"{known[target]}\n{operation.text}"
        wanted = text.strip() or self._from_editor(proposed)
        if not wanted or not wanted.strip():
            self._say("nothing was saved, so nothing is decided")
            return False
        return self._decide(
            Decision(operation.id, "edit", kind="modify", target=target, text=wanted)
        )

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
        self._later -= set(undone)
        self._say(f"asked again: {', '.join(undone)}")
        return True

    def _show(self, operation: Operation, left: int, sheet: Sheet) -> None:
        texts = dict(sheet.draft)
        lines = [
            "",
            f"{operation.id}  {operation.kind.upper()} {operation.target or ''}".rstrip()
            + f"  ({left} open)",
        ]
        if sheet.stale is not None:
            lines.append(f"  ! the library has moved to v{sheet.stale} since this was proposed")
        lines += [f"  {line}" for line in change_lines(operation, texts)]
        lines.append(f"  why       {inert(operation.rationale) or '(no reason given)'}")
        prompt = f", prompt {operation.prompt_hash}" if operation.prompt_hash else ""
        lines.append(f"  proposed  by {inert(operation.proposer)}{prompt}")
        lines += [f"  flag      {flag.name} {flag.detail}".rstrip() for flag in operation.flags]
        for group in self._room.of(operation):
            lines += evidence_lines(group)
        near = nearest_text(operation, texts)
        if near is not None:
            lines.append(f"  similar   {near[0]} {near[1]:.2f}  {one_line(texts[near[0]], 90)}")
        self._say("\n".join(lines))

    def _view(self, operation: Operation) -> None:
        """Questions once, then what each rollout said; the rest of a prompt is all the same."""
        for group in self._room.of(operation):
            self._say(f"\n=== {group.id}\n{inert(group.question)}")
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
                    self._say(f"{mark}{inert(message.content)}")

    def _list(self, sheet: Sheet) -> None:
        for operation in sheet.open:
            what = operation.text or operation.target or ""
            self._say(f"{operation.id:8} {operation.kind:7} {one_line(what, 90)}")
        empty = "" if sheet.draft else " empty"
        self._say(f"the library as it would become:{empty}")
        for name, text in sheet.draft:
            self._say(f"  {name}  {inert(text)}")


def change_lines(operation: Operation, texts: dict[str, str]) -> list[str]:
    """What the operation would do to the draft, in words that need no colour."""
    before = texts.get(operation.target or "", "")
    match operation.kind:
        case "add":
            return [f"+ {inert(operation.text)}"]
        case "modify":
            return [f"~ {inert(marked(word_diff(before, operation.text)))}"]
        case "delete":
            return [f"- {inert(before)}"]
        case "keep":
            return [f"= {inert(before)}"]


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
    if not operation.text or not others:
        return None
    name, score = max(
        ((name, similarity(operation.text, text)) for name, text in others), key=lambda p: p[1]
    )
    return (name, score) if score >= 0.3 else None


def _past(action: str) -> str:
    return {
        "approve": "approved",
        "edit": "approved as edited",
        "reject": "rejected",
        "defer": "deferred",
    }[action]
