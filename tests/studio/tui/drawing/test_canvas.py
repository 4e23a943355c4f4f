"""Streams on one canvas: what is drawn, and that only what changed is."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.segment import Segment
from textual.app import App, ComposeResult
from textual.geometry import Region

from studio.tui.drawing import themes
from studio.tui.drawing.canvas import PaneModel, StreamCanvas, grid
from studio.tui.terminal.frames import FrameClock, ScreenBuffer, compact_update
from studio.tui.terminal.look import register_themes


class Stage(App[int]):
    CSS = "Screen { layout: vertical; }"

    def __init__(self, *, theme: str = themes.ANSI) -> None:
        super().__init__()
        self.canvas = StreamCanvas(id="streams")
        self.changes = 0
        register_themes(self, {}, theme)

    def compose(self) -> ComposeResult:
        yield self.canvas

    def on_stream_canvas_changed(self) -> None:
        self.changes += 1


def some_panes(count: int, **fields: object) -> list[PaneModel]:
    return [PaneModel(f"p{n}", f"r{n}", **fields) for n in range(count)]  # type: ignore[arg-type]


def drawn(canvas: StreamCanvas) -> list[str]:
    return [canvas.render_line(y).text for y in range(canvas.size.height)]


@contextmanager
def marked(canvas: StreamCanvas) -> Iterator[list[Region]]:
    """The cells that are marked as changed meanwhile."""
    regions: list[Region] = []
    refresh: Callable[..., object] = canvas.refresh

    def noted(*dirty: Region, **how: bool) -> object:
        regions.extend(dirty or [canvas.size.region])
        return refresh(*dirty, **how)

    canvas.refresh = noted  # type: ignore[method-assign,assignment]
    try:
        yield regions
    finally:
        del canvas.refresh


async def test_panes_stand_in_a_grid_with_titles_signs_and_footers() -> None:
    app = Stage()
    async with app.run_test(size=(44, 12)):
        app.canvas.set_panes(
            [
                PaneModel("a", "r0", "won", 812, footer="reward 1.0"),
                PaneModel("b", "r1", "lost", 2048),
                PaneModel("c", "r2", "streaming", 377),
                PaneModel("d", "r3", "queued", note="queued"),
            ]
        )
        app.canvas.feed("a", "reduce the exponent by Euler: phi(40)=16")
        app.canvas.feed("c", "Let us write 100")
        app.canvas.flush()
        assert drawn(app.canvas) == [
            "┌─ r0 + 812t ────────┐┌─ r1 - 2048t ───────┐",
            "│reduce the exponent ││                    │",
            "│by Euler: phi(40)=16││                    │",
            "│                    ││                    │",
            "│reward 1.0          ││                    │",
            "└────────────────────┘└────────────────────┘",
            "┌─ r2 > 377t ────────┐┌─ r3 . ─────────────┐",
            "│Let us write 100 |  ││queued              │",
            "│                    ││                    │",
            "│                    ││                    │",
            "│                    ││                    │",
            "└────────────────────┘└────────────────────┘",
        ]


async def test_only_cells_that_changed_are_marked() -> None:
    app = Stage()
    async with app.run_test(size=(44, 8)) as pilot:
        app.canvas.set_panes(some_panes(2))
        app.canvas.feed("p1", "one")
        app.canvas.flush()
        await pilot.pause()
        app.canvas.feed("p1", " two")
        with marked(app.canvas) as regions:
            app.canvas.flush()
        # "one |" became "one two |": from the cursor in column 4 of the second pane on.
        assert regions == [Region(23 + 4, 1, 5, 1)]
        with marked(app.canvas) as regions:
            app.canvas.flush()
        assert regions == []


async def test_a_pane_that_is_full_moves_on_by_half_its_height() -> None:
    app = Stage()
    async with app.run_test(size=(22, 6)):
        app.canvas.set_panes([PaneModel("p0", "r0")])
        app.canvas.feed("p0", "1\n2\n3\n4")
        app.canvas.flush()
        assert [row.strip("│| ") for row in drawn(app.canvas)[1:5]] == ["1", "2", "3", "4"]
        app.canvas.feed("p0", "\n5")
        app.canvas.flush()
        assert [row.strip("│| ") for row in drawn(app.canvas)[1:5]] == ["4", "5", "", ""]
        assert "3 above" in drawn(app.canvas)[0]
        # It has ended: as much of its end as there is room for, and from its start where that fits.
        app.canvas.set_panes([PaneModel("p0", "r0", "won")])
        app.canvas.flush()
        assert [row.strip("│ ") for row in drawn(app.canvas)[1:5]] == ["2", "3", "4", "5"]
        assert "1 above" in drawn(app.canvas)[0]


async def test_a_text_that_is_seen_again_fills_its_pane() -> None:
    app = Stage()
    async with app.run_test(size=(22, 6)) as pilot:
        app.canvas.set_panes([PaneModel("p0", "r0")])
        app.canvas.reset("p0", "1\n2\n3\n4\n5\n6")
        app.canvas.flush()
        for width in (30, 22):
            await pilot.resize_terminal(width, 6)
            await pilot.pause()
            assert [row.strip("│| ") for row in drawn(app.canvas)[1:5]] == ["3", "4", "5", "6"]


async def test_the_wall_gives_each_rollout_a_line_below_a_caption() -> None:
    app = Stage()
    async with app.run_test(size=(50, 5)):
        app.canvas.set_mode("wall", "Wall  g03")
        app.canvas.set_panes(
            [
                PaneModel("a", "r0", "won", 812, footer="1.0"),
                PaneModel("b", "r1", "streaming", 7),
                PaneModel("c", "r7", "queued", note="queued"),
            ]
        )
        app.canvas.feed("a", "answer 1")
        app.canvas.feed("b", "First")
        app.canvas.flush()
        assert drawn(app.canvas) == [
            f"{row:<50}"
            for row in (
                " Wall  g03",
                "r0 +   812t 1.0 answer 1",
                "r1 >     7t First |",
                "r7 .        queued",
                "",
            )
        ]
        app.canvas.set_panes([PaneModel(str(at), f"r{at}") for at in range(9)])
        app.canvas.focus_pane("6")
        assert drawn(app.canvas)[0].rstrip() == " Wall  g03  4 above  1 below"


async def test_below_the_wall_the_focused_text_is_followed_where_there_is_room() -> None:
    app = Stage()
    async with app.run_test(size=(40, 12)) as pilot:
        app.canvas.set_mode("wall", "Wall", follows_below=True)
        app.canvas.set_panes(some_panes(9, footer="1.0    "))
        app.canvas.feed("p0", "first\nsecond")
        app.canvas.feed("p1", "another\ntext")
        app.canvas.flush()
        assert [row.rstrip() for row in drawn(app.canvas)] == [
            " Wall  3 below",
            "r0 >        1.0     second |",
            "r1 >        1.0     text |",
            *(f"r{at} >        1.0" for at in range(2, 6)),
            "┌─ r0 > 1.0 (follow) ──────────────────┐",
            "│first                                 │",
            "│second |                              │",
            "│                                      │",
            "└──────────────────────────────────────┘",
        ]
        app.canvas.feed("p0", " third")
        app.canvas.flush()
        assert "second third |" in drawn(app.canvas)[9]
        app.canvas.set_panes(some_panes(9, state="won", footer="1.0    "))
        app.canvas.flush()
        assert "r0 + 1.0 (follow)" in drawn(app.canvas)[7]
        app.canvas.move_focus(0, 1)
        assert "r1 + 1.0 (follow)" in drawn(app.canvas)[7]
        assert "another" in drawn(app.canvas)[8]
        app.canvas.reset("p1", "again")
        assert "again" in drawn(app.canvas)[8]
        await pilot.click(app.canvas, offset=(5, 9))  # the box is no rollout of its own
        assert app.canvas.focused_id == "p1"
        assert app.canvas.visible_ids == tuple(f"p{at}" for at in range(6))
        await pilot.resize_terminal(40, 9)
        assert "(follow)" not in "".join(drawn(app.canvas))


async def test_the_wall_shows_how_the_last_line_begins_and_says_where_it_is_cut() -> None:
    app = Stage()
    async with app.run_test(size=(40, 3)):
        app.canvas.set_mode("wall")
        panes = [PaneModel("a", "r0", "won", 8), PaneModel("b", "r1"), PaneModel("c", "r2")]
        app.canvas.set_panes(panes)
        app.canvas.feed("a", "first\nthe answer stands here and goes on and on\n\n")
        app.canvas.feed("b", "what is said now began far to the left of here")
        app.canvas.feed("c", "done with that\n")
        app.canvas.flush()
        before = drawn(app.canvas)
        assert before == [
            "r0 +     8t the answer stands here and..",
            "r1 >        .. far to the left of here |",
            "r2 >        done with that |            ",
        ]
        app.canvas.set_mode("group")
        app.canvas.set_mode("wall")
        assert drawn(app.canvas) == before


async def test_solo_follows_the_end_until_the_person_scrolls() -> None:
    app = Stage()
    async with app.run_test(size=(30, 6)):
        app.canvas.set_panes([PaneModel("p0", "r0", "won"), PaneModel("p1", "r1", "won")])
        app.canvas.feed("p0", "\n".join(str(n) for n in range(20)))
        app.canvas.set_mode("solo")
        assert app.canvas.visible_ids == ("p0",)
        app.canvas.flush()
        app.canvas.scroll_rows(-10)
        top = drawn(app.canvas)[1]
        assert not app.canvas.follow
        app.canvas.feed("p0", "\nmore")
        app.canvas.flush()
        assert drawn(app.canvas)[1] == top
        app.canvas.scroll_rows(100)
        assert app.canvas.follow
        assert any("more" in row for row in drawn(app.canvas))


async def test_the_focused_pane_stays_on_screen_and_is_seen_without_colour() -> None:
    app = Stage(theme=themes.MONO)
    async with app.run_test(size=(44, 6)) as pilot:
        app.canvas.set_panes(some_panes(8))  # 2 of 4 rows fit
        assert app.canvas.visible_ids == ("p0", "p1", "p2", "p3")
        for _ in range(3):
            app.canvas.move_focus(0, 1)
        await pilot.pause()
        assert app.canvas.focused_id == "p6"
        assert "p6" in app.canvas.visible_ids
        assert app.changes >= 4
        row = next(y for y, text in enumerate(drawn(app.canvas)) if " r6 " in text)
        styled = [s.text for s in app.canvas.render_line(row) if s.style and s.style.reverse]
        assert styled == ["r6 >"]


async def test_text_off_screen_is_there_when_the_pane_comes_on_screen() -> None:
    app = Stage()
    async with app.run_test(size=(44, 6)):
        app.canvas.set_panes(some_panes(8))
        app.canvas.feed("p7", "hidden until now")
        assert not app.canvas.is_dirty
        app.canvas.focus_pane("p7")
        assert any("hidden until now" in row for row in drawn(app.canvas))


async def test_a_budget_is_spent_on_the_focused_pane_first_and_then_in_turn() -> None:
    app = Stage()
    async with app.run_test(size=(88, 4)):
        app.canvas.set_panes(some_panes(4))
        app.canvas.focus_pane("p2")
        served: set[str] = set()
        for _ in range(8):
            for n in range(4):
                app.canvas.feed(f"p{n}", "x")
            app.canvas.flush(1)
            served |= {id for id in app.canvas.visible_ids if "x" in _interior(app.canvas, id)}
            assert "p2" in served
        assert served == {"p0", "p1", "p2", "p3"}


def _interior(canvas: StreamCanvas, id: str) -> str:
    at = canvas.visible_ids.index(id)
    return drawn(canvas)[1][22 * at : 22 * (at + 1)]


HOSTILE = "[red]\x1b[2J\u202eevil中文\U0001f468\u200d\U0001f469\u200d\U0001f467e\u0301\t\x9b1m"


@pytest.mark.parametrize("mode", ["wall", "group", "solo"])
async def test_hostile_text_is_inert_and_every_row_exactly_as_wide_as_the_screen(mode: str) -> None:
    app = Stage()
    async with app.run_test(size=(47, 9)) as pilot:
        app.canvas.set_mode(mode)  # type: ignore[arg-type]
        app.canvas.set_panes(some_panes(3))
        for size in (1, 2, 3):
            for at in range(0, len(HOSTILE), size):
                app.canvas.feed(f"p{size - 1}", HOSTILE[at : at + size])
        app.canvas.flush()
        await pilot.pause()
        rows = drawn(app.canvas)
        assert not any(char in "".join(rows) for char in "\x1b\x9b\u202e\u200d\t")
        assert mode == "wall" or "[red]" in "".join(rows)
        for y in range(9):
            strip = app.canvas.render_line(y)
            assert sum(segment.cell_length for segment in strip) == 47


async def test_the_clock_drains_flushes_and_draws_without_a_terminal() -> None:
    app = Stage()
    async with app.run_test(size=(40, 6)):
        clock = FrameClock()
        clock.canvas = app.canvas
        app.canvas.set_panes(some_panes(1))
        clock.drains.append(lambda: app.canvas.feed("p0", "x"))
        clock.tick()
        clock.tick()
        assert "xx |" in drawn(app.canvas)[1]
        assert clock.link_text == ""


@pytest.mark.parametrize("theme", [themes.ANSI, themes.DARK])
@pytest.mark.parametrize("mode", ["group", "wall"])
async def test_a_full_repaint_changes_no_cell(mode: str, theme: str) -> None:
    """B10: what was drawn piece by piece is what is drawn at once."""
    pieces = ("word ", "\n", "中文", "e\u0301", "[b]", "\x1b[2J", "long" * 12, "x", "\u0301")
    chance = random.Random(7)
    app = Stage(theme=theme)
    async with app.run_test(size=(44, 12)) as pilot:
        screen = pyte.Screen(44, 12)
        stream = pyte.Stream(screen)
        app.canvas.set_mode(mode, follows_below=True)  # type: ignore[arg-type]
        app.canvas.set_panes(some_panes(6))
        await pilot.pause()
        compositor = app.screen._compositor

        picture = ScreenBuffer()

        def paint(*, full: bool) -> None:
            if full:
                picture.forget()  # else nothing would be sent
                update = compositor.render_update(full=True)
            else:
                compositor.update_widgets({app.canvas})
                update = compositor.render_partial_update()
            if update is not None:
                stream.feed(compact_update(update, picture).render_segments(app.console))

        paint(full=True)
        for turn in range(400):
            app.canvas.feed(f"p{chance.randrange(6)}", chance.choice(pieces))
            if turn % 40 == 17:
                app.canvas.focus_pane(f"p{chance.randrange(6)}")
            app.canvas.flush(chance.choice((None, 10)))
            paint(full=False)
            if turn % 10 == 9:
                before = _cells(screen)
                paint(full=True)
                assert _cells(screen) == before


def _cells(screen: pyte.Screen) -> list[list[object]]:
    return [[screen.buffer[y][x] for x in range(44)] for y in range(12)]


@given(
    count=st.integers(0, 130),
    width=st.integers(0, 200),
    height=st.integers(0, 60),
    focus=st.integers(0, 129),
)
def test_boxes_never_overlap_and_the_focused_one_is_there(
    count: int, width: int, height: int, focus: int
) -> None:
    focus = min(focus, max(0, count - 1))
    boxes = grid(count, width, height, focus)
    cells = [
        (x, y) for b in boxes for x in (b.x, b.x + b.width - 1) for y in (b.y, b.y + b.height - 1)
    ]
    assert len(set(cells)) == 4 * len(boxes)
    assert all(b.x + b.width <= width and b.y + b.height <= height for b in boxes)
    assert all(b.width >= 3 and b.height >= 3 for b in boxes)
    if boxes:
        assert focus in {b.index for b in boxes}
    assert bool(boxes) == (count > 0 and width >= 3 and height >= 3)


@pytest.mark.parametrize(
    ("text", "low", "high", "cut"),
    [
        ("abé", 2, 3, "é"),
        ("abe\u0301c", 2, 3, "e\u0301"),
        ("e\u0301bc", 1, 2, "b"),
        ("a中b", 1, 3, "中"),
        ("a中b", 2, 4, " b"),
        ("a中b", 0, 2, "a "),
        ("中中", 1, 3, "  "),
        ("中中", 1, 2, " "),
    ],
)
def test_a_part_of_a_row_is_cut_by_cells_with_the_marks_on_them(
    text: str, low: int, high: int, cut: str
) -> None:
    buffer = ScreenBuffer()
    buffer.put([Segment(text)], 0, 0, low, high, None)
    cells = buffer._rows[0][low:high]
    assert "".join(cell[0] for cell in cells if cell is not None) == cut
