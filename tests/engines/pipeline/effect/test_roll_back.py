"""What a held-out set finds to hurt goes out of the library again, by a lesson like any other."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from engines.core.events import EvaluationFinished, OperationProposed
from engines.core.library import Library
from engines.core.types import NO_USAGE, Decision, Operation
from engines.pipeline.gate.draft import ROLL_BACK, find_setback
from engines.pipeline.reviewers import AutoReviewer, HumanReviewer
from engines.record.run_dir import Workspace
from tests.support.harness import practised

HARMFUL = "In a story of two changes, do not go on to the second change."
ON = "review.gate={roll_back: true}"
RUN = (
    "practice.epochs=2",
    "practice.batch_size=16",
    "evaluation.limit=48",
    "evaluation.do_eval=true",
)


class Misled:
    """Approves all of the first epoch, and turns the first idea of the second into a bad one."""

    name = "misled"

    def __init__(self, *, decides_way_back: bool = True) -> None:
        self.decides_way_back, self._done = decides_way_back, False

    async def review(
        self, operations: Sequence[Operation], library: Library
    ) -> AsyncIterator[Decision]:
        for op in operations:
            if op.proposer == ROLL_BACK:
                if self.decides_way_back:
                    yield Decision(op.id, "approve", reviewer=self.name)
            elif int(op.id[2:].partition(".")[0]) > 2 and not self._done:
                self._done = True
                story = next(e.id for e in library.experiences if "story" in e.text)
                yield Decision(
                    op.id, "edit", text=HARMFUL, kind="modify", target=story, reviewer=self.name
                )
            else:
                yield Decision(op.id, "approve", reviewer=self.name)


@pytest.fixture(scope="module")
def first_epoch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workspace after the first epoch, which is the same for all who look at the way back."""
    workspace = tmp_path_factory.mktemp("first")
    asyncio.run(practised(workspace, *RUN, ON, "practice.epochs=1", reviewers=[Misled()]))
    return workspace


@pytest.fixture
def begun(first_epoch: Path, tmp_path: Path) -> Path:
    """A copy to go on with."""
    return Path(shutil.copytree(first_epoch, tmp_path / "practice", symlinks=True))


async def test_what_hurts_is_taken_back_at_the_end_of_the_epoch(begun: Path) -> None:
    found = await practised(begun, *RUN, ON, reviewers=[Misled()])
    held_out = [one for one in found.state.evaluations if one.data == "arithmetic-heldout"]
    means = [one.mean for one in held_out if one.mean is not None]
    assert means[2] < means[1] - 0.15
    after_first = next(e.library_version for e in found.state.evaluations if e.step == 2)
    assert found.library.version > after_first
    older = Workspace(begun).library("rehearsal").at(after_first)
    assert sorted(found.texts) == sorted((e.id, e.text) for e in older.experiences)
    assert HARMFUL not in dict(found.texts).values()
    assert not found.state.open_operations and found.state.status == "finished"


async def test_without_the_setting_it_stays(tmp_path: Path) -> None:
    found = await practised(tmp_path, *RUN, reviewers=[Misled()])
    assert HARMFUL in dict(found.texts).values()


async def test_where_a_person_decides_the_way_back_waits_for_them(begun: Path) -> None:
    misled = Misled(decides_way_back=False)
    found = await practised(begun, *RUN, ON, reviewers=[misled, HumanReviewer(0.01)])
    assert HARMFUL in dict(found.texts).values()
    waiting = found.state.open_operations
    assert {op.proposer for op in waiting} == {ROLL_BACK}
    assert "got worse: -0." in waiting[0].rationale


class CutShort(Misled):
    """Its process dies when the way back is put before it."""

    async def review(
        self, operations: Sequence[Operation], library: Library
    ) -> AsyncIterator[Decision]:
        if any(op.proposer == ROLL_BACK for op in operations):
            raise KeyboardInterrupt
        async for decision in super().review(operations, library):
            yield decision


async def test_a_way_back_that_was_cut_is_not_proposed_twice(begun: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        await practised(begun, *RUN, ON, reviewers=[CutShort()])
    cut = [op.id for op in Workspace(begun).run("rehearsal").state().open_operations]
    found = await practised(begun, *RUN, ON, reviewers=[Misled()])
    proposed = [entry.event for entry in found.run.entries() if is_roll_back(entry.event)]
    assert cut and [e.operation.id for e in proposed if isinstance(e, OperationProposed)] == cut
    assert HARMFUL not in dict(found.texts).values()


async def test_nothing_is_taken_back_from_what_helps(begun: Path) -> None:
    found = await practised(begun, *RUN, ON, reviewers=[AutoReviewer()])
    assert len(found.texts) == 4 and found.state.own == set()


def test_it_needs_an_evaluation(tmp_path: Path) -> None:
    from engines.core.errors import ConfigError
    from studio.config.loading import load_run

    with pytest.raises(ConfigError, match="nothing is evaluated that could tell"):
        load_run("rehearsal", [ON, "evaluation.do_eval=false"], tmp_path, {})


def an_evaluation(step: int, version: int, right: int) -> EvaluationFinished:
    rewards = tuple((float(n < right),) for n in range(40))
    ids = tuple(f"p{n}" for n in range(40))
    return EvaluationFinished(
        step=step, data="set", policy_version=0, library_version=version, k=1, n=40, unjudged=0,
        mean=right / 40, usage=NO_USAGE, problems=ids, rewards=rewards,
    )  # fmt: skip


def test_the_end_of_an_epoch_is_compared_with_the_end_of_the_one_before() -> None:
    fell = [
        an_evaluation(step, *at) for step, at in enumerate([(0, 10), (1, 30), (2, 12), (3, 12)])
    ]
    found = find_setback(fell, since=1)
    assert found is not None and found.version == 1
    assert "set got worse: -0.45 [" in found.reason and "of v3 against v1" in found.reason
    assert find_setback(fell, since=0) is None  # better than at the very beginning
    assert find_setback(fell, since=-1) is None
    noise = [an_evaluation(0, 1, 30), an_evaluation(1, 1, 12)]
    assert find_setback(noise, since=0) is None  # nothing has changed that could be taken back


def test_the_last_of_several_sets_decides_nothing() -> None:
    fell = [an_evaluation(step, *at) for step, at in enumerate([(1, 30), (2, 12)])]
    steady = [replace(one, data="other", rewards=fell[0].rewards) for one in fell]
    in_order = zip(fell, steady, strict=True)
    assert find_setback([one for pair in in_order for one in pair], since=0) is not None
    last = zip(steady, fell, strict=True)
    assert find_setback([one for pair in last for one in pair], since=0) is None


async def test_evaluations_inside_an_epoch_take_nothing_back(tmp_path: Path) -> None:
    often = ("evaluation.strategy=steps", "evaluation.every_steps=1")
    found = await practised(tmp_path, *RUN, ON, *often, reviewers=[Misled()])
    assert HARMFUL not in dict(found.texts).values()
    steps = [entry.event.step for entry in found.run.entries() if is_roll_back(entry.event)]
    assert set(steps) == {4}


def is_roll_back(event: object) -> bool:
    return isinstance(event, OperationProposed) and event.operation.proposer == ROLL_BACK
