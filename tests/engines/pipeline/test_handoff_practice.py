"""A run whose model is whoever answers files: the same run, in whatever order answers come."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from engines.core import events as ev
from engines.core.errors import AnswersPending
from engines.core.events import event_to_dict
from engines.pipeline.evaluation.evaluate import GroupJudge
from tests.support import verifier_files
from tests.support.builders import a_problem, a_rollout
from tests.support.handoff import answer_calls, pending_calls
from tests.support.harness import Practised, comparable, practised

SMALL = (
    "practice.epochs=2",
    "practice.batch_size=3",
    "practice.group_size=3",
    "data.truncate=3",
    "evaluation.do_eval=true",
    "evaluation.limit=2",
)


def by_handoff(folder: Path) -> tuple[str, ...]:
    return (f"policy=handoff:{folder}", f"reflector=handoff:{folder}")


async def practised_by_handoff(
    workspace: Path, *overrides: str, seed: int, half: bool = False
) -> tuple[Practised, list[int]]:
    """Start, answer and start again until the run ends; also how many calls were answered."""
    folder, order, answered = workspace / "answers", random.Random(seed), []

    def choose(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return calls[: order.randint(1, len(calls))] if half else calls

    while True:
        done = await practised(workspace, *by_handoff(folder), *overrides)
        if done.state.ending != "waiting":
            return done, answered
        answered.append(await answer_calls(folder, order, choose))
        assert answered[-1], "it waits for nothing"


def journal(run: Practised) -> list[str]:
    """What is comparable, without who the model was and what waiting adds."""
    own = [
        repr(event_to_dict(entry.event)["kind"])
        for entry in run.run.entries()
        if isinstance(entry.event, ev.RunResumed | ev.RunEnded)
    ]
    assert own
    rows = [row for row in comparable(run.run) if not any(f"'kind': {kind}" in row for kind in own)]
    return [row for row in rows if "'kind': 'RunStarted'" not in row]


def results(run: Practised) -> list[tuple[object, ...]]:
    return [
        (e.step, e.data, e.mean, e.n, e.rewards, e.usage, e.total) for e in run.state.evaluations
    ]


def without_fingerprints(rows: list[str]) -> list[str]:
    """The fingerprint of an evaluation names the model."""
    return [row.partition("'fingerprint'")[0] + row.partition("'trouble'")[2] for row in rows]


async def test_a_run_that_is_answered_by_files_equals_the_run_in_this_process(
    tmp_path: Path,
) -> None:
    inside = await practised(tmp_path / "inside", *SMALL)
    outside, answered = await practised_by_handoff(tmp_path / "outside", *SMALL, seed=1)
    assert without_fingerprints(journal(outside)) == without_fingerprints(journal(inside))
    assert results(outside) == results(inside)
    assert (outside.texts, outside.state.usage) == (inside.texts, inside.state.usage)
    assert outside.texts and outside.state.paid == inside.state.paid
    assert outside.state.ending == "finished" and not outside.state.lost
    # Both held-out sets at once, then a step's tries, its groups, its consolidation.
    assert answered[:2] == [4, 9] and len(answered) <= 9
    assert not pending_calls(tmp_path / "outside" / "answers")


async def test_a_run_whose_answers_come_bit_by_bit_is_the_same_run(tmp_path: Path) -> None:
    once = await practised_by_handoff(tmp_path / "once", *SMALL, "practice.epochs=1", seed=1)
    bits = await practised_by_handoff(
        tmp_path / "bits", *SMALL, "practice.epochs=1", seed=2, half=True
    )
    assert journal(bits[0]) == journal(once[0])
    assert results(bits[0]) == results(once[0])
    assert sum(bits[1]) == sum(once[1]) and len(bits[1]) > len(once[1])


async def test_a_call_that_waits_is_no_failure_and_costs_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "answers"
    run = (*by_handoff(folder), *SMALL, "evaluation.do_eval=false", "budget.calls=9")
    waits = await practised(tmp_path / "p", *run)
    assert (waits.state.ending, waits.state.status) == ("waiting", "stopped")
    assert waits.state.reason.startswith(f"9 calls wait for answers in {folder}: Answer each ")
    assert not waits.state.lost and not waits.state.usage.calls and waits.state.current
    order = random.Random(1)
    assert await answer_calls(folder, order, lambda calls: calls[:5]) == 5
    waits = await practised(tmp_path / "p", *run)
    now = waits.state.current
    assert now is not None and len(now.rollouts) == len(now.verdicts) == 5
    assert waits.state.usage.calls == 5  # and no other was reserved for good
    assert len(pending_calls(folder)) == 4
    again = await practised(tmp_path / "p", *run)  # nothing was answered: nothing changes
    assert again.state.usage.calls == 5 and len(pending_calls(folder)) == 4
    await answer_calls(folder, order)
    over = await practised(tmp_path / "p", *run)
    assert over.state.ending == "budget"  # the reflector's calls are the tenth and more


async def test_groups_that_are_answered_are_read_while_others_wait(tmp_path: Path) -> None:
    folder = tmp_path / "answers"
    run = (*by_handoff(folder), *SMALL, "evaluation.do_eval=false")
    await practised(tmp_path / "p", *run)
    first = [f"problem {n}," for n in (1, 2)]

    def of_two_groups(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [call for call in calls if any(place in call["call"] for place in first)]

    assert await answer_calls(folder, random.Random(1), of_two_groups) == 6
    await practised(tmp_path / "p", *run)
    purposes = sorted(call["purpose"] for call in pending_calls(folder))
    assert purposes == ["extraction", "extraction", "rollout", "rollout", "rollout"]


async def test_a_group_without_contrast_waits_for_no_group_whose_answers_are_missing(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "answers"
    cap = "practice.read_without_contrast=1"
    run = (*by_handoff(folder), *SMALL, "evaluation.do_eval=false", cap)
    await practised(tmp_path / "p", *run)
    for call in pending_calls(folder):
        if "problem 3," in call["call"]:  # the last group alone, and all of it wrong
            (folder / f"{call['id']}.answer.txt").write_text("#### wrong")
    waits = await asyncio.wait_for(practised(tmp_path / "p", *run), 60)
    assert waits.state.ending == "waiting" and len(pending_calls(folder)) == 6


async def test_tries_that_are_compared_do_not_wait_for_one_without_an_answer() -> None:
    class Comparing:
        whole_groups = True

    judge = GroupJudge(Comparing(), a_problem(), 3)  # type: ignore[arg-type]
    first = asyncio.create_task(judge.judge(a_rollout(index=0)))
    await asyncio.sleep(0)
    judge.miss(AnswersPending({"answers": {"one"}}))
    for waits in (first, judge.judge(a_rollout(index=2))):
        with pytest.raises(AnswersPending):
            await asyncio.wait_for(waits, 5)


@pytest.mark.parametrize("judge", ["judge", "function"])
async def test_a_judge_can_be_handed_off_too(tmp_path: Path, judge: str) -> None:
    folder = tmp_path / "answers"
    # It asks the judge what the text does not decide, and floats the reply.
    file = Path(verifier_files.__file__).parent / "for_agentscope.py"
    spec = "verifier=judge" if judge == "judge" else f"verifier={{file: {file}}}"
    run = (f"judge=handoff:{folder}", spec, *SMALL, "evaluation.do_eval=false")
    waits = await practised(tmp_path / "p", *run)
    assert waits.state.ending == "waiting" and not waits.state.lost
    calls = pending_calls(folder)
    assert {call["purpose"] for call in calls} == {"judge"} and len(calls) == 9
