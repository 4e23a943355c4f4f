"""What is sent to the terminal: cells that changed, in text that is aligned everywhere."""

from __future__ import annotations

import random
from typing import Any

import pyte
from rich.segment import Segment
from rich.style import Style
from textual.app import App, ComposeResult

from studio.tui.drawing.cells import cell_width
from studio.tui.drawing.lines import Row, paragraph, plain_text
from studio.tui.terminal.frames import (
    UNSEEN_BYTES_PER_S,
    FrameClock,
    Pacer,
    ScreenBuffer,
    _Writer,
    compact_update,
)
from studio.tui.widgets.line_view import LineView, RowList, strip_of

NASTY = ("plain", "tab\there", "👩‍👩‍👧 joined", "中文字", "🇩🇪 flag", "e\u0301x", "two\nlines", "")


class Panes(App[None]):
    CSS = "RowList, LineView { border: solid green; }"

    def compose(self) -> ComposeResult:
        yield RowList(id="rows")
        yield LineView(id="lines")


class Drawn:
    """A terminal that an app is painted on, and how much that took."""

    def __init__(self, app: App[None], columns: int, rows: int) -> None:
        self.app, self.columns, self.rows = app, columns, rows
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.Stream(self.screen)
        self.picture = ScreenBuffer()
        self.sent = 0
        app._display = self._display  # type: ignore[method-assign]

    def _display(self, screen: object, update: Any) -> None:
        if update is not None:
            sent = compact_update(update, self.picture).render_segments(self.app.console)
            self.sent += len(sent)
            self.stream.feed(sent)

    def paint_all(self) -> int:
        """Everything at once; returns how many characters were sent for it."""
        before = self.sent
        self._display(None, self.app.screen._compositor.render_update(full=True))
        return self.sent - before

    def cells(self) -> list[object]:
        buffer = self.screen.buffer
        return [buffer[y][x] for y in range(self.rows) for x in range(self.columns)]


async def test_a_row_that_is_drawn_anew_as_it_was_sends_nothing() -> None:
    app = Panes()
    async with app.run_test(size=(40, 12)):
        drawn = Drawn(app, 40, 12)
        app.query_one(RowList).show_rows([Row("a", (("one", ""),)), Row("b", (("two", ""),))])
        first = drawn.paint_all()
        assert first > 40
        assert drawn.paint_all() == 0
        drawn.picture.forget()
        assert drawn.paint_all() == first


async def test_a_cursor_that_moves_sends_its_two_rows_and_no_blanks() -> None:
    app = Panes()
    async with app.run_test(size=(120, 36)) as pilot:
        rows = app.query_one(RowList)
        rows.show_rows([Row(str(n), ((f"row {n} of the list", ""),)) for n in range(9)])
        drawn = Drawn(app, 120, 36)
        await pilot.pause()
        drawn.paint_all()
        before = drawn.sent
        rows.action_move(1)
        await pilot.pause(0.05)
        assert 0 < drawn.sent - before < 150


def test_a_step_to_the_right_and_a_colour_take_no_more_than_they_need() -> None:
    writer = _Writer()
    for x, text, codes in ((2, "a", "1"), (90, "b", ""), (91, "c", "32"), (92, "d", "1;32")):
        writer.write_cell(x, 3, (text, codes))
    writer.set_codes("")
    assert "".join(writer.out) == ("\x1b[4;3H\x1b[0;1ma\x1b[87C\x1b[mb\x1b[32mc\x1b[0;1;32md\x1b[m")


def test_a_signal_that_has_all_forgotten_in_the_middle_of_a_frame_breaks_nothing() -> None:
    """A continued process draws all again, from a handler that runs between any two steps."""
    picture, writer = ScreenBuffer(), _Writer()
    changed = picture.put([Segment("one")], 0, 1, 0, 3, None)
    picture.forget()
    picture.write(writer, 1, changed)
    assert not writer.out
    assert picture.put([Segment("one")], 0, 1, 0, 3, None) == changed


async def test_what_is_sent_in_pieces_is_what_a_full_repaint_shows() -> None:
    chance = random.Random(11)
    app = Panes()
    async with app.run_test(size=(31, 12)) as pilot:
        drawn = Drawn(app, 31, 12)
        drawn.paint_all()
        for turn in range(200):
            rows = [
                Row(f"{n}", tuple((chance.choice(NASTY), chance.choice(("", "won", "focus")))
                                  for _ in range(chance.randrange(4))))
                for n in range(chance.randrange(9))
            ]  # fmt: skip
            app.query_one(RowList).show_rows(rows)
            app.query_one("#lines", LineView).show_lines([row.line for row in reversed(rows)])
            await pilot.pause()
            if turn % 10 == 9:
                app.screen._on_timer_update()  # what waits for its frame
                before = drawn.cells()
                drawn.picture.forget()
                drawn.paint_all()
                assert drawn.cells() == before


def test_every_line_becomes_exactly_as_many_cells_as_its_pane_has() -> None:
    for text in NASTY:
        for cells in (1, 7, 20):
            strip = strip_of(((text, ""), (text, "won")), cells, Style(), "studio-ansi")
            assert strip.cell_length == cells
            assert not set("\t\n\u200d\ufe0f") & set(strip.text)


def test_a_paragraph_of_unsettled_text_keeps_its_styles_at_their_words() -> None:
    spans = [("a\tb ", ""), ("👩‍👩‍👧", "won"), (" 🇩🇪 end", "lost")]
    rows = paragraph(spans, 10)
    assert all(cell_width(plain_text(row)) <= 10 for row in rows)
    told = {style: " ".join(t for row in rows for t, s in row if s == style) for style in
            ("won", "lost")}  # fmt: skip
    assert told["won"].replace(" ", "") == "👩👩👧"
    assert told["lost"].split() == ["DE", "end"]


def test_low_bandwidth_leaves_out_every_other_beat_also_when_it_is_set_later() -> None:
    ticks: list[int] = []
    clock = FrameClock()
    clock.drains.append(lambda: ticks.append(1))
    for _ in range(4):
        clock.beat()
    assert len(ticks) == 4
    clock.low_bandwidth = True
    for _ in range(4):
        clock.beat()
    assert len(ticks) == 6
    clock.low_bandwidth = False
    clock.beat()
    assert len(ticks) == 7


def test_a_line_that_nobody_can_measure_gets_a_fixed_budget_and_no_probe() -> None:
    pacer = Pacer(0.0, rate=UNSEEN_BYTES_PER_S, fixed=True)
    taken, now = 0, 0.0
    for _ in range(100):  # ten seconds
        allowed = pacer.allowed_bytes(now, queued=False)
        taken += allowed
        pacer.record_sent(allowed, now)
        assert not pacer.wants_probe
        now += 0.1
    assert taken <= UNSEEN_BYTES_PER_S * 10.2
    assert taken >= UNSEEN_BYTES_PER_S * 9
    assert "6 KB/s" in str(pacer)
