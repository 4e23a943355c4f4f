"""Tokens a second and time left, by a clock of the test's own."""

from pathlib import Path

import pytest

from engines.core import events as ev
from engines.core.run_state import RunState
from studio.tui.tempo import Tempo
from tests.tui.stage import finished_workspace, held_workspace


@pytest.fixture
def state(tmp_path: Path) -> RunState:
    """Step 1 of 4 begun."""
    state = held_workspace(tmp_path).run("mine").state()
    state.ending = ""
    return state


def a_step(
    tempo: Tempo, begin: float, end: float, review: tuple[float, float] | None = None
) -> None:
    tempo.take(ev.StepStarted(1, 1, ("p1",), 0, 0), begin)
    if review is not None:
        tempo.take(ev.StageEntered(1, "review", {}), review[0])
        tempo.take(ev.LessonCommitted(1, 1, "", ()), review[1])
    tempo.take(ev.StepFinished(1, 1), end)


def test_tokens_a_second_are_a_quarter_of_the_characters_of_ten_seconds() -> None:
    tempo = Tempo()
    assert tempo.tokens_per_s(0.0) is None
    tempo.streamed(400, 0.0)
    tempo.streamed(400, 5.0)
    assert tempo.tokens_per_s(5.0) == 800 / 4 / 10
    assert tempo.tokens_per_s(10.5) == 400 / 4 / 10
    assert tempo.tokens_per_s(16.0) is None


def test_the_time_left_is_a_range_until_three_steps_are_known(state: RunState) -> None:
    tempo = Tempo()
    assert tempo.left_s(state) is None
    a_step(tempo, 0.0, 10.0)
    a_step(tempo, 10.0, 40.0)
    assert tempo.left_s(state) == (40.0, 120.0)  # 4 steps of 10 to 30 s
    a_step(tempo, 40.0, 55.0)
    assert tempo.left_s(state) == (60.0, 60.0)  # the median is 15 s


def test_a_persons_time_is_not_the_runs(state: RunState) -> None:
    tempo = Tempo()
    a_step(tempo, 0.0, 1_011.0, review=(9.0, 1_009.0))
    assert tempo.left_s(state) == (44.0, 44.0)  # 9 s before the review and 2 s after it


def test_a_finished_run_has_no_time_left(tmp_path: Path) -> None:
    tempo = Tempo()
    a_step(tempo, 0.0, 10.0)
    assert tempo.left_s(finished_workspace(tmp_path).run("rehearsal").state()) is None
