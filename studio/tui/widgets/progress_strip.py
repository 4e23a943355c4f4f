"""The lines above the rollouts that say how far practice has come."""

from __future__ import annotations

from engines.core.state.run_state import RunState
from studio.report.curves import RunCurves, curves_key, run_curves
from studio.tui.drawing.strip import strip_lines
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
        self.display = bool(state is not None and state.started and rows and has_room)
        self.styles.height = max(1, rows)
        if state is None or not self.display:
            return
        key = curves_key(state)
        if self._known is None or self._known[0] != key:
            self._known = (key, run_curves(state))
        for number, each in enumerate(strip_lines(self._known[1], size.width)[:rows]):
            self.show_line(number, each)
