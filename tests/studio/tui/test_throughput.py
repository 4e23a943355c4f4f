"""Tokens a second and time left, by a clock of the test's own."""

from engines.core import events as ev
from engines.core.state.fold import fold, fold_events
from engines.core.types import Usage
from studio.session.session import TextPiece
from studio.tui.attachment import Throughput
from tests.support.builders import a_run, a_step


class Followed:
    """A run of some steps, and what a screen makes of it."""

    def __init__(self, steps: int = 4, *, begun: int = 0) -> None:
        self.state = fold_events([a_run(steps_per_epoch=steps)])
        self.tempo = Throughput()
        for step in range(1, begun + 1):
            fold(self.state, a_step(step))
        self.tempo.update(self.state, 0.0)

    def hear(self, event: ev.DurableEvent | ev.TransientEvent, now: float) -> None:
        fold(self.state, event)
        self.tempo.update(self.state, now)

    def take_step(
        self, begin: float, end: float, review: tuple[float, float] | None = None
    ) -> None:
        number = self.state.step + 1
        self.hear(a_step(number), begin)
        if review is not None:
            self.hear(ev.StageEntered(number, "review", {}), review[0])
            self.hear(ev.LessonCommitted(number, 1, "", ()), review[1])
        self.hear(ev.StepFinished(1, number), end)

    @property
    def remaining(self) -> tuple[float, float] | None:
        return self.tempo.steps.remaining_s(self.state)

    @property
    def remaining_text(self) -> str:
        return self.tempo.steps.remaining_text(self.state)


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
    followed, a_text = Followed(), Growing("s1p0r0")
    tempo = followed.tempo
    followed.hear(a_step(), 0.0)
    assert not tempo.is_shown_only(1.0)
    tempo.add_pieces([a_text.by(4), a_text.by(400)], 1.0)
    assert tempo.is_shown_only(2.0)
    for index in range(8):
        followed.hear(a_rollout_of(100, index), 3.0)
    assert not tempo.is_shown_only(3.0)


def test_of_a_long_rollout_only_what_was_made_meanwhile_counts() -> None:
    followed = Followed(begun=1)  # the screen attached here
    followed.hear(a_rollout_of(2000, 0, took_s=40.0), 2.0)
    assert followed.tempo.tokens_per_s(2.0) == 2000 / 40


def test_what_ended_counts_whether_it_was_shown_or_not() -> None:
    followed = Followed()
    tempo = followed.tempo
    followed.hear(a_step(), 100.0)
    a_text = Growing("s1p1r0")  # one pane of many
    tempo.add_pieces([a_text.by(4), a_text.by(400)], 101.0)
    assert tempo.tokens_per_s(102.0) == 400 / 4 / 2
    for index in range(32):
        followed.hear(a_rollout_of(100, index), 104.0)
    assert tempo.tokens_per_s(104.0) == 32 * 100 / 4
    assert tempo.tokens_per_s(113.0) == 32 * 100 / 10
    assert tempo.tokens_per_s(115.0) is None
    followed.hear(a_rollout_of(100, 32), 116.0)
    followed.hear(ev.StageEntered(1, "review", {}), 116.0)
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


def test_a_step_whose_beginning_was_not_seen_tells_nothing_of_how_long_steps_take() -> None:
    followed = Followed(begun=1)  # the screen attached during the review
    followed.hear(ev.LessonCommitted(1, 1, "", ()), 10.0)
    followed.hear(ev.StepFinished(1, 1), 10.1)
    assert followed.remaining is None
    followed.take_step(20.0, 30.0)
    assert followed.remaining == (20.0, 20.0)  # 2 more steps of 10 s


def test_the_time_left_is_a_range_until_three_steps_are_known() -> None:
    followed = Followed(steps=6)
    assert followed.remaining is None
    followed.take_step(0.0, 10.0)
    followed.take_step(10.0, 40.0)
    assert followed.remaining == (40.0, 120.0)  # 4 steps of 10 to 30 s
    followed.take_step(40.0, 55.0)
    assert followed.remaining == (45.0, 45.0)  # the median is 15 s


def test_a_persons_time_is_not_the_runs() -> None:
    followed = Followed(steps=5)
    followed.take_step(0.0, 1_011.0, review=(9.0, 1_009.0))
    assert followed.remaining == (44.0, 44.0)  # 9 s before the review and 2 s after it


def test_a_finished_run_has_no_time_left() -> None:
    followed = Followed()
    followed.take_step(0.0, 10.0)
    followed.hear(ev.RunEnded("finished"), 11.0)
    assert followed.remaining is None


def test_the_time_left_in_words_claims_no_more_than_is_known() -> None:
    followed = Followed(steps=5)
    assert followed.remaining_text == ""
    followed.take_step(0.0, 0.4)
    assert followed.remaining_text == ""  # 0.4 s is no estimate of the next one
    for taken, said in ((5.0, "< 1 min"), (70.0, "4m 40s")):
        followed = Followed(steps=5)
        followed.take_step(0.0, taken)
        assert followed.remaining_text == said
    followed.take_step(70.0, 80.0)
    assert followed.remaining_text == "< 1 min to 3m 30s"
