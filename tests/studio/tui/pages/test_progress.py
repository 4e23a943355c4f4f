"""The progress page: its picture as a value, and each of its keys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engines.core import events as ev
from engines.core.state.run_state import RunState
from studio.facts.curves import run_curves
from studio.session.session import EventReceived
from studio.tui.drawing.lines import Line, plain_text, width_of
from studio.tui.pages.progress.page import (
    ProgressPage,
    ShownRun,
    detail_lines,
    draw_picture,
    last_shown_step,
)
from tests.studio.tui.scenes import SCENES, Stage, on_stage
from tests.studio.tui.stage import check_painted, picture
from tests.support.training_runs import a_state, finished, history, proposed, settled, tried

SIZE = (116, 24)


def text(lines: list[Line]) -> str:
    return "\n".join(plain_text(line) for line in lines)


def page_of(stage: Stage) -> ProgressPage:
    page = stage.app.navigation.page("progress")
    assert isinstance(page, ProgressPage)
    return page


def shown(state: RunState) -> ShownRun:
    return ShownRun(state, run_curves(state), {})


# -- the picture ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(116, 24), (76, 12), (196, 38), (56, 6), (30, 2)])
def test_the_picture_fills_its_pane_and_is_never_wider(size: tuple[int, int]) -> None:
    curves = run_curves(a_state(*finished()))
    lines = draw_picture(curves, curves, "skills-heldout", size).with_cursor(7)
    assert len(lines) == max(size[1], 5)  # the least: legend, a row of the plot, axis and labels
    assert all(width_of(line) <= size[0] for line in lines)


def test_a_new_step_leaves_the_rows_it_does_not_touch_as_they_were() -> None:
    before = a_state(*history())
    after = a_state(*history(), *tried(7, (2, 0, 2)), proposed(7), *settled(7, 4))
    pictures = [
        draw_picture(run_curves(state), None, "skills-heldout", SIZE).with_cursor(1)
        for state in (before, after)
    ]
    changed = [a != b for a, b in zip(*pictures, strict=True)]
    # From 0.083 to 0.333: four rows of ten; axis, versions and the three rows of each small plot
    # at most. Those above 0.4 and the row of steps stay.
    assert not any(changed[:7]) and sum(changed) <= 16


def test_the_range_of_steps_is_halved_while_it_is_mostly_empty() -> None:
    curves = run_curves(a_state(*history()))  # 6 of 30 steps
    assert last_shown_step(curves) == 15  # 4 · 6 <= 30, and 24 > 15
    assert last_shown_step(replace(curves, is_over=True)) == 6
    assert last_shown_step(replace(curves, steps_planned=0)) == 6


def test_ten_thousand_steps_are_dots_with_their_running_mean() -> None:
    from engines.core.state.list_row import Point
    from studio.facts.curves import Series

    few = run_curves(a_state(*history()))
    points = tuple(Point(step, 0.4 + 0.2 * (step % 2), 40) for step in range(1, 10_001))
    steps = tuple(range(1, 10_001))
    curves = replace(few, practice=Series("reward", "reward", points), steps=steps, held_out=())
    lines = draw_picture(curves, None, "", SIZE).lines
    assert "running mean of 400 steps" in plain_text(lines[0])
    rows = [row for row in lines[1:12] if any(span[1] == "bar" for span in row)]
    assert len(rows) == 1  # the mean stays at 0.5, on one row


def test_the_exact_figures_say_what_is_not_measured_and_show_the_other_run() -> None:
    state = a_state(*finished())
    own = shown(state)
    assert "held out: skills-heldout 0.750 [0.54, 0.96] (n=20)" in text(
        detail_lines(own, None, 7, 100)
    )
    assert "held out" not in text(detail_lines(own, None, 3, 100))
    state = a_state(*(e for e in finished() if not isinstance(e, ev.EvaluationFinished)))
    told = text(detail_lines(shown(state), own, 7, 200))
    assert "held out: not measured. evaluation.do_eval=true" in told
    assert "tiny: step 7, epoch 1: reward 0.917 (n=12)" in told


# -- keys ----------------------------------------------------------------------------------------


async def test_points_are_gone_through_and_a_step_is_found_opened_and_copied(
    tmp_path: Path,
) -> None:
    async with on_stage(SCENES["progress-finished"], tmp_path, (120, 36)) as stage:
        page = page_of(stage)
        assert page.steps == (0, 1, 2, 3, 4) and page.step == 4
        at = []
        for key in ("n", "N", "k", "h", "l", "j", "home", "N", "G"):
            await stage.press(key)
            at.append(page.step)
        assert at == [4, 3, 2, 1, 2, 3, 0, 0, 4]
        assert page.at is None  # at the end, it follows what comes
        await stage.press("tab", "k", "shift+tab")  # the figures scroll, the cursor stays
        assert page.step == 4
        await stage.press("slash")
        await stage.answer("2")
        assert page.step == 2 and "Step 2" in "\n".join(picture(stage.app))
        await stage.press("y")
        assert stage.app.clipboard.startswith("step 2, epoch 1: reward 0.")
        assert "(4 experiences)" in stage.app.clipboard
        await stage.press("enter")
        assert stage.app.page_name == "inspect"
        assert "s2p0" in "\n".join(picture(stage.app))


async def test_brackets_choose_the_held_out_set(tmp_path: Path) -> None:
    async with on_stage(SCENES["progress-finished"], tmp_path, (120, 36)) as stage:
        page = page_of(stage)
        names = page.set_names
        assert names == ["arithmetic-heldout", "arithmetic-larger"] and page.held_out == names[0]
        for key, name in (("right_square_bracket", names[1]), ("left_square_bracket", names[0])):
            await stage.press(key)
            assert page.held_out == name
            assert f"┿│ held out {name}, 95 % interval  ┴ commit  ┊ epoch" in picture(stage.app)[3]


async def test_b_lays_a_run_over_and_capital_b_takes_it_away(tmp_path: Path) -> None:
    async with on_stage(SCENES["progress-over"], tmp_path, (120, 36)) as stage:
        page = page_of(stage)
        assert page.over is not None and page.over.curves.run == "other"
        shown = picture(stage.app)
        assert "over it other" in shown[2] and "* * other" in shown[3]
        assert "scripted replies: rehearsal, other" in "\n".join(shown)
        assert "B alone" in shown[-1]
        await stage.press("B")
        assert page.over is None and "other" not in "\n".join(picture(stage.app))
        assert "is shown alone" in picture(stage.app)[-2]
        await stage.press("B")
        assert "the run is shown alone; b lays one over it" in picture(stage.app)[-2]
        await stage.press("b", "escape")
        assert not page.picker.side and page.over is None
        check_painted(stage.app)


async def test_a_step_that_ends_while_the_page_is_open_is_drawn(tmp_path: Path) -> None:
    async with on_stage(SCENES["progress-running"], tmp_path, (80, 24)) as stage:
        page = page_of(stage)
        await stage.press("G")
        assert page.step == 6
        before = page.drawn
        rest = [e for e in tried(7) if getattr(e, "position", 0) >= 1]
        await stage.hear(*(EventReceived(event) for event in rest))
        assert page.drawn is before  # nothing of a step under way is on a curve
        await stage.hear(EventReceived(proposed(7)))
        assert page.step == 7 and "step 7 of 30" in picture(stage.app)[2]
        check_painted(stage.app)


async def test_live_has_a_strip_where_there_is_room(tmp_path: Path) -> None:
    async with on_stage(SCENES["live-finished"], tmp_path, (120, 36)) as stage:
        assert picture(stage.app)[2].startswith(" reward ▃▃▇█ 0.958 ")
        assert "(n=24), step 4 of 4" in picture(stage.app)[2]
        assert "held out arithmetic-heldout 0." in picture(stage.app)[2]
        for size, rows in (((80, 24), 1), ((80, 18), 0), ((120, 36), 1)):
            await stage.pilot.resize_terminal(*size)
            await stage.rest()
            shown = [row[:9].strip() for row in picture(stage.app)[2:4]]
            assert [text in ("reward ▃", "held out") for text in shown].count(True) == rows
            check_painted(stage.app)
