"""The one beat at which streams are drawn, and the way of the pacer into Textual's driver.

Nothing else may draw streams; keys never wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from textual.messages import TerminalSupportsSynchronizedOutput

from studio.tui.terminal.frames import ScreenBuffer, compact_update
from studio.tui.terminal.pacer import UNSEEN_BYTES_PER_S, Pacer
from studio.workspace.checks.link import PROBE

if TYPE_CHECKING:
    from textual.app import App
    from textual.message import Message

    from studio.tui.drawing.canvas import StreamCanvas

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
        pacer: Pacer | None = None,
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

    def watch(self, canvas: StreamCanvas) -> None:
        if canvas not in self.canvases:
            self.canvases.append(canvas)

    def unwatch(self, canvas: StreamCanvas) -> None:
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
    app: App[Any], environ: Mapping[str, str], *, low_bandwidth: bool = False
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
    app: App[Any], driver: Any, environ: Mapping[str, str], low_bandwidth: bool
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

    def handle_terminal_message(message: Message) -> None:
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
