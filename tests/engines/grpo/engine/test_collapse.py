"""The collapse guard: when it speaks, and what going back means."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from engines.core.codec import from_dict
from engines.core.types import Group, Lesson
from engines.grpo.engine.collapse import (
    BatchReward,
    CollapseState,
    add_batch,
    batch_reward,
    find_collapse,
    problem_variance,
    record_rollback,
    weights_to_keep,
)
from engines.grpo.engine.grpo import GRPOEngine
from engines.grpo.engine.weight_engine import WeightEngine
from engines.grpo.settings import GRPOSettings
from engines.policies.hf_local.model import LocalModel
from tests.engines.grpo.models import a_local
from tests.engines.grpo.trainable import a_scored, a_try, a_turn
from tests.support.builders import a_library


def batches(*rewards: float, spread: float = 0.05, groups: int = 16) -> list[BatchReward]:
    return [BatchReward(n, n - 1, r, spread, groups) for n, r in enumerate(rewards, 1)]


def watched(history: Sequence[BatchReward], patience: int = 3) -> CollapseState:
    """What the guard remembers after batches, with every weights at hand that it asked for."""
    watch, kept = CollapseState(), frozenset[int]()
    for batch in history:
        watch = add_batch(watch, batch, kept | {batch.weights}, patience=patience)
        kept = (kept | {batch.weights}) & weights_to_keep(watch, patience=patience)
    return watch


def judged(history: Sequence[BatchReward], drop: float = 0.5, patience: int = 3) -> str:
    """What the guard says at the newest batch."""
    found = find_collapse(watched(history, patience), drop=drop, patience=patience)
    return "" if found is None else found.why


def test_a_lasting_fall_below_half_of_the_best_is_a_collapse() -> None:
    fallen = batches(0.5, 0.6, 0.7, 0.6, 0.1, 0.05, 0.0)
    assert judged(fallen).startswith("practice reward fell from 0.63 to 0.05 over the last 3")
    assert judged(fallen[:-1]) == ""


def test_one_good_batch_among_the_last_is_no_collapse() -> None:
    assert judged(batches(0.6, 0.6, 0.6, 0.1, 0.4, 0.1)) == ""


def test_a_fall_that_noise_explains_is_no_collapse() -> None:
    # Six groups of variance 0.25 in each of three batches: the difference of two means has a
    # standard error of (0.25 / 18 · 2)^.5 = 0.17, and 0.6 is not five of them. With 200 it is.
    rewards = (0.7, 0.7, 0.7, 0.1, 0.1, 0.1)
    assert judged(batches(*rewards, spread=0.25, groups=6)) == ""
    assert judged(batches(*rewards, spread=0.25, groups=200)) != ""


def test_drop_and_patience_are_those_of_the_settings() -> None:
    fallen = batches(0.6, 0.6, 0.6, 0.25, 0.25, 0.25)
    assert judged(fallen, drop=0.5)
    assert judged(fallen, drop=0.4) == ""
    assert judged(fallen, drop=0.0) == ""
    assert judged(fallen[:5], patience=2)
    assert judged(fallen, patience=4) == ""


def test_noise_is_that_between_groups_however_they_are_batched() -> None:
    chance = random.Random(1)
    means = [chance.gauss(0.5, 0.2) for _ in range(1200)]
    for size in (1, 3, 16):
        found = [
            entry
            for at in range(0, len(means), size)
            if (entry := batch_reward(at, 0, means[at : at + size])) is not None
        ]
        assert problem_variance(found) == pytest.approx(0.04, rel=0.1), size
    # One fall in the middle is one difference of many: 0.5² / 2 on top of 99 of nothing.
    assert problem_variance(batches(*[0.5] * 50, *[0.0] * 50, spread=0, groups=1)) < 0.0013


@pytest.mark.parametrize("groups", [1, 2, 3, 4, 16])
@pytest.mark.parametrize(("rate", "alike"), [(0.15, True), (0.15, False), (0.6, False)])
def test_a_level_run_is_hardly_ever_taken_for_a_collapse(
    groups: int, rate: float, alike: bool
) -> None:
    """100 batches of groups of 8, of problems of like difficulty or mostly of 0 and 1."""
    alarms = 0
    for seed in range(12):
        chance, history = random.Random(seed), []
        for step in range(1, 101):
            chances = [rate if alike else chance.betavariate(rate, 1 - rate) for _ in range(groups)]
            means = [sum(chance.random() < p for _ in range(8)) / 8 for p in chances]
            entry = batch_reward(step, step - 1, means)
            assert entry is not None
            history.append(entry)
        watch, kept = CollapseState(), frozenset[int]()
        for batch in history:
            watch = add_batch(watch, batch, kept | {batch.weights}, patience=3)
            kept = (kept | {batch.weights}) & weights_to_keep(watch, patience=3)
            alarms += find_collapse(watch, drop=0.5, patience=3) is not None
    assert alarms == 0


@pytest.mark.parametrize(("groups", "least"), [(1, 8), (2, 4), (4, 3), (16, 3)])
def test_little_is_known_of_small_batches_so_more_of_them_are_waited_for(
    groups: int, least: int
) -> None:
    """Nothing varies here but for the fall, and still eight groups have to be seen."""
    good = -(-16 // groups) + 2
    fallen = batches(*[0.5] * good, *[0.0] * least, spread=0, groups=groups)
    assert judged(fallen[:-1]) == ""
    assert judged(fallen)


def test_the_best_batch_of_a_window_had_its_weights_and_not_the_last_one() -> None:
    """The first update ruins them, and the window whose mean is best ends with ruined ones."""
    ruined = batches(0.227, 0.156, 0.016, 0, 0, 0, spread=0.01)
    found = find_collapse(watched(ruined), drop=0.5, patience=3)
    assert found is not None
    assert found.to == 0
    found = find_collapse(watched(batches(0.1, 0.5, 0.9, 0.4, 0, 0, 0)), drop=0.5, patience=3)
    assert found is not None
    assert found.to == 2


def test_weights_that_fail_again_are_left_for_the_beginning() -> None:
    """Something else is broken: whatever is gone back to scores nothing any more."""
    good = [0.1 + 0.02 * n for n in range(24)]
    watch, went = watched(batches(*good)), []
    held = weights_to_keep(watch, patience=3)
    assert [candidate.weights for candidate in watch.candidates] == [0, 23]
    step, weights = len(good), 23
    while step < 60:
        step += 1
        watch = add_batch(watch, BatchReward(step, weights, 0.0, 0.0, 16), held, patience=3)
        found = find_collapse(watch, drop=0.5, patience=3)
        if found is None:
            continue
        assert found.to is None or found.to in held
        went.append(found.to)
        if found.to is None:
            watch = replace(watch, given_up=step)
            assert weights_to_keep(watch, patience=3) == set()
        else:
            watch, weights = record_rollback(watch, found.to, step), found.to
    assert went == [23, 0, None]


def test_weights_that_did_well_when_they_were_gone_back_to_may_be_again() -> None:
    watch = watched(batches(0.6, 0.6, 0.6, 0, 0, 0))
    found = find_collapse(watch, drop=0.5, patience=3)
    assert found is not None
    assert found.to == 0
    watch = record_rollback(watch, 0, 6)
    for step, (weights, reward) in enumerate([(0, 0.6), (7, 0), (8, 0), (9, 0)], 7):
        watch = add_batch(watch, BatchReward(step, weights, reward, 0.05, 16), {0}, patience=3)
    assert find_collapse(watch, drop=0.5, patience=3) == replace(
        found,
        why="practice reward fell from 0.60 to 0.00 over the last 3 batches (48 groups), "
        "more than noise explains",
    )


def test_no_more_than_a_handful_of_weights_is_kept_however_small_the_batches() -> None:
    chance = random.Random(3)
    for groups in (1, 16):
        history: list[BatchReward] = []
        watch, kept = CollapseState(), frozenset[int]()
        for step in range(1, 200):
            reward = step / 300 + 0.3 * chance.random()
            batch = BatchReward(step, step - 1, reward, 0.02, groups)
            history.append(batch)
            watch = add_batch(watch, batch, kept | {batch.weights}, patience=3)
            kept = (kept | {batch.weights}) & weights_to_keep(watch, patience=3)
            assert len(kept) <= 5
            assert {candidate.weights for candidate in watch.candidates} <= kept
        first, best = [candidate.weights for candidate in watch.candidates]
        assert (first, best > 150) == (0, True)


def test_a_batch_that_is_seen_again_changes_nothing() -> None:
    history = batches(0.3, 0.5, 0.6, 0.4)
    watch = watched(history)
    assert add_batch(watch, history[-1], {0, 1, 2, 3}, patience=3) == watch
    assert from_dict(CollapseState, json.loads(json.dumps(asdict(watch)))) == watch


def test_a_batch_that_nobody_judged_says_nothing() -> None:
    assert batch_reward(1, 0, []) is None
    assert batch_reward(1, 0, [0.5]) == BatchReward(1, 0, 0.5, 0.0, 1)


def sampled(local: LocalModel, step: int, favoured: range, groups: int = 6) -> list[Group]:
    """Each group's tries sampled from the model as it is; the reward is the favoured share."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.tensor([[20 + position, 30, 40] for position in range(groups) for _ in range(8)])
    with torch.no_grad():
        for _ in range(4):
            chances = torch.softmax(local.model(input_ids=ids).logits[:, -1], -1)
            ids = torch.cat([ids, torch.multinomial(chances, 1, generator=generator)], 1)
    made = []
    for position, rows in enumerate(ids.split(8)):
        shown, replies = rows[0, :3].tolist(), rows[:, 3:].tolist()
        rewards = [sum(token in favoured for token in reply) / 4 for reply in replies]
        tries = [
            a_try(a_turn(shown, reply), step=step, position=position, index=n)
            for n, reply in enumerate(replies)
        ]
        made.append(a_scored(rewards, tries, step=step, position=position))
    return made


async def one_step(engine: WeightEngine, batch: Sequence[Group]) -> Lesson:
    lesson = await engine.consolidate(batch, (), a_library())
    if lesson.update is not None:
        await engine.apply(lesson.update)
    return lesson


async def test_reward_rises_where_the_learning_rate_is_sound(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    local = a_local(tmp_path, trained=True)
    settings = GRPOSettings(learning_rate=0.05, schedule="constant")
    engine = GRPOEngine(settings, local, total_steps=12, seed=0, tell=lambda line: None)
    rewards = []
    for step in range(1, 13):
        batch = sampled(local, step, range(0, 60))
        rewards.append(sum(sum(group.rewards) / 8 for group in batch) / len(batch))
        await one_step(engine, batch)
    assert rewards[-1] > rewards[0] + 0.3, rewards
    assert engine.policy_version == 12


async def test_a_real_collapse_goes_back_to_the_best_weights_and_says_so(tmp_path: Path) -> None:
    """Right for some steps, then a reward turned upside down drives the weights away."""
    torch.set_num_threads(1)
    told: list[str] = []
    local = a_local(tmp_path, trained=True)
    settings = GRPOSettings(learning_rate=0.05, schedule="constant")
    engine = GRPOEngine(settings, local, total_steps=40, seed=0, tell=told.append)
    wanted = range(0, 160)
    weights = {0: local.adapter_state()}
    rewards, back = [], None
    for step in range(1, 30):
        batch = sampled(local, step, wanted)
        rewards.append(sum(sum(g.rewards) / 8 for g in batch) / len(batch))
        if step > 8:  # the damage: an update in the wrong direction, as a wrong reward would give
            lesson = await engine.consolidate(batch, (), a_library())
            if lesson.update is not None and lesson.update.rollback_to is not None:
                back = lesson.update
                break
            with torch.no_grad():
                for _, parameter in local.trainable_parameters():
                    parameter.mul_(-1.5)
            engine.optimiser.restart(local.adapter_state())
            wanted = range(300, 301)
            continue
        await one_step(engine, batch)
        weights[step] = local.adapter_state()
    assert back is not None, rewards
    assert back.handle == f"rollback-{back.rollback_to}"
    assert back.rollback_to in range(1, 9)
    assert "practice reward fell" in back.note
    assert "learning rate at 0.5 of its schedule" in back.note
    assert any("back to the weights of step" in line for line in told)
    version = engine.policy_version
    assert await engine.apply(back) == version + 1
    best = weights[back.rollback_to or 0]
    assert all(torch.equal(p, best[name]) for name, p in local.trainable_parameters())
    state = engine.state()
    assert not bool(state.optimiser["first_moment"].any())
    assert state.plain["moments"] == 0
    after = await engine.consolidate(sampled(local, 40, range(0, 160)), (), a_library())
    assert after.update is not None
    assert after.update.rollback_to is None
    assert after.update.metrics["learning_rate"] == pytest.approx(0.025)


async def test_a_learning_rate_far_too_high_is_noticed(tmp_path: Path) -> None:
    """Each try is a recorded one; the rewards are of a policy that fell silent for good."""
    torch.set_num_threads(1)
    local = a_local(tmp_path, trained=True)

    def an_engine() -> WeightEngine:
        settings = GRPOSettings(learning_rate=0.5, collapse_patience=2)
        return GRPOEngine(settings, local, total_steps=20, seed=0, tell=lambda line: None)

    start = local.adapter_state()
    good = [sampled(local, step, range(0, 200)) for step in (1, 2, 3)]
    dead = [sampled(local, step, range(0)) for step in (4, 5)]
    engine = an_engine()
    for batch in good:
        await one_step(engine, batch)
    assert (await one_step(engine, dead[0])).update is None  # no contrast, and still counted
    saved = engine.state()
    lesson = await engine.consolidate(dead[1], (), a_library())
    again = await engine.consolidate(dead[1], (), a_library())
    assert lesson == again
    assert lesson.update is not None
    assert lesson.update.rollback_to in (0, 1, 2)

    other = an_engine()
    local.load_adapter_state(start)
    other.load_state(saved)
    resumed = await other.consolidate(dead[1], (), a_library())
    assert resumed == lesson
    assert resumed.update is not None
    await other.apply(resumed.update)
    await one_step(other, sampled(local, 6, range(0, 200)))
    assert (await one_step(other, sampled(local, 7, range(0)))).update is None
    second = await other.consolidate(sampled(local, 8, range(0)), (), a_library())
    assert second.update is not None
    assert second.update.rollback_to == lesson.update.rollback_to
    assert second.update.metrics["learning_scale"] == 0.25


async def test_where_nothing_helps_it_is_said_and_training_goes_on_without_going_back(
    tmp_path: Path,
) -> None:
    """Rewards stop for good while the weights are sound, as where a verifier breaks."""
    torch.set_num_threads(1)
    told: list[str] = []
    local = a_local(tmp_path / "model", trained=True)

    def an_engine() -> WeightEngine:
        settings = GRPOSettings(learning_rate=0.01, collapse_patience=2, schedule="constant")
        return GRPOEngine(settings, local, total_steps=40, seed=0, tell=told.append)

    engine = an_engine()
    weights = {0: local.adapter_state()}
    for step in range(1, 9):
        await one_step(engine, sampled(local, step, range(0, 120)))
        weights[step] = local.adapter_state()
    went: list[int | None] = []
    lost: list[str] = []
    for step in range(9, 40):
        batch = sampled(local, step, range(0))
        lesson = await engine.consolidate(batch, (), a_library())
        assert await engine.consolidate(batch, (), a_library()) == lesson
        if lesson.update is not None:
            went.append(lesson.update.rollback_to)
            await engine.apply(lesson.update)
            best = weights[lesson.update.rollback_to or 0]
            assert all(torch.equal(p, best[name]) for name, p in local.trainable_parameters())
            # From here on a process that resumes knows all that can be gone back to.
            await engine.save(tmp_path / f"global_step_{step}")
            engine = an_engine()
            await engine.restore(tmp_path / f"global_step_{step}")
        lost += [loss.reason for loss in lesson.losses]
    assert went[-1] == 0
    back = [to for to in went if to is not None]
    assert back == went == sorted(set(back), reverse=True)  # each once, each earlier
    assert len(went) == 2
    (reason,) = lost
    assert "with the weights of the beginning too" in reason
    assert "look at rewards and answers" in reason
    assert [line for line in told if "goes on without going back" in line]
    assert engine.state().guard == {}
    lesson = await engine.consolidate(sampled(local, 40, range(0, 120)), (), a_library())
    assert lesson.update is not None
    assert (lesson.update.rollback_to, lesson.losses) == (None, ())


async def test_a_guard_that_is_switched_off_never_speaks(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    local = a_local(tmp_path, trained=True)
    settings = GRPOSettings(collapse_drop=None, collapse_patience=1)
    engine = GRPOEngine(settings, local, total_steps=9, seed=0, tell=lambda line: None)
    for step in (1, 2):
        await one_step(engine, sampled(local, step, range(0, 200)))
    assert (await one_step(engine, sampled(local, 3, range(0)))).update is None
    assert engine.state().guard == {}
