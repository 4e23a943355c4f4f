"""A training run on the screen: its panel, its update in review, and every other page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engines.core import events as ev
from engines.core.state.run_state import RunState
from engines.core.types import Decision, Operation, operation_step
from studio.render.training_lines import step_summary
from studio.report.progress import LinePrinter
from studio.review.decider import UndoEntry, inverse_operation
from studio.tui.drawing.lines import Line, plain_text, width_of
from studio.tui.header import SessionStatus
from studio.tui.pages.live.view import (
    current_batch,
    facts_lines,
    stage_lines,
    status_line,
)
from studio.tui.pages.review.view import Item, commit_lines, item_row
from studio.tui.pages.training_view import panel_lines, update_lines
from studio.tui.settings import ScreenSettings
from tests.studio.tui.scenes import SCENES, SIZES, Stage, on_stage
from tests.studio.tui.stage import picture
from tests.studio.tui.test_pictures import THEMES
from tests.support.builders import a_lesson, an_operation
from tests.support.training_runs import (
    a_state,
    begun,
    finished,
    history,
    metrics,
    proposed,
    settled,
    tried,
)

LIVES = SessionStatus(living=True)


def text(lines: list[Line]) -> str:
    return "\n".join(plain_text(line) for line in lines)


def waits(**figures: float) -> RunState:
    """A run whose seventh update waits for a person."""
    return a_state(*history(), *tried(7), proposed(7, figures=metrics(7, **figures)))


def the_update(state: RunState) -> Operation:
    (operation,) = state.undecided_operations
    return operation


# -- the panel ----------------------------------------------------------------------------------


def test_before_the_first_step_the_panel_says_so_and_what_is_trained() -> None:
    told = text(panel_lines(a_state(*begun()), 60))
    assert "no step is through yet" in told
    assert "22,528 of 651,264 parameters are trained (3.5 %)" in told


def test_the_panel_shows_the_curve_its_ends_and_every_figure() -> None:
    told = text(panel_lines(a_state(*finished()), 30)).splitlines()
    assert told[:5] == [
        "training  policy v4",
        "▃▅▆▅█▂▇",
        "reward 0.250 -> 0.917 (n=12)",
        "best   1.000 in step 5 of 7",
        "update 7 applied",
    ]
    assert [line.split() for line in told[5:9]] == [
        ["KL", "0.007", "clipped", "2", "%"],
        ["entropy", "0.43", "|g|", "0.8"],
        ["length", "31", "cut", "12", "%"],
        ["lr", "0.002", "contrast", "75", "%"],
    ]
    assert told[9] == "saved  step 7, v4"


def test_a_rollback_stands_in_the_panel_in_words_and_in_the_style_of_a_warning() -> None:
    state = a_state(*history(), *tried(7), proposed(7), *settled(7, 4))
    found = [line for line in panel_lines(state, 60) if "rolled back" in plain_text(line)]
    assert [plain_text(line) for line in found] == ["rolled back to step 2 at step 6"]
    assert {style for line in found for _, style in line} == {"flag"}
    last = a_state(*history())
    assert "update 6 rolled back to 2" in text(panel_lines(last, 60))


def test_a_failed_update_tells_why_in_the_style_of_a_failure() -> None:
    state = a_state(*history(), *tried(7), proposed(7, failed="out of memory"))
    found = next(line for line in panel_lines(state, 60) if "out of memory" in plain_text(line))
    assert plain_text(found) == "update of step 7 failed: out of memory"
    assert found[0][1] == "failed"


def test_an_update_that_waits_names_the_key_that_shows_it() -> None:
    assert "needs your review (2)" in text(panel_lines(waits(), 40))


@pytest.mark.parametrize("width", [12, 30, 80, 118])
def test_nothing_of_training_is_wider_than_its_place(width: int) -> None:
    many = [event for n in range(1, 90) for event in (*tried(n), proposed(n), *settled(n, n))]
    for state in (
        a_state(*begun()), a_state(*history()), waits(), a_state(*finished()),
        a_state(*begun(), *many),
    ):  # fmt: skip
        shown = panel_lines(state, width)
        for operation in state.undecided_operations:
            shown += update_lines(operation, state, width)
        assert [plain_text(line) for line in shown if width_of(line) > width] == []


# -- beside it ----------------------------------------------------------------------------------


def test_the_stages_of_a_training_batch_end_with_its_update() -> None:
    state = a_state(*begun(), *tried(1), proposed(1))
    batch = current_batch(state)
    assert batch is not None
    assert plain_text(stage_lines(batch, state, 40)[-1]) == "update     needs your review (2)"
    under_way = a_state(*begun(), tried(1)[0])
    rollouts = current_batch(under_way)
    assert rollouts is not None
    assert plain_text(stage_lines(rollouts, under_way, 40)[-1]) == "update     not computed yet"
    assert "training  policy v0" in text(facts_lines(state, batch, LIVES, width=30))


def test_the_page_speaks_of_weights_where_a_run_trains_them() -> None:
    state = a_state(*begun(), *tried(1), proposed(1))
    assert "1 weight update to decide" in plain_text(
        status_line(state, current_batch(state), LIVES, None)
    )
    computing = a_state(*begun(), *tried(1))
    told = plain_text(status_line(computing, current_batch(computing), LIVES, None))
    assert "computing a weight update from 2 groups" in told
    ended = a_state(*finished())
    assert "finished; 3 shows" in plain_text(status_line(ended, None, LIVES, None))


def test_a_library_step_among_weight_steps_speaks_of_operations_everywhere() -> None:
    begins, *others = tried(1)
    assert isinstance(begins, ev.StepStarted)
    lesson = ev.LessonProposed(1, a_lesson(an_operation("add", text="Carry: carry one.")))
    state = a_state(*begun(), replace(begins, learns="library"), *others, lesson)
    batch = current_batch(state)
    assert batch is not None
    assert state.trains_weights and state.alternates and not state.step_trains
    assert "1 operation to decide" in plain_text(status_line(state, batch, LIVES, None))
    assert plain_text(stage_lines(batch, state, 40)[-1]).startswith("operations 1")
    drawing = a_state(*begun(), replace(begins, learns="library"), *others)
    told = plain_text(status_line(drawing, current_batch(drawing), LIVES, None))
    assert "drawing operations from 2 groups" in told
    assert "1 library step" in text(panel_lines(state, 60))
    lines: list[str] = []
    say = LinePrinter(state, lines.append)
    say(begins)
    say(lesson)
    assert "1 operation proposed" in lines[1] and len(lines) == 2
    assert "1 operation proposed, not committed yet" in step_summary(state, 1)
    mixed = a_state(*begun(), replace(begins, learns="weights"), *others, proposed(1))
    assert mixed.alternates and mixed.step_trains
    assert "1 weight update to decide" in plain_text(
        status_line(mixed, current_batch(mixed), LIVES, None)
    )


# -- in review ----------------------------------------------------------------------------------


def test_an_update_shows_what_it_is_decided_by_with_arrow_bound_and_curve() -> None:
    shown = text(update_lines(the_update(waits()), waits(), 78)).splitlines()
    assert [row.split()[0] for row in shown[:6]] == [
        *("reward", "KL", "gradient", "clipped", "entropy", "loss"),
    ]
    assert shown[0].split() == ["reward", "0.600", "up", "from", "0.550", "▁▂▃▇█"]
    assert "0.007  up from 0.006" in shown[1] and "good: at most 0.5" in shown[1]
    assert "same as 0.8" in shown[2] and "down from 0.44" in shown[4]
    assert shown[6:] == [f"and {len(metrics()) - 6} more figures (z)"]
    whole = text(update_lines(the_update(waits()), waits(), 78, whole=True)).splitlines()
    assert len(whole) == len(metrics()) + 1 and whole[-1] == "z shows fewer"


def test_a_figure_out_of_bounds_is_said_in_words() -> None:
    state = waits(kl=0.7, entropy=0.01, reward=0.1)
    shown = update_lines(the_update(state), state, 78)
    assert ("OUT OF BOUNDS: above 0.5  ", "flag") in shown[1]
    not_a_number = waits(kl=float("nan"), loss=float("inf"))
    lines = text(update_lines(the_update(not_a_number), not_a_number, 78)).splitlines()
    assert "OUT OF BOUNDS" in lines[1] and "inf" in lines[5]


def test_an_update_that_goes_back_says_to_which_step() -> None:
    state = a_state(*history(), *tried(7), proposed(7, back_to=2))
    told = text(update_lines(the_update(state), state, 78))
    assert told.startswith("ROLLBACK  approved, it goes back to the weights of step 2")


def test_an_update_without_figures_is_shown_by_its_text() -> None:
    alone = Operation("op9.w", "weights", text="step-9")
    assert text(update_lines(alone, a_state(*begun()), 40)) == "step-9"
    assert (operation_step(alone.id), operation_step("odd")) == (9, 0)


def test_the_row_of_an_update_has_a_sign_and_a_word_of_its_own() -> None:
    operation = the_update(waits())
    assert plain_text(item_row(Item(operation.id, operation)).line).startswith("◦ ^ policy")


def test_a_commit_of_an_update_tells_the_policy_and_not_the_library() -> None:
    state = waits()
    operation = the_update(state)
    for decision, told in (
        (Decision(operation.id, "approve"), "v3 becomes v4"),
        (Decision(operation.id, "reject"), "stays v3"),
    ):
        item = Item(operation.id, operation, decision)
        shown = text(commit_lines(state, [item]))
        assert f"policy     {told}" in shown
        assert "library" not in shown


def test_an_update_that_is_committed_is_not_taken_back_by_an_operation() -> None:
    operation = the_update(waits())
    made = UndoEntry(operation, Decision(operation.id, "approve", reviewer="sam"))
    told = inverse_operation(made, {})
    assert isinstance(told, str)
    assert "policy.adapter=run:RUN@STEP" in told


@pytest.mark.parametrize("key", ["e", "E", "M", "t"])
async def test_keys_that_change_a_wording_are_refused_on_an_update(
    key: str, tmp_path: Path
) -> None:
    async with on_stage(SCENES["training-review"], tmp_path, (120, 36)) as stage:
        await stage.press(key)
        assert "a weight update is approved or rejected as a whole: a or r" in shown(stage)
        assert asked(stage) == []


@pytest.mark.parametrize(("key", "action"), [("a", "approve"), ("r", "reject")])
async def test_an_update_is_approved_and_rejected_like_any_operation(
    key: str, action: str, tmp_path: Path
) -> None:
    async with on_stage(SCENES["training-review"], tmp_path, (120, 36)) as stage:
        await stage.press(key)
        assert [(d.operation_id, d.action) for d in asked(stage)] == [("op7.w", action)]
        await stage.press("u")
        assert stage.session is not None
        assert "undo" in stage.session.names()


async def test_an_update_that_nobody_decided_is_not_committed(tmp_path: Path) -> None:
    async with on_stage(SCENES["training-review"], tmp_path, (120, 36)) as stage:
        await stage.press("c")
        assert "not put off: a or r, then c" in shown(stage)
        await stage.press("a", "c")
        assert stage.session is not None
        assert stage.session.names() == ["decide", "commit"]


async def test_z_shows_all_figures_of_an_update_and_fewer_again(tmp_path: Path) -> None:
    async with on_stage(SCENES["training-review"], tmp_path, (120, 36)) as stage:
        assert "more figures (z)" in shown(stage) and "reward spread" not in shown(stage)
        await stage.press("z")
        assert "reward spread" in shown(stage)
        await stage.press("z")
        assert "more figures (z)" in shown(stage)


async def test_all_that_is_safe_leaves_an_update_to_its_own_key(tmp_path: Path) -> None:
    async with on_stage(SCENES["training-review"], tmp_path, (120, 36)) as stage:
        await stage.press("A")
        assert asked(stage) == []
        assert "nothing is safe" in shown(stage)


async def test_the_id_of_an_update_leads_to_the_rollouts_of_its_step(tmp_path: Path) -> None:
    async with on_stage(SCENES["training-waits"], tmp_path, (120, 36)) as stage:
        await stage.press("6", "g")
        await stage.answer("op3.w")
        assert "s3p0r0" in shown(stage)
        assert "policy v2" in shown(stage)


async def test_the_evidence_of_an_update_opens_a_rollout_of_its_step(tmp_path: Path) -> None:
    async with on_stage(SCENES["training-review"], tmp_path, (120, 36)) as stage:
        await stage.press("o")
        assert stage.app.page_name == "inspect"
        assert "s7p0r0" in shown(stage)


@pytest.mark.parametrize(
    ("theme", "size"), [*((theme, SIZES[0]) for theme in THEMES), (THEMES[-1], SIZES[1])]
)
async def test_every_page_shows_a_training_run_in_every_theme(
    theme: str, size: tuple[int, int], tmp_path: Path
) -> None:
    settings = ScreenSettings(theme=theme)
    async with on_stage(SCENES["training-waits"], tmp_path, size, settings) as stage:
        assert "0.667 (n=12)" in shown(stage)
        for key in "23456":
            await stage.press(key)
            assert "Weight update" in shown(stage) or key != "2"
        await stage.press("1")
        assert "review: 1 weight update" in shown(stage)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("training-running", SIZES[0]),
        ("training-running", SIZES[1]),
        ("training-review", SIZES[0]),
        ("training-finished", SIZES[0]),
    ],
)
async def test_in_ascii_a_training_run_is_drawn_in_ascii(
    name: str, size: tuple[int, int], tmp_path: Path
) -> None:
    settings = ScreenSettings(theme="studio-mono", ascii=True)
    async with on_stage(SCENES[name], tmp_path, size, settings) as stage:
        odd = {char for line in picture(stage.app) for char in line if not char.isascii()}
        assert odd <= set("…“”")


def shown(stage: Stage) -> str:
    return "\n".join(picture(stage.app))


def asked(stage: Stage) -> list[Decision]:
    assert stage.session is not None
    return [made for name, made in stage.session.asked if name == "decide"]
