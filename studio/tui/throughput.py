"""How fast a run goes, in tokens a second; in seconds of any monotonic clock."""

from collections import deque
from collections.abc import Iterable
from itertools import islice

from engines.core.state.run_state import RunState, StepState
from engines.core.text.tool_text import said_length
from studio.report.progress import StepClock
from studio.session.session import TextPiece

_WINDOW_S = 10.0


class Throughput:
    """Takes events and pieces of text; answers for the header."""

    def __init__(self) -> None:
        self.steps = StepClock()
        self._step: StepState | None = None
        self._number, self._has_looked = 0, False
        self._counted = 0  # rollouts of it that were seen
        self._since: float | None = None  # when something was heard first
        self._known: dict[str, int] = {}  # rollout → characters
        self._chars: deque[tuple[float, int]] = deque()
        # When rollouts ended, their tokens, and the seconds these took.
        self._ended: deque[tuple[float, int, float]] = deque()

    def update(self, state: RunState, now: float) -> None:
        """Look at what has ended since the last look."""
        self._since = now if self._since is None else self._since
        self.steps.update(state, now)
        step = state.current
        if step is not self._step or not self._has_looked:
            # What had ended before the first look, or in a gap, says nothing of how fast it goes.
            is_next = self._has_looked and (step is None or step.step != self._number)
            self._counted = 0 if is_next or step is None else len(step.rollouts)
            self._step, self._has_looked = step, True
            self._number = step.step if step is not None else 0
            self._known.clear()
        if step is None:
            return
        if state.live.stage_name == "review":
            self._chars.clear()
            self._ended.clear()
        # One that failed and is rolled out again leaves its place and comes last.
        for rollout in islice(step.rollouts.values(), self._counted, None):
            self._ended.append((now, rollout.usage.completion_tokens, rollout.elapsed_s))
        self._counted = len(step.rollouts)

    def add_pieces(self, pieces: Iterable[TextPiece], now: float) -> None:
        """Count what grew. A text that is sent from its beginning may be an old one."""
        self._since = now if self._since is None else self._since
        chars = 0
        for piece in pieces:
            if piece.offset and piece.offset == self._known.get(piece.rollout):
                chars += said_length(piece.text)
            self._known[piece.rollout] = piece.offset + len(piece.text)
        if chars:
            self._chars.append((now, chars))

    def tokens_per_s(self, now: float) -> float | None:
        """Of the last ten seconds, or as long as was looked at; None: nothing came."""
        rates = self._rates(now)
        return max(rates) or None

    def is_shown_only(self, now: float) -> bool:
        """Whether that is the rate of the panes in view: no rollout has ended to tell of all."""
        shown, ended = self._rates(now)
        return shown > ended

    def _rates(self, now: float) -> tuple[float, float]:
        """Tokens a second of the texts in view (four characters each), and of what ended.

        A screen is sent the text of those rollouts only that it shows.
        """
        seen: deque[tuple[float, int]] | deque[tuple[float, int, float]]
        for seen in (self._chars, self._ended):
            while seen and seen[0][0] < now - _WINDOW_S:
                seen.popleft()
        begun = self._since if self.steps.began is None else self.steps.began
        observed_s = min(_WINDOW_S, max(1.0, now - begun if begun is not None else 0.0))
        start = now - observed_s
        visible = sum(chars for at, chars in self._chars if at >= start) / 4
        # Of a rollout that began before, as much as was made while it was looked at.
        ended = sum(
            tokens * min(1.0, (at - start) / took_s) if took_s > 0 else tokens
            for at, tokens, took_s in self._ended
            if at >= start
        )
        return visible / observed_s, ended / observed_s
