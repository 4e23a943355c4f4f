"""How a local model is loaded. Imports nothing heavy: run files are read without torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""What LoRA adapts unless told otherwise, as far as the model has them."""


@dataclass(frozen=True, slots=True)
class LoraSettings:
    rank: int = 8
    alpha: int = 16
    dropout: float = 0.0  # kept in the adapter's files; every pass here runs without it
    targets: tuple[str, ...] | None = None  # None: those of PROJECTIONS that are there


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """A model in this process.

    `device` is "auto" (the first GPU, else the CPU), a torch device such as "cuda:1", or
    "spread": its layers are placed over all GPUs.
    """

    path: str  # a folder, or a name on the hub
    adapter: Path | None = None  # folder of a PEFT adapter to begin with
    lora: LoraSettings | None = None  # None: the weights stay as they are
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: str = "auto"
    quantise: Literal["none", "nf4"] = "none"
    trust_remote_code: bool = False
    gradient_checkpointing: bool = False
    threads: int | None = None  # None: probed
    max_batch: int = 256  # rows that are decoded at a time
    seed: int = 0  # of a new adapter's weights
