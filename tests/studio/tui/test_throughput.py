"""Tokens a second and time left, by a clock of the test's own."""

from engines.core import events as ev
from engines.core.state.fold import fold, fold_events
from engines.core.types import Usage
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
    def remaining_text(self) -> str:
        return self.tempo.steps.remaining_text(self.state)


def test_the_rate_is_of_what_ended_in_the_last_minute() -> None:
    followed = Followed()
    tempo = followed.tempo
    assert Throughput().rate(0.0) == 0
    followed.hear(a_step(), 0.0)
    for index in range(32):
        followed.hear(a_rollout_of(100, index), 4.0)
    assert tempo.rate(4.0) == 32 * 100 / 4  # as long as was looked at
    assert tempo.rate(63.0) == 32 * 100 / 60
    assert tempo.rate(65.0) == 0


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
    assert followed.remaining_text == ""
    followed.take_step(20.0, 320.0)
    assert followed.remaining_text == "10m 00s"  # 2 more steps


def test_the_time_left_is_the_median_of_steps_and_a_persons_time_is_not_the_runs() -> None:
    followed = Followed(steps=6)
    assert followed.remaining_text == ""
    followed.take_step(0.0, 1_105.0, review=(100.0, 1_100.0))
    assert followed.remaining_text == "8m 45s"  # 5 steps of 105 s
    followed.take_step(1_105.0, 1_115.0)
    followed.take_step(1_115.0, 1_130.0)
    assert followed.remaining_text == "< 1 min"  # 3 of 15 s


def test_a_finished_run_has_no_time_left() -> None:
    followed = Followed()
    followed.take_step(0.0, 10.0)
    followed.hear(ev.RunEnded("finished"), 11.0)
    assert followed.remaining_text == ""
