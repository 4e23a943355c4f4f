"""All that is told of an epoch: what it did to the held-out problems, and what held it back."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from engines.core.state.run_state import RunState
from engines.core.types import GroupOutcome
from engines.pipeline.evaluation.statistics import (
    CHANGES,
    Change,
    Comparison,
    HeldOutDiagnosis,
    diagnose,
)
from studio.facts.evaluation import evaluation_facts, learned_by
from studio.facts.subject import LIFTED, Subject

_LIMIT = "practice.read_without_contrast"
_OFF = f"{_LIMIT}=0 leaves groups without a good try unread: set it above 0"
_SILENT = (
    "where no try is good nothing says why: give a verifier with a critique, data with answers, "
    "easier problems, or more tries (practice.group_size)"
)


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Cause(Subject):
    """A rule that fits: `n` of `of` show it."""

    name: str
    n: int
    of: int
    text: str
    fix: str


@dataclass(frozen=True, slots=True)
class HeldOutChange(Subject):
    """One held-out set over an epoch."""

    data: str
    from_step: int
    to_step: int
    versions: str
    k: int
    counts: Mapping[Change, int]
    changed: tuple[tuple[str, float, float], ...]  # problem, mean before and after
    comparison: Comparison = field(metadata=LIFTED)
    is_same_version: bool  # then no difference is an effect

    @property
    def worse_by_luck(self) -> float:
        """The problems that would be worse if luck alone had changed them: half of them."""
        return len(self.changed) / 2


@dataclass(frozen=True, slots=True)
class EpochDiagnosis(Subject):
    """An epoch that is through."""

    epoch: int
    held_out: tuple[HeldOutChange, ...]
    shown: tuple[str, ...]  # spare held-out problems that the next step reads
    causes: tuple[Cause, ...]


def find_causes(symptoms: Mapping[str, int], settings: Mapping[str, Any]) -> tuple[Cause, ...]:
    """Return what the rules find in the symptoms of an epoch, practised with these settings."""
    tokens, causes = settings.get("policy.max_tokens"), []
    limit = f"{tokens} tokens" if tokens else "the endpoint's own"
    for rule in RULES:
        n, of = symptoms.get(rule.count, 0), symptoms.get(rule.of, 0)
        if n and n >= rule.share * of:
            causes.append(Cause(rule.count, n, of, rule.text.format(limit=limit), rule.fix))
    return tuple(causes)


def nothing_read_text(groups: Mapping[GroupOutcome, int], settings: Mapping[str, Any]) -> str:
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
        held_out=tuple(_held_out_change(state, d) for d in diagnose(measured, steps[0].step - 1)),
        shown=tuple(spare.tries[0][0].problem for spare in state.shown if spare.step == last),
        causes=find_causes(symptoms, state.settings),
    )


def _held_out_change(state: RunState, diagnosis: HeldOutDiagnosis) -> HeldOutChange:
    learned = learned_by(state)
    before, after = (evaluation_facts(e, learned) for e in (diagnosis.before, diagnosis.after))
    names = (name for change in CHANGES[:2] for name in diagnosis.questions(change))
    return HeldOutChange(
        data=after.data,
        from_step=before.step,
        to_step=after.step,
        versions=f"{before.version} -> {after.version}",
        k=diagnosis.after.k,
        counts={change: len(diagnosis.questions(change)) for change in CHANGES},
        changed=tuple((name, *diagnosis.means[name]) for name in names),
        comparison=diagnosis.comparison,
        is_same_version=before.version == after.version,
    )
