"""Tries come to their verdicts one by one, or all in one call where they are compared."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from engines.core.types import Problem, Rollout, Verdict
from engines.pipeline.evaluation.evaluate import GroupJudge
from engines.record.journal import Journal
from tests.support.builders import a_rollout
from tests.support.foreign_files import a_file
from tests.support.harness import practised

PROBLEM = Problem("p", "q", "5")


@dataclass
class Comparing:
    """1 for the shortest answers among those given together."""

    whole_groups: bool = True
    calls: list[list[int]] = field(default_factory=list)

    async def check(self) -> None: ...

    async def verify(self, problem: Problem, rollouts: Sequence[Rollout]) -> tuple[Verdict, ...]:
        self.calls.append([rollout.index for rollout in rollouts])
        lengths = [len(str(rollout.attempt.answer)) for rollout in rollouts]
        return tuple(Verdict(float(n == min(lengths))) for n in lengths)

    async def aclose(self) -> None: ...


async def judge_all(
    verifier: Comparing, known: dict[int, Verdict] | None = None
) -> list[float | None]:
    tries = [a_rollout(text, index=n) for n, text in enumerate(("long", "no", "longer"))]
    judge = GroupJudge(verifier, PROBLEM, 3)
    order = (2, 0, 1)  # as they end
    found = await asyncio.gather(*(judge.judge(tries[n], (known or {}).get(n)) for n in order))
    return [verdict.reward for _, verdict in sorted(zip(order, found, strict=True))]


async def test_a_verifier_that_compares_gets_all_tries_in_their_order() -> None:
    together, alone = Comparing(), Comparing(whole_groups=False)
    assert await judge_all(together) == [0.0, 1.0, 0.0] and together.calls == [[0, 1, 2]]
    assert await judge_all(alone) == [1.0, 1.0, 1.0] and alone.calls == [[2], [0], [1]]


async def test_a_known_verdict_stands_and_its_try_is_compared_all_the_same() -> None:
    verifier = Comparing()
    assert await judge_all(verifier, {1: Verdict(0.25)}) == [0.0, 0.25, 0.0]
    assert verifier.calls == [[0, 1, 2]]
    every = {n: Verdict(0.5) for n in range(3)}
    assert await judge_all(verifier, every) == [0.5] * 3 and len(verifier.calls) == 1


async def test_a_verifier_that_fails_leaves_no_try_waiting() -> None:
    class Broken(Comparing):
        async def verify(
            self, problem: Problem, rollouts: Sequence[Rollout]
        ) -> tuple[Verdict, ...]:
            raise ValueError("broken")

    with pytest.raises((ValueError, asyncio.CancelledError)):
        await judge_all(Broken())


SHORTEST = """
    def shortest(completions, **kwargs):
        best = min(map(len, completions))
        assert len(completions) == COUNT
        return [float(len(c) == best) for c in completions]
    """


async def test_a_run_gives_whole_groups_to_a_function_of_trl(tmp_path: Path) -> None:
    """It saw lists of one, and thus each try as the best of its group."""
    path = a_file(tmp_path, SHORTEST.replace("COUNT", "3"))
    small = ("data.truncate=4", "practice.batch_size=2", "practice.group_size=3")
    run = (f"verifier={{file: {path}}}", *small)
    held_out = ("evaluation.do_eval=true", "evaluation.k=3", "evaluation.limit=2")
    several = ("practice.epochs=1", "evaluation.temperature=0.7")
    done = await practised(tmp_path / "practice", *run, *held_out, *several)
    assert done.state.ending == "finished" and not done.state.lost
    assert 0 < sum(step.rewards.total for step in done.state.steps.values()) < 12
    assert all(None not in row for found in done.state.evaluations for row in found.rewards)


async def test_a_group_that_was_cut_between_two_verdicts_is_compared_whole(tmp_path: Path) -> None:
    path = a_file(tmp_path, SHORTEST.replace("COUNT", "3"))
    small = ("data.truncate=2", "practice.batch_size=2", "practice.group_size=3")
    run = (f"verifier={{file: {path}}}", *small)
    straight = await practised(tmp_path / "straight", *run, "practice.epochs=1")

    class Cut(Exception):
        pass

    judged = 0

    class CutJournal(Journal):
        async def append(self, event: object, request: str = "") -> object:  # type: ignore[override]
            nonlocal judged
            if type(event).__name__ == "RolloutJudged":
                judged += 1
                if judged > 1:
                    raise Cut
            return await super().append(event, request)  # type: ignore[arg-type]

    with pytest.raises((Cut, BaseExceptionGroup)):
        await practised(tmp_path / "cut", *run, "practice.epochs=1", open_journal=CutJournal)
    done = await practised(tmp_path / "cut", *run, "practice.epochs=1")
    assert [s.rewards.total for s in done.state.steps.values()] == [
        s.rewards.total for s in straight.state.steps.values()
    ]


@pytest.mark.parametrize("together", [True, False])
async def test_figures_of_a_programs_own_grader_stand_beside_the_verdict(together: bool) -> None:
    rollout = a_rollout("5")
    own = replace(rollout, attempt=replace(rollout.attempt, metrics={"reward": 0.5}))
    verdict = await GroupJudge(Comparing(together), PROBLEM, 1).judge(own)
    assert verdict == Verdict(1.0, metrics={"own.reward": 0.5})
    judge = GroupJudge(Comparing(together), PROBLEM, 1)
    assert await judge.judge(own, verdict) == verdict
