"""Models of `tests.engines.grpo.models` with an adapter, and states as an engine has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from engines.grpo.checkpoint.contents import EngineState
from engines.policies.hf_local.model import LocalModel
from engines.policies.hf_local.settings import LocalSettings, LoraSettings
from engines.policies.open import load_local
from tests.engines.grpo.models import train


def adapted(
    folder: Path, *, lora: LoraSettings | None = None, adapter: Path | None = None
) -> LocalModel:
    """The model of a folder with an adapter that can be trained."""
    settings = LocalSettings(
        str(folder),
        adapter=adapter,
        lora=lora or LoraSettings(rank=4, alpha=8),
        device="cpu",
        threads=1,
    )
    return load_local(settings, tell=lambda _: None)


def trained(folder: Path, seed: int = 1) -> LocalModel:
    """The same with an adapter that has an effect: a fresh one has B = 0."""
    local = adapted(folder)
    train(local, seed)
    return local


def checkpoint_name(step: int) -> str:
    """Of the folder, as a run writes it."""
    return f"global_step_{step}"


def a_state(local: LocalModel, **plain: Any) -> EngineState:
    """As an engine has it after three steps."""
    moments = {
        "first": torch.full((5,), 0.1),
        "second": torch.full((5,), 1e-9),
        "n": torch.tensor(3),
    }
    return EngineState(local.adapter_state(), moments, {"step": 3, **plain})
