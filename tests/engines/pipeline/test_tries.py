"""How often each problem is tried: by how its groups ended, the same after any crash."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.core import events as ev
from engines.core.state.fold import fold_events
from engines.core.types import Verdict
from engines.pipeline.context import fewest_tries, tries_by_streak
from engines.record.run_dir import RunDir
from tests.engines.pipeline.test_curation import TWO_EPOCHS
from tests.support.harness import practised

LEARNABLE = (*TWO_EPOCHS, "practice.epochs=5", "practice.sampling=learnable")


@pytest.mark.parametrize(
    ("streaks", "size", "tries"),
    [
        ((0, 0, 0), 4, (4, 4, 4)),  # nothing is known yet
        ((2, -1, 1), 4, (2, 6, 4)),  # what a solved problem saves goes to the failed one
        ((2, 3, -1), 4, (2, 2, 8)),
        ((2, 2, 2, -1), 4, (2, 2, 2, 8)),  # at most twice as many: the rest is saved
        ((-1, -1, -1), 4, (4, 4, 4)),  # the step's budget stays
        ((2, -1, -1), 3, (1, 4, 4)),
        ((2, -1), 1, (1, 1)),
    ],
)
def test_solved_problems_lend_their_tries_to_those_where_all_failed(
    streaks: tuple[int, ...], size: int, tries: tuple[int, ...]
) -> None:
    names = [f"p{at}" for at in range(len(streaks))]
    known = dict(zip(names, streaks, strict=True))
    assert tries_by_streak(names, known, size) == tries


@given(st.lists(st.integers(-1, 4), max_size=12), st.integers(1, 9))
def test_a_step_never_makes_more_tries_than_uniform_ones(streaks: list[int], size: int) -> None:
    names = [str(at) for at in range(len(streaks))]
    tries = tries_by_streak(names, dict(enumerate_names(streaks)), size)
    assert sum(tries) <= size * len(streaks)
    assert all(fewest_tries(size) <= n <= 2 * size for n in tries)


def enumerate_names(streaks: list[int]) -> list[tuple[str, int]]:
    return [(str(at), streak) for at, streak in enumerate(streaks)]


def judged(step: int, *rewards: float | None) -> list[ev.DurableEvent]:
    begun = ev.StepStarted(1, step, ("p",), 0, 0, tries=(len(rewards),))
    verdicts = [ev.RolloutJudged(step, 0, n, Verdict(r)) for n, r in enumerate(rewards)]
    return [begun, *verdicts, ev.StepFinished(1, step)]


@pytest.mark.parametrize(
    ("steps", "streak"),
    [
        (((1.0, 1.0), (1.0, 1.0)), 2),
        (((1.0, 1.0), (1.0, 0.0), (1.0, None)), 1),
        (((1.0, 1.0), (None, None), (1.0,)), 2),  # of what was not judged nothing is known
        (((0.0, 0.0),), -1),
        (((0.5, 0.5),), -1),
        (((1.0,), (0.0,)), 0),  # a single try that fails says little
        (((0.0, 0.0), (1.0, 1.0)), 1),
    ],
)
def test_the_state_counts_how_often_in_a_row_a_problem_was_solved(
    steps: tuple[tuple[float | None, ...], ...], streak: int
) -> None:
    events = [event for n, rewards in enumerate(steps, 1) for event in judged(n, *rewards)]
    assert fold_events(events).streaks == {"p": streak}


def sizes(run: RunDir) -> list[tuple[int, ...]]:
    return [e.event.tries for e in run.entries() if isinstance(e.event, ev.StepStarted)]


async def test_a_run_is_sampled_the_same_after_a_crash_and_a_fork_goes_on_by_what_it_adopted(
    tmp_path: Path,
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    done = await practised(whole, *LEARNABLE)
    made = sizes(done.run)
    assert made[0] == (4, 4, 4, 4)
    assert made[-1] != made[0] and sum(made[-1]) <= 16  # some of it is learned by then
    tried = [e.event for e in done.run.entries() if isinstance(e.event, ev.RolloutFinished)]
    for step, of in enumerate(made, 1):
        assert sorted((e.position, e.index) for e in tried if e.step == step) == [
            (position, index) for position, n in enumerate(of) for index in range(n)
        ]

    shutil.copytree(whole, cut)
    journal = cut / "runs/rehearsal/journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    at = [n for n, line in enumerate(lines) if b'"kind":"StepStarted"' in line][-1]
    journal.write_bytes(b"".join(lines[: at + 3]))
    resumed = await practised(cut, *LEARNABLE)
    assert resumed.asked == 0  # every request is the recorded one
    assert sizes(resumed.run) == made and resumed.library == done.library

    fork = await practised(whole, *LEARNABLE, restart_step=2)
    assert sizes(fork.run) == made[2:]
