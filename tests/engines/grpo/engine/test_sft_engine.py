"""Fine-tuning as an engine of the loop: one step a batch, undecided until it is applied."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.core.errors import ConflictError
from engines.core.library import Library
from engines.core.types import Group, Lesson, Problem, WeightUpdate
from engines.grpo.engine.sft import SFTEngine, as_sample, token_losses
from engines.grpo.engine.weight_engine import WeightEngine
from engines.grpo.loss.sft_data import parse_demonstration, tokenise_demonstration
from engines.grpo.settings import SFTSettings
from engines.policies.hf_local.model import LocalModel
from tests.engines.grpo.checkpoints import adapted, trained
from tests.engines.grpo.models import a_folder

WORDS = ("ab", "What is", "doggy 12", "an elephant on the inn", "fly", "ox 7")
NONE = Library("none", 3)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_folder(tmp_path_factory.mktemp("models") / "base")


def a_batch(step: int = 1, words: Sequence[str] = WORDS[:3]) -> list[Group]:
    """Groups without rollouts; what is learnt stands beside each problem."""
    return [
        Group(
            problem=Problem(
                f"p{at}", f"say {word} twice", None, meta={"solution": f"{word} {word}"}
            ),
            epoch=1,
            step=step,
            position=at,
            rollouts=(),
            verdicts=(),
        )
        for at, word in enumerate(words)
    ]


def an_engine(
    local: LocalModel, *, tell: Callable[[str], None] = lambda _: None, **more: Any
) -> WeightEngine:
    own = {k: more.pop(k) for k in ("forward_tokens", "total_steps", "instructions") if k in more}
    settings = SFTSettings(**{"learning_rate": 0.01, **more})
    return SFTEngine(settings, local, tell=tell, **{"total_steps": 6, **own})


async def learn(engine: WeightEngine, batch: Sequence[Group]) -> Lesson:
    reflections = [await engine.reflect(group, NONE) for group in batch]
    assert {reflection.outcome for reflection in reflections} == {"used"}
    lesson = await engine.consolidate(batch, reflections, NONE)
    if lesson.update is not None:
        await engine.apply(lesson.update)
    return lesson


async def steps(engine: WeightEngine, first: int, last: int) -> list[Lesson]:
    return [
        await learn(engine, a_batch(n, WORDS[n % 3 : n % 3 + 3])) for n in range(first, last + 1)
    ]


def figures(lesson: Lesson) -> dict[str, float]:
    assert lesson.update is not None, lesson.losses
    return dict(lesson.update.metrics)


async def test_a_lesson_changes_nothing_until_it_is_applied(base: Path) -> None:
    local = trained(base)
    engine, before = an_engine(local), local.weights_digest()
    lesson = await engine.consolidate(a_batch(4), [], NONE)
    assert (lesson.step, lesson.base_version, lesson.operations) == (4, 3, ())
    assert lesson.update is not None and lesson.update.handle == "step-4"
    assert (local.weights_digest(), engine.policy_version) == (before, 0)
    assert await engine.apply(lesson.update) == 1
    assert local.weights_digest() != before
    with pytest.raises(ValueError, match="step-4"):
        await engine.apply(lesson.update)


async def test_a_batch_is_consolidated_again_to_the_same_update(base: Path) -> None:
    engine = an_engine(trained(base))
    first = await engine.consolidate(a_batch(), [], NONE)
    assert await engine.consolidate(a_batch(), [], NONE) == first


async def test_its_figures_are_those_of_the_demonstrations(base: Path) -> None:
    local = trained(base)
    examples = [
        tokenise_demonstration(local, parse_demonstration(g.problem), "Twice.") for g in a_batch()
    ]
    with torch.no_grad():
        every = token_losses(local, [as_sample(each, 0) for each in examples])
    engine = an_engine(local, instructions="Twice.", schedule="constant", warmup=0.0)
    found = figures(await learn(engine, a_batch()))
    assert found["loss"] == pytest.approx(every.mean().item(), abs=1e-5)
    assert found["grad_norm"] > 0
    assert found | {"loss": 0, "grad_norm": 0} == {
        "loss": 0,
        "grad_norm": 0,
        "learning_rate": 0.01,
        "tokens": len(every),
        "examples": 3,
        "left_out": 0,
        "length": len(every) / 3,
        "optimiser_steps": 1,
    }


async def test_it_learns_what_it_is_shown(base: Path) -> None:
    engine = an_engine(adapted(base), learning_rate=0.02, total_steps=24)
    losses = [figures(await learn(engine, a_batch(n)))["loss"] for n in range(1, 25)]
    assert losses[-1] < 0.6 * losses[0]
    assert engine.policy_version == 24


async def test_a_longer_plan_moves_the_schedule(base: Path) -> None:
    engine = an_engine(adapted(base), total_steps=2, warmup=0.0, schedule="linear")
    await steps(engine, 1, 2)
    engine.plan(8)
    found = figures(await learn(engine, a_batch(3)))
    assert found["learning_rate"] == pytest.approx(0.0075)


async def test_from_a_checkpoint_it_goes_on_bitwise_the_same(base: Path, tmp_path: Path) -> None:
    whole = adapted(base)
    engine = an_engine(whole, warmup=0.2)
    await steps(engine, 1, 2)
    digest = await engine.save(tmp_path / "2")
    assert digest == await engine.save(tmp_path / "again")
    ends = await steps(engine, 3, 5)
    local = adapted(base)
    again = an_engine(local, warmup=0.2)
    await again.restore(tmp_path / "2")
    assert again.policy_version == 2
    assert await steps(again, 3, 5) == ends
    assert local.weights_digest() == whole.weights_digest()


async def test_a_checkpoint_of_another_engine_is_refused_and_changes_nothing(
    base: Path, tmp_path: Path
) -> None:
    from engines.grpo.engine.grpo import GRPOEngine
    from engines.grpo.settings import GRPOSettings

    other = GRPOEngine(GRPOSettings(), trained(base), total_steps=1, seed=1)
    await other.save(tmp_path / "1")
    local = adapted(base)
    before = local.weights_digest()
    with pytest.raises(ConflictError, match="not made by fine-tuning"):
        await an_engine(local).restore(tmp_path / "1")
    assert local.weights_digest() == before
    await an_engine(local).save(tmp_path / "2")
    weights = other.state().adapter
    with pytest.raises(ConflictError, match="not made by GRPO"):
        await other.restore(tmp_path / "2")
    assert all(torch.equal(weights[name], now) for name, now in other.state().adapter.items())


@pytest.mark.parametrize(
    "changed",
    [
        {"learning_rate": 0.02},
        {"max_grad_norm": 0.01},
        {"schedule": "constant"},
        {"warmup": 0.9},
    ],
)
async def test_every_setting_has_an_effect(changed: dict[str, Any], base: Path) -> None:
    digests = []
    for settings in ({}, changed):
        local = trained(base)
        await steps(an_engine(local, **settings), 1, 3)
        digests.append(local.weights_digest())
    assert digests[0] != digests[1]


async def test_the_learning_rate_rises_and_falls_over_all_steps(base: Path) -> None:
    engine = an_engine(adapted(base), total_steps=8, warmup=0.25, schedule="linear")
    rates = [figures(one)["learning_rate"] for one in await steps(engine, 1, 8)]
    # 8 steps, 2 of them rising; then 6 of 6, 5 of 6, … of the highest.
    expected = [0.005, 0.01, *(0.01 * left / 6 for left in (6, 5, 4, 3, 2, 1))]
    assert rates == pytest.approx(expected)


async def test_a_loss_that_is_no_number_is_a_recorded_failure(base: Path) -> None:
    local = trained(base)
    engine = an_engine(local)
    with torch.no_grad():
        local.trainable_parameters()[0][1].fill_(math.nan)
    engine = an_engine(local)
    lesson = await learn(engine, a_batch(2))
    assert lesson.update is None
    (lost,) = lesson.losses
    assert (lost.kind, lost.where) == ("update", "step 2")
    assert "loss nan" in lost.reason
    assert "sft.learning_rate" in lost.reason
    assert all(parameter.grad is None for _, parameter in local.trainable_parameters())
    assert not local.lock.locked()


def refuse_above(local: LocalModel, tokens: int) -> None:
    """Stands for a memory that holds so many tokens and no more."""

    def check(module: object, args: object, kwargs: dict[str, Any]) -> None:
        if kwargs["input_ids"].numel() > tokens:
            raise torch.OutOfMemoryError("out of memory")

    local.base.model.register_forward_pre_hook(check, with_kwargs=True)


async def test_out_of_memory_halves_the_pass_once_says_so_and_stays_so(
    base: Path, tmp_path: Path
) -> None:
    usual, short = adapted(base), adapted(base)
    expected = await learn(an_engine(usual, forward_tokens=140), a_batch(1, WORDS))
    refuse_above(short, 70)
    told: list[str] = []
    engine = an_engine(short, forward_tokens=140, tell=told.append)
    found = await learn(engine, a_batch(1, WORDS))
    assert told == [
        "Out of memory in step 1: trying again with 70 tokens to a forward, which stays so."
    ]
    assert figures(found) == pytest.approx(figures(expected), abs=1e-5)
    await engine.save(tmp_path / "1")
    again = an_engine(adapted(base), forward_tokens=140)
    await again.restore(tmp_path / "1")
    assert again.state().plain["forward_limit"] == 70


async def test_out_of_memory_twice_is_a_recorded_failure(base: Path) -> None:
    local = trained(base)
    refuse_above(local, 20)
    before = local.weights_digest()
    lesson = await learn(an_engine(local, forward_tokens=140), a_batch(1, WORDS))
    assert lesson.update is None
    assert (
        "out of memory with 70 tokens to a forward, also after halving" in lesson.losses[0].reason
    )
    assert local.weights_digest() == before


async def test_another_runtime_error_is_no_lack_of_memory(base: Path) -> None:
    local = trained(base)
    before = local.weights_digest()

    def fail(*_: object) -> None:
        raise RuntimeError("something else")

    local.base.model.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="something else"):
        await learn(an_engine(local), a_batch())
    assert local.weights_digest() == before
    assert not local.lock.locked()


async def test_what_does_not_fit_the_window_is_left_out_of_its_step(tmp_path: Path) -> None:
    local = adapted(a_folder(tmp_path / "m", max_position_embeddings=40))
    engine = an_engine(local)
    found = figures(await learn(engine, a_batch(1, ("ab", "an elephant on the inn" * 4))))
    assert (found["examples"], found["left_out"]) == (1, 1)
    lesson = await learn(engine, a_batch(2, ("an elephant on the inn" * 4,)))
    assert lesson.update is None
    assert "fits the model's window" in lesson.losses[0].reason


async def test_who_no_longer_waits_finds_the_weights_as_they_were(base: Path) -> None:
    local = trained(base)
    before = local.weights_digest()
    engine = an_engine(local, forward_tokens=1)  # many passes, between which it looks up
    began = asyncio.Event()
    loop = asyncio.get_running_loop()
    local.base.model.register_forward_pre_hook(
        lambda *_: (loop.call_soon_threadsafe(began.set), None)[1]
    )
    work = asyncio.ensure_future(engine.consolidate(a_batch(1, WORDS * 20), [], NONE))
    await began.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert local.weights_digest() == before
    assert not local.lock.locked()
    with pytest.raises(ValueError, match="no computed update"):
        await engine.apply(WeightUpdate({}, "step-1"))
