"""How a local model is loaded. Imports nothing heavy: run files are read without torch."""

from pathlib import Path
from typing import Literal

from engines.core.frozen import frozen
from engines.core.settings import COUNT, SettingError, derived, setting

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""What LoRA adapts, as far as the model has them."""


@frozen
class LoraSettings:
    """The low-rank adapter that is trained."""

    rank: int = setting(8, "rank of the adapter's matrices", **COUNT)
    alpha: int = setting(16, "the adapter is scaled by alpha / rank", **COUNT)


@frozen
class LocalSettings:
    """How hf:PATH is loaded.

    Which model it is follows from other settings: `path` is a folder or a name on the hub,
    `adapter` the folder of a PEFT adapter to begin with; without `lora` the weights stay as
    they are.
    """

    path: str = derived("")
    adapter: Path | None = derived(None)
    lora: LoraSettings | None = derived(None)
    device: str = derived("auto")  # the best there is, or one that torch knows
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto", "number format of the weights; auto: bfloat16 on a GPU, else float32"
    )
    quantise: Literal["none", "nf4"] = setting(
        "none", "how the weights are compressed; nf4: to 4 bits below the adapter (QLoRA), on a GPU"
    )
    gradient_checkpointing: bool = setting(
        False, "whether training takes less memory and more time"
    )
    threads: int | None = setting(
        None, "threads of the CPU; null: by the load at the start", examples=[2], **COUNT
    )
    max_batch: int = derived(256)  # replies sampled at a time
    rollouts_url: tuple[str, ...] | None = setting(
        None,
        "one vLLM server or several that sample the rollouts, given each new adapter",
        examples=["http://localhost:8000/v1"],
    )
    seed: int = derived(0)

    def __post_init__(self) -> None:
        for url in self.rollouts_url or ():
            if not url.startswith(("http://", "https://")):
                raise SettingError(
                    "policy.local",
                    "rollouts_url",
                    f"{url!r} is no address.",
                    "Write it as http://HOST:8000/v1.",
                )
