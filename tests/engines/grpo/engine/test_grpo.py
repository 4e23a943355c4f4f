"""Weight updates: what they come to, and what they leave alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

from engines.core.errors import ConfigError, PolicyError
from engines.core.types import Group, Lesson, WeightUpdate
from engines.grpo.engine import grpo
from engines.grpo.engine.grpo import GRPOEngine, probe_indices
from engines.grpo.engine.optimiser import Optimiser, schedule_factor
from engines.grpo.engine.weight_engine import WeightEngine
from engines.grpo.loss.loss import divergences
from engines.grpo.ranks.ranks import ALONE, Ranks
from engines.grpo.settings import GRPOSettings
from engines.policies.hf_local.model import LocalModel
from engines.policies.hf_local.settings import LocalSettings
from tests.engines.grpo.models import a_local, train
from tests.engines.grpo.trainable import a_batch, a_random_group, a_scored, a_try
from tests.support.builders import a_library

T = TypeVar("T")
PLAIN: dict[str, Any] = {"learning_rate": 1e-2, "schedule": "constant"}
REUSING: dict[str, Any] = {**PLAIN, "iterations": 2, "minibatches": 2, "beta": 0.04}
Weights = dict[str, Tensor]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> LocalModel:
    """Loaded once; `an_engine` gives it the same weights each time."""
    return a_local(tmp_path_factory.mktemp("model"), trained=True)


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> LocalModel:
    """In float64, so that what is left of a difference is no rounding of the model's."""
    made = a_local(tmp_path_factory.mktemp("exact"), trained=True)
    made.model.double()
    return made


def an_engine(
    local: LocalModel,
    *,
    ranks: Ranks = ALONE,
    seed: int = 3,
    told: list[str] | None = None,
    total_steps: int = 10,
    make_optimiser: Callable[[LocalModel, GRPOSettings], Optimiser] = Optimiser,
    **settings: Any,
) -> WeightEngine:
    train(local)
    tell: Callable[[str], None] = (lambda line: None) if told is None else told.append
    return GRPOEngine(
        GRPOSettings(**{**PLAIN, **settings}),
        local,
        total_steps=total_steps,
        seed=seed,
        ranks=ranks,
        tell=tell,
        make_optimiser=make_optimiser,
    )


class RecordingOptimiser(Optimiser):
    """Keeps the gradient of each step."""

    def __init__(self, local: LocalModel, settings: GRPOSettings) -> None:
        super().__init__(local, settings)
        self.gradients: list[Tensor] = []
        self._adamw.register_step_pre_hook(lambda *_: self.gradients.append(self.gradient()))

    def gradient(self) -> Tensor:
        return torch.cat([p.grad.flatten() for p in self._held() if p.grad is not None])


async def gradients_of(local: LocalModel, batch: Sequence[Group], **settings: Any) -> list[Tensor]:
    """The gradient of each optimiser step of a batch's update, as it reaches the optimiser."""
    engine = an_engine(local, make_optimiser=RecordingOptimiser, **settings)
    lesson = await learn(engine, batch)
    assert lesson.update is not None, lesson.losses
    assert isinstance(engine.optimiser, RecordingOptimiser)
    return engine.optimiser.gradients


async def learn(engine: WeightEngine, batch: Sequence[Group]) -> Lesson:
    reflections = [await engine.reflect(group, a_library()) for group in batch]
    return await engine.consolidate(batch, reflections, a_library(version=4))


async def learned(engine: WeightEngine, local: LocalModel, *batches: Sequence[Group]) -> Weights:
    """The weights after each batch's update was computed and applied."""
    for batch in batches:
        lesson = await learn(engine, batch)
        assert lesson.update is not None, lesson.losses
        await engine.apply(lesson.update)
    return local.adapter_state()


def distance(one: Weights, other: Weights) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def same(one: Weights, other: Weights) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


async def test_computing_an_update_changes_nothing_until_it_is_applied(local: LocalModel) -> None:
    engine = an_engine(local)
    before, digest = engine.state(), local.weights_digest()
    lesson = await learn(engine, a_batch(step=2))
    after = engine.state()
    assert (lesson.step, lesson.base_version, lesson.operations) == (2, 4, ())
    assert same(before.adapter, after.adapter)
    assert same(before.optimiser, after.optimiser)
    assert local.weights_digest() == digest
    assert lesson.update is not None
    assert lesson.update.handle == "step-2"
    assert (await engine.apply(lesson.update), engine.policy_version) == (1, 1)
    assert distance(before.adapter, local.adapter_state()) > 1e-3
    assert local.weights_digest() != digest


async def test_an_update_that_was_rejected_leaves_no_trace(local: LocalModel) -> None:
    engine = an_engine(local)
    await learn(engine, a_batch(step=1, seed=5))
    rejected = await learned(engine, local, a_batch(step=2))
    fresh = await learned(an_engine(local), local, a_batch(step=2))
    assert same(rejected, fresh)


async def test_only_the_last_computed_update_can_be_applied(local: LocalModel) -> None:
    engine = an_engine(local)
    old = (await learn(engine, a_batch(step=1))).update
    await learn(engine, a_batch(step=2))
    assert old is not None
    for unknown in (old, WeightUpdate({}, "step-9")):
        with pytest.raises(ValueError, match="no computed update"):
            await engine.apply(unknown)


async def test_the_winner_becomes_likelier_and_the_losers_less_likely(local: LocalModel) -> None:
    from engines.grpo.loss.loss import collate, completion_logps, pad_samples

    engine, batch = an_engine(local), a_batch(2, 4)
    rows = pad_samples(collate(batch).samples, local.pad_id)

    def lean() -> float:
        with torch.no_grad():
            return float(
                (completion_logps(local, rows, temperature=1.0).logp * rows.advantages).sum()
            )

    before = lean()
    await learned(engine, local, batch)
    assert lean() > before + 1


@pytest.mark.parametrize("how", [PLAIN, REUSING])
async def test_the_same_ids_and_rewards_give_the_same_weights_bit_for_bit(
    local: LocalModel, how: dict[str, Any]
) -> None:
    batches = [a_batch(step=n) for n in (1, 2)]
    first = await learned(an_engine(local, **how), local, *batches)
    second = await learned(an_engine(local, **how), local, *batches)
    assert same(first, second)


async def test_seeded_updates_have_the_figures_that_they_have_always_had(
    local: LocalModel,
) -> None:
    how = {**REUSING, "schedule": "cosine", "warmup": 0.1}
    engine = an_engine(local, **how)
    await learned(engine, local, a_batch(step=1, seed=1))
    lesson = await learn(engine, a_batch(step=2, seed=2))
    assert lesson.update is not None
    await engine.apply(lesson.update)
    # Measured in November 2026, on a CPU. Another one rounds otherwise, which Adam magnifies.
    known = {
        "loss": -0.058015,
        "clip_low": 0.215517,
        "clip_high": 0.206897,
        "entropy": 5.298998,
        "grad_norm": 12.653478,
        "learning_rate": 0.009829629,
        "ratio_max": 8.302527,
        "kl": 0.807014,
        "kl_step": 0.436491,
    }
    found = {name: lesson.update.metrics[name] for name in known}
    assert found == pytest.approx(known, rel=2e-3)
    weights = torch.cat([value.flatten() for value in local.adapter_state().values()])
    assert float(weights.norm()) == pytest.approx(24.651176, rel=1e-4)


async def test_what_the_sampler_reported_does_not_enter_the_weights(local: LocalModel) -> None:
    def retold(group: Group) -> Group:
        rollouts = tuple(
            replace(
                r,
                attempt=replace(
                    r.attempt,
                    turns=tuple(
                        replace(t, logprobs=tuple(-1.0 for _ in t.logprobs))
                        for t in r.attempt.turns
                    ),
                ),
            )
            for r in group.rollouts
        )
        return replace(group, rollouts=rollouts)

    batch = a_batch()
    first = await learned(an_engine(local, **REUSING), local, batch)
    second = await learned(an_engine(local, **REUSING), local, [retold(g) for g in batch])
    assert same(first, second)


async def test_a_state_taken_in_the_middle_goes_on_to_the_same_bits(local: LocalModel) -> None:
    batches = [a_batch(step=n, seed=n) for n in (1, 2, 3)]
    whole = await learned(an_engine(local, **REUSING), local, *batches)
    engine = an_engine(local, **REUSING)
    await learned(engine, local, *batches[:2])
    middle = engine.state()
    other = an_engine(local, **REUSING)
    other.load_state(middle)
    assert other.policy_version == 2
    assert same(await learned(other, local, batches[2]), whole)


async def test_a_checkpoint_goes_on_to_the_same_bits(local: LocalModel, tmp_path: Path) -> None:
    batches = [a_batch(step=n) for n in (1, 2)]
    whole = await learned(an_engine(local), local, *batches)
    engine = an_engine(local)
    await learned(engine, local, batches[0])
    await engine.save(tmp_path / "global_step_1")
    other = an_engine(local)
    await other.restore(tmp_path / "global_step_1")
    assert same(await learned(other, local, batches[1]), whole)


@pytest.mark.parametrize("aggregation", ["dapo", "grpo", "bnpo", "dr_grpo"])
async def test_one_by_eight_equals_eight_by_one(exact: LocalModel, aggregation: str) -> None:
    how: dict[str, Any] = {
        "aggregation": aggregation,
        "beta": 0.04,
        "max_completion_tokens": 8,
        "max_grad_norm": 1e9,
    }
    batch = a_batch(2, 4)
    found = []
    for rows in (1, 3, 4, 8):
        engine = an_engine(exact, make_optimiser=RecordingOptimiser, micro_batch=rows, **how)
        lesson = await learn(engine, batch)
        assert lesson.update is not None
        assert isinstance(engine.optimiser, RecordingOptimiser)
        found.append((engine.optimiser.gradients[0], lesson.update.metrics["loss"]))
    for gradient, loss in found[1:]:
        assert float((gradient - found[0][0]).norm() / found[0][0].norm()) < 1e-6
        assert loss == pytest.approx(found[0][1], abs=1e-6)


async def test_accumulated_minibatches_equal_one_batch(local: LocalModel) -> None:
    """Named defect: zero_grad at each step cancels accumulation."""
    batch = a_batch(4, 4)
    whole = await learned(an_engine(local), local, batch)
    engine = an_engine(local, minibatches=4, accumulation=4)
    parts = await learned(engine, local, batch)
    assert distance(parts, whole) < 1e-6
    assert engine.state().plain["optimiser_steps"] == 1


STANDING: dict[str, Any] = {"learning_rate": 1e-30, "max_grad_norm": 1e9}
"""Weights hardly move, so that gradients of several optimiser steps can be compared."""


async def test_each_optimiser_step_begins_with_no_gradient_of_the_one_before(
    exact: LocalModel,
) -> None:
    """Named defect: without zero_grad the second pass over a batch adds to the first."""
    first, second = await gradients_of(exact, a_batch(4), iterations=2, **STANDING)
    assert float((second - first).norm() / first.norm()) < 1e-6


@pytest.mark.parametrize("accumulation", [1, 2, 4])
async def test_dapo_divides_by_the_tokens_of_an_optimiser_step_not_of_the_batch(
    exact: LocalModel, accumulation: int
) -> None:
    """Four minibatches make 4 / accumulation steps, each divided by its share of the tokens.

    So the gradients of all steps add up to that of the whole batch times their number.
    """
    batch = a_batch(4)
    (whole,) = await gradients_of(exact, batch, aggregation="dapo", **STANDING)
    parts = await gradients_of(
        exact, batch, aggregation="dapo", minibatches=4, accumulation=accumulation, **STANDING
    )
    assert len(parts) == 4 // accumulation
    wanted = whole * len(parts)
    assert float((torch.stack(parts).sum(0) - wanted).norm() / wanted.norm()) < 1e-6


@pytest.mark.parametrize(
    ("how", "steps"),
    [
        ({}, 1),
        ({"iterations": 3}, 3),
        ({"minibatches": 4}, 4),
        ({"minibatches": 4, "accumulation": 2, "iterations": 2}, 4),
    ],
)
async def test_optimiser_steps_are_iterations_times_minibatches_over_accumulation(
    local: LocalModel, how: dict[str, int], steps: int
) -> None:
    engine = an_engine(local, **how)
    lesson = await learn(engine, a_batch(4))
    assert lesson.update is not None
    assert lesson.update.metrics["optimiser_steps"] == steps
    await engine.apply(lesson.update)
    assert engine.state().plain["optimiser_steps"] == steps
    assert GRPOSettings(**how).optimiser_steps_per_batch == steps


async def test_the_first_use_of_a_batch_has_ratio_one_and_the_second_has_not(
    local: LocalModel,
) -> None:
    once = (await learn(an_engine(local), a_batch())).update
    twice = (await learn(an_engine(local, iterations=2), a_batch())).update
    assert once is not None
    assert twice is not None
    assert (once.metrics["ratio_max"], once.metrics["clip_share"]) == (1.0, 0.0)
    assert twice.metrics["ratio_max"] > 1.01
    assert twice.metrics["clip_share"] > 0
    assert twice.metrics["clip_share"] == pytest.approx(
        twice.metrics["clip_low"] + twice.metrics["clip_high"]
    )


async def test_the_order_of_minibatches_follows_from_seed_and_step(local: LocalModel) -> None:
    how = {"minibatches": 4}
    batch, later = a_batch(4), a_batch(4, step=2)
    first = await learned(an_engine(local, seed=1, **how), local, batch)
    again = await learned(an_engine(local, seed=1, **how), local, batch)
    other = await learned(an_engine(local, seed=2, **how), local, batch)
    assert same(first, again)
    assert not same(first, other)
    assert not same(first, await learned(an_engine(local, seed=1, **how), local, later))


async def test_a_batch_without_contrast_teaches_nothing_without_a_kl_term(
    local: LocalModel,
) -> None:
    equal = [a_random_group([1, 1], position=0), a_random_group([0, 0], position=1)]
    lesson = await learn(an_engine(local), equal)
    assert (lesson.update, lesson.losses, lesson.operations) == (None, (), ())
    pulled = await learn(an_engine(local, beta=0.1), equal)
    assert pulled.update is not None
    assert pulled.update.metrics["kl"] > 0
    assert pulled.update.metrics["contrast"] == 0


async def test_groups_without_contrast_dilute_the_gradient_as_if_they_were_computed(
    local: LocalModel,
) -> None:
    used = a_batch(2)
    equal = a_random_group([1] * 40, position=2)
    alone = (await learn(an_engine(local), used)).update
    beside = (await learn(an_engine(local), [*used, equal])).update
    assert alone is not None
    assert beside is not None
    every = sum(len(r.attempt.turns[0].token_ids) for g in [*used, equal] for r in g.rollouts)
    inside = sum(len(r.attempt.turns[0].token_ids) for g in used for r in g.rollouts)
    assert beside.metrics["grad_norm"] == pytest.approx(
        alone.metrics["grad_norm"] * inside / every, rel=1e-4
    )
    assert beside.metrics["contrast"] == pytest.approx(2 / 3)


async def test_metrics_tell_of_the_rollouts(local: LocalModel) -> None:
    turns = [a_random_group([1, 1, 1, 1]).rollouts[n].attempt.turns[0] for n in range(4)]
    tries = [
        a_try(turns[0]),
        a_try(turns[1], index=1, status="truncated"),
        a_try(turns[2], index=2),
        a_try(turns[3], index=3, status="failed"),
    ]
    lesson = await learn(an_engine(local), [a_scored([1.0, 0.0, 0.5, None], tries)])
    assert lesson.update is not None
    told = lesson.update.metrics
    length = sum(len(turn.token_ids) for turn in turns[:3]) / 3
    assert (told["reward"], told["reward_std"], told["contrast"]) == (0.5, 0.5, 1.0)
    assert told["length"] == pytest.approx(length)
    assert told["truncated"] == pytest.approx(1 / 3)
    # The third scored the mean, so its advantage is 0 and it is not trained on.
    assert told["tokens"] == sum(len(turn.token_ids) for turn in turns[:2])
    assert told["kl_step"] > 0
    assert told["kl"] > 0
    assert 0 < told["entropy"] < 6
    assert all(isinstance(value, float) for value in told.values())


def test_divergences_are_those_of_the_distributions_where_the_old_one_samples() -> None:
    """Each token as often as the old weights sample it: the mean of the terms is exact."""
    old, new, ref = torch.log_softmax(
        torch.tensor([[2.0, 0.5, -1.0, 0.0], [0.1, 1.5, -3.0, 1.0], [-1.0, 1.0, 2.0, 0.3]]), -1
    ).double()
    moved, away = divergences(old, new, ref)
    share = old.exp()
    assert float((share * moved).sum()) == pytest.approx(float((share * (old - new)).sum()))
    assert float((share * away).sum()) == pytest.approx(float((new.exp() * (new - ref)).sum()))
    assert float(torch.cat([moved, away]).min()) >= 0
    # Weights that sample something else altogether: nothing overflows, and the first one tells.
    moved, away = divergences(torch.tensor([-0.1]), torch.tensor([-60.0]), torch.tensor([-0.2]))
    assert float(moved) == pytest.approx(58.9)
    assert float(away) == pytest.approx(0.9048, abs=1e-3)


def test_every_group_stands_for_the_batch_in_what_is_probed() -> None:
    assert probe_indices([0, 0, 0, 1, 2, 2]) == [0, 1, 2, 3, 4, 5]
    assert probe_indices([n // 8 for n in range(128)]) == list(range(0, 128, 8))
    assert probe_indices([n // 2 for n in range(64)]) == list(range(0, 64, 4))
    found = probe_indices([0] * 30 + [1] * 30 + [2] * 3)
    assert len(found) == 16
    assert found == [*range(7), *range(30, 36), 60, 61, 62]


@pytest.mark.parametrize(
    "how",
    [{}, {"beta": 0.04}, {"micro_batch": 3}, {"iterations": 2, "minibatches": 2, "beta": 0.04}],
)
async def test_kl_is_of_the_weights_that_an_update_leads_to(
    local: LocalModel, how: dict[str, Any]
) -> None:
    from engines.grpo.loss.loss import collate, completion_logps, pad_samples

    batch = a_batch(4, 4)
    engine = an_engine(local, **how)
    rows = pad_samples(collate(batch, keep_equal=True).samples, local.pad_id)

    def scored() -> Tensor:
        with torch.no_grad():
            return completion_logps(local, rows, temperature=1.0).logp[rows.trainable]

    old = scored()
    with local.disable_adapter():
        ref = scored()
    update = (await learn(engine, batch)).update
    assert update is not None
    await engine.apply(update)
    moved, away = divergences(old, scored(), ref)
    assert update.metrics["kl_step"] == pytest.approx(float(moved.mean()), rel=1e-3)
    assert update.metrics["kl"] == pytest.approx(float(away.mean()), rel=1e-3)


@pytest.mark.parametrize("beta", [0.0, 0.04])
async def test_the_first_update_is_already_seen_to_leave_the_reference(
    local: LocalModel, beta: float
) -> None:
    """A bound on the KL of the weights before it would let it pass, and nothing ever after."""
    train(local)
    with torch.no_grad():
        for name, parameter in local.trainable_parameters():
            if "lora_B" in name:
                parameter.zero_()
    settings = GRPOSettings(**{**PLAIN, "beta": beta, "learning_rate": 0.1})
    engine = GRPOEngine(settings, local, total_steps=4, seed=1, tell=lambda line: None)
    update = (await learn(engine, a_batch())).update
    assert update is not None
    assert update.metrics["kl"] > 0.01
    assert update.metrics["kl_step"] > 0.01


async def test_advantages_are_divided_as_set(local: LocalModel) -> None:
    """Rewards 1, 0, 0, 0 deviate by 0.5, so the gradient is that many times as long."""
    batch, norms = [a_random_group([1.0, 0.0, 0.0, 0.0])], []
    for settings in (
        {"advantage_scale": "none"},
        {"advantage_scale": "std"},
    ):
        update = (await learn(an_engine(local, **settings), batch)).update
        assert update is not None
        norms.append(update.metrics["grad_norm"])
    assert [norm / norms[0] for norm in norms[1:]] == pytest.approx([1 / 0.5001])


@pytest.mark.parametrize(
    ("name", "tight", "wide"), [("clip_low", 1e-6, 1.0), ("clip_high", 1e-6, 1e6)]
)
async def test_ratios_are_clipped_at_the_bound_that_is_set(
    local: LocalModel, name: str, tight: float, wide: float
) -> None:
    """The second pass over a batch has ratios on both sides of 1."""
    shares, weights = [], []
    for bound in (tight, wide):
        engine = an_engine(local, iterations=2, **{name: bound})
        lesson = await learn(engine, a_batch())
        assert lesson.update is not None
        shares.append(lesson.update.metrics[name])
        await engine.apply(lesson.update)
        weights.append(local.adapter_state())
    assert shares[0] > 0.05
    assert shares[1] == 0
    assert not same(*weights)


async def test_a_large_gradient_is_clipped_and_told_as_it_was(local: LocalModel) -> None:
    free = (await learn(an_engine(local, max_grad_norm=1e9), a_batch())).update
    assert free is not None
    engine = an_engine(local, make_optimiser=RecordingOptimiser, max_grad_norm=0.01)
    held = (await learn(engine, a_batch())).update
    assert held is not None
    assert held.metrics["grad_norm"] == pytest.approx(free.metrics["grad_norm"])
    assert isinstance(engine.optimiser, RecordingOptimiser)
    assert [float(g.norm()) for g in engine.optimiser.gradients] == [pytest.approx(0.01)]


async def test_a_loss_that_is_no_number_is_a_recorded_loss_and_changes_nothing(
    local: LocalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = an_engine(local)
    before, real = engine.state(), grpo.completion_logps

    def forward(*given: Any, **how: Any) -> Any:
        scored = real(*given, **how)
        return scored._replace(logp=scored.logp * torch.nan)

    monkeypatch.setattr(grpo, "completion_logps", forward)
    lesson = await learn(engine, a_batch(2))
    assert lesson.update is None
    (loss,) = lesson.losses
    assert (loss.kind, loss.where) == ("update", "step 1")
    assert "loss nan and gradient norm nan in optimiser step 1" in loss.reason
    assert "the weights stay as they were" in loss.reason
    assert same(before.adapter, local.adapter_state())
    assert same(before.optimiser, engine.state().optimiser)


async def test_a_step_that_overflows_float16_is_made_again_at_a_smaller_scale(
    local: LocalModel,
) -> None:
    class Scaled(Optimiser):
        tries = 0

        @property
        def overflowed(self) -> bool:
            return self.tries == 1

        def step(self, learning_rate: float, score: Any = None) -> float:
            self.tries += 1
            return float("inf") if self.overflowed else super().step(learning_rate)

    plain = await learn(an_engine(local), a_batch())
    engine = an_engine(local, make_optimiser=Scaled)
    assert (await learn(engine, a_batch())).update == plain.update
    assert isinstance(engine.optimiser, Scaled) and engine.optimiser.tries == 2


@pytest.mark.parametrize("lockstep", [False, True])
async def test_prompts_are_shared_unless_ranks_pass_in_lockstep(
    local: LocalModel, monkeypatch: pytest.MonkeyPatch, lockstep: bool
) -> None:
    real, shared = grpo.completion_logps, set[bool]()

    def forward(local: LocalModel, rows: Any, **how: Any) -> Any:
        shared.add(how["share"])
        return real(local, rows, **how)

    monkeypatch.setattr(grpo, "completion_logps", forward)
    monkeypatch.setattr(grpo.ALONE, "lockstep", lockstep)
    await learn(an_engine(local), a_batch())
    assert shared == {not lockstep}


def running_out(
    monkeypatch: pytest.MonkeyPatch, above: int, words: str = "CUDA out of memory."
) -> list[int]:
    real, seen = grpo.completion_logps, []

    def forward(local: LocalModel, rows: Any, **how: Any) -> Any:
        seen.append(len(rows.completions))
        if torch.is_grad_enabled() and len(rows.completions) > above:
            raise RuntimeError(words)
        return real(local, rows, **how)

    monkeypatch.setattr(grpo, "completion_logps", forward)
    return seen


@pytest.mark.parametrize(
    "words", ["CUDA out of memory.", "DefaultCPUAllocator: can't allocate memory: 9 bytes"]
)
async def test_out_of_memory_halves_the_micro_batch_once_and_says_so(
    local: LocalModel, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    whole = await learned(an_engine(local), local, a_batch(4, 4))
    told: list[str] = []
    engine = an_engine(local, told=told)
    seen = running_out(monkeypatch, 8, words)
    halved = await learned(engine, local, a_batch(4, 4))
    assert max(seen) == 16
    assert [line for line in told if "Out of memory in step 1" in line and " 8 sequences" in line]
    assert distance(whole, halved) < 1e-5
    seen.clear()
    lesson = await learn(engine, a_batch(4, 4, step=2))
    assert lesson.update is not None
    assert max(seen) == 8


@pytest.mark.parametrize(
    ("ran_out", "was", "now", "most"),
    [(False, 1, 4, 4), (False, 4, None, 16), (True, None, None, 8), (True, None, 2, 2)],
)
async def test_a_resume_goes_by_the_micro_batch_of_its_settings_unless_memory_ran_out_below_it(
    local: LocalModel,
    monkeypatch: pytest.MonkeyPatch,
    ran_out: bool,
    was: int | None,
    now: int | None,
    most: int,
) -> None:
    engine = an_engine(local, micro_batch=was)
    with monkeypatch.context() as patch:
        running_out(patch, 8 if ran_out else 99)
        await learned(engine, local, a_batch(4, 4))
    resumed = an_engine(local, micro_batch=now)
    resumed.load_state(engine.state())
    seen = running_out(monkeypatch, 99)
    assert (await learn(resumed, a_batch(4, 4, step=2))).update is not None
    assert max(seen) == most


async def test_out_of_memory_after_halving_is_a_recorded_loss(
    local: LocalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = an_engine(local)
    before = engine.state()
    running_out(monkeypatch, 0)
    lesson = await learn(engine, a_batch(2, 4))
    assert lesson.update is None
    assert "out of memory with 4 sequences to a forward, also after halving" in (
        lesson.losses[0].reason
    )
    assert same(before.adapter, local.adapter_state())


async def test_another_error_of_torch_is_a_bug_and_passes(
    local: LocalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    running_out(monkeypatch, 0, "shapes do not fit")
    engine = an_engine(local)
    before = local.adapter_state()
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        await learn(engine, a_batch(1))
    assert same(before, local.adapter_state())
    assert not local.lock.locked()


async def test_a_cancelled_computation_puts_everything_back(
    local: LocalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, reached, go = grpo.completion_logps, threading.Event(), threading.Event()

    def forward(*given: Any, **how: Any) -> Any:
        reached.set()
        assert go.wait(10)
        return real(*given, **how)

    monkeypatch.setattr(grpo, "completion_logps", forward)
    engine = an_engine(local, micro_batch=1, iterations=50)
    before = engine.state()
    task = asyncio.ensure_future(learn(engine, a_batch()))
    await asyncio.to_thread(reached.wait, 10)
    task.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert same(before.adapter, local.adapter_state())
    assert same(before.optimiser, engine.state().optimiser)
    assert not local.lock.locked()


async def test_rollouts_without_token_ids_are_told_and_the_rest_is_trained_on(
    local: LocalModel,
) -> None:
    group = a_random_group([1, 0, 0])
    bare = a_try(index=2)
    lesson = await learn(an_engine(local), [replace(group, rollouts=(*group.rollouts[:2], bare))])
    assert lesson.update is not None
    assert [(loss.where, loss.kind) for loss in lesson.losses] == [("s1p0r2", "update")]
    none = await learn(an_engine(local), [replace(group, rollouts=(bare, bare, bare))])
    assert none.update is None
    assert len(none.losses) == 3


async def test_log_probabilities_that_are_not_the_samplers_are_told(local: LocalModel) -> None:
    told: list[str] = []
    lesson = await learn(an_engine(local, told=told), a_batch())
    assert lesson.update is not None
    assert "other weights, another temperature, or processed scores" in lesson.update.note
    assert len(told) == 1


async def test_a_plan_that_changes_moves_the_schedule(
    local: LocalModel,
) -> None:
    how: dict[str, Any] = {"schedule": "cosine", "learning_rate": 0.008}
    engine = an_engine(local, total_steps=4, **how)
    weights = await learned(engine, local, *[a_batch(step=n) for n in (1, 2, 3)])
    state = engine.state()
    # Half a cosine: the third of four had 0.5 of it, the fourth of eight has 0.691.
    engine.plan(8)
    longer = (await learn(engine, a_batch(step=4))).update
    assert longer is not None
    assert longer.metrics["learning_rate"] == pytest.approx(0.00553, rel=1e-3)
    train(local)
    other = an_engine(local, total_steps=8, **how)
    other.load_state(state)
    assert same(local.adapter_state(), weights)
    assert (await learn(other, a_batch(step=4))).update == longer


async def test_the_learning_rate_warms_up_as_set(local: LocalModel) -> None:
    warming = await learn(an_engine(local, warmup=0.4, total_steps=10), a_batch())
    assert warming.update is not None
    assert warming.update.metrics["learning_rate"] == pytest.approx(1e-2 / 4)


def test_the_schedule_rises_then_falls() -> None:
    def shares(schedule: Any, warmup: float, planned: int = 4) -> list[float]:
        return [
            schedule_factor(n, planned, schedule=schedule, warmup=warmup)
            for n in range(planned + 1)
        ]

    assert shares("constant", 0.5) == [0.5, 1.0, 1.0, 1.0, 1.0]
    assert shares("linear", 0.0) == [1.0, 0.75, 0.5, 0.25, 0.0]
    # Half a cosine at 0, 45, 90, 135 and 180 degrees.
    assert shares("cosine", 0.0) == pytest.approx([1.0, 0.853553, 0.5, 0.146447, 0.0], abs=1e-6)
    assert schedule_factor(99, 4, schedule="cosine", warmup=0.0) == 0.0


class InTurn:
    """Two ranks in two threads whose sums are made in rank order."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=20)
        self.values: dict[int, Tensor] = {}

    def meet(self, rank: int, tensor: Tensor, join: Callable[[Tensor], Tensor]) -> Tensor:
        self.values[rank] = tensor.clone()
        self.barrier.wait()
        joined = join(torch.stack([self.values[n] for n in range(self.size)]))
        self.barrier.wait()
        return joined


class OneOf(Ranks):
    def __init__(self, meeting: InTurn, rank: int) -> None:
        self.meeting, self.rank, self.size = meeting, rank, meeting.size

    def gather(self, tensor: Tensor) -> Tensor:
        return self.meeting.meet(self.rank, tensor, lambda stacked: stacked)


class SummingOptimiser(Optimiser):
    """Sums the gradients of two ranks in two threads, as DDP does between processes."""

    def __init__(self, local: LocalModel, settings: GRPOSettings, *, ranks: Ranks) -> None:
        super().__init__(local, settings)
        self.ranks = ranks

    def step(self, learning_rate: float, score: Any = None) -> float:
        for held in self._held():
            own = torch.zeros_like(held) if held.grad is None else held.grad
            held.grad = self.ranks.gather(own).sum(0)
        return super().step(learning_rate)


async def both(
    locals_: Sequence[LocalModel], batch: Sequence[Group], **how: Any
) -> list[tuple[Lesson, Weights]]:
    meeting = InTurn(len(locals_))
    ranks = [OneOf(meeting, rank) for rank in range(len(locals_))]
    engines = [
        an_engine(each, ranks=one, make_optimiser=partial(SummingOptimiser, ranks=one), **how)
        for one, each in zip(ranks, locals_, strict=True)
    ]
    lessons = await asyncio.gather(*(learn(engine, batch) for engine in engines))
    for engine, lesson in zip(engines, lessons, strict=True):
        if lesson.update is not None:
            await engine.apply(lesson.update)
    return [(lesson, each.adapter_state()) for lesson, each in zip(lessons, locals_, strict=True)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[LocalModel]:
    made = [a_local(tmp_path_factory.mktemp(f"rank{n}"), trained=True) for n in range(2)]
    for each in made:
        each.model.double()
    return made


@pytest.mark.parametrize("groups", [1, 3, 4])
@pytest.mark.parametrize("how", [{}, {**REUSING, "aggregation": "grpo"}])
async def test_two_ranks_equal_one_also_where_one_has_less_to_do(
    pair: list[LocalModel], groups: int, how: dict[str, Any]
) -> None:
    batch, how = a_batch(groups), {**how, "learning_rate": 1e-3}
    engine = an_engine(pair[0], **how)
    lesson = await learn(engine, batch)
    assert lesson.update is not None
    await engine.apply(lesson.update)
    alone = pair[0].adapter_state()
    first, second = await both(pair, batch, **how)
    assert same(first[1], second[1])
    assert distance(first[1], alone) < 1e-6
    assert first[0].update is not None
    for name, value in lesson.update.metrics.items():
        assert first[0].update.metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


async def test_memory_that_runs_out_on_one_rank_halves_the_micro_batch_on_all(
    pair: list[LocalModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = grpo.completion_logps

    def forward(local: LocalModel, rows: Any, **how: Any) -> Any:
        if local is pair[1] and torch.is_grad_enabled() and len(rows.completions) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return real(local, rows, **how)

    monkeypatch.setattr(grpo, "completion_logps", forward)
    first, second = await both(pair, a_batch(4, 4))
    assert first[0].update is not None
    assert same(first[1], second[1])


def test_settings_that_do_not_fit_each_other_are_refused() -> None:
    for wrong, field in [
        ({"minibatches": 4, "accumulation": 3}, "accumulation"),
        ({"temperature": 0.0}, "temperature"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"clip_low": 1.5}, "clip_low"),
        ({"beta": -0.1}, "beta"),
        ({"warmup": 1.0}, "warmup"),
        ({"micro_batch": 0}, "micro_batch"),
        ({"max_grad_norm": 0.0}, "max_grad_norm"),
        ({"discount": 0.0}, "discount"),
    ]:
        with pytest.raises(ConfigError, match=f"grpo.{field}"):
            GRPOSettings(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"grpo\.max_completion_tokens"):
        GRPOSettings(aggregation="dr_grpo").for_rollouts(1.0, None)


def test_a_model_without_anything_to_train_is_refused(tmp_path: Path) -> None:
    frozen = a_local(tmp_path)
    assert frozen.settings == LocalSettings(str(tmp_path), threads=1)
    with pytest.raises(PolicyError, match=r"policy\.local\.lora"):
        GRPOEngine(GRPOSettings(), frozen, total_steps=1, seed=0)
