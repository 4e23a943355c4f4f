"""The draft: the library as the standing decisions would leave it.

A decision is checked against it: what objects to an operation, what a linter flags about it, and
which id an addition gets. Journals nothing; the gate does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from engines.core import events, protocols
from engines.core.frozen import frozen
from engines.core.library import CommitResult, Library, Reviewed, effective_operation
from engines.core.state.run_state import RunState
from engines.core.types import GATE, NO_USAGE, Decision, Flag, Operation, OperationKind, Usage
from engines.pipeline.evaluation import statistics, verdict


def find_objection(
    wanted: Operation, draft: Library, reviewed: Reviewed, limit: int | None
) -> str | None:
    """What speaks against an operation on a draft that holds these decisions, and whose it is."""
    objection = draft.objection(wanted, limit)
    if objection and wanted.target is not None and draft.get(wanted.target) is None:
        for operation, decision in reviewed:
            made = effective_operation(operation, decision)
            deletes = made.kind == "delete" and decision.action in ("approve", "edit")
            if deletes and made.target == wanted.target:
                return f"{wanted.target} was deleted by {operation.id}"
    return objection


@dataclass(slots=True, eq=False)
class Draft:
    """The base version of a run's library with the standing decisions applied to it."""

    state: RunState
    base: Library
    run: str
    limit: int | None  # the most experiences the library may hold
    linter: protocols.Linter | None
    _library: Library | None = None  # None: to be made from the standing decisions

    @property
    def library(self) -> Library:
        if self._library is None:
            self._library = self.apply(self.base, self.state.reviewed_operations)
        return self._library

    def move_to(self, base: Library) -> None:
        self.base, self._library = base, None

    def discard(self) -> None:
        """Make it anew from the standing decisions when it is next asked for."""
        self._library = None

    def copy(self) -> "Draft":
        """One to try decisions on that are not journalled yet."""
        known, made = dict(self.state.operations), dict(self.state.decisions)
        return replace(self, state=replace(self.state, operations=known, decisions=made))

    def hold(self, operation: Operation, decision: Decision) -> None:
        """Let a decision stand that is not journalled yet: only in a copy."""
        known = self.state.decisions.pop(operation.id, None)
        self.state.decisions[operation.id] = decision
        if operation.kind == "weights":
            return  # no draft holds those, and nothing rests on one
        if known is None:
            self.add(operation, decision)
        else:
            self.discard()

    def adopt(self, tried: "Draft") -> None:
        """Take over the library of a copy whose decisions are journalled by now."""
        self._library = tried._library

    def add(self, operation: Operation, decision: Decision) -> None:
        """Take one more decision in: not all of them again, since lessons can be long."""
        if self._library is not None and decision.action != "defer":
            self._library = self.apply(self._library, [(operation, decision)])

    def apply(self, library: Library, reviewed: Reviewed) -> Library:
        drafted = library.commit(reviewed, run=self.run, limit=self.limit).library
        return replace(drafted, version=self.base.version + 1)

    def preview_commit(self) -> CommitResult:
        """What a commit of the standing decisions would make of the base."""
        return self.base.commit(self.state.reviewed_operations, run=self.run, limit=self.limit)

    def check(
        self, operation: Operation, decision: Decision
    ) -> tuple[Operation, Library, str | None]:
        """The operation as it would be applied, the draft without it, and what speaks against."""
        draft, others = self.library, None
        if operation.id in self.state.decisions:
            # Its own earlier decision must not stand in the way of a new one.
            reviewed = self.state.reviewed_operations
            others = tuple(pair for pair in reviewed if pair[0].id != operation.id)
            draft = self.apply(self.base, others)
        wanted = effective_operation(operation, decision)
        return wanted, draft, self.objection(wanted, draft, others)

    def objection(
        self, wanted: Operation, draft: Library | None = None, reviewed: Reviewed | None = None
    ) -> str | None:
        """What speaks against an operation on a draft; None: on the one as it is now."""
        if wanted.kind == "add" and wanted.target is not None:
            # Only a revert, which knows the old text, may bring an id back.
            return "an addition names no experience"
        if wanted.kind == "weights":
            return "only an engine proposes weights"
        draft = draft or self.library
        if draft.objection(wanted, self.limit) is None:
            return None
        standing = self.state.reviewed_operations if reviewed is None else reviewed
        return find_objection(wanted, draft, standing, self.limit)

    def first_misfit(self) -> str | None:
        """An operation whose standing decision does not follow from those before it."""
        draft, reviewed = self.base, self.state.reviewed_operations
        for at, (operation, decision) in enumerate(reviewed):
            wanted = effective_operation(operation, decision)
            objection = find_objection(wanted, draft, reviewed[:at], self.limit)
            if decision.action in ("approve", "edit") and objection:
                return operation.id
            if decision.reviewer == GATE and decision.reason != objection:
                return operation.id
            draft = self.apply(draft, [(operation, decision)])
        return None

    def free_id(self) -> str:
        """The id after every one that a standing decision or the base has taken.

        One that an undo freed may be given again: whatever rested on it was asked again.
        """
        taken = [int(d.assigned[1:]) for d in self.state.decisions.values() if d.assigned]
        return f"E{max(self.base.next_number, *(number + 1 for number in taken), 1)}"

    async def lint(
        self, operations: Sequence[Operation], draft: Library | None = None
    ) -> tuple[tuple[Flag, ...], ...]:
        """What is noteworthy about each of some operations with their edits put in.

        `draft` is the library without them, None the draft as it is now.
        """
        if self.linter is None:
            return ((),) * len(operations)
        own = {operation.id for operation in operations}
        targets = {operation.target for operation in operations} - {None}
        others = [op for op in self.state.open_operations if op.id not in own]
        # An approved addition is found in the draft; of a target only its new text would be.
        others += [
            op
            for op, decision in self.state.reviewed_operations
            if decision.action != "reject"
            and op.id not in own
            and effective_operation(op, decision).target in targets
        ]
        return await self.linter.flags_of(operations, draft or self.library, others)

    def take_lint_usage(self) -> Usage:
        """What linting has cost since this was last asked."""
        return self.linter.take_usage() if self.linter is not None else NO_USAGE


@frozen
class Rebase:
    """What a moved head does to the standing decisions."""

    asked_again: tuple[str, ...]  # ids of operations
    reassigned: tuple[Decision, ...]  # approvals that add their experience under another id


def rebase_decisions(
    reviewed: Reviewed, base: Library, head: Library, *, run: str, limit: int | None
) -> Rebase:
    """Put decisions that were made on `base` onto `head`, in their order."""
    draft, kept = head, list[tuple[Operation, Decision]]()
    asked_again: list[str] = []
    reassigned: list[Decision] = []
    new_ids: dict[str, str] = {}  # id that an addition of this lesson was given → its id now
    number = head.next_number
    for operation, decision in reviewed:
        wanted = effective_operation(operation, decision)
        objection = find_objection(wanted, draft, kept, limit)
        if decision.action == "reject":
            # The gate's own rejection stands only while its reason does.
            if decision.reviewer == GATE and decision.reason != objection:
                asked_again.append(operation.id)
            continue
        # What the move touched, and what no longer fits, is asked again.
        if objection or not _is_untouched(wanted.target, base, head, new_ids):
            asked_again.append(operation.id)
            continue
        if decision.assigned:
            number = max(number, int(decision.assigned[1:]))
            new_ids[decision.assigned] = f"E{number}"
            number += 1
            if new_ids[decision.assigned] != decision.assigned:
                decision = replace(decision, assigned=new_ids[decision.assigned])
                reassigned.append(decision)
        draft = draft.commit([(operation, decision)], run=run, limit=limit).library
        kept.append((operation, decision))
    return Rebase(tuple(asked_again), tuple(reassigned))


def _is_untouched(
    target: str | None, base: Library, head: Library, new_ids: dict[str, str]
) -> bool:
    """Whether an operation's target still is what it was when it was decided on."""
    if target is None:
        return True
    if target in new_ids:
        return new_ids[target] == target
    before, after = base.get(target), head.get(target)
    return before is not None and after is not None and before.text == after.text


ROLL_BACK = "roll-back"
"""Who proposes the way back."""

Change = tuple[OperationKind, str | None, str]
"""(kind, target, text)."""


@frozen
class Setback:
    """A held-out set on which the library got worse since `version`."""

    version: int
    reason: str


def find_setback(evaluations: Sequence[events.EvaluationFinished], since: int) -> Setback | None:
    """What the latest evaluation says against the last one of step `since` or before.

    None where no set is worse, or there is nothing to compare with. The last of several sets is
    not asked (`without_last`).
    """
    for then, now in verdict.without_last(verdict.pair_evaluations(evaluations, since)):
        rewards = [statistics.group_by_question(one.problems, one.rewards) for one in (then, now)]
        found = verdict.compare(rewards[0], rewards[1])
        if then.library_version != now.library_version and found and found.verdict == "hurts":
            interval = f"[{found.interval.low:+.2f}, {found.interval.high:+.2f}]"
            against = f"v{now.library_version} against v{then.library_version}"
            return Setback(
                then.library_version,
                f"{now.data} got worse: {found.difference:+.2f} {interval} of {against}",
            )
    return None


def revert_operations(head: Library, older: Library, reason: str) -> tuple[Operation, ...]:
    """What gives a head the texts of an older version of it."""
    return tuple(
        Operation("", kind, target, text, reason, proposer=ROLL_BACK)
        for kind, target, text in revert_changes(older)(head)
    )


def revert_changes(older: Library) -> Callable[[Library], Sequence[Change]]:
    """The changes that give a head the texts of an older version of it.

    What was deleted since comes back under its own id: it is the same experience. What was
    pinned then is pinned again; what is pinned now stays so, and is not changed.
    """

    def changes(head: Library) -> Sequence[Change]:
        # By id, not by `Library.diff`, which pairs equal wordings: an id is given back as well.
        now = {e.id: e.text for e in head.experiences}
        then = {e.id: e.text for e in older.experiences}
        return [
            *(("delete", name, "") for name in now if name not in then),
            *(("modify", name, text) for name, text in then.items() if now.get(name, text) != text),
            *(("add", name, text) for name, text in then.items() if name not in now),
            *(("pin", name, "") for name in older.pinned_ids if name not in head.pinned_ids),
        ]

    return changes
