"""All that is told of held-out evaluations: a rate with its interval, changes, single causes.

Also of an epoch: what it did to the held-out problems, and what held it back. Pure: from what a
run's journal adds up to.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Literal

from engines.core.codec import JsonMapping, fields_of
from engines.core.events import CellMeasured, EvaluationFinished
from engines.core.frozen import frozen
from engines.core.state.run_state import RunState
from engines.core.types import GroupOutcome, Names, Usage
from engines.pipeline.evaluation import statistics, verdict
from studio.facts.subject import LIFTED, Subject

Learned = Literal["library", "policy", "both"]
"""What practice changes, hence what a measured version is called by."""


@frozen
class EvaluationFacts(Subject):
    """One evaluation of one held-out set."""

    step: int  # after which it was measured; 0 is before practice
    data: str
    library_version: int
    policy_version: int
    learned: Learned
    mean_reward: float | None  # None: no rollout could be judged
    interval: statistics.Interval | None
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
        **fields_of(finished, "step", "data", "library_version", "policy_version"),
        **fields_of(finished, "n", "unjudged", "reused", "left_out"),
        learned=learned,
        mean_reward=finished.mean,
        interval=statistics.mean_interval(tuple(question_rewards(finished).values())),
        tool_calls_per_try=finished.tool_calls / max(1, finished.n + finished.unjudged),
    )


def learned_by(state: RunState) -> Learned:
    """Return what the practice of a run changes."""
    if state.alternates:
        return "both"
    return "policy" if state.trains_weights else "library"


def question_rewards(finished: EvaluationFinished) -> dict[str, tuple[float | None, ...]]:
    """Return the rewards of each question."""
    return statistics.group_by_question(finished.problems, finished.rewards)


@frozen
class RateChange:
    """One held-out set over a run: its first measurement against a later one."""

    first: EvaluationFinished
    last: EvaluationFinished
    comparison: verdict.Comparison


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
        if comparison := verdict.compare(question_rewards(first), question_rewards(last)):
            changes.append(RateChange(first, last, comparison))
    return changes


@frozen
class ChangeFacts(Subject):
    """The change of one held-out set over a run."""

    data: str
    from_step: int
    to_step: int
    from_version: str
    to_version: str
    set_aside: int  # problems that the last one left out for the reflector
    comparison: verdict.Comparison = field(metadata=LIFTED)


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


@frozen
class CellFacts(Subject):
    """Weights and library at a run's end, each with or without the other, on one held-out set."""

    evaluation: EvaluationFacts = field(metadata=LIFTED)
    weights: Literal["trained", "first"]
    with_library: bool
    against_neither: verdict.Comparison | None  # None of the cell with neither
    against_one: dict[str, verdict.Comparison]  # of the cell with both: what each adds to the other

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
        change = verdict.compare(question_rewards(other.result), question_rewards(cell.result))
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


@frozen
class MeasuredFacts(Subject):
    """One set of experiences on one held-out set, outside any run."""

    experiences: str  # what they are called
    library_version: int | None  # None: the bare agent
    mean: float | None
    interval: statistics.Interval | None
    questions: int  # with a known reward
    pass_at: Mapping[int, statistics.Rate]  # pass@1 to pass@k
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


@frozen
class PairedMeans(Subject):
    """Means over the questions that were judged on both sides, like their difference."""

    questions: int
    before: float | None
    after: float | None


@frozen
class SetFacts(Subject):
    """One held-out set: the result of each set of experiences, the baseline first."""

    data: str
    size: str  # `aime: 30 of 60 problems (28 different), 8 tries each`
    problems: Names
    texts: Names
    questions: int
    left_out: int
    smallest_effect: float | None
    results: tuple[MeasuredFacts, ...]
    comparison: verdict.Comparison | None
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


_LIMIT = "practice.read_without_contrast"
_OFF = f"{_LIMIT}=0 leaves groups without a good try unread: set it above 0"
_SILENT = (
    "where no try is good nothing says why: give a verifier with a critique, data with answers, "
    "easier problems, or more tries (practice.group_size)"
)


@frozen
class Rule:
    """A cause of little gain, told where at least one and `share` of all show it."""

    count: str  # a name of `engines.core.state.fold`
    of: str
    text: str
    fix: str
    share: float = 0.0


RULES = (
    Rule("timeouts at limit", "timeouts", "timeouts hit the limit of {limit} in every reply",
         "raise policy.max_tokens"),
    Rule("timeouts", "rollouts", "tries timed out",
         "raise practice.task_timeout_s and policy.timeout_s, or lower practice.concurrency"),
    Rule("cut", "rollouts", "tries were cut at the limit of {limit}", "raise policy.max_tokens"),
    Rule("no answer", "judged", "tries state no answer that the verifier finds",
         "ask for a last line `#### 42`, `\\boxed{42}` or `Answer: 42` in agent.instructions"),
    Rule("failed_calls", "tool_calls", "tool calls failed",
         "studio runs show RUN --rollout ID shows what they said", 0.1),
    Rule("all-right", "groups", "groups all right", "give harder problems", 0.5),
    Rule("all-wrong", "groups", "groups all wrong",
         "give easier problems, or more tries (practice.group_size)", 0.5),
    Rule("refused", "operations", "operations refused by the lint",
         "studio runs show RUN --step N says why; lint and review.rejects set the bounds"),
    Rule("unproven", "operations", "operations were tried, and could not be told from no effect",
         "raise review.gate.problems or review.gate.k to see smaller effects"),
    Rule("rejected", "operations", "operations rejected",
         "say in practice.learning_objective what is wanted", 1.0),
    Rule("kept", "operations", "operations keep what is there", "give other problems, or end", 1.0),
    Rule("unused", "credits", "readings of an experience show no use of it",
         "reword or delete what is ignored or misleads", 1.0),
)  # fmt: skip


@frozen
class Cause(Subject):
    """A rule that fits: `n` of `of` show it."""

    name: str
    n: int
    of: int
    text: str
    fix: str


@frozen
class HeldOutChange(Subject):
    """One held-out set over an epoch."""

    data: str
    from_step: int
    to_step: int
    versions: str
    k: int
    counts: Mapping[verdict.Change, int]
    changed: tuple[tuple[str, float, float], ...]  # problem, mean before and after
    comparison: verdict.Comparison = field(metadata=LIFTED)
    is_same_version: bool  # then no difference is an effect

    @property
    def worse_by_luck(self) -> float:
        """The problems that would be worse if luck alone had changed them: half of them."""
        return len(self.changed) / 2


@frozen
class EpochDiagnosis(Subject):
    """An epoch that is through."""

    epoch: int
    held_out: tuple[HeldOutChange, ...]
    shown: Names  # spare held-out problems that the next step reads
    causes: tuple[Cause, ...]


def find_causes(symptoms: Mapping[str, int], settings: JsonMapping) -> tuple[Cause, ...]:
    """Return what the rules find in the symptoms of an epoch, practised with these settings."""
    tokens, causes = settings.get("policy.max_tokens"), []
    limit = f"{tokens} tokens" if tokens else "the endpoint's own"
    for rule in RULES:
        n, of = symptoms.get(rule.count, 0), symptoms.get(rule.of, 0)
        if n and n >= rule.share * of:
            causes.append(Cause(rule.count, n, of, rule.text.format(limit=limit), rule.fix))
    return tuple(causes)


def nothing_read_text(groups: Mapping[GroupOutcome, int], settings: JsonMapping) -> str:
    """Say why no group was read for lessons, and what to change; "" where one was.

    `groups` are those of a step or a run, `settings` those that it was practised with.
    """
    n = sum(groups.values())
    if not n or groups.get("used") or groups.get("critique"):
        return ""
    counts = [f"{m} of {n} groups {name.replace('-', ' ')}" for name, m in groups.items() if m]
    unread = _OFF if settings.get(_LIMIT) == 0 else _SILENT
    moves: dict[GroupOutcome, str] = {
        "all-wrong": unread,
        "all-equal": unread,
        "all-right": "where all tries are right there is nothing to learn: give harder problems",
        "unjudged": "the verifier had no opinion on any try of a group: look at it",
        "failed": "what failed stands under what was lost",
    }
    reasons = dict.fromkeys(move for name, move in moves.items() if groups.get(name))
    return f"nothing was read: {', '.join(counts)}; {'; '.join(reasons)}"


def epoch_diagnoses(state: RunState) -> tuple[EpochDiagnosis, ...]:
    """Return the diagnosis of each epoch that is through."""
    each = (diagnose_epoch(state, step) for step in state.steps)
    return tuple(diagnosis for diagnosis in each if diagnosis)


def diagnose_epoch(state: RunState, last: int) -> EpochDiagnosis | None:
    """Diagnose the epoch that ends with this step; None where none does, or it is not through."""
    end, started = state.steps.get(last), state.started
    if end is None or started is None or not end.finished or last % started.steps_per_epoch:
        return None
    before = (state.steps[number] for number in range(last, 0, -1) if number in state.steps)
    steps = [*takewhile(lambda step: step.epoch == end.epoch, before)][::-1]
    measured = [evaluation for evaluation in state.evaluations if evaluation.step <= last]
    symptoms = sum((step.symptoms for step in steps), Counter[str]())
    return EpochDiagnosis(
        epoch=end.epoch,
        held_out=tuple(
            _held_out_change(state, d) for d in verdict.diagnose(measured, steps[0].step - 1)
        ),
        shown=tuple(spare.tries[0][0].problem for spare in state.shown if spare.step == last),
        causes=find_causes(symptoms, state.settings),
    )


def _held_out_change(state: RunState, diagnosis: verdict.HeldOutDiagnosis) -> HeldOutChange:
    learned = learned_by(state)
    before, after = (evaluation_facts(e, learned) for e in (diagnosis.before, diagnosis.after))
    names = (name for change in verdict.CHANGES[:2] for name in diagnosis.questions(change))
    return HeldOutChange(
        data=after.data,
        from_step=before.step,
        to_step=after.step,
        versions=f"{before.version} -> {after.version}",
        k=diagnosis.after.k,
        counts={change: len(diagnosis.questions(change)) for change in verdict.CHANGES},
        changed=tuple((name, *diagnosis.means[name]) for name in names),
        comparison=diagnosis.comparison,
        is_same_version=before.version == after.version,
    )
