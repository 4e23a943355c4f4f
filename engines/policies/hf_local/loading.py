"""Loads a local model, after looking for everything that could be missing.

Imports no torch itself, so that a missing extra is a sentence and no traceback.
"""

import re
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from engines.core.errors import PolicyError, install_command
from engines.policies.hf_local.settings import LocalSettings

if TYPE_CHECKING:
    from engines.policies.hf_local.model import LocalModel


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
