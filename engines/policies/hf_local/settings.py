"""How a local model is loaded. Imports nothing heavy: run files are read without torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engines.core.settings import MAX_COUNT, SettingError, derived, setting

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""What LoRA adapts by default, as far as the model has them."""


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """The low-rank adapter that is trained."""

    rank: int = setting(8, "rank of the adapter's matrices", ge=1, le=MAX_COUNT)
    alpha: int = setting(16, "the adapter is scaled by alpha / rank", ge=1, le=MAX_COUNT)
    dropout: float = setting(
        0.0,
        "share of the adapter's inputs that fine-tuning drops; GRPO drops none: a ratio of two "
        "passes that drop differently is noise",
        ge=0,
        lt=1,
    )
    targets: tuple[str, ...] | None = setting(
        None,
        "names of the layers it adapts; null: the seven projections of a block",
        examples=["[q_proj,v_proj]"],
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
    device: str = setting(
        "auto",
        "where it runs: cpu, cuda, cuda:1, mps; auto: the best there is",
        min_length=1,
        examples=["cpu"],
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto", "number format of the weights; auto: bfloat16 on a GPU, else float32"
    )
    quantise: Literal["none", "nf4"] = setting(
        "none", "how the weights are compressed; nf4: to 4 bits below the adapter (QLoRA), on a GPU"
    )
    trust_remote_code: bool = setting(False, "whether Python code that comes with the model is run")
    gradient_checkpointing: bool = setting(
        False, "whether training takes less memory and more time"
    )
    threads: int | None = setting(
        None, "threads of the CPU; null: measured at the start", ge=1, le=MAX_COUNT, examples=[2]
    )
    max_batch: int = setting(256, "replies sampled at a time", ge=1, le=MAX_COUNT)
    rollouts_url: tuple[str, ...] | None = setting(
        None,
        "one vLLM server or several that sample the rollouts, given each new adapter",
        examples=["http://localhost:8000/v1"],
    )
    rollouts_sleep: bool = setting(
        False,
        "whether these servers sleep while weights are updated: they share the GPU; start them "
        "with VLLM_SERVER_DEV_MODE=1 and --enable-sleep-mode",
    )
    seed: int = derived(0)

    def __post_init__(self) -> None:
        for url in self.rollouts_url or ():
            if not url.startswith(("http://", "https://")):
                move = "Write it as http://HOST:8000/v1."
                raise SettingError("policy.local", "rollouts_url", f"{url!r} is no address.", move)
        if self.rollouts_sleep and not self.rollouts_url:
            cause = "no server samples the rollouts."
            move = "Set policy.local.rollouts_url, or leave it out."
            raise SettingError("policy.local", "rollouts_sleep", cause, move)
