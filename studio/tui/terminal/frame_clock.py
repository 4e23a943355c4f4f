"""The one beat at which streams are drawn, and the way of the pacer into Textual's driver.

Nothing else may draw streams; keys never wait for it.
"""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from textual.messages import TerminalSupportsSynchronizedOutput

from studio.tui.terminal.frames import ScreenBuffer, compact_update

if TYPE_CHECKING:
    from textual.app import App
    from textual.message import Message

    from studio.tui.drawing.canvas import StreamCanvas


PROBE = "\x1b[?2026$p"
"""Asks the terminal whether synchronized output is on; it answers once all before is drawn."""
BEAT_S = 0.1
_HEADS_EVERY = 5
"""Beats between two drawings of the counts in titles: each costs as much as the text."""


_ENTER = "\x1b[?1049h"


class FrameClock:
    """Drains what came and flushes the canvases, once a beat.

    Without a `pacer` nothing limits what is sent; `queued` says whether bytes written before have
    not left the process; `probe` asks the terminal.
    """

    def __init__(
        self,
        *,
        low_bandwidth: bool = False,
        pacer: "Pacer | None" = None,
        queued: Callable[[], bool] = lambda: False,
        probe: Callable[[], None] = lambda: None,
        unpaced: str = "",
    ) -> None:
        self.low_bandwidth = low_bandwidth
        self.pacer = pacer
        self.written = 0  # bytes, all of them
        self.held = 0  # beats at which nothing was drawn for want of budget
        self.buffer = ScreenBuffer()
        self.canvases: list[StreamCanvas] = []
        self._queued, self._probe, self._unpaced = queued, probe, unpaced
        self._drains: list[Callable[[], None]] = []
        self._beats = 0
        self._idle = False

    @property
    def link_text(self) -> str:
        """What the line to the terminal carries, in words; "" where nothing is known."""
        return str(self.pacer) if self.pacer is not None else self._unpaced

    def add_drain(self, drain: Callable[[], None]) -> None:
        """Call this at every beat, before canvases are flushed."""
        self._drains.append(drain)

    def watch(self, canvas: "StreamCanvas") -> None:
        if canvas not in self.canvases:
            self.canvases.append(canvas)

    def unwatch(self, canvas: "StreamCanvas") -> None:
        if canvas in self.canvases:
            self.canvases.remove(canvas)

    def beat(self) -> None:
        """What the timer calls: a tick, or at low bandwidth every other time one."""
        self._idle = self.low_bandwidth and not self._idle
        if not self._idle:
            self.tick()

    def tick(self) -> None:
        self._beats += 1
        for drain in self._drains:
            drain()
        shown = [canvas for canvas in self.canvases if canvas.is_on_screen and canvas.is_dirty]
        heads = self._beats % _HEADS_EVERY == 0
        if self.pacer is None:
            for canvas in shown:
                canvas.flush(heads=heads)
        elif shown:
            budget = self.pacer.allowed_bytes(time.monotonic(), queued=self._queued())
            self.held += budget <= 0
            while shown and budget > 0:
                budget -= shown.pop(0).flush(budget, heads=heads)
                if budget <= 0:
                    self.pacer.mark_limited()

    def record_written(self, size: int) -> None:
        self.written += size
        if self.pacer is not None:
            self.pacer.record_sent(size, time.monotonic())

    def probe_if_due(self) -> None:
        """An update was written: a probe behind it tells when the terminal has it."""
        if self.pacer is not None and self.pacer.wants_probe:
            self.pacer.record_probe(time.monotonic())
            self._probe()

    def record_answer(self) -> None:
        if self.pacer is not None:
            self.pacer.record_answer(time.monotonic())


def install_frame_clock(
    app: "App[Any]", environ: Mapping[str, str], *, low_bandwidth: bool = False
) -> FrameClock:
    """Give an app its clock (`app.frame_clock`); call it once, when the app is mounted.

    Without a terminal (tests) there is only the beat. Inside tmux no line can be measured, for
    it answers at once: here nothing is paced, and over SSH by a fixed budget.
    """
    driver: Any = app._driver
    if app.is_headless or driver is None or not hasattr(driver, "_writer_thread"):
        clock = FrameClock(low_bandwidth=low_bandwidth)
    else:
        clock = _make_paced_clock(app, driver, environ, low_bandwidth)
    app.frame_clock = clock  # type: ignore[attr-defined]
    for canvas in app.query("StreamCanvas"):  # mounted before the app was
        clock.watch(cast("StreamCanvas", canvas))
    app.set_interval(BEAT_S, clock.beat, name="clock")
    return clock


def _make_paced_clock(
    app: "App[Any]", driver: Any, environ: Mapping[str, str], low_bandwidth: bool
) -> FrameClock:
    write = driver.write
    inside_tmux = bool(environ.get("TMUX"))
    # Apple's Terminal prints the probe's last letter (see `LinuxDriver`).
    silent = environ.get("TERM_PROGRAM") == "Apple_Terminal" or not driver.input_tty
    why = "link not paced: tmux does that" if inside_tmux else "link not measured"

    pacer: Pacer | None = None
    if inside_tmux and environ.get("SSH_CONNECTION"):
        # tmux hides the line and keeps for it what it cannot carry: streams before keys.
        pacer = Pacer(time.monotonic(), rate=UNSEEN_BYTES_PER_S, fixed=True)
    elif not (inside_tmux or silent):
        pacer = Pacer(time.monotonic())

    def has_queued_output() -> bool:
        writer = driver._writer_thread
        return writer is not None and not writer._queue.empty()

    clock = FrameClock(
        low_bandwidth=low_bandwidth,
        pacer=pacer,
        queued=has_queued_output,
        probe=lambda: write(PROBE),
        unpaced=why,
    )

    def write_and_count(data: str) -> None:
        write(data)
        if _ENTER in data:  # a page of its own, which begins empty: also after ctrl+z, or an editor
            clock.buffer.forget()
        clock.record_written(len(data) if data.isascii() else len(data.encode("utf-8", "replace")))

    process = driver.process_message

    def handle_terminal_message(message: "Message") -> None:
        if isinstance(message, TerminalSupportsSynchronizedOutput):
            clock.record_answer()
        process(message)

    display = app._display

    def display_compact(screen: Any, renderable: Any) -> None:
        before = clock.written
        display(screen, compact_update(renderable, clock.buffer, app.size))
        if clock.written != before:
            clock.probe_if_due()

    # On the objects, not their classes: other apps of the process keep theirs.
    driver.write, driver.process_message = write_and_count, handle_terminal_message
    app._display = display_compact  # type: ignore[method-assign]
    return clock


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
