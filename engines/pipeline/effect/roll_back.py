"""Going back: what a held-out set found to hurt is taken out of the library again.

The way back is proposed as operations like any other, so that whoever reviews decides about it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engines.core.events import EvaluationFinished
from engines.core.library import Library
from engines.core.types import Operation, OperationKind
from engines.pipeline.evaluation.statistics import (
    compare,
    group_by_question,
    pair_evaluations,
    without_last,
)

ROLL_BACK = "roll-back"
"""Who proposes the way back."""

Change = tuple[OperationKind, str | None, str]
"""(kind, target, text)."""


@dataclass(frozen=True, slots=True)
class Setback:
    """A held-out set on which the library got worse since `version`."""

    version: int
    reason: str


def find_setback(evaluations: Sequence[EvaluationFinished], since: int) -> Setback | None:
    """What the latest evaluation says against the last one of step `since` or before.

    None where no set is worse, or there is nothing to compare with. The last of several sets is
    not asked (`without_last`).
    """
    for then, now in without_last(pair_evaluations(evaluations, since)):
        rewards = [group_by_question(one.problems, one.rewards) for one in (then, now)]
        found = compare(rewards[0], rewards[1])
        if then.library_version != now.library_version and found and found.verdict == "hurts":
            interval = f"[{found.interval.low:+.2f}, {found.interval.high:+.2f}]"
            against = f"v{now.library_version} against v{then.library_version}"
            reason = f"{now.data} got worse: {found.difference:+.2f} {interval} of {against}"
            return Setback(then.library_version, reason)
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
