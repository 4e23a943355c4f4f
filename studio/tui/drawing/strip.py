"""The progress of a run in two lines, to stand above its rollouts. Pure."""

from __future__ import annotations

from studio.report.curves import RunCurves, held_out_change_text
from studio.report.rates import reward_rate_text
from studio.report.training import sparkline
from studio.secrets.sanitize import one_line
from studio.tui.drawing.lines import Line, crop_line, line, spread

_MOST_BARS = 60


def strip_lines(curves: RunCurves, width: int) -> list[Line]:
    """The reward of each step as bars with the last one and its n; below it the held-out sets."""
    name, points = curves.practice.name, curves.practice.points
    text = "no step is through yet"
    if points:
        of = f"step {points[-1].step} of {curves.steps_planned}"
        text = f"{reward_rate_text(points[-1].value, points[-1].n)}, {of}"
    room = min(_MOST_BARS, width - len(f" {name}  {text}"))
    high = 1.0 if curves.practice.unit == "reward" else None
    bars = sparkline([point.value for point in points], room, low=0.0, high=high)
    first = crop_line(line((f" {name} ", "title"), (bars, "bar"), f" {text}"), width)
    measured = "; ".join(held_out_change_text(series) for series in curves.held_out)
    left = line((f" held out {one_line(measured, 400)}", "approved"))
    if not measured:
        left = line((" held out: not measured", "dim"))
    changed = [commit for commit in curves.commits if commit.outcome == "applied"]
    right = "7 shows more "
    if changed:
        kind = "policy" if curves.trains_weights else "library"
        count = f"{len(changed)} commit{'s' * (len(changed) != 1)}"
        right = f"  {kind} v{changed[-1].version}, {count}  {right}"
    return [first, spread(left, line((right, "dim")), width)]
