"""Frames of the screen: the beat at which streams are drawn, the pacer, updates in few bytes.

Textual 8.2.8 sends a changed part of a row from the left edge of its widget on, and its colours
with every piece; a widget that is drawn anew is sent whole. Here the cells that the terminal
shows are known, and only others are sent. Nothing else may draw streams; keys never wait for it.
"""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from rich.cells import cell_len, get_character_cell_size
from rich.color import ColorSystem
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.geometry import Size
from textual.messages import TerminalSupportsSynchronizedOutput

if TYPE_CHECKING:
    from textual.app import App
    from textual.message import Message

    from studio.tui.drawing.canvas import StreamCanvas


_RESET = "\x1b[m"
_BRIDGE = 4
"""Cells that stay and are sent all the same, where a step over them takes no less."""
_BLANKS = re.compile("( {14,})")
"""So many are shorter erased (ECH and a step) than written."""


class _Writer:
    """Text at places, with the colours that it needs."""

    def __init__(self) -> None:
        self.out: list[str] = []
        self._codes: str | None = None  # None: whatever something else may have left
        self._place: tuple[int, int] | None = None  # None where the terminal may see it otherwise

    def move(self, x: int, y: int) -> None:
        if self._place == (x, y):
            return
        if self._place is not None and self._place[1] == y and x > self._place[0]:
            self.out.append(f"\x1b[{x - self._place[0]}C")
        else:
            self.out.append(f"\x1b[{y + 1};{x + 1}H")
        self._place = (x, y)

    def write_text(self, text: str, codes: str, cells: int) -> None:
        self._set_codes(codes)
        self.out.append(text)
        if self._place is not None:
            x, y = self._place
            # A wide character may be narrow elsewhere: the next piece says its place itself.
            self._place = (x + cells, y) if text.isascii() else None

    def erase(self, cells: int) -> None:
        """Without moving."""
        self._set_codes("")
        self.out.append(f"\x1b[{cells}X")

    def finish(self) -> str:
        self._set_codes("")
        return "".join(self.out)

    def _set_codes(self, codes: str) -> None:
        if codes != (self._codes or ""):
            before = "" if self._codes == "" else "0;"
            self.out.append(f"\x1b[{before}{codes}m" if codes else _RESET)
            self._codes = codes


@lru_cache(maxsize=4096)
def _style_codes(style: Style, colors: ColorSystem | None) -> str:
    """Its numbers; the terminal's own colours need none after a reset."""
    if colors is None:
        return ""
    color, bgcolor = (
        None if one is None or one.is_default else one for one in (style.color, style.bgcolor)
    )
    return (style.without_color + Style(color=color, bgcolor=bgcolor))._make_ansi_codes(colors)


@lru_cache(maxsize=4096)
def _blank_codes(style: Style, colors: ColorSystem | None) -> str:
    """The same for blanks, of which nobody sees that they are bold, dim or red."""
    seen = style.underline or style.underline2 or style.reverse or style.strike or style.overline
    if seen or (style.bgcolor is not None and not style.bgcolor.is_default):
        return _style_codes(style, colors)
    return ""


@lru_cache(maxsize=8192)
def _split_cells(text: str) -> tuple[str, ...]:
    """A character with its marks for each cell, "" for the second cell of a wide one."""
    out: list[str] = []
    for char in text:
        cells = get_character_cell_size(char)
        if cells:
            out += [char, *[""] * (cells - 1)]
        elif out:
            at = len(out) - 1 if out[-1] else len(out) - 2
            out[at] += char
    return tuple(out)


@lru_cache(maxsize=8192)
def _has_ambiguous_width(cell: str | None) -> bool:
    """Whether terminals may give it another width: marks, emoji, what is new in Unicode.

    tmux 3.3 draws the vowel signs of Devanagari (U+093F) in cells of their own, and a keycap in
    two; emoji are as wide as the version of Unicode that a terminal was built with says.
    """
    if not cell or len(cell) > 1:
        return bool(cell)
    if cell < "\u0300":
        return False
    if "\u1160" <= cell <= "\u11ff" or "\U0001f000" <= cell < "\U00020000":
        return True
    kind = unicodedata.category(cell)
    return kind[0] in "MC" or (kind == "So" and get_character_cell_size(cell) != 1)


def _slice_cells(cells: Sequence[str], low: int, high: int) -> list[str]:
    """Those from `low` to `high`; halves of characters are blank."""
    out = list(cells[low:high])
    if len(out) == len(cells):
        return out
    for at, cell in enumerate(out):
        if cell:
            break
        out[at] = " "
    if out and high < len(cells) and cells[high] == "" and out[-1] != " ":
        at = len(out) - 1
        while at > 0 and not out[at]:
            at -= 1
        out[at:] = " " * (len(out) - at)
    return out


class ScreenBuffer:
    """What the terminal shows, as far as it is known: a character and its codes a cell."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[list[str | None], list[str]]] = {}
        self.drawn_size: Size | None = None  # of the terminal, when all of it was drawn last

    def forget(self) -> None:
        """Something else may have been drawn: nothing is known until all is drawn again."""
        self._rows.clear()
        self.drawn_size = None

    def check_size(self, size: Size) -> None:
        """Before an update: forget all where the terminal's size changed, since its rows moved."""
        if self.drawn_size != size:
            self._rows.clear()

    def put(
        self, strip: Iterable[Segment], x: int, y: int, x1: int, x2: int, colors: ColorSystem | None
    ) -> list[int]:
        """Draw the cells from `x1` to `x2` of a strip that begins at (x, y); which changed."""
        chars, codes = self._rows.setdefault(y, ([], []))
        if len(chars) < x2:
            codes += [""] * (x2 - len(chars))
            chars += [None] * (x2 - len(chars))
        changed: list[int] = []
        for text, style, control in strip:
            if control or not text:
                continue
            size = len(text) if text.isascii() else cell_len(text)
            begin, end, start = max(x, x1), min(x + size, x2), x
            x += size
            if begin >= end:
                if x >= x2:
                    break
                continue
            cells: Sequence[str] = text if text.isascii() else _split_cells(text)
            new = _slice_cells(cells, begin - start, end - start)
            code = ""
            if style is not None:
                code = (_blank_codes if text.isspace() else _style_codes)(style, colors)
            if chars[begin:end] != new or codes[begin:end] != [code] * (end - begin):
                cells_at = enumerate(new, begin)
                changed += [at for at, c in cells_at if chars[at] != c or codes[at] != code]
                # Of a wide character that is half overwritten the other half is gone.
                if begin and chars[begin] == "" != new[0]:
                    chars[begin - 1] = None
                if end < len(chars) and chars[end] == "":
                    chars[end] = None
                chars[begin:end] = new
                codes[begin:end] = [code] * (end - begin)
        return changed

    def write(self, writer: _Writer, y: int, changed: Iterable[int]) -> None:
        """Send the cells that changed in a row, and those between that cost no more."""
        if y not in self._rows:
            return  # a signal's handler has called `forget` since: all is drawn again
        chars, codes = self._rows[y]
        done = 0
        for begin, end in _spans(chars, sorted(changed)):
            while begin and chars[begin] == "":
                begin -= 1
            while end < len(chars) and chars[end] == "":
                end += 1
            if any(map(_has_ambiguous_width, chars[begin:end])):
                end = len(chars)  # what follows may have been drawn over
            at = max(begin, done)
            done = max(end, done)
            while at < end:
                to = at + 1
                while to < end and (chars[to] == "" or (chars[to] and codes[to] == codes[at])):
                    to += 1
                if chars[at] is not None:
                    _write(writer, chars[at:to], codes[at], at, y)
                at = to


def _join_chars(chars: Sequence[str | None]) -> str:
    return "".join(char or "" for char in chars)


def _spans(chars: Sequence[str | None], columns: Iterable[int]) -> list[tuple[int, int]]:
    """Columns in order as spans, from and to, with what is bridged between them."""
    spans: list[tuple[int, int]] = []
    for at in columns:
        begin, end = spans[-1] if spans else (0, -_BRIDGE - 1)
        if at - end <= _BRIDGE and None not in chars[end:at]:
            spans[-1] = begin, at + 1
        else:
            spans.append((at, at + 1))
    return spans


def _write(writer: _Writer, chars: Sequence[str | None], codes: str, x: int, y: int) -> None:
    """Send cells of one colour; each of ambiguous width where it belongs, on blanks."""
    if (text := _join_chars(chars)).isascii():
        _write_plain(writer, text, codes, x, y)
        return
    begin = 0
    while begin < len(chars):
        end = begin
        while end < len(chars) and not _has_ambiguous_width(chars[end]):
            end += 1
        if end > begin:
            _write_plain(writer, _join_chars(chars[begin:end]), codes, x + begin, y)
        begin = end
        if begin < len(chars):
            end = begin + 1
            while end < len(chars) and chars[end] == "":
                end += 1
            # A terminal that draws it narrower would leave there what was there.
            writer.move(x + begin, y)
            writer.write_text(" " * (end - begin), codes, end - begin)
            writer.move(x + begin, y)
            writer.write_text(chars[begin] or "", codes, end - begin)
            begin = end


def _write_plain(writer: _Writer, text: str, codes: str, x: int, y: int) -> None:
    # The odd pieces are what the pattern found; they are erased only in the terminal's colours.
    for number, piece in enumerate([text] if codes else _BLANKS.split(text)):
        size = cell_len(piece)
        if piece:
            writer.move(x, y)
            if number % 2:
                writer.erase(size)
            else:
                writer.write_text(piece, codes, size)
        x += size


class CompactUpdate(CompositorUpdate):
    """A `ChopsUpdate` or `LayoutUpdate` of Textual, written as above."""

    def __init__(
        self, update: ChopsUpdate | LayoutUpdate, picture: ScreenBuffer, size: Size | None
    ) -> None:
        self._update, self._picture, self._size = update, picture, size

    def __rich_console__(self, console: Console, options: object) -> Iterable[Segment]:
        return self._update.__rich_console__(console, options)  # type: ignore[arg-type,return-value]

    def render_segments(self, console: Console) -> str:
        writer, colors = _Writer(), console._color_system
        update, picture = self._update, self._picture
        changed: dict[int, list[int]] = {}
        if self._size is not None:
            picture.check_size(self._size)
        if isinstance(update, LayoutUpdate):
            x, y, right, _ = update.region.corners
            for row, strips in enumerate(update.strips, y):
                line = chain.from_iterable(strips)
                changed[row] = picture.put(line, x, row, x, right, colors)
        else:
            for y, x1, x2 in update.spans:
                line_of = zip(update.chop_ends[y], update.chops[y].items(), strict=False)
                for end, (x, strip) in line_of:
                    if strip is not None and x < x2 and end > x1:
                        put = picture.put(strip, x, y, max(x, x1), min(end, x2), colors)
                        changed.setdefault(y, []).extend(put)
        for y, of_row in changed.items():
            if of_row:
                picture.write(writer, y, of_row)
        if isinstance(update, LayoutUpdate) and update.region.size == self._size:
            picture.drawn_size = update.region.size
        return writer.finish()


def compact_update(renderable: Any, picture: ScreenBuffer, size: Size | None = None) -> Any:
    """What Textual would send, to be written tightly; after anything else nothing is known.

    `size` is the terminal's now; None where it never changes.
    """
    if type(renderable) in (ChopsUpdate, LayoutUpdate):
        return CompactUpdate(renderable, picture, size)
    if renderable is not None:
        picture.forget()
    return renderable


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
