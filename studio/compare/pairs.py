"""Logs paired set by set against the first of them: difference, verdict, flipped cases. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import NamedTuple

from engines.core.errors import ConflictError, suggest_name
from engines.pipeline.effect.holm import holm_adjusted
from engines.pipeline.effect.paired import (
    bootstrap_interval,
    detectable_effect,
    power_at,
    standard_error,
)
from engines.pipeline.evaluation.comparison import LEVEL, Comparison, compare, paired_changes
from engines.pipeline.evaluation.intervals import SAME, Interval
from engines.pipeline.evaluation.metrics import RIGHT_FROM, question_means
from studio.compare.log import Log

MOST_BOOTSTRAPPED = 1_000  # with more problems the t-interval is as good, and drawing takes seconds
EFFECTS = (0.05, 0.1, 0.2)  # that the power is told of

Tries = dict[str, dict[str | int, float | None]]
"""Scores of one set: by problem, then by try, which is a number where it has no name."""


Unmatched = tuple[tuple[str, ...], tuple[str, ...]]
"""Problems, or tries of them, that only the first side has, and only the second."""


class Case(NamedTuple):
    """A problem whose mean changed."""

    problem: str
    before: float
    after: float

    @property
    def change(self) -> float:
        return self.after - self.before

    @property
    def is_flipped(self) -> bool:
        return (self.before >= RIGHT_FROM) != (self.after >= RIGHT_FROM)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPair:
    """One log against the baseline on one set. `comparison` has the verdict after Holm."""

    set: str
    other: int  # position of the log
    comparison: Comparison
    p_adjusted: float  # by Holm over all sets and logs
    error: float | None  # standard error; None where there is no variance to measure
    smallest_effect: float | None  # that is shown 8 times in 10; None: none is, or as for the error
    power: Mapping[float, float]  # the chance that a true effect of such a size is shown
    bootstrap: Interval | None  # of graded changes
    means: tuple[float, float]  # over the paired problems
    cases: tuple[Case, ...]  # flipped ones first, from right to wrong first of all
    unmatched: Unmatched


def compare_logs(logs: Sequence[Log], only: str | None, seed: int) -> list[SetPair]:
    """Compare each log with the first, on every set that both have or on `only`.

    Raises ConflictError: there is no such set, or nothing can be paired; or of two scores that
    both have, each has another one that is compared.
    """
    sets = [_tries_by_set(log) for log in logs]
    found: list[SetPair] = []
    for at, tried in enumerate(sets[1:], start=1):
        named = _shared_sets(sets[0], tried, only)
        for _, one, two in named:
            _demand_same_metric(logs[0], one, logs[at], two)
        pairs = [_pair(name, at, sets[0][one], tried[two], seed) for name, one, two in named]
        known = [pair for pair in pairs if pair is not None]
        if not known:
            there = f"{_some(tried)}; {_some(sets[0])}"
            cause = f"it shares no scored problem with {logs[0].label} ({there})."
            raise ConflictError(logs[at].label, cause, "Compare logs of the same problems.")
        found += known
    adjusted = holm_adjusted([pair.comparison.p for pair in found])
    return [_corrected(pair, p, len(found)) for pair, p in zip(found, adjusted, strict=True)]


def _demand_same_metric(first: Log, one: str, last: Log, two: str) -> None:
    """Other programs may name the same score otherwise: then notes tell both names."""
    ours, theirs = first.metrics.get(one, ()), last.metrics.get(two, ())
    both = [name for name in ours if name in theirs]
    if both and ours[0] != theirs[0]:
        cause = f"it compares {theirs[0]}, and {first.label} {ours[0]}."
        raise ConflictError(last.label, cause, f"Name what both have: --metric {both[0]}.")


def _corrected(pair: SetPair, adjusted: float, family: int) -> SetPair:
    done, level = pair.comparison, 1 - (1 - LEVEL) / family
    if adjusted > 1 - LEVEL:
        done = replace(done, verdict="cannot tell")
    pair = replace(pair, comparison=done, p_adjusted=adjusted)
    if pair.error is None:
        return pair
    effect, n = detectable_effect(pair.error, done.questions, level), done.questions
    power = {size: power_at(size, pair.error, n, level) for size in EFFECTS}
    return replace(pair, smallest_effect=effect if effect <= 1 else None, power=power)


def _tries_by_set(log: Log) -> dict[str, Tries]:
    found: dict[str, Tries] = {}
    for row in log.rows:
        tries = found.setdefault(row.set, {}).setdefault(row.problem, {})
        if row.attempt in tries:
            cause = f"problem {row.problem[:80]}, try {row.attempt} is there twice."
            raise ConflictError(log.label, cause, "Give each try a name of its own, or none.")
        tries[row.attempt or len(tries)] = row.score
    return found


def _shared_sets(
    before: dict[str, Tries], after: dict[str, Tries], only: str | None
) -> list[tuple[str, str, str]]:
    """Name and both keys; sets that have no name, or one on each side, are taken for one."""
    if only is not None:
        if only not in before and only not in after:
            move = suggest_name(only, sorted(filter(None, before.keys() | after.keys())))
            raise ConflictError(f"--set {only}", "no log has a set of that name.", move)
        return [(only, only, only)] if only in before and only in after else []
    shared = [(name, name, name) for name in before if name in after]
    if not shared and len(before) == len(after) == 1 and "" in (*before, *after):
        (one,), (two,) = before, after
        shared = [(one or two, one, two)]
    return shared


def _pair(name: str, other: int, before: Tries, after: Tries, seed: int) -> SetPair | None:
    first, last, unmatched = _match(before, after)
    done = compare(first, last, LEVEL)
    if done is None:
        return None
    changes = paired_changes(first, last)
    sizes = {round(abs(change), 6) for change in changes if abs(change) > SAME}
    graded = len(sizes) > 1 and len(changes) <= MOST_BOOTSTRAPPED
    means = {q: question_means([first[q], last.get(q, ())]) for q in first}
    cases = [Case(q, *pair) for q, pair in means.items() if len(pair) == 2]
    changed = [case for case in cases if abs(case.change) > SAME]
    return SetPair(
        set=name,
        other=other,
        comparison=done,
        p_adjusted=done.p,
        error=standard_error(changes) if max(changes) - min(changes) > SAME else None,
        smallest_effect=None,
        power={},
        bootstrap=bootstrap_interval(changes, seed, LEVEL) if graded else None,
        means=(fmean(case.before for case in cases), fmean(case.after for case in cases)),
        cases=tuple(
            sorted(changed, key=lambda c: (not c.is_flipped, c.change > 0, -abs(c.change)))
        ),
        unmatched=unmatched,
    )


Rows = dict[str, tuple[float | None, ...]]


def _match(before: Tries, after: Tries) -> tuple[Rows, Rows, Unmatched]:
    """What both sides have: of a problem the tries of one name where names are shared, else all."""
    by_try = any(
        isinstance(name, str) and name in after.get(problem, ())
        for problem, tries in before.items()
        for name in tries
    )

    def kept(side: Tries, other: Tries) -> tuple[Rows, tuple[str, ...]]:
        rows, alone = {}, []
        for problem, tries in side.items():
            theirs = other.get(problem)
            if theirs is None:
                alone.append(problem)
                continue
            rows[problem] = tuple(
                score for name, score in tries.items() if not by_try or name in theirs
            )
            if by_try:
                alone += [f"{problem}, try {name}" for name in tries if name not in theirs]
        return rows, tuple(alone)

    (first, gone), (last, new) = kept(before, after), kept(after, before)
    return first, last, (gone, new)


def _some(sets: dict[str, Tries]) -> str:
    name, tries = next(iter(sets.items()))
    return f"{name or 'no set'}: {', '.join(list(tries)[:3])[:80]}"
