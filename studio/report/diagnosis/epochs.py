"""What each epoch did to the held-out problems, and what held it back: facts, then lines. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from engines.core.state.run_state import RunState
from engines.pipeline.evaluation.diagnosis import CHANGES, HeldOutDiagnosis, diagnose
from studio.report.diagnosis.causes import Cause, find_causes
from studio.report.rates import comparison_data, difference_text, versions_text
from studio.secrets.sanitize import one_line

_MOST_NAMED = 5


def epoch_diagnoses(state: RunState) -> list[dict[str, Any]]:
    """Of each epoch whose last step is through, as plain JSON values; the latest comes last."""
    spans: dict[int, list[int]] = {}
    for step in state.steps.values():
        spans.setdefault(step.epoch, []).append(step.step)
    return [
        _epoch_facts(state, epoch, steps)
        for epoch, steps in spans.items()
        if state.steps[steps[-1]].finished
    ]


def _epoch_facts(state: RunState, epoch: int, steps: Sequence[int]) -> dict[str, Any]:
    measured = [found for found in state.evaluations if found.step <= steps[-1]]
    symptoms = sum((state.steps[step].symptoms for step in steps), Counter[str]())
    causes = find_causes(symptoms, state.settings)
    return {
        "epoch": epoch,
        "steps": [steps[0], steps[-1]],
        "held_out": [_held_out_facts(state, one) for one in diagnose(measured, steps[0] - 1)],
        "causes": [asdict(cause) for cause in causes],
    }


def _held_out_facts(state: RunState, found: HeldOutDiagnosis) -> dict[str, Any]:
    return {
        "data": found.after.data,
        "from_step": found.before.step,
        "to_step": found.after.step,
        "versions": versions_text(state, found.before, found.after),
        "tries": found.after.k,
        "counts": {change: len(found.questions(change)) for change in CHANGES},
        "worse_by_luck": found.worse_by_luck,
        "changed": [[name, *found.means[name]]
                    for change in CHANGES[:2] for name in found.questions(change)],
        "text": difference_text(found.comparison),
        **(comparison_data(found.comparison) or {}),
    }  # fmt: skip


def diagnosis_title(facts: dict[str, Any]) -> str:
    first, last = facts["steps"]
    return f"epoch {facts['epoch']} (steps {first} to {last}): what changed, and what held it back"


def diagnosis_lines(facts: dict[str, Any]) -> list[str]:
    """What one epoch's facts say: a line for each set, its worsened problems, and each cause."""
    lines = []
    for found in facts["held_out"]:
        counts = ", ".join(f"{n} {name}" for name, n in found["counts"].items())
        changed = len(found["changed"])
        luck = f"; by luck alone {found['worse_by_luck']:g} of the {changed} would have worsened"
        verdict = f"{found['text']}, {found['verdict']}{luck if changed else ''}"
        head = f"{one_line(found['data'], 80)} {found['versions']}"
        lines.append(f"{head}: {counts} ({verdict})")
        worse = [f"{name} {a:.2f} -> {b:.2f}" for name, a, b in found["changed"] if b < a]
        more = f" and {len(worse) - _MOST_NAMED} more" if len(worse) > _MOST_NAMED else ""
        if worse:
            tries = f"{found['tries']} {'try' if found['tries'] == 1 else 'tries'} each"
            lines.append(f"  worsened ({tries}): {', '.join(worse[:_MOST_NAMED])}{more}")
    return lines + [Cause(**cause).line for cause in facts["causes"]]
