"""How a local model is loaded, and a look at everything that could be missing before it is.

Imports no torch itself: run files are read without it, and a missing extra is a sentence and no
traceback.
"""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from engines.core.errors import PolicyError, install_command
from engines.core.settings import MAX_COUNT, SettingError, derived, setting

if TYPE_CHECKING:
    from engines.policies.hf_local.model import LocalModel


PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""What LoRA adapts, as far as the model has them."""


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """The low-rank adapter that is trained."""

    rank: int = setting(8, "rank of the adapter's matrices", ge=1, le=MAX_COUNT)
    alpha: int = setting(16, "the adapter is scaled by alpha / rank", ge=1, le=MAX_COUNT)


@dataclass(frozen=True, slots=True)
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
        None, "threads of the CPU; null: measured at the start", ge=1, le=MAX_COUNT, examples=[2]
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
                move = "Write it as http://HOST:8000/v1."
                raise SettingError("policy.local", "rollouts_url", f"{url!r} is no address.", move)


EXTRA = f"Install the extra: {install_command('grpo')}"
_HUB_NAME = re.compile(r"^[A-Za-z0-9][\w.-]*(/[\w.-]+)?$")


def load_local(
    settings: LocalSettings, tell: Callable[[str], None] = lambda line: print(line, file=sys.stderr)
) -> "LocalModel":
    """Load model and tokenizer, and put an adapter on it where one is wanted.

    `tell` receives one line for each thing that a person should know of.

    Raises PolicyError: a package is missing, or the folder cannot be used.
    """
    place = f"policy 'hf:{settings.path}'"
    _check_packages(settings, place)
    folder = _find_folder(settings.path, place)
    if settings.adapter is not None:
        _check_adapter(settings.adapter)
    from engines.policies.hf_local.building import build_model

    return build_model(settings, folder, place, tell)


def _check_packages(settings: LocalSettings, place: str) -> None:
    needed = ["torch", "transformers"]
    if settings.lora is not None or settings.adapter is not None:
        needed.append("peft")
    if settings.quantise == "nf4":
        needed.append("accelerate")
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise PolicyError(place, f"{' and '.join(missing)} cannot be imported.", EXTRA)
    if settings.quantise == "nf4" and find_spec("bitsandbytes") is None:
        cause = "4-bit weights (quantise: nf4) need bitsandbytes, which cannot be imported."
        move = f"Install the extra: {install_command('qlora')}. Or write quantise: none."
        raise PolicyError(place, cause, move)


def _find_folder(path: str, place: str) -> Path | None:
    """The folder, or None where `path` can only be a name on the hub."""
    folder = Path(path).expanduser()
    if _HUB_NAME.match(path) and not folder.exists():
        return None
    if not folder.is_dir():
        cause = f"{folder} is {'a file' if folder.exists() else 'no folder'}."
        move = "Write the folder of a transformers model, or its name on the hub."
        raise PolicyError(place, cause, move)
    if not (folder / "config.json").is_file():
        cause = "the folder has no config.json."
        move = "Write the folder of a transformers model; an adapter is named as policy.adapter."
        raise PolicyError(place, cause, move)
    return folder


def _check_adapter(adapter: Path) -> None:
    if not (adapter / "adapter_config.json").is_file():
        cause = "there is no adapter_config.json." if adapter.is_dir() else "it is no folder."
        move = "Write a folder that PEFT wrote, such as one of a checkpoint."
        raise PolicyError(f"adapter {adapter}", cause, move)
