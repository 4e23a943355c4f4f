"""Tokens a second and time left, by a clock of the test's own."""

from pathlib import Path

import pytest

from engines.core import events as ev
from engines.core.state.run_state import RunState
from engines.core.types import Usage
from studio.session.session import TextPiece
from studio.tui.throughput import Throughput
from tests.studio.tui.stage import finished_workspace, held_workspace


@pytest.fixture
def state(tmp_path: Path) -> RunState:
    """Step 1 of 4 begun."""
    state = held_workspace(tmp_path).run("mine").state()
    state.ending = ""
    return state


def a_step(
    tempo: Throughput, begin: float, end: float, review: tuple[float, float] | None = None
) -> None:
    tempo.add_event(ev.StepStarted(1, 1, ("p1",), 0, 0), begin)
    if review is not None:
        tempo.add_event(ev.StageEntered(1, "review", {}), review[0])
        tempo.add_event(ev.LessonCommitted(1, 1, "", ()), review[1])
    tempo.add_event(ev.StepFinished(1, 1), end)


def test_tokens_a_second_are_a_quarter_of_the_characters_of_ten_seconds() -> None:
    tempo = Throughput()
    assert tempo.tokens_per_s(0.0) is None
    a_text = Growing("s1p0r0")
    tempo.add_pieces([a_text.by(4)], 0.0)
    tempo.add_pieces([a_text.by(400)], 1.0)
    tempo.add_pieces([a_text.by(400)], 5.0)
    assert tempo.tokens_per_s(5.0) == 800 / 4 / 5  # as long as was looked at
    assert tempo.tokens_per_s(10.5) == 800 / 4 / 10
    assert tempo.tokens_per_s(11.5) == 400 / 4 / 10
    assert tempo.tokens_per_s(16.0) is None


class Growing:
    """The text of a rollout, as it is sent."""

    def __init__(self, rollout: str) -> None:
        self.rollout, self.chars = rollout, 0

    def by(self, chars: int) -> TextPiece:
        self.chars += chars
        return TextPiece(self.rollout, self.chars - chars, "x" * chars)

    def anew(self) -> TextPiece:
        return TextPiece(self.rollout, 0, "x" * self.chars)


def test_text_that_is_sent_again_after_a_subscription_is_no_new_text() -> None:
    tempo, a_text = Throughput(), Growing("s1p0r0")
    tempo.add_pieces([a_text.by(8000)], 0.0)  # the screen attached late
    assert tempo.tokens_per_s(1.0) is None
    tempo.add_pieces([a_text.by(40)], 2.0)
    tempo.add_pieces([a_text.anew()], 3.0)  # its pane came on screen again
    tempo.add_pieces([a_text.by(40)], 4.0)
    assert tempo.tokens_per_s(4.0) == 80 / 4 / 4


def test_it_is_told_where_only_the_panes_in_view_are_known() -> None:
    tempo, a_text = Throughput(), Growing("s1p0r0")
    tempo.add_event(ev.StepStarted(1, 1, ("p1",), 0, 0), 0.0)
    assert not tempo.is_shown_only(1.0)
    tempo.add_pieces([a_text.by(4), a_text.by(400)], 1.0)
    assert tempo.is_shown_only(2.0)
    for index in range(8):
        tempo.add_event(a_rollout_of(100, index), 3.0)
    assert not tempo.is_shown_only(3.0)


def test_of_a_long_rollout_only_what_was_made_meanwhile_counts() -> None:
    tempo = Throughput()
    tempo.add_event(ev.StageEntered(1, "rollout", {}), 0.0)  # the screen attached here
    tempo.add_event(a_rollout_of(2000, 0, took_s=40.0), 2.0)
    assert tempo.tokens_per_s(2.0) == 2000 / 40


def test_what_ended_counts_whether_it_was_shown_or_not() -> None:
    tempo = Throughput()
    tempo.add_event(ev.StepStarted(1, 1, ("p1",), 0, 0), 100.0)
    a_text = Growing("s1p1r0")  # one pane of many
    tempo.add_pieces([a_text.by(4), a_text.by(400)], 101.0)
    assert tempo.tokens_per_s(102.0) == 400 / 4 / 2
    for index in range(32):
        tempo.add_event(a_rollout_of(100, index), 104.0)
    assert tempo.tokens_per_s(104.0) == 32 * 100 / 4
    assert tempo.tokens_per_s(113.0) == 32 * 100 / 10
    assert tempo.tokens_per_s(115.0) is None
    tempo.add_event(a_rollout_of(100, 0), 116.0)
    tempo.add_event(ev.StageEntered(1, "review", {}), 116.0)
    assert tempo.tokens_per_s(116.5) is None  # nothing comes while a person decides


def a_rollout_of(tokens: int, index: int, took_s: float = 1.0) -> ev.RolloutFinished:
    return ev.RolloutFinished(
        step=1,
        position=0,
        index=index,
        seed=7,
        status="ok",
        answer=None,
        error=None,
        usage=Usage(50, tokens, 1),
        elapsed_s=took_s,
    )


def test_a_step_whose_beginning_was_not_seen_tells_nothing_of_how_long_steps_take(
    state: RunState,
) -> None:
    tempo = Throughput()  # of a screen that attached during the review
    tempo.add_event(ev.LessonCommitted(1, 1, "", ()), 10.0)
    tempo.add_event(ev.StepFinished(1, 1), 10.1)
    assert tempo.steps.remaining_s(state) is None
    a_step(tempo, 20.0, 30.0)
    assert tempo.steps.remaining_s(state) == (40.0, 40.0)


def test_the_time_left_is_a_range_until_three_steps_are_known(state: RunState) -> None:
    tempo = Throughput()
    assert tempo.steps.remaining_s(state) is None
    a_step(tempo, 0.0, 10.0)
    a_step(tempo, 10.0, 40.0)
    assert tempo.steps.remaining_s(state) == (40.0, 120.0)  # 4 steps of 10 to 30 s
    a_step(tempo, 40.0, 55.0)
    assert tempo.steps.remaining_s(state) == (60.0, 60.0)  # the median is 15 s


def test_a_persons_time_is_not_the_runs(state: RunState) -> None:
    tempo = Throughput()
    a_step(tempo, 0.0, 1_011.0, review=(9.0, 1_009.0))
    assert tempo.steps.remaining_s(state) == (44.0, 44.0)  # 9 s before the review and 2 s after it


def test_a_finished_run_has_no_time_left(tmp_path: Path) -> None:
    tempo = Throughput()
    a_step(tempo, 0.0, 10.0)
    assert tempo.steps.remaining_s(finished_workspace(tmp_path).run("rehearsal").state()) is None


def test_the_time_left_in_words_claims_no_more_than_is_known(state: RunState) -> None:
    tempo = Throughput()
    assert tempo.steps.remaining_text(state) == ""
    a_step(tempo, 0.0, 0.4)
    assert tempo.steps.remaining_text(state) == ""  # 0.4 s is no estimate of the next one
    for taken, said in ((5.0, "< 1 min"), (70.0, "4m 40s")):
        tempo = Throughput()
        a_step(tempo, 0.0, taken)
        assert tempo.steps.remaining_text(state) == said
    a_step(tempo, 0.0, 10.0)
    assert tempo.steps.remaining_text(state) == "< 1 min to 4m 40s"
