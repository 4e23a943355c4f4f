"""Frames of the screen: the beat at which streams are drawn, the pacer, updates in few bytes.

Textual 8.2.8 sends a changed part of a row from the left edge of its widget on, and its colours
with every piece; a widget that is drawn anew is sent whole. Here the cells that the terminal
shows are known, and only others are sent. Nothing else may draw streams; keys never wait for it.
"""

import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, get_character_cell_size
from rich.color import ColorSystem
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.geometry import Size

if TYPE_CHECKING:
    from studio.tui.drawing.canvas import StreamCanvas


_BRIDGE = 4
"""Cells that stay and are sent all the same, where a step over them takes no less."""
_MOST_BLANKS = 14
"""So many are shorter erased (ECH and a step) than written."""
Cell = tuple[str, str]
"""A character with its marks, "" for the second half of a wide one, and the codes of its style."""


class _Writer:
    """Text at places, with the colours that it needs."""

    def __init__(self) -> None:
        self.out: list[str] = []
        self._codes: str | None = None  # None: whatever something else may have left
        self.place = (-1, -1)
        self._is_sure = True  # a wide character may be narrow elsewhere: then no longer

    def move(self, x: int, y: int) -> None:
        if self.place == (x, y) and self._is_sure:
            return
        if self._is_sure and self.place[1] == y and x > self.place[0]:
            self.out.append(f"\x1b[{x - self.place[0]}C")
        else:
            self.out.append(f"\x1b[{y + 1};{x + 1}H")
        self.place, self._is_sure = (x, y), True

    def write_cell(self, x: int, y: int, cell: Cell) -> None:
        """Write a character of `x`; behind a wide one of the same colour it just goes on."""
        text, codes = cell
        if self.place != (x, y) or codes != self._codes:
            self.move(x, y)
        self.set_codes(codes)
        self.out.append(text)
        self.place = (x + (1 if text.isascii() else cell_len(text)), y)
        self._is_sure = self._is_sure and text.isascii()

    def erase(self, x: int, y: int, cells: int) -> None:
        """Blank cells without moving over them."""
        self.move(x, y)
        self.set_codes("")
        self.out.append(f"\x1b[{cells}X")

    def set_codes(self, codes: str) -> None:
        if codes != (self._codes or ""):
            before = "" if self._codes == "" else "0;"
            self.out.append(f"\x1b[{before}{codes}m" if codes else "\x1b[m")
            self._codes = codes


@lru_cache(maxsize=4096)
def _style_codes(style: Style, colors: ColorSystem | None, is_blank: bool) -> str:
    """Its numbers; the terminal's own colours need none after a reset.

    Of blanks nobody sees that they are bold, dim or red.
    """
    if colors is None:
        return ""
    color, bgcolor = (
        None if each is None or each.is_default else each for each in (style.color, style.bgcolor)
    )
    lines = style.underline or style.underline2 or style.reverse or style.strike or style.overline
    if is_blank and not lines and bgcolor is None:
        return ""
    return (style.without_color + Style(color=color, bgcolor=bgcolor))._make_ansi_codes(colors)


@lru_cache(maxsize=8192)
def _split_cells(text: str, style: Style | None, colors: ColorSystem | None) -> tuple[Cell, ...]:
    codes = _style_codes(style, colors, text.isspace()) if style is not None else ""
    if text.isascii():
        return tuple((char, codes) for char in text)
    chars: list[str] = []
    for char in text:
        cells = get_character_cell_size(char)
        if cells:
            chars += [char, *[""] * (cells - 1)]
        elif chars:
            chars[-1 if chars[-1] else -2] += char
    return tuple((char, codes) for char in chars)


@lru_cache(maxsize=8192)
def _has_ambiguous_width(char: str) -> bool:
    """Whether terminals may give it another width: marks, emoji, what is new in Unicode.

    tmux 3.3 draws the vowel signs of Devanagari (U+093F) in cells of their own, and a keycap in
    two; emoji are as wide as the version of Unicode that a terminal was built with says.
    """
    if len(char) != 1:
        return bool(char)
    if char < "\u0300":
        return False
    if "\u1160" <= char <= "\u11ff" or "\U0001f000" <= char < "\U00020000":
        return True
    kind = unicodedata.category(char)
    return kind[0] in "MC" or (kind == "So" and get_character_cell_size(char) != 1)


class ScreenBuffer:
    """What the terminal shows, as far as it is known: cells by row, None where nobody knows."""

    def __init__(self) -> None:
        self._rows: dict[int, list[Cell | None]] = {}
        self.drawn_size: Size | None = None  # of the terminal, when all of it was drawn last

    def forget(self) -> None:
        """Something else may have been drawn: nothing is known until all is drawn again."""
        self._rows.clear()
        self.drawn_size = None

    def put(
        self, strip: Iterable[Segment], x: int, y: int, x1: int, x2: int, colors: ColorSystem | None
    ) -> list[int]:
        """Draw the cells from `x1` to `x2` of a strip that begins at (x, y); which changed."""
        row = self._rows.setdefault(y, [])
        row += [None] * (x2 - len(row))
        cells: list[Cell] = []
        for text, style, control in strip:
            if not control:
                cells += _split_cells(text, style, colors)
        new = cells[x1 - x : x2 - x]
        # Halves of wide characters are blank.
        if new and not new[0][0]:
            new[0] = (" ", new[0][1])
        if new and x2 - x < len(cells) and not cells[x2 - x][0]:
            new[-1] = (" ", new[-1][1])
        changed = []
        for at, cell in enumerate(new, x1):
            if row[at] != cell:
                row[at] = cell
                changed.append(at)
        return changed

    def write(self, writer: _Writer, y: int, changed: Iterable[int]) -> None:
        """Send the cells that changed in a row, and those between that cost no more."""
        row = self._rows.get(y)
        if row is None:
            return  # a signal's handler has called `forget` since: all is drawn again
        done = 0
        for begin, end in _spans(row, sorted(changed)):
            while begin and (cell := row[begin]) is not None and not cell[0]:
                begin -= 1
            while end < len(row) and (cell := row[end]) is not None and not cell[0]:
                end += 1
            if any(cell is not None and _has_ambiguous_width(cell[0]) for cell in row[begin:end]):
                end = len(row)  # what follows may have been drawn over
            _write_cells(writer, row[:end], max(begin, done), y)
            done = max(end, done)


def _spans(row: Sequence[Cell | None], columns: Iterable[int]) -> list[tuple[int, int]]:
    """Columns in order as spans, from and to, with what is bridged between them."""
    spans: list[tuple[int, int]] = []
    for at in columns:
        begin, end = spans[-1] if spans else (0, -_BRIDGE - 1)
        if at - end <= _BRIDGE and None not in row[end:at]:
            spans[-1] = begin, at + 1
        else:
            spans.append((at, at + 1))
    return spans


def _write_cells(writer: _Writer, row: Sequence[Cell | None], x: int, y: int) -> None:
    """Send a row from `x` on; a character of ambiguous width goes on blanks where it belongs."""
    while x < len(row):
        cell, start = row[x], x
        while x < len(row) and row[x] == (" ", ""):
            x += 1
        if x - start >= _MOST_BLANKS:
            writer.erase(start, y, x - start)
            continue
        x = start + 1
        if cell is None or not cell[0]:
            continue
        if _has_ambiguous_width(cell[0]):
            # A terminal that draws it narrower would leave there what was there.
            writer.write_cell(start, y, (" " * max(1, cell_len(cell[0])), cell[1]))
            writer.move(start, y)
        writer.write_cell(start, y, cell)
        if _has_ambiguous_width(cell[0]):
            writer.place = -1, -1  # the next one says where it belongs


class CompactUpdate(CompositorUpdate):
    """A `ChopsUpdate` or `LayoutUpdate` of Textual, written as above."""

    def __init__(
        self, update: ChopsUpdate | LayoutUpdate, picture: ScreenBuffer, size: Size | None
    ) -> None:
        self._update, self._picture, self._size = update, picture, size
        self.written = 0  # bytes, once it was rendered

    def __rich_console__(self, console: Console, options: object) -> Iterable[Segment]:
        return self._update.__rich_console__(console, options)  # type: ignore[arg-type,return-value]

    def render_segments(self, console: Console) -> str:
        writer, colors = _Writer(), console._color_system
        update, picture = self._update, self._picture
        if self._size is not None and picture.drawn_size != self._size:
            picture.forget()  # its rows have moved
        changed: dict[int, list[int]] = {}
        if isinstance(update, LayoutUpdate):
            x, y, right, _ = update.region.corners
            for row, strips in enumerate(update.strips, y):
                line = chain.from_iterable(strips)
                changed[row] = picture.put(line, x, row, x, right, colors)
            if update.region.size == self._size:
                picture.drawn_size = self._size
        else:
            for y, x1, x2 in update.spans:
                strips_of_row = update.chops[y].items()
                for end, (x, strip) in zip(update.chop_ends[y], strips_of_row, strict=False):
                    if strip is not None and x < x2 and end > x1:
                        put = picture.put(strip, x, y, max(x, x1), min(end, x2), colors)
                        changed.setdefault(y, []).extend(put)
        for y, columns in changed.items():
            picture.write(writer, y, columns)
        writer.set_codes("")
        text = "".join(writer.out)
        self.written = len(text.encode("utf-8", "replace"))
        return text


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


class FrameClock:
    """Calls what draws, and flushes the canvas, once a beat.

    Without a `pacer` nothing limits what is sent. `driver` is Textual's, to the terminal; None
    in tests.
    """

    def __init__(self) -> None:
        self.low_bandwidth = False
        self.pacer: Pacer | None = None
        self.written = 0  # bytes of all updates
        self.held = 0  # beats at which nothing was drawn for want of budget
        self.buffer = ScreenBuffer()
        self.canvas: StreamCanvas | None = None
        self.drains: list[Callable[[], None]] = []  # called at every beat, before the canvas
        self._unpaced = ""  # why the line to the terminal is not measured
        self._driver: Any = None
        self._idle = False

    @property
    def link_text(self) -> str:
        """What the line to the terminal carries, in words; "" where nothing is known."""
        return str(self.pacer) if self.pacer is not None else self._unpaced

    def pace(self, driver: Any, environ: Mapping[str, str]) -> None:
        """Limit what is sent to this terminal by what its line carries.

        Inside tmux no line can be measured, for it answers at once: here nothing is paced, and
        over SSH by a fixed budget.
        """
        self._driver = driver
        if environ.get("TMUX"):
            self._unpaced = "link not paced: tmux does that"
            if environ.get("SSH_CONNECTION"):
                # tmux hides the line and keeps for it what it cannot carry: streams before keys.
                self.pacer = Pacer(time.monotonic(), rate=UNSEEN_BYTES_PER_S, fixed=True)
        elif environ.get("TERM_PROGRAM") == "Apple_Terminal" or not driver.input_tty:
            # Apple's Terminal prints the probe's last letter (see `LinuxDriver`).
            self._unpaced = "link not measured"
        else:
            self.pacer = Pacer(time.monotonic())

    def beat(self) -> None:
        """What the timer calls: a tick, or at low bandwidth every other time one."""
        self._idle = self.low_bandwidth and not self._idle
        if not self._idle:
            self.tick()

    def tick(self) -> None:
        for drain in self.drains:
            drain()
        canvas = self.canvas
        if canvas is None or not (canvas.is_on_screen and canvas.is_dirty):
            return
        if self.pacer is None:
            canvas.flush()
            return
        writer = self._driver._writer_thread
        is_queued = writer is not None and not writer._queue.empty()
        budget = self.pacer.allowed_bytes(time.monotonic(), queued=is_queued)
        if budget <= 0:
            self.held += 1
        elif canvas.flush(budget) >= budget:
            self.pacer.mark_limited()

    def record_written(self, size: int) -> None:
        """An update was written: a probe behind it tells when the terminal has it."""
        self.written += size
        if self.pacer is not None:
            self.pacer.record_sent(size, time.monotonic())
        self.probe_if_due()

    def probe_if_due(self) -> None:
        if self.pacer is not None and self.pacer.wants_probe:
            self.pacer.record_probe(time.monotonic())
            self._driver.write(PROBE)


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
