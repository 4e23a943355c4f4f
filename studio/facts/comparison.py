"""All that is told of a comparison of logs: differences, verdicts, flipped cases, their cost.

Logs are paired set by set, problem by problem, against the first of them, the baseline. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from engines.core.errors import ConflictError, suggest_name
from engines.core.frozen import frozen
from engines.core.types import Names, Usage
from engines.pipeline.evaluation import statistics, verdict
from studio.facts.subject import LIFTED, Subject

MOST_BOOTSTRAPPED = 1_000  # with more problems the t-interval is as good, and drawing takes seconds
EFFECTS = (0.05, 0.1, 0.2)  # that the power is told of


@frozen
class LogRow:
    """One scored rollout; `attempt` is its seed, epoch or number, "" where it has none."""

    problem: str
    score: float | None  # in [0, 1]; None: it could not be judged
    attempt: str = ""
    set: str = ""
    tokens: int | None = None  # None: not known, as for the cost
    cost_usd: float | None = None


@frozen
class Practised(Subject):
    """The practice of a run up to where it was measured."""

    learned: str  # `library v3 (12 experiences)`, `weights v8`
    data: str
    problems: int  # different ones
    spent: Usage

    @property
    def tokens(self) -> int:
        return self.spent.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """All rollouts of one measured thing."""

    label: str
    rows: Sequence[LogRow]
    practised: Practised | None = None
    fingerprint: str = ""  # of how it was measured, where that is known
    notes: Names = ()
    questions: Mapping[str, str] = field(default_factory=dict)  # of problems, where known
    metrics: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of a set, first its own


@frozen
class Case(Subject):
    """A problem whose mean changed."""

    problem: str
    before: float
    after: float
    question: str | None = None  # None: not known

    @property
    def change(self) -> float:
        return self.after - self.before

    @property
    def flipped(self) -> bool:
        return (self.before >= statistics.RIGHT_FROM) != (self.after >= statistics.RIGHT_FROM)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPair(Subject):
    """One log against the baseline on one set. `comparison` has the verdict after Holm."""

    set: str
    log: str  # letter of the log
    before: str  # label of the baseline
    after: str
    comparison: verdict.Comparison = field(metadata=LIFTED)
    p_adjusted: float  # by Holm over all sets and logs
    error: float | None  # standard error; None where there is no variance to measure
    smallest_effect: float | None  # that is shown 8 times in 10; None: none is, or as for the error
    power: Mapping[float, float]  # the chance that a true effect of such a size is shown
    bootstrap: statistics.Interval | None  # of graded changes
    means: tuple[float, float]  # over the paired problems
    cases: tuple[Case, ...]  # flipped ones first, from right to wrong first of all
    # Problems, or rollouts of them, that only the baseline has, and only the other one.
    unmatched: tuple[Names, Names]

    def flips(self, *, worse: bool) -> list[Case]:
        """Return the cases from right to wrong, or from wrong to right."""
        return [case for case in self.cases if case.flipped and (case.change < 0) is worse]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSet(Subject):
    """The results of one log on one set; each rate over the rollouts that tell it."""

    set: str
    mean: float | None
    interval: statistics.Interval | None
    problems: int
    rollouts: int
    judged: int
    tokens_per_try: float | None
    cost_usd_per_try: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts(Subject):
    """One of the logs that are compared."""

    letter: str
    label: str
    rows: int
    tokens_per_try: float | None
    cost_usd_per_try: float | None
    sets: tuple[LogSet, ...]
    practised: Practised | None
    notes: Names


@frozen
class ComparisonFacts(Subject):
    """All comparisons, and what a script demands of them."""

    logs: tuple[LogFacts, ...]
    comparisons: tuple[SetPair, ...]
    notes: Names
    min_effect: float | None = None

    @property
    def kind(self) -> str:
        return "Comparison"

    @property
    def worse(self) -> bool:
        return any(pair.comparison.verdict == "hurts" for pair in self.comparisons)

    @property
    def min_effect_reached(self) -> bool | None:
        return None if self.min_effect is None else not self.short_of_effect()

    def short_of_effect(self) -> list[SetPair]:
        """Return those whose interval reaches below the effect that is demanded."""
        least = -2 if self.min_effect is None else self.min_effect
        return [pair for pair in self.comparisons if pair.comparison.interval.low < least]


def compare_logs(
    logs: Sequence[Log], only: str | None, seed: int, min_effect: float | None = None
) -> ComparisonFacts:
    """Compare each log with the first, on every set that both have or on `only`.

    Raises ConflictError: there is no such set, or nothing can be paired; or of two scores that
    both have, each has another one that is compared.
    """
    sets = [_scores_by_set(log) for log in logs]
    pairs: list[SetPair] = []
    for at, scores in enumerate(sets[1:], start=1):
        paired = []
        for name, first, last in _shared_sets(sets[0], scores, only):
            _demand_same_metric(logs[0], first, logs[at], last)
            pair = _pair(name, logs[0], logs[at], sets[0][first], scores[last], seed)
            if pair is not None:
                paired.append(replace(pair, log=letter_of(at)))
        if not paired:
            there = f"{_some(scores)}; {_some(sets[0])}"
            raise ConflictError(
                logs[at].label,
                f"it shares no scored problem with {logs[0].label} ({there}).",
                "Compare logs of the same problems.",
            )
        pairs += paired
    adjusted = statistics.holm_adjusted([pair.comparison.p for pair in pairs])
    return ComparisonFacts(
        logs=tuple(_log_facts(letter_of(at), log) for at, log in enumerate(logs)),
        comparisons=tuple(
            _corrected(pair, p, len(pairs)) for pair, p in zip(pairs, adjusted, strict=True)
        ),
        notes=tuple(_notes(logs)),
        min_effect=min_effect,
    )


def letter_of(at: int) -> str:
    """Return the name of a log by its position; the baseline is A."""
    return chr(ord("A") + at) if at < 26 else f"L{at}"


Scores = dict[str, dict[str | int, float | None]]
"""Scores of one set: by problem, then by rollout, which is a number where it has no name."""


def _demand_same_metric(first: Log, first_set: str, last: Log, last_set: str) -> None:
    """Refuse two metrics that both have. Other programs may name the same score otherwise."""
    ours, theirs = first.metrics.get(first_set, ()), last.metrics.get(last_set, ())
    both = [name for name in ours if name in theirs]
    if both and ours[0] != theirs[0]:
        raise ConflictError(
            last.label,
            f"it compares {theirs[0]}, and {first.label} {ours[0]}.",
            f"Name what both have: --metric {both[0]}.",
        )


def _corrected(pair: SetPair, adjusted: float, family: int) -> SetPair:
    comparison, level = pair.comparison, 1 - (1 - statistics.LEVEL) / family
    if adjusted > 1 - statistics.LEVEL:
        comparison = replace(comparison, verdict="cannot tell")
    pair = replace(pair, comparison=comparison, p_adjusted=adjusted)
    if pair.error is None:
        return pair
    n = comparison.questions
    effect = statistics.detectable_effect(pair.error, n, level)
    power = {size: statistics.power_at(size, pair.error, n, level) for size in EFFECTS}
    return replace(pair, smallest_effect=effect if effect <= 1 else None, power=power)


def _scores_by_set(log: Log) -> dict[str, Scores]:
    sets: dict[str, Scores] = {}
    for row in log.rows:
        scores = sets.setdefault(row.set, {}).setdefault(row.problem, {})
        if row.attempt in scores:
            raise ConflictError(
                log.label,
                f"problem {row.problem[:80]}, try {row.attempt} is there twice.",
                "Give each try a name of its own, or none.",
            )
        scores[row.attempt or len(scores)] = row.score
    return sets


def _shared_sets(
    before: dict[str, Scores], after: dict[str, Scores], only: str | None
) -> list[tuple[str, str, str]]:
    """Return name and both keys; sets that have no name, or one on each side, are taken for one."""
    if only is not None:
        if only not in before and only not in after:
            raise ConflictError(
                f"--set {only}",
                "no log has a set of that name.",
                suggest_name(only, sorted(filter(None, before.keys() | after.keys()))),
            )
        return [(only, only, only)] if only in before and only in after else []
    shared = [(name, name, name) for name in before if name in after]
    if not shared and len(before) == len(after) == 1 and "" in (*before, *after):
        (first,), (last,) = before, after
        shared = [(first or last, first, last)]
    return shared


def _pair(
    name: str, first_log: Log, last_log: Log, before: Scores, after: Scores, seed: int
) -> SetPair | None:
    """Return the pair before it is corrected for the others; None where nothing can be paired."""
    by_name = any(
        isinstance(rollout, str) and rollout in after.get(problem, ())
        for problem, scores in before.items()
        for rollout in scores
    )
    first, only_first = _match(before, after, by_name=by_name)
    last, only_last = _match(after, before, by_name=by_name)
    comparison = verdict.compare(first, last, statistics.LEVEL)
    if comparison is None:
        return None
    changes = verdict.paired_changes(first, last)
    sizes = {round(abs(change), 6) for change in changes if abs(change) > statistics.SAME}
    graded = len(sizes) > 1 and len(changes) <= MOST_BOOTSTRAPPED
    questions = first_log.questions
    cases = []
    for problem in first:
        means = statistics.question_means([first[problem], last.get(problem, ())])
        if len(means) == 2:
            cases.append(Case(problem, *means, question=questions.get(problem)))
    changed = [case for case in cases if abs(case.change) > statistics.SAME]
    changed.sort(key=lambda case: (not case.flipped, case.change > 0, -abs(case.change)))
    return SetPair(
        set=name,
        log="",
        before=first_log.label,
        after=last_log.label,
        comparison=comparison,
        p_adjusted=comparison.p,
        error=statistics.standard_error(changes)
        if max(changes) - min(changes) > statistics.SAME
        else None,
        smallest_effect=None,
        power={},
        bootstrap=statistics.bootstrap_interval(changes, seed, statistics.LEVEL)
        if graded
        else None,
        means=(fmean(case.before for case in cases), fmean(case.after for case in cases)),
        cases=tuple(changed),
        unmatched=(only_first, only_last),
    )


def _match(
    side: Scores, other: Scores, *, by_name: bool
) -> tuple[dict[str, tuple[float | None, ...]], Names]:
    """Return the scores of what both sides have, and what this one has alone.

    Of a problem these are the rollouts of one name where names are shared, else all.
    """
    rows, alone = {}, []
    for problem, scores in side.items():
        theirs = other.get(problem)
        if theirs is None:
            alone.append(problem)
            continue
        rows[problem] = tuple(
            score for name, score in scores.items() if not by_name or name in theirs
        )
        if by_name:
            alone += [f"{problem}, try {name}" for name in scores if name not in theirs]
    return rows, tuple(alone)


def _some(sets: dict[str, Scores]) -> str:
    name, scores = next(iter(sets.items()))
    return f"{name or 'no set'}: {', '.join(list(scores)[:3])[:80]}"


def _log_facts(letter: str, log: Log) -> LogFacts:
    by_set: dict[str, list[LogRow]] = {}
    for row in log.rows:
        by_set.setdefault(row.set, []).append(row)
    return LogFacts(
        letter=letter,
        label=log.label,
        rows=len(log.rows),
        tokens_per_try=_mean_of(row.tokens for row in log.rows),
        cost_usd_per_try=_mean_of(row.cost_usd for row in log.rows),
        sets=tuple(_log_set(name, rows) for name, rows in by_set.items()),
        practised=log.practised,
        notes=log.notes,
    )


def _log_set(name: str, rows: Sequence[LogRow]) -> LogSet:
    scores: dict[str, list[float | None]] = {}
    for row in rows:
        scores.setdefault(row.problem, []).append(row.score)
    by_problem = list(scores.values())
    return LogSet(
        set=name,
        mean=statistics.mean_at_k(by_problem),
        interval=statistics.mean_interval(by_problem),
        problems=len(by_problem),
        rollouts=len(rows),
        judged=sum(row.score is not None for row in rows),
        tokens_per_try=_mean_of(row.tokens for row in rows),
        cost_usd_per_try=_mean_of(row.cost_usd for row in rows),
    )


def _mean_of(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _notes(logs: Sequence[Log]) -> list[str]:
    """Return what is to be known of several logs; those of one log stand with it."""
    notes = []
    sets = [dict.fromkeys(row.set for row in log.rows if row.set) for log in logs]
    for name in dict.fromkeys(name for names in sets for name in names):
        having = [letter_of(at) for at, names in enumerate(sets) if name in names]
        if len(having) < sum(map(bool, sets)):
            notes.append(f"the set {name} is only in {', '.join(having)}")
    if len({log.fingerprint for log in logs if log.fingerprint}) > 1:
        notes.append("they were measured with other settings (model, sampling, prompt or verifier)")
    return notes
