"""What practice shows of each experience: the attempts it helped, left cold, or led astray.

Counts are no part of a library's content, and make no version. They hold for one wording.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from operator import sub


@dataclass(frozen=True, slots=True)
class UseCounts:
    """Attempts that had one wording in their prompt, by what they show of it."""

    used: int = 0
    ignored: int = 0
    misled: int = 0
    cited: int = 0  # named the experience by its id; they may be counted above, too

    def __add__(self, other: UseCounts) -> UseCounts:
        # By name: a long run's library adds up thousands as it is read, and `astuple` is slow.
        return UseCounts(
            self.used + other.used,
            self.ignored + other.ignored,
            self.misled + other.misled,
            self.cited + other.cited,
        )

    def __sub__(self, other: UseCounts) -> UseCounts:
        """What was counted before `other` was; never below none."""
        left = map(sub, astuple(self), astuple(other))
        return UseCounts(*(max(0, count) for count in left))

    @property
    def text(self) -> str:
        """`used 12, ignored 3, misled 1, cited 9`; "" where nothing is counted."""
        if self == NO_USES:
            return ""
        shown = f"used {self.used}, ignored {self.ignored}, misled {self.misled}"
        return f"{shown}, cited {self.cited}" if self.cited else shown


NO_USES = UseCounts()


@dataclass(frozen=True, slots=True)
class StepCredits:
    """What the attempts of one step of a run added to the counts, by experience."""

    run: str
    step: int
    counts: Mapping[str, UseCounts]


KEPT_CREDITS = 1_000
"""Steps whose credits a library still tells apart; of older ones only the sums are left."""


def add_credits(
    uses: Mapping[str, UseCounts], counts: Mapping[str, UseCounts]
) -> dict[str, UseCounts]:
    return {**uses, **{name: uses.get(name, NO_USES) + more for name, more in counts.items()}}


def subtract_credits(
    uses: Mapping[str, UseCounts], steps: Iterable[StepCredits]
) -> dict[str, UseCounts]:
    """The counts without those of some steps; an experience without any count is left out."""
    left = dict(uses)
    for step in steps:
        for name in step.counts.keys() & left.keys():
            left[name] -= step.counts[name]
    return {name: counts for name, counts in left.items() if counts != NO_USES}
