"""Adapters on a model: making, loading, merging and digesting them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from engines.core.errors import PolicyError
from engines.policies.hf_local.settings import PROJECTIONS, LoraSettings

WHOLE_BYTES = 256 << 20
"""Up to this size every weight enters the base digest, beyond it a sample of each tensor."""
_SAMPLE = 4096


def add_lora(model: Any, settings: LoraSettings, seed: int, place: str) -> Any:
    """A new adapter whose weights follow from `seed` alone; it changes nothing yet (B = 0)."""
    import peft

    there = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    targets = settings.targets or tuple(name for name in PROJECTIONS if name in there)
    unknown = [name for name in targets if name not in there]
    if unknown or not targets:
        raise PolicyError(
            place,
            f"the model has no layer {unknown[0]!r} to adapt."
            if unknown
            else "none of its layers has a name that LoRA adapts by default.",
            "Write the names of its linear layers as lora.targets.",
        )
    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=list(targets),
        task_type="CAUSAL_LM",
        bias="none",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return peft.get_peft_model(model, config)


@contextmanager
def lora_dropout(model: Any, seed: int) -> Iterator[None]:
    """The adapter drops inputs meanwhile, as its settings say; the same ones for the same seed."""
    layers = (m.lora_dropout for m in model.modules() if hasattr(m, "lora_dropout"))
    drops = [m for layer in layers for m in layer.values() if isinstance(m, nn.Dropout) and m.p]
    with torch.random.fork_rng(enabled=bool(drops)):
        if drops:
            torch.manual_seed(seed)
        for drop in drops:
            drop.train()
        try:
            yield
        finally:
            for drop in drops:
                drop.eval()


def adapter_mismatch_text(folder: Path, lora: LoraSettings) -> str:
    """In which figures an adapter is not as it was asked for, in words; "" in none."""
    found = json.loads((folder / "adapter_config.json").read_text("utf-8"))
    asked = {"r": ("rank", lora.rank), "lora_alpha": ("alpha", lora.alpha)}
    return ", ".join(
        f"{name} {found[key]} instead of {wanted}"
        for key, (name, wanted) in asked.items()
        if key in found and found[key] != wanted
    )


def load_adapter(model: Any, folder: Path, trainable: bool) -> Any:
    import peft

    try:
        return peft.PeftModel.from_pretrained(model, str(folder), is_trainable=trainable)
    except Exception as error:  # ValueError, RuntimeError, KeyError, safetensors' own
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        cause = f"it does not fit the model ({type(error).__name__}: {reason[:200]})."
        move = "Choose the model that it was trained on, or leave it out."
        raise PolicyError(f"adapter {folder}", cause, move) from None


def base_digest(model: nn.Module) -> str:
    """Hex digest of names, shapes and values of all weights, as they were loaded."""
    tensors = sorted(model.named_parameters())
    whole = sum(tensor.nbytes for _, tensor in tensors) <= WHOLE_BYTES
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        flat = tensor.detach().reshape(-1)
        digest.update(raw_bytes(flat if whole else flat[:: max(1, flat.numel() // _SAMPLE)]))
    return digest.hexdigest()


def raw_bytes(tensor: Tensor) -> bytes:
    """The values as they lie in memory; numpy knows no bfloat16, so bytes are read."""
    return tensor.detach().contiguous().cpu().view(torch.uint8).numpy().tobytes()


def merge_linear(module: nn.Module, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Weight with the active adapter merged in, and bias.

    Raises Unmergeable: the layer is neither a plain linear one nor plain LoRA around one.
    """
    if type(module) is nn.Linear:
        return module.weight.detach(), _detach(module.bias)
    lora: Any = module
    base = getattr(lora, "base_layer", None)
    if type(base) is not nn.Linear or not hasattr(lora, "lora_A"):
        raise Unmergeable(f"a layer of kind {type(module).__name__}")
    weight = base.weight.detach()
    active = () if lora.disable_adapters or lora.merged else lora.active_adapters
    for adapter in active:
        if adapter not in lora.lora_A:
            continue
        if lora.lora_variant.get(adapter) or lora.lora_bias.get(adapter):
            raise Unmergeable("a variant of LoRA")
        # In float32: at bfloat16 a small update would be lost in rounding before the sum.
        delta = lora.get_delta_weight(adapter).detach().float()
        weight = (weight.float() + delta).to(dtype)
    return weight, _detach(base.bias)


class Unmergeable(Exception):
    """The own decoder does not know this part; its text says what it is."""


def _detach(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach()
