"""How fast the line to the terminal is: a question in the stream of output, and its answer.

The terminal answers once all before the question was drawn, so what stood before it was carried in
the time that the answer takes longer.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from studio.workspace.checks.finding import Finding

PROBE = "\x1b[?2026$p"
"""Asks whether synchronized output is on; Textual asks the same once, at the beginning."""
_SIZES = (0, 1_000, 16_000, 128_000)
"""Bytes that go before the question, more as long as they take no time that can be measured."""
_MEASURABLE_S = 0.05
_WAIT_S = 1.5
_NOTHING = b"\x1b[0m"  # changes no cell
_WIPE = b"\r\x1b[K"  # of what a terminal that does not know the question drew of it
_SLOW_BYTES_PER_S = 8_000.0  # at which the screen's own budget begins


@dataclass(frozen=True, slots=True)
class Link:
    """What the line carries; `is_more`: it was too fast to be measured."""

    rtt_s: float
    bytes_per_s: float
    is_more: bool


def measure_link(
    keys: int, screen: int, clock: Callable[[], float] = time.monotonic
) -> Link | None:
    """Ask the terminal at these two open files; None: it does not answer. What is typed is lost."""
    import termios
    import tty

    if _is_background(keys):
        return None  # asking would stop this process
    before = termios.tcgetattr(keys)
    try:
        tty.setcbreak(keys, termios.TCSANOW)
        rtt = None
        for size in _SIZES:
            began = clock()
            _write(screen, _NOTHING * (size // len(_NOTHING)) + PROBE.encode() + _WIPE)
            if not _await_answer(keys):
                # The first was answered: then the line is so slow that this one is under way.
                return None if rtt is None else Link(rtt, size / _WAIT_S, False)
            took = clock() - began
            if rtt is None:
                rtt = took
            elif took - rtt > _MEASURABLE_S or size == _SIZES[-1]:
                more = max(took - rtt, 0.001)
                return Link(rtt, size / more, took - rtt <= _MEASURABLE_S)
        return None
    finally:
        termios.tcsetattr(keys, termios.TCSAFLUSH, before)


def _is_background(keys: int) -> bool:
    try:
        return os.tcgetpgrp(keys) != os.getpgrp()
    except OSError:  # it controls no process
        return False


def _write(screen: int, data: bytes) -> None:
    while data:
        data = data[os.write(screen, data) :]


def _await_answer(keys: int) -> bool:
    until, came = time.monotonic() + _WAIT_S, b""
    while b"$y" not in came:
        left = until - time.monotonic()
        if left <= 0 or not select.select([keys], [], [], left)[0]:
            return False
        if not (more := os.read(keys, 1000)):
            return False
        came += more
    return True


def link_findings(
    environ: Mapping[str, str], missing: object, measure: Callable[[], Link | None]
) -> list[Finding]:
    """What the line carries; `missing` where there is no terminal."""
    between = "tmux" if environ.get("TMUX") else "screen" if environ.get("STY") else ""
    if missing or between:
        why = f"{between} answers in the terminal's place" if between else "there is no terminal"
        return [Finding("ok", "link", f"not measured: {why}.")]
    if (link := measure()) is None:
        return [Finding("ok", "link", "not measured: the terminal does not answer.")]
    speed = f"{'over ' if link.is_more else ''}{link.bytes_per_s / 1000:,.0f} KB/s"
    text = f"{speed}, round trip {link.rtt_s * 1000:.0f} ms."
    if link.bytes_per_s >= _SLOW_BYTES_PER_S:
        return [Finding("ok", "link", text)]
    move = "The screen draws less then; `screen.low_bandwidth` halves it again."
    return [Finding("note", "link", text, move)]
