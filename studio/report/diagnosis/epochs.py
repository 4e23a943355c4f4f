"""What each epoch did to the held-out problems, and what held it back: facts, then lines. Pure."""

from __future__ import annotations

from collections import Counter
from itertools import takewhile
from typing import Any

from engines.core.state.run_state import RunState
from engines.pipeline.evaluation.diagnosis import CHANGES, HeldOutDiagnosis, diagnose
from studio.report.diagnosis.causes import find_causes
from studio.report.rates import comparison_data, difference_text, version_text
from studio.secrets.sanitize import one_line

_MOST_NAMED = 5


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


def diagnosis_title(facts: dict[str, Any]) -> str:
    return f"epoch {facts['epoch']}: what changed, and what held it back"


def diagnosis_lines(facts: dict[str, Any]) -> list[str]:
    """What one epoch's facts say: a line for each set, its worsened problems, and each cause.

    If luck alone changed them, each could as well have gone the other way: half would be worse.
    """
    lines = []
    for found in facts["held_out"]:
        counts = ", ".join(f"{n} {name}" for name, n in found["counts"].items())
        n = len(found["changed"])
        luck = f" (by luck alone {found['worse_by_luck']:g} of the {n} would be worse)" if n else ""
        head = f"{one_line(found['data'], 80)} {found['versions']}: {found['text']}"
        lines.append(f"{head}: {counts}{luck}")
        worse = [f"{name} {a:.2f} -> {b:.2f}" for name, a, b in found["changed"] if b < a]
        more = f" and {len(worse) - _MOST_NAMED} more" if len(worse) > _MOST_NAMED else ""
        if worse:
            lines.append(f"  worsened (k={found['k']}): {', '.join(worse[:_MOST_NAMED])}{more}")
    if shown := facts["shown"]:
        said = "of those set apart got worse and are read in the next step"
        lines.append(f"{len(shown)} {said}: {', '.join(shown)}")
    return lines + ["{n} of {of} {text}: {fix}".format(**cause) for cause in facts["causes"]]
