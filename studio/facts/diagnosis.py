"""What each epoch did to the held-out problems, and what held it back: facts, then lines. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from engines.core.state.run_state import RunState
from engines.core.types import GroupOutcome
from engines.pipeline.evaluation.diagnosis import CHANGES, HeldOutDiagnosis, diagnose
from studio.facts.evaluation import comparison_data
from studio.render.evaluation_lines import version_text
from studio.render.words import difference_text

_LIMIT = "practice.read_without_contrast"
_OFF = f"{_LIMIT}=0 leaves groups without a good try unread: set it above 0"
_SILENT = (
    "where no try is good nothing says why: give a verifier with a critique, data with answers, "
    "easier problems, or more tries (practice.group_size)"
)


@dataclass(frozen=True, slots=True)
class Rule:
    """A cause of little gain, told where at least one and `share` of all show it."""

    count: str  # a name of `engines.core.state.symptoms`
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


def find_causes(symptoms: Mapping[str, int], settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the rules find in the summed symptoms of an epoch, practised with these settings."""
    tokens, found = settings.get("policy.max_tokens"), []
    limit = f"{tokens} tokens" if tokens else "the endpoint's own"
    for rule in RULES:
        n, of = symptoms.get(rule.count, 0), symptoms.get(rule.of, 0)
        if n and n >= rule.share * of:
            said = {"text": rule.text.format(limit=limit), "fix": rule.fix}
            found.append({"name": rule.count, "n": n, "of": of, **said})
    return found


def nothing_read_text(groups: Mapping[GroupOutcome, int], settings: Mapping[str, Any]) -> str:
    """Why no group was read for lessons, and what to change; "" where one was.

    `groups` are those of a step or a run, `settings` those that it was practised with.
    """
    n = sum(groups.values())
    if not n or groups.get("used") or groups.get("critique"):
        return ""
    said = ", ".join(
        f"{m} of {n} groups {name.replace('-', ' ')}" for name, m in groups.items() if m
    )
    unread = _OFF if settings.get(_LIMIT) == 0 else _SILENT
    moves: dict[GroupOutcome, str] = {
        "all-wrong": unread,
        "all-equal": unread,
        "all-right": "where all tries are right there is nothing to learn: give harder problems",
        "unjudged": "the verifier had no opinion on any try of a group: look at it",
        "failed": "what failed stands under what was lost",
    }
    why = dict.fromkeys(move for name, move in moves.items() if groups.get(name))
    return f"nothing was read: {said}; {'; '.join(why)}"


def epoch_diagnoses(state: RunState) -> list[dict[str, Any]]:
    """Of each epoch that is through, as plain JSON values."""
    return [found for step in state.steps if (found := diagnose_epoch(state, step))]


def last_diagnosis(state: RunState) -> dict[str, Any] | None:
    every = (diagnose_epoch(state, step) for step in reversed(state.steps))
    return next((found for found in every if found), None)


def diagnose_epoch(state: RunState, last: int) -> dict[str, Any] | None:
    """Of the epoch that ends with this step; None where none does, or it is not through."""
    end, started = state.steps.get(last), state.started
    if end is None or started is None or not end.finished or last % started.steps_per_epoch:
        return None
    before = (state.steps[number] for number in range(last, 0, -1) if number in state.steps)
    steps = [*takewhile(lambda one: one.epoch == end.epoch, before)][::-1]
    measured = [found for found in state.evaluations if found.step <= last]
    symptoms = sum((step.symptoms for step in steps), Counter[str]())
    return {
        "epoch": end.epoch,
        "held_out": [_held_out_facts(state, one) for one in diagnose(measured, steps[0].step - 1)],
        "shown": [one.tries[0][0].problem for one in state.shown if one.step == last],
        "causes": find_causes(symptoms, state.settings),
    }


def _held_out_facts(state: RunState, found: HeldOutDiagnosis) -> dict[str, Any]:
    changed = [(name, *found.means[name]) for c in CHANGES[:2] for name in found.questions(c)]
    versions = [version_text(state, one) for one in (found.before, found.after)]
    verdict = "the same" if versions[0] == versions[1] else found.comparison.verdict
    return {
        "data": found.after.data,
        "from_step": found.before.step,
        "to_step": found.after.step,
        "versions": " -> ".join(versions),
        "k": found.after.k,
        "counts": {change: len(found.questions(change)) for change in CHANGES},
        "worse_by_luck": len(changed) / 2,
        "changed": changed,
        "text": f"{verdict}, {difference_text(found.comparison)}",
        **(comparison_data(found.comparison) or {}),
    }
