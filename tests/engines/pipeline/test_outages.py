"""When nothing works any more a run ends early, and a resume makes good what was lost."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from engines.core import events as ev
from engines.core.errors import CallFailed
from engines.core.protocols import OnText, Policy
from engines.core.types import Completion, Message, Problem, Rollout, Sampling, Usage, Verdict
from engines.pipeline.context import RunContext
from tests.support.harness import Practised, practised
from tests.support.usage import read_usage

RUN = ("data.truncate=24", "practice.batch_size=12", "practice.group_size=3", "practice.epochs=1")
DOWN = "refused: nobody answers"


@dataclass
class Failing:
    """A policy that answers until `works` says no; what fails has cost its prompt."""

    inner: Policy
    works: Callable[[int], bool]
    asked: int = 0

    @property
    def name(self) -> str:
        return self.inner.name

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        self.asked += 1
        if not self.works(self.asked):
            raise CallFailed("refused", "nobody answers", Usage(5, 0, 1))
        return await self.inner.complete(messages, sampling, on_text)

    async def ping(self) -> None: ...

    async def aclose(self) -> None: ...


def rollouts_fail(works: Callable[[int], bool]) -> Callable[[RunContext], RunContext]:
    def change(practice: RunContext) -> RunContext:
        policy = Failing(practice.rollouts.policy, works)
        return replace(practice, rollouts=replace(practice.rollouts, policy=policy))

    return change


def lessons_fail(works: Callable[[int], bool]) -> Callable[[RunContext], RunContext]:
    """What the reflector is asked fails; looks behind the engine, which has no seam there."""

    def change(practice: RunContext) -> RunContext:
        engine = practice.engine
        engine.reflector.policy = Failing(engine.reflector.policy, works)  # type: ignore[attr-defined]
        return practice

    return change


class Killed(Exception):
    """As if the process had died: nothing is recorded any more."""


def killed_after(events: int) -> Callable[[RunContext], RunContext]:
    def change(practice: RunContext) -> RunContext:
        seen = itertools.count(1)

        def kill(event: object) -> None:
            if isinstance(event, ev.DurableEvent) and next(seen) >= events:
                raise Killed

        practice.recorder.listen(kill)
        return practice

    return change


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Practised:
    """The run without any outage."""
    return asyncio.run(practised(tmp_path_factory.mktemp("straight"), *RUN))


def same_as(found: Practised, straight: Practised) -> None:
    assert (found.texts, found.decisions()) == (straight.texts, straight.decisions())
    assert found.state.lost == straight.state.lost
    assert found.state.group_outcomes() == straight.state.group_outcomes()
    steps = zip(found.state.steps.values(), straight.state.steps.values(), strict=True)
    for one, other in steps:
        assert (one.rewards, one.failed, one.unjudged) == (
            other.rewards,
            other.failed,
            other.unjudged,
        )
        assert one.rollouts_done == other.rollouts_done


async def test_a_run_whose_endpoint_is_gone_ends_with_the_cause_and_few_calls(
    tmp_path: Path,
) -> None:
    found = await practised(
        tmp_path,
        *RUN,
        "data.truncate=100",
        "practice.batch_size=100",
        "practice.concurrency=4",
        change=rollouts_fail(lambda _: False),
    )
    assert (found.state.ending, found.state.status) == ("failed", "failed")
    assert found.state.reason.endswith(f" rollouts failed: {DOWN}")
    assert found.asked < 100  # of 300: those that end while the sixteenth is written down


@pytest.mark.parametrize("seen", [3, 10, 40])
async def test_after_an_outage_a_resumed_run_ends_as_an_undisturbed_one(
    straight: Practised, tmp_path: Path, seen: int
) -> None:
    workspace = tmp_path / "outage"
    cut = await practised(workspace, *RUN, change=rollouts_fail(lambda n: n <= seen))
    assert cut.state.ending == "failed" and cut.state.lost["rollout"] >= 16
    second = await practised(workspace, *RUN, change=rollouts_fail(lambda _: False))
    assert second.state.ending == "failed"
    done = await practised(workspace, *RUN)
    assert done.state.ending == "finished"
    same_as(done, straight)


async def test_answers_that_were_fine_are_not_paid_for_again(tmp_path: Path) -> None:
    one_by_one = "practice.concurrency=1"  # else the six may be under way when all is over
    cut = await practised(tmp_path, *RUN, one_by_one, change=rollouts_fail(lambda n: n <= 6))
    fine = sum(
        entry.event.status == "ok"
        for entry in cut.run.entries()
        if isinstance(entry.event, ev.RolloutFinished)
    )
    assert fine == 6
    done = await practised(tmp_path, *RUN)
    rollouts = 24 * 3
    # Every rollout once, and the failed ones' prompts, which had been paid for.
    usages = [usage for _, usage in read_usage(done.run.records)]
    lost = sum(usage == Usage(5, 0, 1) for usage in usages)
    assert done.state.ending == "finished" and lost >= 16
    asked_for_rollouts = sum(
        len(e.event.refs)
        for e in done.run.entries()
        if isinstance(e.event, ev.RolloutFinished) and e.event.status == "ok"
    )
    assert asked_for_rollouts == rollouts


async def test_a_run_killed_while_it_makes_good_forgets_no_second_time(
    straight: Practised, tmp_path: Path
) -> None:
    workspace = tmp_path / "outage"
    await practised(workspace, *RUN, change=rollouts_fail(lambda n: n <= 6))
    for events in (1, 2, 40):
        with pytest.raises(Killed):
            await practised(workspace, *RUN, change=killed_after(events))
    same_as(await practised(workspace, *RUN), straight)


async def test_a_run_too_small_for_an_outage_ends_by_itself_with_its_losses(
    tmp_path: Path,
) -> None:
    small = ("data.truncate=2", "practice.group_size=3", "practice.epochs=1")
    found = await practised(tmp_path, *small, change=rollouts_fail(lambda _: False))
    assert (found.state.ending, found.state.lost["rollout"]) == ("finished", 6)
    assert found.state.group_outcomes() == {"failed": 2}


async def test_reflections_that_all_fail_end_the_run(tmp_path: Path) -> None:
    straight = await practised(tmp_path / "straight", *RUN, "practice.given_ground_truth=false")
    workspace = tmp_path / "outage"
    long = (*RUN, "practice.given_ground_truth=false", "practice.batch_size=24")
    cut = await practised(workspace, *long, change=lessons_fail(lambda _: False))
    assert cut.state.reason.endswith(f" reflections failed: {DOWN}")
    done = await practised(workspace, *long)
    assert (done.state.ending, done.state.lost) == ("finished", {})
    assert straight.state.group_outcomes() == done.state.group_outcomes()


async def test_a_consolidation_that_failed_is_made_good_where_it_ended_the_run(
    tmp_path: Path,
) -> None:
    run = ("data.truncate=12", "practice.batch_size=4", "practice.group_size=3")

    def consolidations_fail(practice: RunContext) -> RunContext:
        engine = practice.engine
        inner = engine.reflector.policy  # type: ignore[attr-defined]

        class Picky(Failing):
            async def complete(
                self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
            ) -> Completion:
                if "# Task: consolidate" in messages[0].content:
                    raise CallFailed("refused", "nobody answers")
                return await self.inner.complete(messages, sampling, on_text)

        engine.reflector.policy = Picky(inner, lambda _: True)  # type: ignore[attr-defined]
        return practice

    cut = await practised(tmp_path, *run, "practice.epochs=2", change=consolidations_fail)
    assert cut.state.reason == f"the last 3 consolidations failed: {DOWN}"
    assert cut.state.steps_finished == 2 and cut.state.lost["consolidation"] == 3
    done = await practised(tmp_path, *run, "practice.epochs=2")
    assert done.state.ending == "finished"
    assert done.state.lost == {"consolidation": 2}  # of the steps that had been committed
    assert done.state.steps[3].operations > 0


class Broken:
    """A verifier that breaks on everything, or has no opinion on anything."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict

    async def check(self) -> None: ...

    async def verify(self, problem: Problem, rollouts: Sequence[Rollout]) -> tuple[Verdict, ...]:
        return tuple(self.verdict for _ in rollouts)

    async def aclose(self) -> None: ...


async def test_a_broken_verifier_ends_the_run_and_its_tries_are_judged_after_a_resume(
    straight: Practised, tmp_path: Path
) -> None:
    workspace = tmp_path / "outage"
    broken = Broken(Verdict(None, error="failed: KeyError: 'gold'"))
    cut = await practised(workspace, *RUN, change=lambda p: replace(p, verifier=broken))
    assert cut.state.reason.endswith(" verdicts failed: failed: KeyError: 'gold'")
    rolled_out = cut.state.steps[1].rollouts_done
    done = await practised(workspace, *RUN)
    same_as(done, straight)
    assert done.asked <= straight.asked - rolled_out


async def test_a_verifier_without_an_opinion_ends_no_run(tmp_path: Path) -> None:
    silent = Broken(Verdict(None))
    found = await practised(tmp_path, *RUN, change=lambda p: replace(p, verifier=silent))
    assert (found.state.ending, found.state.lost) == ("finished", {})
    assert found.state.group_outcomes() == {"unjudged": 24}


async def test_held_out_rollouts_that_all_fail_end_the_run(tmp_path: Path) -> None:
    def change(practice: RunContext) -> RunContext:
        assert practice.evaluation is not None
        measuring = practice.evaluation.measuring
        failing = Failing(measuring.rollouts.policy, lambda n: n <= 7)
        rollouts = replace(measuring.rollouts, policy=failing)
        measured = replace(practice.evaluation, measuring=replace(measuring, rollouts=rollouts))
        return replace(practice, evaluation=measured)

    held_out = ("evaluation.do_eval=true", "evaluation.limit=40", "practice.concurrency=4")
    found = await practised(tmp_path, *RUN, *held_out, change=change)
    assert found.state.reason.endswith(f" held-out rollouts failed: {DOWN}")
    assert found.asked < 40  # of 80
    done = await practised(tmp_path, *RUN, *held_out)
    assert done.state.ending == "finished" and not done.state.lost


async def test_tries_that_failed_in_a_run_that_was_stopped_are_made_again(
    straight: Practised, tmp_path: Path
) -> None:
    """No outage was called: a few calls failed, and somebody pressed Ctrl-C."""

    def some_fail(practice: RunContext) -> RunContext:
        practice = rollouts_fail(lambda n: n % 9 != 0)(practice)
        seen = itertools.count(1)

        def stop(event: object) -> None:
            if isinstance(event, ev.RolloutJudged) and next(seen) == 30:
                practice.control.stop("Ctrl-C")

        practice.recorder.listen(stop)
        return practice

    workspace = tmp_path / "stopped"
    cut = await practised(workspace, *RUN, change=some_fail)
    step = cut.run.state().steps[1]  # from disk, where an event may stand that nobody heard
    assert cut.state.ending == "stopped" and step.failed > 0
    # What was learned from stays as it is.
    kept = sum(
        found.status == "failed" and place[0] in step.reflections
        for place, found in step.rollouts.items()
    )
    done = await practised(workspace, *RUN)
    assert done.state.ending == "finished"
    assert kept < step.failed and done.state.lost["rollout"] == kept
    assert done.state.group_outcomes().total() == straight.state.group_outcomes().total()
