"""The diagnosis of an epoch as lines."""

from __future__ import annotations

from studio.facts.epoch import EpochDiagnosis, HeldOutChange
from studio.render.words import difference_text
from studio.secrets.sanitize import one_line

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
