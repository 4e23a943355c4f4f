"""A training run cut anywhere goes on to the very same weights, without sampling anew.

What was sampled is never drawn again; what was computed from it is computed again, from the
newest checkpoint that is whole.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.core import events as ev
from engines.core.errors import ConflictError
from engines.core.types import Decision, Operation
from engines.pipeline.replay_training import (
    load_history,
    policy_version_after,
    replay_training,
)
from engines.pipeline.step import practise
from engines.record import lines
from engines.record.ledger import read_record
from engines.record.run_dir import RunDir, Workspace
from tests.engines.pipeline.test_resume import Photographed, _mark
from tests.support.builders import a_decision
from tests.support.harness import ScriptedPerson, comparable
from tests.support.scripted_training import Run, opened, trained

FALLS = (3,)  # the third step goes back to the weights of the second
STEPS = 3


def chosen(operation: Operation) -> Decision:
    return a_decision(operation, "reject" if operation.id == "op2.w" else "approve")


def journal_of(run: RunDir) -> list[str]:
    """What happened, without how often a process had to begin."""
    return [row for row in comparable(run) if "'RunResumed'" not in row and "'RunEnded'" not in row]


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """An undisturbed run, and a folder of what a kill at each event would have left of it."""
    root = tmp_path_factory.mktemp("training")
    place, photographs = root / "practice", root / "album"
    photographs.mkdir()
    camera = type("Camera", (Photographed,), {"workspace": place, "album": photographs})
    person = ScriptedPerson(chosen)
    run = asyncio.run(
        trained(place, steps=STEPS, falls=FALLS, open_journal=camera, reviewers=[person])
    )
    return run, photographs


async def test_a_training_run_cut_at_any_event_ends_with_the_same_weights_and_journal(
    album: tuple[Run, Path], tmp_path: Path
) -> None:
    whole, photographs = album
    assert whole.state.rolled_back == {3: 1}  # the second step's update was rejected
    wanted = journal_of(whole.run)
    taken = sorted(photographs.iterdir())
    assert len(taken) > 90
    cuts = {_mark(photograph): photograph for photograph in taken}  # most equal one before
    assert len(cuts) > 30, len(cuts)
    company = set(whole.policy.batches)
    for cut in cuts.values():
        place = tmp_path / cut.name
        shutil.copytree(cut, place)
        run = await trained(place, steps=STEPS, falls=FALLS, reviewers=[ScriptedPerson(chosen)])
        where = cut.name
        assert run.value == whole.value, where
        assert (run.engine.version, run.engine.seen) == (2, STEPS), where
        assert journal_of(run.run) == wanted, where
        assert not [line for line in run.told if "other figures" in line], where
        assert set(run.policy.batches) <= company, where  # never in other company
        assert (run.run.path / "checkpoints/e/global_step_2/state.json").exists(), where
        shutil.rmtree(place)


async def resumed(at: Path, **how: Any) -> Run:
    return await trained(at, steps=STEPS, **how)


async def cut_after(place: Path, kind: str, nth: int) -> Path:
    """A run whose process was killed right after the nth event of a kind; returns its place."""
    album = place / "album"
    album.mkdir(parents=True)
    camera = type("Camera", (Photographed,), {"workspace": place / "run", "album": album})
    await trained(place / "run", steps=STEPS, open_journal=camera)
    return sorted(album.glob(f"*-after-{kind}"))[nth - 1]


async def cut_inside(place: Path) -> Run:
    """A run killed as the first rollout of step 2 was journalled, others being recorded in part."""
    whole = await trained(place, steps=STEPS)
    found = lines.read(whole.run.journal, chained=True).lines
    kinds = [entry.event for entry in whole.run.entries()]
    at = [n for n, event in enumerate(kinds) if isinstance(event, ev.RolloutFinished)][4]
    os.truncate(whole.run.journal, found[at].offset + found[at].length)
    last = kinds[at].refs[-1]
    os.truncate(whole.run.records / last.file, last.offset + last.length)
    (whole.run.records / "step-0003.jsonl").unlink()
    shutil.rmtree(whole.run.path / "checkpoints")
    return whole


async def test_a_step_of_which_something_is_known_is_rolled_out_in_the_same_company(
    tmp_path: Path,
) -> None:
    whole = await cut_inside(tmp_path)
    before = {path: path.read_bytes() for path in whole.run.records.iterdir()}
    run = await resumed(tmp_path)
    assert run.value == whole.value
    assert run.policy.batches == whole.policy.batches[2:]  # steps 2 and 3, each with everybody
    asked = run.practice.ledger.asked
    assert asked < 16  # of what was sampled some was company alone, and paid for before
    assert run.practice.ledger.paid.calls == asked
    for path, found in before.items():
        assert path.read_bytes().startswith(found)
    named = [entry.event for entry in run.run.entries()]
    places = [(e.step, e.position, e.index) for e in named if isinstance(e, ev.RolloutFinished)]
    assert len(places) == len(set(places)) == 12  # nothing of the company is journalled


async def test_in_other_company_the_missing_would_come_out_otherwise(tmp_path: Path) -> None:
    whole = await cut_inside(tmp_path)
    async with opened(tmp_path, steps=STEPS) as run:
        practice = replace(
            run.practice, cohort=False, rollouts=replace(run.practice.rollouts, attending=None)
        )
        await practise(practice)
    assert run.value != whole.value
    assert sum(len(batch) for batch in run.policy.batches) == practice.ledger.asked


async def test_a_step_that_is_known_whole_is_not_sampled_again(tmp_path: Path) -> None:
    cut = await cut_after(tmp_path, "RolloutJudged", 8)  # the last of step 2
    run = await resumed(cut)
    assert len(run.policy.batches) == 2  # two turns of step 3


async def test_steps_after_the_checkpoint_are_computed_again_and_said_so(tmp_path: Path) -> None:
    cut = await cut_after(tmp_path, "LessonProposed", 2)
    run = await resumed(cut)
    assert run.told == [
        "computing steps 1 to 2 again from what was recorded, on the weights the run began with"
    ]
    assert run.engine.consolidated == [1, 2, 3]
    cut = await cut_after(tmp_path / "later", "LessonCommitted", 3)
    run = await resumed(cut)
    assert run.told == [
        "computing step 3 again from what was recorded, on the checkpoint of step 2"
    ]
    assert run.engine.consolidated == [3]


async def test_steps_are_computed_again_for_as_long_a_run_as_was_planned_then(
    tmp_path: Path,
) -> None:
    """With epochs given meanwhile, a schedule over the whole run would come out otherwise."""
    cut = await cut_after(tmp_path / "killed", "LessonCommitted", 3)
    killed = await resumed(cut, epochs=2)
    assert killed.told == [
        "computing step 3 again from what was recorded, on the checkpoint of step 2"
    ]
    assert killed.engine.plans == [3, 6]
    await trained(tmp_path / "ended", steps=STEPS)
    ended = await resumed(tmp_path / "ended", epochs=2)
    assert ended.engine.plans[-1] == 6
    assert killed.value == ended.value
    assert killed.engine.consolidated == [3, 4, 5, 6]
    # A third process hears of both plans, and of the second one only at the steps that had it.
    shutil.rmtree(ended.run.path / "checkpoints")
    third = await resumed(tmp_path / "ended", epochs=2)
    assert third.engine.consolidated == [1, 2, 3, 4, 5, 6]
    assert third.value == ended.value
    assert not [line for line in third.told if "other figures" in line]
    assert third.engine.plans[-1] == 6


async def test_a_lesson_that_waits_is_computed_again_as_it_was_proposed(tmp_path: Path) -> None:
    cut = await cut_after(tmp_path, "LessonProposed", 2)
    run = await resumed(cut, epochs=2)
    assert not [line for line in run.told if "other figures" in line]
    assert run.engine.plans[-1] == 6


async def test_steps_of_several_plans_are_each_computed_again_by_their_own(tmp_path: Path) -> None:
    """The first was committed in a run of one epoch, the second waits in one of two."""
    begun, album = await cut_after(tmp_path, "LessonCommitted", 1), tmp_path / "second"
    album.mkdir()
    camera = type("Camera", (Photographed,), {"workspace": begun, "album": album})
    await resumed(begun, epochs=2, open_journal=camera)
    waits = sorted(album.glob("*-after-LessonProposed"))[0]
    run = await resumed(waits, epochs=3)
    assert run.told == [
        "computing steps 1 to 2 again from what was recorded, on the weights the run began with"
    ]
    assert run.engine.plans[-1] == 9


async def test_a_plan_counts_the_steps_that_an_epoch_has_meanwhile(tmp_path: Path) -> None:
    """Accepted changes may make more batches of an epoch than it began with."""
    cut = await cut_after(tmp_path, "LessonCommitted", 1)
    async with opened(cut, steps=5):
        pass  # a process that took it up and did nothing
    async with opened(cut, steps=5) as run:
        (chapter,) = run.practice.history
        assert chapter.history().plans == {1: 3}
        await practise(run.practice)
    assert chapter.history().plans == {1: 3, 2: 5, 3: 5, 4: 5, 5: 5}


async def test_a_fork_of_more_epochs_computes_what_it_adopts_as_its_parent_did(
    tmp_path: Path,
) -> None:
    await trained(tmp_path)
    fork = await trained(tmp_path, name="other", fork=("exp", 1), epochs=2)
    assert fork.told == [
        "computing step 1 again from what was recorded, on the weights the run began with"
    ]
    assert fork.engine.plans[-1] == 6


async def test_a_damaged_checkpoint_is_told_and_the_one_before_is_used(tmp_path: Path) -> None:
    whole = await trained(tmp_path, steps=5)
    folder = tmp_path / "runs/exp/checkpoints/e"
    (folder / "global_step_5/state.json").write_text("x [1, 2, 3, [0, 0]]")
    shutil.rmtree(folder / "global_step_4")
    again = await trained(tmp_path, steps=5)
    assert again.value == whole.value
    assert "global_step_5" in again.told[0]
    assert "fails its check" in again.told[0]
    assert again.told[1:] == [
        "computing steps 3 to 5 again from what was recorded, on the checkpoint of step 2"
    ]
    shutil.rmtree(folder)
    again = await trained(tmp_path, steps=5)
    assert again.value == whole.value
    assert again.engine.consolidated == [1, 2, 3, 4, 5]


async def test_other_figures_are_told_by_name_and_value(tmp_path: Path) -> None:
    await trained(tmp_path, steps=1)
    async with opened(tmp_path, steps=1) as run:
        shutil.rmtree(run.run.path / "checkpoints")
        run.engine.weights.value = 2.0  # not what the run began with
        chapters = load_history(run.run, Workspace(tmp_path))
        told: list[str] = []
        await replay_training(run.engine, chapters, run.practice.problems, told.append)
    assert told[-1] == ("step 1 was recomputed with other figures: loss")


async def test_an_update_that_cannot_be_computed_again_ends_the_resume_with_its_reason(
    tmp_path: Path,
) -> None:
    cut = await cut_after(tmp_path, "LessonProposed", 2)
    with pytest.raises(ConflictError, match=r"step 1: .* out of memory\. .*--restart-step 0"):
        async with opened(cut) as run:
            run.engine.fails = "out of memory"
            await practise(run.practice)


async def test_a_problem_that_is_gone_from_the_data_is_named(tmp_path: Path) -> None:
    await trained(tmp_path)
    async with opened(tmp_path) as run:
        shutil.rmtree(run.run.path / "checkpoints")
        with pytest.raises(ConflictError, match="Put the data set back"):
            await replay_training(run.engine, run.practice.history, run.practice.problems[:2])


@pytest.mark.parametrize("adopted", [1, 2])
async def test_a_fork_computes_what_it_adopts_and_keeps_it(adopted: int, tmp_path: Path) -> None:
    parent = await trained(tmp_path)
    fork = await trained(tmp_path, name="other", fork=("exp", adopted))
    assert fork.value == parent.value  # the same seed and steps
    assert fork.engine.version == fork.state.policy_version == STEPS
    assert [step.policy_version for step in fork.state.steps.values()] == list(
        range(adopted, STEPS)
    )
    assert fork.state.checkpoints[0].step == adopted
    # From here on it owes its parent nothing.
    shutil.rmtree(parent.run.path / "records")
    shutil.rmtree(parent.run.path / "checkpoints")
    again = await trained(tmp_path, name="other")
    assert again.value == parent.value


async def test_a_fork_of_a_fork_reads_each_step_where_it_was_practised(tmp_path: Path) -> None:
    whole = await trained(tmp_path, steps=5)
    await trained(tmp_path, steps=5, name="b", fork=("exp", 1))
    for name in ("exp", "b"):
        shutil.rmtree(tmp_path / "runs" / name / "checkpoints")
    last = await trained(tmp_path, steps=5, name="c", fork=("b", 3))
    assert last.value == whole.value
    assert last.engine.consolidated == [1, 2, 3, 4, 5]
    workspace = Workspace(tmp_path)
    chapters = load_history(workspace.run("c"), workspace)
    assert [chapter.upto for chapter in chapters] == [1, 3, None]
    assert policy_version_after(chapters[:2]) == 3


async def test_turns_are_the_exact_ids_that_were_recorded_also_of_a_failed_try(
    tmp_path: Path,
) -> None:
    run = await trained(tmp_path, steps=1)
    live = [r.attempt.turns for group in run.engine.groups for r in group.rollouts]
    shutil.rmtree(run.run.path / "checkpoints")
    again = await trained(tmp_path, steps=1)
    assert [r.attempt.turns for group in again.engine.groups for r in group.rollouts] == live
    assert {len(turns) for turns in live} == {2}
    entry = next(e.event for e in run.run.entries() if isinstance(e.event, ev.RolloutFinished))
    replies = [read_record(run.run.records, ref).reply for ref in entry.refs]
    told = [(reply.prompt_ids, reply.token_ids, reply.logprobs) for reply in replies]
    assert told in [[(t.prompt_ids, t.token_ids, t.logprobs) for t in turns] for turns in live]


def test_a_run_without_a_parent_is_one_chapter_even_before_it_began(tmp_path: Path) -> None:
    folder = tmp_path / "runs/exp"
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").write_text("")
    (chapter,) = load_history(RunDir(folder), Workspace(tmp_path))
    assert list(chapter.own_events()) == []


async def test_nothing_is_restored_or_told_where_nothing_was_learned_yet(tmp_path: Path) -> None:
    async with opened(tmp_path) as run:
        await replay_training(
            run.engine, run.practice.history, run.practice.problems, run.told.append
        )
        assert (run.told, run.engine.consolidated) == ([], [])


def test_what_the_fake_engine_saves_is_everything_it_goes_on_from(tmp_path: Path) -> None:
    run = asyncio.run(trained(tmp_path, steps=2))
    _, _, state = (
        (run.run.path / "checkpoints/e/global_step_2/state.json").read_text().partition(" ")
    )
    assert json.loads(state)[:3] == [run.value, 2, 2]
