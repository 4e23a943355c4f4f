"""The curves of a run as plain values, which the screen and a written report draw alike.

Pure: from the folded state. Owns what is on a curve and the words for one step of it; drawing is
the drawer's.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from engines.core.frozen import frozen
from engines.core.state.list_row import Point, practice_points
from engines.core.state.run_state import RunState, StepState
from engines.core.types import NO_USAGE
from engines.pipeline.evaluation.statistics import mean_interval
from studio.facts import evaluation, training
from studio.facts.run import run_progress

SETTLED: tuple[training.Update, ...] = ("applied", "rejected", "rolled back")
_SHOWN_METRICS = ("kl", "loss")
"""Figures of updates that have a curve beside the reward."""


@frozen
class Series:
    """One curve: a value after each of some steps."""

    name: str
    unit: str  # "reward", "tokens", "USD"; "" where it has none
    points: tuple[Point, ...]


@frozen
class Commit:
    """A step that changed the library or the policy, or was to change the policy."""

    step: int
    version: int  # afterwards
    outcome: training.Update = "applied"  # one of `SETTLED`
    size: int | None = None  # experiences of the library then, where that is known
    beside_weights: bool = False  # the version is the library's, and the run has a policy's too


@dataclass(frozen=True, slots=True, eq=False)
class RunCurves:
    """All curves of one run over its steps; not compared by value, since points are many."""

    run: str
    trains_weights: bool
    rehearsal: bool
    steps_planned: int
    is_over: bool  # no process goes on with it
    practice: Series  # reward; the loss of a run on demonstrations
    held_out: tuple[Series, ...]  # by set, with intervals; step 0 is before practice
    updates: tuple[Series, ...]  # figures of weight updates
    tokens: Series  # spent up to each step, evaluations included
    cost: Series | None  # None where a price is not known
    commits: tuple[Commit, ...]
    steps: tuple[int, ...]  # those with a point of practice or of a held-out set
    epochs: tuple[int, ...]  # the first step of each epoch: before it a curve has a gap

    @property
    def last_step(self) -> int:
        """The last step with a point; 0 without any."""
        return self.steps[-1] if self.steps else 0


def run_curves(state: RunState, sizes: Mapping[int, int] | None = None) -> RunCurves:
    """The curves of a run; `sizes` are the experiences of each version of its library."""
    started, steps = state.started, sorted(state.steps.items())
    epochs = {step.epoch: number for number, step in reversed(steps)}
    tokens, cost = _spent(state)
    is_loss = training.is_fine_tuning(state)
    points, held_out = tuple(practice_points(state)), _held_out(state)
    measured = {point[0] for series in held_out for point in series.points}
    return RunCurves(
        run=started.run if started else "",
        trains_weights=state.trains_weights,
        rehearsal=bool(started and started.rehearsal),
        steps_planned=run_progress(state).steps,
        is_over=bool(state.ending),
        practice=Series("loss", "", points) if is_loss else Series("reward", "reward", points),
        held_out=held_out,
        updates=tuple(
            Series(training.FIGURE_NAMES[name], "", found)
            for name in _SHOWN_METRICS
            if not (is_loss and name == "loss") and (found := metric_points(state, name))
        ),
        tokens=tokens,
        cost=cost,
        commits=tuple(_commits(state, sizes or {})),
        steps=tuple(sorted(measured.union(point[0] for point in points))),
        epochs=tuple(sorted(epochs.values())),
    )


def curves_key(state: RunState) -> tuple[object, ...]:
    """What changes whenever a curve does; cheap, so that it can be asked for at every frame."""
    last = state.steps.get(state.step)
    stage = (last.finished, last.committed, last.lesson and last.usage) if last else ()
    evaluated, ended = len(state.evaluations), state.ending
    return (id(state), state.step, stage, evaluated, ended, state.epochs, state.started is None)


def _held_out(state: RunState) -> tuple[Series, ...]:
    by_set: dict[str, list[Point]] = {}
    for found in state.evaluations:
        if found.mean is not None:
            interval = mean_interval(tuple(evaluation.question_rewards(found).values()))
            low, high = (interval.low, interval.high) if interval else (None, None)
            by_set.setdefault(found.data, []).append(
                Point(found.step, found.mean, found.n, low, high)
            )
    return tuple(Series(name, "reward", tuple(sorted(by_set[name]))) for name in by_set)


def metric_points(state: RunState, name: str) -> tuple[Point, ...]:
    known = [(step, state.training[step].get(name, math.nan)) for step in sorted(state.training)]
    return tuple([Point(step, value) for step, value in known if math.isfinite(value)])


def _spent(state: RunState) -> tuple[Series, Series | None]:
    """Tokens and money up to each step whose rollouts are through."""
    spent = {
        number: step.usage
        for number, step in state.steps.items()
        if step.lesson is not None or step.committed or step.finished
    }
    for found in state.evaluations:
        spent[found.step] = spent.get(found.step, NO_USAGE) + found.usage
    tokens, cost, known = 0, 0.0, True
    token_points, cost_points = [], []
    for number in sorted(spent):
        usage = spent[number]
        tokens += usage.prompt_tokens + usage.completion_tokens
        token_points.append(Point(number, tokens))
        if usage.cost_usd is not None:
            cost += usage.cost_usd
            cost_points.append(Point(number, cost))
        elif usage.calls:
            known = False
    has_cost = known and cost > 0
    return (
        Series("tokens", "tokens", tuple(token_points)),
        Series("cost", "USD", tuple(cost_points)) if has_cost else None,
    )


def _commits(state: RunState, sizes: Mapping[int, int]) -> list[Commit]:
    trains, found = state.trains_weights, list[Commit]()
    if trains:
        settled = (one for one in training.trained_steps(state) if one.update in SETTLED)
        found = [Commit(one.step, policy_after(state, one.step), one.update) for one in settled]
    for number, step in state.steps.items():
        version = step.committed_version
        if version is not None and committed_operations(step):
            found.append(Commit(number, version, size=sizes.get(version), beside_weights=trains))
    return sorted(found, key=lambda commit: commit.step)


def policy_after(state: RunState, step: int) -> int:
    """The policy's version after a step: what the next one began with."""
    following = state.steps.get(step + 1)
    return following.policy_version if following else state.policy_version


def committed_operations(step: StepState) -> int:
    return sum(one.applied and one.kind not in ("keep", "weights") for one in step.outcomes)


def running_mean(points: Sequence[Point], window: int, every: int = 1) -> tuple[Point, ...]:
    """The mean over a point and those before it, `window` in all, weighted by their n.

    At each point, or at the last and each `every`-th before it, where fewer are drawn.
    """
    weights = [point[2] or 1 for point in points]
    values = (point[1] * weight for point, weight in zip(points, weights, strict=True))
    total, n = list(accumulate(values, initial=0.0)), list(accumulate(weights, initial=0))
    found = []
    for at in range(len(points), 0, -every):
        back = max(0, at - window)
        mean = (total[at] - total[back]) / (n[at] - n[back])
        found.append(Point(points[at - 1].step, mean, n[at] - n[back]))
    return tuple(reversed(found))


def mean_window(count: int) -> int:
    """Over how many steps a running mean of so many points goes."""
    return max(5, count // 25)
