"""What is known of a library beside its content: past decisions, credits and effects.

Notes make no version. Counts and effects hold for one wording.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import astuple, dataclass, field, replace
from operator import sub
from typing import Literal

from engines.core.frozen import frozen
from engines.core.text.sanitize import one_line
from engines.core.types import (
    AUTO,
    DUPLICATE,
    GATE,
    NO_USAGE,
    RULES,
    UNPROVEN,
    Decision,
    EffectVerdict,
    Operation,
    OperationKind,
    Usage,
)


@frozen
class UseCounts:
    """Attempts that had one wording in their prompt, by what they show of it."""

    used: int = 0
    ignored: int = 0
    misled: int = 0
    cited: int = 0  # named the experience by its id; they may be counted above, too

    def __add__(self, other: "UseCounts") -> "UseCounts":
        # By name: a long run's library adds up thousands as it is read, and `astuple` is slow.
        return UseCounts(
            self.used + other.used,
            self.ignored + other.ignored,
            self.misled + other.misled,
            self.cited + other.cited,
        )

    def __sub__(self, other: "UseCounts") -> "UseCounts":
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


@frozen
class StepCredits:
    """What the attempts of one step of a run added to the counts, by experience."""

    run: str
    step: int
    counts: Mapping[str, UseCounts]


EffectMethod = Literal["gate", "inclusion", "practice"]
"""Measured for a decision, by random halves of a library, or from practice with dropout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Mean reward with it less mean reward without it, in [-1, 1]."""

    difference: float
    low: float  # ends of its 95 % interval
    high: float
    verdict: EffectVerdict
    problems: int
    rollouts: int  # all that it rests on, with it and without
    method: EffectMethod
    usage: Usage = NO_USAGE  # what was paid for it

    # Where many were measured at once: calling this one and all that are at least as sure an
    # effect, this share of them is expected to be false at most. None: it was measured alone.
    false_discovery: float | None = None

    @property
    def text(self) -> str:
        """`+0.18 [+0.06, +0.31] on 40 problems, 160 rollouts`."""
        problems = "1 problem" if self.problems == 1 else f"{self.problems} problems"
        interval = f"[{self.low:+.2f}, {self.high:+.2f}]"
        # The interval is one of 95 %, while a run's error is shared by all that is tried in it.
        is_near = self.method == "gate" and self.verdict == "cannot tell"
        misses = is_near and not self.low <= 0 <= self.high
        near = "; not sure enough for one of many" if misses else ""
        return f"{self.difference:+.2f} {interval} on {problems}, {self.rollouts} rollouts{near}"

    @property
    def worth_text(self) -> str:
        """`+0.102 [+0.05, +0.15] helps`."""
        return f"{self.difference:+.3f} [{self.low:+.2f}, {self.high:+.2f}] {self.verdict}"

    @property
    def worth(self) -> str:
        """The same with what it rests on: `… helps (1,024 rollouts, inclusion)`."""
        return f"{self.worth_text} ({self.rollouts:,} rollouts, {self.method})"


def interval_verdict(low: float, high: float) -> EffectVerdict:
    """By the side of 0 that the interval lies on."""
    return "helps" if low > 0 else "hurts" if high < 0 else "cannot tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class PastDecision:
    """What a reviewer made of an idea that was not taken as it came: rejected, or reworded."""

    run: str
    operation_id: str
    kind: OperationKind
    text: str  # as it was proposed; of a delete, the id of its target
    became: str  # the wording it was given, "" where it was rejected
    reason: str
    problems: tuple[str, ...]  # ids of those it was drawn from
    reviewer: str
    at: float
    target: str | None = None  # the experience it was about
    target_text: str = ""  # what that said then, "" also where an older release copied it
    step: int = 0  # that was committed, 0 outside
    # A rule or auto rejected it, flagged as a duplicate or unproven: that is nothing against it.
    doubled: bool = False

    @property
    def is_rejection(self) -> bool:
        return not self.became


KEPT_CREDITS = 1_000
"""Steps whose credits a library still tells apart; of older ones only the sums are left."""
KEPT_CURATED = 1_000
"""Past decisions that a library remembers; the oldest go first."""


@frozen
class NotesMark:
    """How far the notes of a library had come: counted from its beginning, what has gone included.

    Notes make no new version: a version alone does not say what a step was shown.
    """

    decisions: int = 0
    credits: int = 0


NO_MARK = NotesMark()


@frozen
class LibraryNotes:
    """What is known of a library beside its content. No prompt of an agent shows it."""

    curated: tuple[PastDecision, ...] = ()  # what reviewers rejected or reworded, oldest first
    uses: Mapping[str, UseCounts] = field(default_factory=dict)  # {} of experiences without any
    credits: tuple[StepCredits, ...] = ()  # the last steps that added to them, oldest first
    effects: Mapping[str, Effect] = field(default_factory=dict)  # the last one of each wording
    mark: NotesMark = NO_MARK

    def as_of(self, mark: NotesMark) -> "LibraryNotes":
        """Return past decisions and counts as they were at a mark."""
        decisions = max(0, len(self.curated) - max(0, self.mark.decisions - mark.decisions))
        credits = max(0, len(self.credits) - max(0, self.mark.credits - mark.credits))
        return replace(
            self,
            curated=self.curated[:decisions],
            uses=_subtract_credits(self.uses, self.credits[credits:]),
            credits=self.credits[:credits],
            mark=NotesMark(
                min(self.mark.decisions, mark.decisions), min(self.mark.credits, mark.credits)
            ),
        )

    def without_own(self, run: str, step: int, since: NotesMark) -> "LibraryNotes":
        """Leave out what a run is still to decide and to count: its own of this step or later.

        There is some where its journal was cut and the library's was not. `since` is the mark as
        the run began: ids of removed runs are given again, and what came before is of another.
        """
        numbered = enumerate(self.curated, self.mark.decisions - len(self.curated))
        curated = tuple(
            idea
            for number, idea in numbered
            if number < since.decisions or idea.run != run or idea.step < step
        )
        own = self.own_credits(run, step, since)
        return replace(self, curated=curated, uses=_subtract_credits(self.uses, own))

    def own_credits(self, run: str, step: int, since: NotesMark) -> tuple[StepCredits, ...]:
        """Return what a run counted in this step or later; see `without_own`."""
        numbered = enumerate(self.credits, self.mark.credits - len(self.credits))
        return tuple(
            credits
            for number, credits in numbered
            if number >= since.credits and credits.run == run and credits.step >= step
        )

    def credit(self, credits: StepCredits, here: Collection[str]) -> "LibraryNotes":
        """Add what a step counted, of experiences that are still here."""
        uses = dict(self.uses)
        for name, more in credits.counts.items():
            if name in here:
                uses[name] = uses.get(name, NO_USES) + more
        kept = (*self.credits, credits)[-KEPT_CREDITS:]
        mark = replace(self.mark, credits=self.mark.credits + 1)
        return replace(self, uses=uses, credits=kept, mark=mark)

    def remember(
        self, decided: Iterable[tuple[Operation, Operation, Decision, str]], run: str, step: int
    ) -> "LibraryNotes":
        """Add what a commit decided, but for what is remembered already.

        `decided` holds each operation as it was proposed and as it is applied, its decision, and
        what its target said then.
        """
        new = []
        for operation, wanted, decision, target_text in decided:
            idea = _past_decision(operation, wanted, decision, run)
            if idea is not None:
                new.append(replace(idea, step=step, target_text=target_text))
        if new:  # else a long memory is not looked through
            known = {(idea.run, idea.operation_id, idea.at) for idea in self.curated}
            new = [idea for idea in new if (idea.run, idea.operation_id, idea.at) not in known]
        if not new:
            return self
        mark = replace(self.mark, decisions=self.mark.decisions + len(new))
        return replace(self, curated=(*self.curated, *new)[-KEPT_CURATED:], mark=mark)


NO_NOTES = LibraryNotes()


def _subtract_credits(
    uses: Mapping[str, UseCounts], steps: Iterable[StepCredits]
) -> dict[str, UseCounts]:
    """Return the counts without those of some steps; an experience without any is left out."""
    left = dict(uses)
    for step in steps:
        for name in step.counts.keys() & left.keys():
            left[name] -= step.counts[name]
    return {name: counts for name, counts in left.items() if counts != NO_USES}


def _past_decision(
    operation: Operation, wanted: Operation, decision: Decision, run: str
) -> PastDecision | None:
    """What is to be remembered of a decision; None of an approval, or of the gate's own."""
    if decision.action not in ("reject", "edit") or decision.reviewer == GATE:
        return None
    became = ""
    if decision.action == "edit":
        became = one_line(wanted.text) or f"{wanted.kind} {wanted.target}"
    return PastDecision(
        run=run,
        operation_id=operation.id,
        kind=operation.kind,
        text=one_line(operation.text) or operation.target or "",
        became=became,
        reason=decision.reason,
        problems=operation.problems,
        reviewer=decision.reviewer,
        at=decision.at,
        target=operation.target,
        doubled=decision.action == "reject"
        and (decision.reviewer == AUTO or decision.reviewer.startswith(RULES))
        and any(flag.name in (DUPLICATE, UNPROVEN) for flag in operation.flags),
    )
