"""All that is told of held-out evaluations: a rate with its interval, changes, single causes.

Pure: from what a run's journal adds up to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from engines.core.events import CellMeasured, EvaluationFinished
from engines.core.state.run_state import RunState
from engines.core.types import Usage
from engines.pipeline.evaluation.statistics import (
    Comparison,
    Interval,
    Rate,
    compare,
    group_by_question,
    mean_interval,
)
from studio.facts.subject import LIFTED, Subject

Learned = Literal["library", "policy", "both"]
"""What practice changes, hence what a measured version is called by."""


@dataclass(frozen=True, slots=True)
class EvaluationFacts(Subject):
    """One evaluation of one held-out set."""

    step: int  # after which it was measured; 0 is before practice
    data: str
    library_version: int
    policy_version: int
    learned: Learned
    mean_reward: float | None  # None: no rollout could be judged
    interval: Interval | None
    n: int
    unjudged: int
    reused: int
    left_out: int  # problems that the reflector was shown
    tool_calls_per_try: float

    @property
    def version(self) -> str:
        """What was measured: `v3` of a library, or `policy v3` where weights are trained."""
        match self.learned:
            case "library":
                return f"v{self.library_version}"
            case "policy":
                return f"policy v{self.policy_version}"
            case "both":
                return f"policy v{self.policy_version}, library v{self.library_version}"


def evaluation_facts(finished: EvaluationFinished, learned: Learned = "library") -> EvaluationFacts:
    return EvaluationFacts(
        step=finished.step,
        data=finished.data,
        library_version=finished.library_version,
        policy_version=finished.policy_version,
        learned=learned,
        mean_reward=finished.mean,
        interval=mean_interval(tuple(question_rewards(finished).values())),
        n=finished.n,
        unjudged=finished.unjudged,
        reused=finished.reused,
        left_out=finished.left_out,
        tool_calls_per_try=finished.tool_calls / max(1, finished.n + finished.unjudged),
    )


def learned_by(state: RunState) -> Learned:
    """Return what the practice of a run changes."""
    if state.alternates:
        return "both"
    return "policy" if state.trains_weights else "library"


def question_rewards(finished: EvaluationFinished) -> dict[str, tuple[float | None, ...]]:
    """Return the rewards of each question."""
    return group_by_question(finished.problems, finished.rewards)


@dataclass(frozen=True, slots=True)
class RateChange:
    """One held-out set over a run: its first measurement against a later one."""

    first: EvaluationFinished
    last: EvaluationFinished
    comparison: Comparison


def rate_changes(evaluations: Sequence[EvaluationFinished]) -> list[RateChange]:
    """Compare the first with the last evaluation of each set that was measured in the same way.

    Evaluations of other settings than the last one's are no measure of a change.
    """
    changes: list[RateChange] = []
    for name in dict.fromkeys(e.data for e in evaluations):
        of_set = [e for e in evaluations if e.data == name]
        alike = [e for e in of_set if e.fingerprint == of_set[-1].fingerprint]
        first, last = alike[0], alike[-1]
        if last.step == first.step:
            continue
        if comparison := compare(question_rewards(first), question_rewards(last)):
            changes.append(RateChange(first, last, comparison))
    return changes


@dataclass(frozen=True, slots=True)
class ChangeFacts(Subject):
    """The change of one held-out set over a run."""

    data: str
    from_step: int
    to_step: int
    from_version: str
    to_version: str
    set_aside: int  # problems that the last one left out for the reflector
    comparison: Comparison = field(metadata=LIFTED)


def change_facts(change: RateChange, learned: Learned = "library") -> ChangeFacts:
    first, last = (evaluation_facts(e, learned) for e in (change.first, change.last))
    return ChangeFacts(
        data=first.data,
        from_step=first.step,
        to_step=last.step,
        from_version=first.version,
        to_version=last.version,
        set_aside=last.left_out,
        comparison=change.comparison,
    )


@dataclass(frozen=True, slots=True)
class CellFacts(Subject):
    """Weights and library at a run's end, each with or without the other, on one held-out set."""

    evaluation: EvaluationFacts = field(metadata=LIFTED)
    weights: Literal["trained", "first"]
    with_library: bool
    against_neither: Comparison | None  # None of the cell with neither
    against_one: dict[str, Comparison]  # of the cell with both: what each adds to the other

    @property
    def name(self) -> str:
        return cell_name(self.weights == "trained", self.with_library, self.evaluation)


def cell_name(
    trained: bool, with_library: bool, measured: EvaluationFacts | EvaluationFinished
) -> str:
    """`trained weights, library v1`."""
    weights = "trained weights" if trained else "first weights"
    library = f"library v{measured.library_version}" if with_library else "no library"
    return f"{weights}, {library}"


def cell_facts(state: RunState) -> tuple[CellFacts, ...]:
    """Return the cells of the run's end, set by set, the one with neither first."""
    last = max((cell.step for cell in state.cells), default=0)
    cells = [cell for cell in state.cells if cell.step == last]
    cells.sort(key=lambda cell: (cell.result.data, cell.trained, cell.with_library))
    return tuple(_make_cell(cell, cells) for cell in cells)


def _make_cell(cell: CellMeasured, cells: Sequence[CellMeasured]) -> CellFacts:
    against_neither, against_one = None, {}
    for other in cells:
        if other is cell or other.result.data != cell.result.data:
            continue
        change = compare(question_rewards(other.result), question_rewards(cell.result))
        if change is None:
            continue
        if not (other.trained or other.with_library):
            against_neither = change
        elif cell.trained and cell.with_library:
            name = (
                "what the library adds to the weights"
                if other.trained
                else "what the weights add to the library"
            )
            against_one[name] = change
    return CellFacts(
        evaluation=evaluation_facts(cell.result, "both"),
        weights="trained" if cell.trained else "first",
        with_library=cell.with_library,
        against_neither=against_neither,
        against_one=against_one,
    )


@dataclass(frozen=True, slots=True)
class MeasuredFacts(Subject):
    """One set of experiences on one held-out set, outside any run."""

    experiences: str  # what they are called
    library_version: int | None  # None: the bare agent
    mean: float | None
    interval: Interval | None
    questions: int  # with a known reward
    pass_at: Mapping[int, Rate]  # pass@1 to pass@k
    n: int
    unjudged: int
    missing: int
    trouble: str  # why the first of the unjudged was not judged
    tokens_per_try: float
    tool_calls_per_try: float
    cost_per_try_usd: float | None
    cost_usd: float | None
    reused: int
    rewards: Sequence[Sequence[float | None]]  # k of each problem


@dataclass(frozen=True, slots=True)
class PairedMeans(Subject):
    """Means over the questions that were judged on both sides, like their difference."""

    questions: int
    before: float | None
    after: float | None


@dataclass(frozen=True, slots=True)
class SetFacts(Subject):
    """One held-out set: the result of each set of experiences, the baseline first."""

    data: str
    size: str  # `aime: 30 of 60 problems (28 different), 8 tries each`
    problems: tuple[str, ...]
    texts: tuple[str, ...]
    questions: int
    left_out: int
    smallest_effect: float | None
    results: tuple[MeasuredFacts, ...]
    comparison: Comparison | None
    paired: PairedMeans | None  # None: there is no baseline


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalFacts(Subject):
    """An evaluation outside any run: what `studio eval` measured."""

    kind: str = "Evaluation"
    title: str
    rehearsal: bool
    cassette: bool
    exp_id: str
    k: int
    sets: tuple[SetFacts, ...]
    paid: Usage
    rollouts: int
    reused: int
    ended: str = ""  # why it ended early; "" where it is whole
    reason: str = ""
