"""Held-out evaluations as lines: rates with interval and n, differences with their verdict."""

from __future__ import annotations

from collections.abc import Sequence

from engines.core.events import EvaluationFinished
from engines.pipeline.evaluation.statistics import Rewards, mean_at_k, mean_interval
from studio.facts.epoch import EpochDiagnosis, HeldOutChange
from studio.facts.evaluation import CellFacts, ChangeFacts, EvaluationFacts, evaluation_facts
from studio.render.words import difference_text, rate_text, signs_text
from studio.secrets.sanitize import one_line


def mean_text(rewards: Rewards) -> str:
    return rate_text(mean_at_k(rewards), mean_interval(rewards))


def evaluation_text(facts: EvaluationFacts) -> str:
    """`0.310 [0.22, 0.40] (n=100)`, what could not be judged, and mean tool calls."""
    rate = rate_text(facts.mean_reward, facts.interval)
    lost = f", {facts.unjudged} unjudged" if facts.unjudged else ""
    calls = ""
    if facts.tool_calls_per_try:
        calls = f", {facts.tool_calls_per_try:.1f} tool calls a try"
    return f"{rate} (n={facts.n}){lost}{calls}{left_out_text(facts.left_out)}"


def finished_text(finished: EvaluationFinished) -> str:
    """Return the text of an evaluation as it was recorded; see `evaluation_text`."""
    return evaluation_text(evaluation_facts(finished))


def left_out_text(left_out: int) -> str:
    """Say why a result is of fewer problems than its set has; "" where it is of all."""
    return f", {left_out} apart for the reflector" if left_out else ""


def measured_line(facts: EvaluationFacts) -> str:
    where = f"{one_line(facts.data, 80)} after step {facts.step}, {facts.version}"
    return f"{where}  {evaluation_text(facts)}"


def change_line(change: ChangeFacts) -> str:
    """Say whether practice helped on one set."""
    comparison = change.comparison
    versions = f"{change.from_version} -> {change.to_version}"
    result = f"{difference_text(comparison)}, {comparison.verdict} ({signs_text(comparison)})"
    return f"{one_line(change.data, 80)} {versions}: {result}{left_out_text(change.set_aside)}"


def cell_lines(cells: Sequence[CellFacts]) -> list[str]:
    """A line for each cell: `skills  trained weights, library v1  0.881 [0.85, 0.91] (n=512)`.

    Behind them, what each of the two adds to the other alone.
    """
    width = max((len(cell.name) for cell in cells), default=0)
    lines, added = [], []
    for cell in cells:
        data, change = one_line(cell.evaluation.data, 80), cell.against_neither
        line = f"{data}  {cell.name:<{width}}  {evaluation_text(cell.evaluation)}"
        if change is not None:
            line += f"  {difference_text(change)}, {change.verdict}"
        lines.append(line)
        for name, difference in cell.against_one.items():
            added.append(f"{data}  {name}  {difference_text(difference)}, {difference.verdict}")
    return lines + added


_MOST_NAMED = 5


def diagnosis_title(diagnosis: EpochDiagnosis) -> str:
    return f"epoch {diagnosis.epoch}: what changed, and what held it back"


def diagnosis_lines(diagnosis: EpochDiagnosis) -> list[str]:
    """A line for each set, its worsened problems, and each cause."""
    lines = [line for change in diagnosis.held_out for line in _change_lines(change)]
    if names := diagnosis.shown:
        text = "of those set apart got worse and are read in the next step"
        lines.append(f"{len(names)} {text}: {', '.join(names)}")
    for cause in diagnosis.causes:
        lines.append(f"{cause.n} of {cause.of} {cause.text}: {cause.fix}")
    return lines


def _change_lines(change: HeldOutChange) -> list[str]:
    verdict = "the same" if change.is_same_version else change.comparison.verdict
    counts = ", ".join(f"{n} {name}" for name, n in change.counts.items())
    luck, n = "", len(change.changed)
    if n:
        luck = f" (by luck alone {change.worse_by_luck:g} of the {n} would be worse)"
    head = f"{one_line(change.data, 80)} {change.versions}: {verdict}"
    lines = [f"{head}, {difference_text(change.comparison)}: {counts}{luck}"]
    worse = [f"{name} {a:.2f} -> {b:.2f}" for name, a, b in change.changed if b < a]
    if worse:
        more = f" and {len(worse) - _MOST_NAMED} more" if len(worse) > _MOST_NAMED else ""
        lines.append(f"  worsened (k={change.k}): {', '.join(worse[:_MOST_NAMED])}{more}")
    return lines
