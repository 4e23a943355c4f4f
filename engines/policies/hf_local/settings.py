"""How a local model is loaded. Imports nothing heavy: run files are read without torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engines.core.settings import MAX_COUNT, derived, setting

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""What LoRA adapts by default, as far as the model has them."""


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """The low-rank adapter that is trained."""

    rank: int = setting(8, "of its matrices", ge=1, le=MAX_COUNT)
    alpha: int = setting(16, "its scale is alpha / rank", ge=1, le=MAX_COUNT)
    dropout: float = setting(
        0.0, "kept with the adapter for later use; every pass here is without it", ge=0, lt=1
    )
    targets: tuple[str, ...] | None = setting(
        None, "names of the layers; null: the seven projections of a block"
    )


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """How hf:PATH is loaded.

    Which model it is follows from other settings: `path` is a folder or a name on the hub,
    `adapter` the folder of a PEFT adapter to begin with; without `lora` the weights stay as
    they are. The device "spread" places the layers over all GPUs.
    """

    path: str = derived("")
    adapter: Path | None = derived(None)
    lora: LoraSettings | None = derived(None)
    device: str = setting("auto", "cpu, cuda, cuda:1, mps; auto: the best there is", min_length=1)
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto", "of the weights; auto: bfloat16 on a GPU, else float32"
    )
    quantise: Literal["none", "nf4"] = setting(
        "none", "nf4: 4-bit weights below the adapter (QLoRA); needs a GPU"
    )
    trust_remote_code: bool = setting(False, "run Python code that comes with the model")
    gradient_checkpointing: bool = setting(False, "less memory and more time in training")
    threads: int | None = setting(
        None, "of the CPU; null: measured at the start", ge=1, le=MAX_COUNT
    )
    max_batch: int = setting(256, "replies sampled at a time", ge=1, le=MAX_COUNT)
    rollouts_url: str | None = setting(
        None,
        "a vLLM server that samples the rollouts, given each new adapter",
        pattern=r"^https?://",
    )
    seed: int = derived(0)
