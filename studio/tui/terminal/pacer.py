"""How much may be sent to a terminal now: a budget of bytes that follows the line.

A terminal's answer to a question in the stream of output comes when all before it was drawn, so
the time it takes tells how much is under way. Times are seconds of any monotonic clock.
"""

from __future__ import annotations

START_BYTES_PER_S = 8_000.0
LEAST_BYTES_PER_S = 1_000.0
UNSEEN_BYTES_PER_S = 6_000.0
"""For a line that nobody can measure: half of what a slow one (16 KB/s) carries, as tmux sends
some bytes of its own with each change."""
MOST_BYTES_PER_S = 4_000_000.0
SLOW_S = 0.120
"""A probe slower than the fastest one by this much means that too much is under way."""
HOLD_S = 0.150
"""After this long without an answer nothing but keys and reviews draws."""
GIVE_UP_S = 5.0
"""A probe that is never answered is forgotten: it may have been lost with a terminal's reset."""
_EARLY, _STEADY, _BACK_OFF = 1.5, 1.05, 0.7
_SHARE_S = 0.1
"""A frame gets what the line carries in this time; two may come at once after a pause."""
_FORGET_S = 60.0
"""The fastest probe counts so long: a line may become slower for good."""


class Pacer:
    """A token bucket in bytes whose rate follows probes, or stays where it is `fixed`.

    Frames of streams ask `allowed_bytes`; keys and reviews do not, but what they send counts.
    """

    def __init__(self, now: float, *, rate: float = START_BYTES_PER_S, fixed: bool = False) -> None:
        self.rate = rate
        self.fixed = fixed
        self.rtt_s: float | None = None  # of the last probe that was answered
        self._tokens = rate * _SHARE_S
        self._at = now
        self._asked: float | None = None  # when the probe under way was sent
        self._fastest: tuple[float, float] | None = None  # seconds, and when that was
        self._early = True  # no probe was slow yet
        self._limited = False  # the budget, not the streams, ended a frame since the last probe
        self._lost = 0

    @property
    def is_unresponsive(self) -> bool:
        """Whether it was asked and never answered: then nothing is held back for it."""
        return self.rtt_s is None and self._lost > 0

    def record_sent(self, size: int, now: float) -> None:
        self._refill(now)
        # A page that is drawn anew may cost a second of streams, and not more.
        self._tokens = max(self._tokens - size, -self.rate)

    def allowed_bytes(self, now: float, *, queued: bool) -> int:
        """Bytes a frame of streams may take; 0: it waits, as it does while bytes are `queued`."""
        self._refill(now)
        if queued:
            return 0
        if self.is_unresponsive:
            return int(self.rate)
        if self._asked is not None:
            waited = now - self._asked
            if waited > GIVE_UP_S:
                self._asked = None
                self._lost += 1
            elif waited > (self._fastest[0] if self._fastest else 0.0) + HOLD_S:
                self._limited = True
                return 0
        if self._tokens <= 0:
            self._limited = True
            return 0
        return max(1, int(self._tokens))

    def mark_limited(self) -> None:
        """A frame left something out for want of budget: a higher rate would be used."""
        self._limited = True

    @property
    def wants_probe(self) -> bool:
        return self._asked is None and not self.is_unresponsive and not self.fixed

    def record_probe(self, now: float) -> None:
        """A probe was written after all that came before."""
        self._asked = now

    def record_answer(self, now: float) -> None:
        """The terminal answered; an answer nobody waits for is none of ours."""
        if self._asked is None:
            return
        rtt, self._asked = max(0.0, now - self._asked), None
        self.rtt_s = rtt
        if self._fastest is None or rtt < self._fastest[0] or now - self._fastest[1] > _FORGET_S:
            self._fastest = (rtt, now)
        if rtt > self._fastest[0] + SLOW_S:
            self._early = False
            self.rate = max(LEAST_BYTES_PER_S, self.rate * _BACK_OFF)
        elif self._limited:
            faster = _EARLY if self._early else _STEADY
            self.rate = min(MOST_BYTES_PER_S, self.rate * faster)
        self._limited = False

    def _refill(self, now: float) -> None:
        passed, self._at = max(0.0, now - self._at), max(now, self._at)
        self._tokens = min(self._tokens + self.rate * passed, self.rate * _SHARE_S * 2)

    def __str__(self) -> str:
        """Such as `link 16 KB/s, RTT 40 ms`."""
        if self.fixed:
            return f"link not measured behind tmux: {self.rate / 1000:.0f} KB/s of streams at most"
        if self.is_unresponsive:
            return "link not measured: the terminal does not answer"
        if self.rtt_s is None:
            return "link …"
        return f"link {self.rate / 1000:.0f} KB/s, RTT {self.rtt_s * 1000:.0f} ms"
