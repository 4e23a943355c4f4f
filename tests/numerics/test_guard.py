"""The collapse guard: when it speaks, and what going back means."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from engines.core.types import Group, Lesson
from engines.grpo.engine import GRPOEngine
from engines.grpo.guard import BatchReward, batch_reward, best_level, collapsed
from engines.grpo.settings import GRPOSettings
from engines.policies.hf_local.model import LocalModel
from tests.builders import a_library
from tests.numerics.models import a_local
from tests.numerics.trainable import a_scored, a_try, a_turn


def batches(*rewards: float, spread: float = 0.05, groups: int = 16) -> list[BatchReward]:
    return [BatchReward(n, n - 1, r, spread, groups) for n, r in enumerate(rewards, 1)]


def judged(history: Sequence[BatchReward], drop: float = 0.5, patience: int = 3) -> str:
    """What the guard says at the newest batch."""
    return collapsed(history, best_level(history, patience=patience), drop=drop, patience=patience)


def test_a_lasting_fall_below_half_of_the_best_is_a_collapse() -> None:
    fallen = batches(0.5, 0.6, 0.7, 0.6, 0.1, 0.05, 0.0)
    assert judged(fallen).startswith("practice reward fell from 0.63 to 0.05 over the last 3")
    assert judged(fallen[:-1]) == ""


def test_one_good_batch_among_the_last_is_no_collapse() -> None:
    assert judged(batches(0.6, 0.6, 0.6, 0.1, 0.4, 0.1)) == ""


def test_a_fall_that_noise_explains_is_no_collapse() -> None:
    # Two groups of variance 0.25 in each of three batches: the difference of two means has a
    # standard error of (0.25 / 6 · 2)^.5 = 0.29, and 0.6 is not four of them. With 200 it is.
    rewards = (0.7, 0.7, 0.7, 0.1, 0.1, 0.1)
    assert judged(batches(*rewards, spread=0.25, groups=2)) == ""
    assert judged(batches(*rewards, spread=0.25, groups=200)) != ""


def test_drop_and_patience_are_those_of_the_settings() -> None:
    fallen = batches(0.6, 0.6, 0.6, 0.25, 0.25, 0.25)
    assert judged(fallen, drop=0.5)
    assert judged(fallen, drop=0.4) == ""
    assert judged(fallen, drop=0.0) == ""
    assert judged(fallen[:5], patience=2)
    assert judged(fallen, patience=4) == ""


@pytest.mark.parametrize("seed", range(20))
def test_a_level_run_is_never_taken_for_a_collapse(seed: int) -> None:
    """At a true rate of 0.15, groups of 8 and 4 problems a batch, over 100 batches."""
    chance = random.Random(seed)
    history: list[BatchReward] = []
    best = None
    for step in range(1, 101):
        means = [sum(chance.random() < 0.15 for _ in range(8)) / 8 for _ in range(4)]
        entry = batch_reward(step, step - 1, means)
        assert entry is not None
        history.append(entry)
        now = best_level(history[-3:], patience=3)
        if now and (best is None or now.reward > best.reward):
            best = now
        assert collapsed(history, best, drop=0.5, patience=3) == ""


def test_a_batch_that_nobody_judged_says_nothing() -> None:
    assert batch_reward(1, 0, []) is None
    assert batch_reward(1, 0, [0.5]) == BatchReward(1, 0, 0.5, 0.0, 1)


def sampled(local: LocalModel, step: int, favoured: range, groups: int = 6) -> list[Group]:
    """Each group's tries sampled from the model as it is; the reward is the favoured share."""
    generator = torch.Generator().manual_seed(step)
    made = []
    for position in range(groups):
        shown = [20 + position, 30, 40]
        ids = torch.tensor([shown] * 8)
        with torch.no_grad():
            for _ in range(4):
                chances = torch.softmax(local.model(input_ids=ids).logits[:, -1], -1)
                ids = torch.cat([ids, torch.multinomial(chances, 1, generator=generator)], 1)
        replies = ids[:, 3:].tolist()
        rewards = [sum(token in favoured for token in reply) / 4 for reply in replies]
        tries = [
            a_try(a_turn(shown, reply), step=step, position=position, index=n)
            for n, reply in enumerate(replies)
        ]
        made.append(a_scored(rewards, tries, step=step, position=position))
    return made


async def one_step(engine: GRPOEngine, batch: Sequence[Group]) -> Lesson:
    lesson = await engine.consolidate(batch, (), a_library())
    if lesson.update is not None:
        await engine.apply(lesson.update)
    return lesson


async def test_reward_rises_where_the_learning_rate_is_sound(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    local = a_local(tmp_path, trained=True)
    settings = GRPOSettings(learning_rate=0.02, schedule="constant")
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
                for _, parameter in local.trainable():
                    parameter.mul_(-1.5)
            engine._optimiser.restart()
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
    assert all(torch.equal(p, best[name]) for name, p in local.trainable())
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

    def an_engine() -> GRPOEngine:
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
    assert lesson.update.rollback_to in (1, 2)

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


async def test_a_guard_that_is_switched_off_never_speaks(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    local = a_local(tmp_path, trained=True)
    settings = GRPOSettings(collapse_drop=0.0, collapse_patience=1)
    engine = GRPOEngine(settings, local, total_steps=9, seed=0, tell=lambda line: None)
    for step in (1, 2):
        await one_step(engine, sampled(local, step, range(0, 200)))
    assert (await one_step(engine, sampled(local, 3, range(0)))).update is None
    assert engine.state().guard == {}
