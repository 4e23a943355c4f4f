"""The lines above the rollouts that say how far practice has come."""

from __future__ import annotations

from engines.core.state.run_state import RunState
from studio.report.curves import RunCurves, curves_key, held_out_change_text, run_curves
from studio.report.rates import reward_rate_text
from studio.report.training import sparkline
from studio.secrets.sanitize import one_line
from studio.tui.drawing.lines import Line, crop_line, line, spread
from studio.tui.widgets.chrome import Chrome


class ProgressStrip(Chrome):
    """Two rows where there is room, one on a low screen, none on a very low one."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._known: tuple[tuple[object, ...], RunCurves] | None = None

    def draw(self, state: RunState | None, *, has_room: bool = True) -> None:
        """Show a run; its curves are made anew only after a step or an evaluation."""
        size = self.app.size
        rows = 2 if size.height >= 30 else 1 if size.height >= 20 else 0
        runs = state is not None and state.started and not state.curates
        self.display = bool(runs and rows and has_room)
        self.styles.height = max(1, rows)
        if state is None or not self.display:
            return
        key = curves_key(state)
        if self._known is None or self._known[0] != key:
            self._known = (key, run_curves(state))
        for number, each in enumerate(strip_lines(self._known[1], size.width)[:rows]):
            self.show_line(number, each)


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
    applied = [commit for commit in curves.commits if commit.outcome == "applied"]
    changed = [commit for commit in applied if not commit.beside_weights]
    right = "7 shows more "
    if changed:
        kind = "policy" if curves.trains_weights else "library"
        count = f"{len(changed)} commit{'s' * (len(changed) != 1)}"
        right = f"  {kind} v{changed[-1].version}, {count}  {right}"
    return [first, spread(left, line((right, "dim")), width)]
