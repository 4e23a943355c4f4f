"""Curves in cells: nothing falls off, extremes stay, and every row is as wide as it is to be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.core.state.list_row import Point
from studio.facts.curves import run_curves
from studio.tui.drawing.lines import plain_text, width_of
from studio.tui.drawing.plot import (
    MEAN,
    Plot,
    nice_step,
    put_labels,
    split_at,
    thin,
    value_range,
)
from studio.tui.pages.progress.page import strip_line
from tests.support.training_runs import a_state, begun, finished

VALUES = st.lists(st.floats(-2, 3), min_size=1, max_size=300)


def text(plot: Plot) -> list[str]:
    return [plain_text(row) for row in plot.lines()]


def dots(plot: Plot) -> set[tuple[int, int]]:
    """The cells in which something is drawn, as (column, row)."""
    return {(x, y) for y, row in enumerate(text(plot)) for x, sign in enumerate(row) if sign != " "}


def test_a_line_goes_through_its_points_in_braille() -> None:
    points = [Point(1, 0.0), Point(3, 1.0)]
    plot = Plot(4, 2, (1, 3), (0.0, 1.0))
    plot.line(points, "bar")
    # 8 dots across, 8 down: the diagonal, two cells of it in each row.
    assert text(plot) == ["  ⡠⠊", "⡠⠊  "]


@given(values=VALUES, width=st.integers(1, 40), height=st.integers(1, 9))
def test_every_point_is_in_a_cell_and_every_row_is_as_wide(
    values: list[float], width: int, height: int
) -> None:
    points = [Point(step, value) for step, value in enumerate(values, 1)]
    plot = Plot(width, height, (1, len(points)), (-2.0, 3.0))
    plot.dots(points, "dim")
    plot.line(points, "bar")
    drawn = dots(plot)
    assert {(plot.column(p.step), plot.row(p.value)) for p in points} <= drawn
    assert all(width_of(row) == width for row in plot.lines())


@given(values=VALUES, parts=st.integers(1, 20))
def test_thinning_keeps_ends_and_extremes(values: list[float], parts: int) -> None:
    points = [Point(step, value) for step, value in enumerate(values, 1)]
    kept = thin(points, parts)
    assert len(kept) <= max(4 * parts, 0) or len(points) <= 4 * parts
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    for end in (min, max):
        assert end(p.value for p in kept) == end(p.value for p in points)
    assert sorted(kept) == list(kept)


def test_one_spike_in_ten_thousand_steps_is_on_the_picture() -> None:
    points = [Point(step, 1.0 if step == 7_003 else 0.5) for step in range(1, 10_001)]
    plot = Plot(100, 9, (1, 10_000), (0.0, 1.0))
    plot.line(points, "bar")
    # Step 7,003 is at 0.7 of 199 dots: dot 139, cell 69.
    assert text(plot)[0].index(text(plot)[0].strip()[0]) == 69 == plot.column(7_003)


def test_an_interval_has_its_mean_and_both_ends_and_the_other_runs_stands_beside_it() -> None:
    plot = Plot(5, 5, (0, 4), (0.0, 1.0))
    point = Point(2, 0.5, 20, 0.0, 1.0)
    plot.interval(point, "approved")
    plot.interval(point, "edited", other=True)
    assert text(plot) == ["  │: ", "  │: ", f"  {MEAN}* ", "  │: ", "  │: "]
    plot.interval(Point(4, 0.5, 20), "edited", other=True)  # at the edge it stands before it
    assert text(plot)[2] == f"  {MEAN}* "


def test_an_upright_hides_nothing_and_signs_are_no_line() -> None:
    plot = Plot(6, 1, (1, 6), (0.0, 1.0))
    plot.signs([Point(step, 0.5) for step in range(1, 7)], "*", "edited")
    plot.upright(1, "┊", "dim")
    plot.upright(2, "┊", "dim")
    assert text(plot) == ["*┊* * "]


def test_a_line_has_a_gap_where_an_epoch_begins() -> None:
    points = [Point(step, 0.5) for step in (1, 2, 3, 5)]
    pieces = [[p.step for p in piece] for piece in split_at(points, (3, 4, 9))]
    assert pieces == [[1, 2], [3], [5]]
    assert split_at([], (3,)) == []


def test_ranges_hold_zero_to_one_and_what_goes_beyond() -> None:
    assert value_range([[Point(1, 0.4)]], share=True) == (0.0, 1.0)
    assert value_range([[Point(1, -0.5)], [Point(2, 0.9, 3, 0.7, 1.2)]], share=True) == (-0.5, 1.2)
    assert value_range([[Point(1, 9.0)]], share=False) == (0.0, 9.0)
    assert value_range([[]], share=False) == (0.0, 1.0)


@pytest.mark.parametrize(("span", "most", "by"), [(7, 10, 1), (100, 10, 10), (9_999, 10, 1000)])
def test_steps_are_named_at_round_numbers(span: int, most: int, by: int) -> None:
    assert nice_step(span, most) == by


def test_labels_that_have_no_room_are_left_out_the_first_go_first() -> None:
    row = put_labels([(8, "v12(30)", ""), (4, "v11", ""), (0, "v10", "")], 12)
    assert plain_text(row) == "v10  v12(30)"  # moved in from the edge; v11 would touch it


def test_a_strip_is_one_row_and_never_wider() -> None:
    curves = run_curves(a_state(*finished()))
    assert all(width_of(strip_line(curves, width)) <= width for width in (60, 80))
    row = plain_text(strip_line(curves, 120))
    # The seven rewards: 3, 6, 9, 7, 12, 1 and 11 of 12.
    assert row.startswith(" reward ▃▅▆▅█▂▇ 0.917 (n=12), step 7 of 30  held out")
    assert "held out skills-heldout 0.150 -> 0.750 (n=20)" in row
    assert "no step is through yet" in plain_text(strip_line(run_curves(a_state(*begun())), 120))
