"""A checkpoint as a folder of its own, for use without the studio.

The adapter is copied, byte for byte and without torch; merged weights are computed.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from engines.core.errors import ConfigError, ConflictError, DamagedError
from engines.grpo.checkpoint import folders as files
from engines.policies.hf_local.settings import LocalSettings

CARD = "README.md"
_OURS = frozenset({files.SEAL, files.STATE, "optimiser.safetensors", "guard.safetensors"})
_WEIGHTS = frozenset({files.ADAPTER, files.ADAPTER_CONFIG})


def check_target(to: Path) -> None:
    """Refuse to overwrite. Raises ConfigError: `to` is a file, or a folder that is not empty."""
    if to.is_dir():
        if any(to.iterdir()):
            raise ConfigError("--to", f"{to} is not empty.", "Name a new folder.")
    elif to.exists() or to.is_symlink():
        raise ConfigError("--to", f"{to} is no folder.", "Name a new folder.")


def export_adapter(checkpoint: Path, to: Path, card: str) -> None:
    """Copy adapter and tokenizer, and write the card as README.md.

    Raises:
        RecordError: the checkpoint is missing or damaged, or `to` cannot be written.
        ConfigError: see `check_target`.
    """
    files.check_seal(checkpoint)
    check_target(to)
    with files.atomic_folder(to, what="adapter", replace=False) as partial:
        _copy_sealed_files(checkpoint, partial, without=_OURS)
        (partial / CARD).write_text(card, "utf-8")


def export_merged(checkpoint: Path, to: Path, card: str, base: LocalSettings) -> None:
    """Merge the adapter into its base model and save the whole as safetensors.

    `base` is the model that the checkpoint was trained on. 4-bit weights are merged at the
    precision they were quantised from.

    Raises:
        RecordError, ConfigError: as `export_adapter`.
        ConflictError, PolicyError: the base model is another one, or cannot be loaded.
    """
    files.check_seal(checkpoint)
    check_target(to)
    facts = base_facts(checkpoint)
    from engines.policies.hf_local.loading import load_local

    local = load_local(
        replace(base, adapter=checkpoint, lora=None, quantise="none", gradient_checkpointing=False),
        tell=lambda _: None,  # of decoding and training, neither of which follows
    )
    # 4-bit weights have another digest than those they were made from.
    if facts.get("quantise") != "nf4" and local.base_digest != facts.get("digest"):
        cause = f"it was trained on {facts.get('name')}, and the weights of {base.path} are others."
        move = "Put the base model back that the run was trained on."
        raise ConflictError(str(checkpoint), cause, move)
    from engines.policies.hf_local.building import quiet_transformers

    whole = local.model.merge_and_unload()
    with files.atomic_folder(to, what="model", replace=False) as partial:
        with quiet_transformers():
            whole.save_pretrained(partial)
        _copy_sealed_files(checkpoint, partial, without=_OURS | _WEIGHTS)
        (partial / CARD).write_text(card, "utf-8")


def base_facts(checkpoint: Path) -> dict[str, Any]:
    """What the checkpoint knows of its base: name, digest, dtype, quantise.

    Raises DamagedError: its state cannot be read.
    """
    base = files.read_facts(checkpoint).get("base")
    if not isinstance(base, dict) or not isinstance(base.get("name"), str):
        raise DamagedError(
            str(checkpoint / files.STATE), "it names no base model.", "Take another checkpoint."
        )
    return base


def adapter_rank(checkpoint: Path) -> int:
    """The highest rank in the adapter. Raises DamagedError: its config cannot be read."""
    path = checkpoint / files.ADAPTER_CONFIG
    try:
        config = json.loads(path.read_bytes())
        return int(max(config["r"], *(config.get("rank_pattern") or {}).values(), 0))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedError(
            str(path), f"it cannot be read ({error}).", "Take another checkpoint."
        ) from error


def _copy_sealed_files(checkpoint: Path, to: Path, *, without: frozenset[str]) -> None:
    """The sealed files; what somebody laid beside them since is not the checkpoint's."""
    sealed = json.loads((checkpoint / files.SEAL).read_bytes())["files"]
    for name in sealed:
        if name not in without:
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(checkpoint / name, to / name)
