"""TODO."""

from __future__ import annotations

from typing import Any

from studio.secrets.sanitize import one_line

_MOST_NAMED = 5


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
