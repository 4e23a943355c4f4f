"""The same batch gives TRL's losses, gradients, figures and advantages.

Against recorded values always, and against TRL itself where it is installed.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engines.core.library import Library
from engines.grpo.engine.grpo import GRPOEngine
from engines.grpo.loss.loss import (
    Rows,
    TokenStats,
    aggregate,
    batch_advantages,
    collate,
    completion_logps,
    pad_samples,
    token_losses,
)
from engines.grpo.settings import AdvantageScale, Aggregation, GRPOSettings
from engines.policies.hf_local.model import LocalModel
from engines.policies.hf_local.settings import LocalSettings, LoraSettings
from engines.policies.open import load_local
from tests.engines.grpo import trl_reference as theirs
from tests.support.builders import a_library

LOSS, GRADIENT = 1e-6, 1e-5  # absolute, and the difference's norm to the gradient's
HOW = pytest.mark.parametrize("how", theirs.AGGREGATIONS)
SCALES = pytest.mark.parametrize("scale", ["std", "none"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return theirs.write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def local(folder: Path) -> LocalModel:
    lora = LoraSettings(theirs.RANK, theirs.ALPHA)
    return load_local(LocalSettings(str(folder), lora=lora, threads=1), lambda line: None)


@dataclass(frozen=True)
class Ours:
    """What one optimiser step sees, and how near its ratios come to a bound."""

    loss: Tensor
    gradient: Tensor
    stats: TokenStats
    nearest: float
    kl: float  # k3 · ratio, the term of the loss, over tokens

    def rate(self, name: str) -> float:
        return float(getattr(self.stats, name) / self.stats.tokens)


def ours(local: LocalModel, how: Aggregation) -> Ours:
    batch = theirs.the_batch()
    collated = collate(batch, keep_equal=True)
    rows = pad_samples(collated.samples[: theirs.GROUP * theirs.SEEN], local.pad_id)
    local.load_adapter_state(theirs.adapter(local.trainable_parameters(), moved=False))
    old = passive(local, rows)
    with local.disable_adapter():
        ref = passive(local, rows)
    local.load_adapter_state(theirs.adapter(local.trainable_parameters(), moved=True))
    local.model.zero_grad()
    scored = completion_logps(local, rows, temperature=theirs.TEMPERATURE)
    of_tokens = partial(
        token_losses,
        scored.logp,
        old,
        ref,
        rows.advantages,
        clip_low=theirs.CLIP_LOW,
        clip_high=theirs.CLIP_HIGH,
        trainable=rows.trainable,
    )
    losses, stats = of_tokens(beta=theirs.BETA)
    plain, _ = of_tokens(beta=0.0)
    loss = aggregate(
        losses,
        rows.trainable,
        how,
        max_completion_tokens=theirs.MAX_COMPLETION_TOKENS,
        normaliser=collated.tokens / theirs.PARTS if how == "dapo" else None,
    )
    loss.backward()  # type: ignore[no-untyped-call]
    gradient = torch.cat(
        [p.grad.flatten() for _, p in local.trainable_parameters() if p.grad is not None]
    )
    ratio = torch.exp(scored.logp.detach() - old)[rows.trainable]
    edges = (1 - theirs.CLIP_LOW, 1 + theirs.CLIP_HIGH)
    nearest = min(float((ratio - edge).abs().min()) for edge in edges)
    kl = float((losses - plain).detach().sum() / stats.tokens) / theirs.BETA
    return Ours(loss.detach(), gradient, stats, nearest, kl)


def passive(local: LocalModel, rows: Rows) -> Tensor:
    with torch.no_grad():
        return completion_logps(local, rows, temperature=theirs.TEMPERATURE).logp


def assert_parity(mine: Ours, figures: dict[str, Any], gradient: Tensor) -> None:
    assert abs(float(mine.loss) - figures["loss"]) <= LOSS
    assert mine.gradient.shape == gradient.shape
    assert float((mine.gradient - gradient).norm() / gradient.norm()) <= GRADIENT
    assert mine.rate("clipped_low") == pytest.approx(figures["clip_low"], abs=1e-6)
    assert mine.rate("clipped_high") == pytest.approx(figures["clip_high"], abs=1e-6)
    assert mine.kl == pytest.approx(figures["kl"], rel=1e-5)


def our_advantages(scale: AdvantageScale) -> Tensor:
    return batch_advantages(theirs.the_batch(theirs.UNEVEN), scale=scale).flatten()


# ── against what was recorded


def values() -> dict[str, Any]:
    return dict(json.loads(theirs.VALUES.read_text()))


@HOW
def test_loss_and_gradient_are_those_that_trl_gave(local: LocalModel, how: Aggregation) -> None:
    figures = values()["aggregations"][how]
    gradient = theirs.unpacked(figures["gradient"])
    assert float(gradient.norm()) == pytest.approx(figures["gradient_norm"], rel=1e-6)
    assert_parity(ours(local, how), figures, gradient)


def test_the_recorded_batch_has_clipping_and_kl_and_no_ratio_at_a_bound(local: LocalModel) -> None:
    mine = ours(local, "dapo")
    assert mine.nearest > theirs.NEAREST
    for name in ("clipped_low", "clipped_high"):
        assert 0.1 < mine.rate(name) < 0.5
    assert mine.kl > 0.1
    lengths = {len(r.attempt.turns[0].token_ids) for g in theirs.the_batch() for r in g.rollouts}
    assert len(lengths) > 8
    losses = [values()["aggregations"][how]["loss"] for how in theirs.AGGREGATIONS]
    assert len({round(loss, 3) for loss in losses}) == 4


@SCALES
def test_advantages_are_those_that_trl_gave(scale: AdvantageScale) -> None:
    recorded = torch.tensor(values()["advantages"][scale], dtype=torch.float64)
    assert (our_advantages(scale) - recorded).abs().max() < 1e-6


# ── against TRL itself

needs_trl = pytest.mark.skipif(
    find_spec("trl") is None or find_spec("datasets") is None,
    reason="TRL is not installed: pip install 'practice-studio[bench]'",
)


@contextmanager
def as_others_warn() -> Iterator[None]:
    """TRL and what it builds on warn of their own future."""
    verbose = sys.modules["transformers"].utils.logging
    level = verbose.get_verbosity()
    verbose.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        verbose.set_verbosity(level)


@pytest.fixture(scope="module")
def reference(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> theirs.Reference:
    with as_others_warn():
        return theirs.Reference(folder, tmp_path_factory.mktemp("trl"), theirs.the_batch())


@needs_trl
@HOW
def test_loss_and_gradient_are_those_of_the_installed_trl(
    local: LocalModel, reference: theirs.Reference, how: Aggregation
) -> None:
    with as_others_warn():
        figures = reference.step(how)
    assert_parity(ours(local, how), figures, figures["gradient"])


@needs_trl
@SCALES
def test_advantages_are_those_of_the_installed_trl(
    folder: Path, tmp_path: Path, scale: AdvantageScale
) -> None:
    batch = theirs.the_batch(theirs.UNEVEN)
    how = {"std": "group", "none": "none"}[scale]
    with as_others_warn():
        made = theirs.Reference(folder, tmp_path, batch, scale_rewards=how).scored()
    assert (our_advantages(scale) - made["advantages"]).abs().max() < 1e-6


@needs_trl
@HOW
async def test_two_iterations_of_a_batch_end_at_the_weights_of_trls_own_loop(
    folder: Path, local: LocalModel, tmp_path: Path, how: Aggregation
) -> None:
    batch = theirs.the_batch()
    settings = GRPOSettings(
        learning_rate=1e-3,
        schedule="constant",
        max_grad_norm=0.5,  # below the gradient's norm, so that it acts
        aggregation=how,
        clip_low=theirs.CLIP_LOW,
        clip_high=theirs.CLIP_HIGH,
        beta=theirs.BETA,
        iterations=2,
        max_completion_tokens=theirs.MAX_COMPLETION_TOKENS,
        temperature=theirs.TEMPERATURE,
    )
    start = theirs.adapter(local.trainable_parameters(), moved=False)
    local.load_adapter_state(start)
    engine = GRPOEngine(settings, local, total_steps=1, seed=0, tell=lambda line: None)
    library: Library = a_library()
    update = (await engine.consolidate(batch, (), library)).update
    assert update is not None
    assert update.metrics["optimiser_steps"] == 2
    await engine.apply(update)
    with as_others_warn():
        reference = theirs.Reference(
            folder,
            tmp_path,
            batch,
            per_device_train_batch_size=theirs.GROUP * theirs.GROUPS,
            steps_per_generation=1,
            max_steps=2,
            loss_type=how,
            learning_rate=settings.learning_rate,
            lr_scheduler_type="constant",
            max_grad_norm=settings.max_grad_norm,
        )
        reference.take(start)
        reference.trainer.train()
    trained = {name: p.detach() for name, p in reference.parameters()}
    far = torch.cat([(trained[name] - value).flatten() for name, value in start.items()])
    apart = torch.cat(
        [(trained[name] - value).flatten() for name, value in local.adapter_state().items()]
    )
    assert float(far.norm()) > 0.02
    # Adam divides by a root: where a gradient is nearly 0 its rounding is magnified.
    assert float(apart.norm() / far.norm()) < 1e-3
