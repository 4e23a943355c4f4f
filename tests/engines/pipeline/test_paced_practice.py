"""Practice whose scripted rollouts are paced: the same run, only slower, and only its rollouts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engines.core import events as ev
from engines.core.errors import ConfigError
from engines.pipeline.context import RunContext
from studio.config.loading import load_run
from studio.run.models import pace_of
from tests.support.harness import Practised, comparable, practised
from tests.support.virtual_clock import on_virtual_clock

TINY = ("practice.epochs=1", "practice.batch_size=4", "practice.group_size=3", "data.truncate=8")
EVALUATED = ("evaluation.do_eval=true", "evaluation.limit=8", "evaluation.data=arithmetic-heldout")


def timed(folder: Path, *overrides: str) -> tuple[Practised, dict[str, float]]:
    """A run on a clock that jumps, and how long its batches and its evaluations took, in s."""
    took = {"batches": 0.0, "evaluations": 0.0}

    async def run() -> Practised:
        clock = asyncio.get_running_loop().time
        last = 0.0

        def hear(event: ev.DurableEvent | ev.TransientEvent) -> None:
            nonlocal last
            if isinstance(event, ev.LessonCommitted):
                took["batches"] += clock() - last
            elif type(event).__name__ == "EvaluationFinished":
                took["evaluations"] += clock() - last
            else:
                return
            last = clock()

        def listening(practice: RunContext) -> RunContext:
            practice.recorder.listen(hear)
            return practice

        return await practised(folder, *TINY, *overrides, change=listening)

    return on_virtual_clock(run()), took


def test_a_paced_run_has_the_journal_of_one_that_is_not_and_its_evaluations_do_not_wait(
    tmp_path: Path,
) -> None:
    plain, at_once = timed(tmp_path / "plain", *EVALUATED)
    paced, watched = timed(tmp_path / "paced", *EVALUATED, "policy.pace_tokens_per_s=40")
    assert comparable(paced.run) == comparable(plain.run)
    assert paced.texts == plain.texts != []
    assert at_once == {"batches": 0.0, "evaluations": 0.0}
    # Two batches of 12 rollouts at once, the longest of 60 to 120 tokens: 1.5 to 3 s each.
    assert 3.0 <= watched["batches"] <= 6.0
    assert watched["evaluations"] == 0.0


def test_a_task_limit_shorter_than_the_pace_fails_no_rollout(tmp_path: Path) -> None:
    paced, took = timed(tmp_path, "policy.pace_tokens_per_s=10", "practice.task_timeout_s=1")
    assert took["batches"] > 5
    statuses = [
        e.event.status for e in paced.run.entries() if isinstance(e.event, ev.RolloutFinished)
    ]
    assert set(statuses) == {"ok"}


async def test_a_resumed_run_takes_any_other_pace(tmp_path: Path) -> None:
    await practised(tmp_path, *TINY, "policy.pace_tokens_per_s=1e6")
    done = await practised(tmp_path, *TINY, "policy.pace_tokens_per_s=2e6", "practice.epochs=2")
    assert done.state.epochs == 2  # the same run went on, and nothing had to be accepted
    assert (await practised(tmp_path, *TINY, "practice.epochs=2")).asked == 0


async def test_a_run_that_is_stopped_in_the_middle_of_a_reply_ends_at_once(tmp_path: Path) -> None:
    def stopping(practice: RunContext) -> RunContext:
        def hear(event: ev.DurableEvent | ev.TransientEvent) -> None:
            if isinstance(event, ev.TextStreamed):
                practice.control.stop("enough")

        practice.recorder.listen(hear)
        return practice

    # A token takes a quarter of an hour: only a stop ends this.
    async with asyncio.timeout(30):
        done = await practised(tmp_path, *TINY, "policy.pace_tokens_per_s=0.001", change=stopping)
    assert (done.state.ending, done.state.current is not None) == ("stopped", True)
    again = await practised(tmp_path, *TINY)
    assert again.state.status == "finished"


def test_a_pause_on_the_spot_stops_the_text_and_going_on_ends_the_run(tmp_path: Path) -> None:
    heard: list[str] = []
    quiet: list[int] = []

    def pausing(practice: RunContext) -> RunContext:
        async def pause() -> None:
            await practice.control.pause(now=True)
            before = len(heard)
            await asyncio.sleep(3600)
            quiet.append(len(heard) - before)
            await practice.control.resume()

        tasks: list[asyncio.Task[None]] = []

        def hear(event: ev.DurableEvent | ev.TransientEvent) -> None:
            if isinstance(event, ev.TextStreamed):
                heard.append(event.text)
                if not tasks:
                    tasks.append(asyncio.create_task(pause()))

        practice.recorder.listen(hear)
        return practice

    settings = (*TINY, "policy.pace_tokens_per_s=40")
    done = on_virtual_clock(practised(tmp_path, *settings, change=pausing))
    assert quiet == [0]
    assert len(heard) > 100
    assert done.state.status == "finished"


def test_a_run_is_paced_where_it_says_so_or_where_a_screen_watches_it(tmp_path: Path) -> None:
    def pace(*overrides: str, watched: bool, preset: str = "rehearsal") -> float | None:
        return pace_of(load_run(preset, overrides, tmp_path, {}).config, watched=watched)

    assert pace(watched=False) is None
    assert pace(watched=True) == 40.0
    assert pace(watched=True, preset="replay") == 40.0
    assert pace("policy.pace_tokens_per_s=7", watched=True) == 7.0
    assert pace("policy.pace_tokens_per_s=7", watched=False) == 7.0
    real = ("policy=openai:m", "policy.base_url=http://127.0.0.1:1/v1")
    assert pace(*real, watched=True) is None


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (
            ("policy=openai:m", "policy.pace_tokens_per_s=40"),
            '"policy.pace_tokens_per_s": a real model streams at its own pace.',
        ),
        (
            ("policy=openai:rehearsal", "policy.pace_tokens_per_s=40"),
            '"policy.pace_tokens_per_s": a real model streams at its own pace.',
        ),
        (
            ("reflector=rehearsal", "reflector.pace_tokens_per_s=40"),
            '"reflector.pace_tokens_per_s": only rollouts are watched as they stream.',
        ),
        (
            ("judge=rehearsal", "judge.pace_tokens_per_s=40"),
            '"judge.pace_tokens_per_s": only rollouts are watched as they stream.',
        ),
        (("policy.pace_tokens_per_s=0",), '"policy.pace_tokens_per_s" is 0'),
        (("policy.pace_tokens_per_s=-1",), '"policy.pace_tokens_per_s" is -1'),
        (("policy.pace_tokens_per_s=.inf",), '"policy.pace_tokens_per_s" is ".inf"'),
        (("policy.pace_tokens_per_s=true",), '"policy.pace_tokens_per_s" is true'),
        (("policy.pace_tokens_per_s=fast",), '"policy.pace_tokens_per_s" is "fast"'),
    ],
)
def test_a_pace_that_cannot_be_kept_is_refused_with_its_name(
    tmp_path: Path, overrides: tuple[str, ...], says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        load_run("rehearsal", overrides, tmp_path, {"OPENAI_API_KEY": "k"})
    assert says in str(refused.value)
