"""For how long a run does what a page says it does."""

from __future__ import annotations

from studio.tui.drawing.lines import Line, plain_text

_LEAST_S = 1.0


class StageClock:
    """Times the sentence that is shown: one that ends in an ellipsis says what goes on."""

    def __init__(self) -> None:
        self._said, self._since = "", 0.0

    @property
    def is_running(self) -> bool:
        return self._said.endswith("…")

    def add_time(self, shown: Line, now: float) -> Line:
        """The sentence with its seconds so far, if it is one that takes time."""
        said = plain_text(shown).rstrip()
        if said != self._said:
            self._said, self._since = said, now
        if not self.is_running or now - self._since < _LEAST_S:
            return shown
        from studio.report.step_clock import duration_text

        return (*shown, (f" {duration_text(now - self._since)}", ""))
