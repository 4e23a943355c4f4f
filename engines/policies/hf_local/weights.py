"""Adapters on a model: making, loading, merging and digesting them."""

import hashlib
import json
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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
    targets = [name for name in PROJECTIONS if name in there]
    if not targets:
        raise PolicyError(
            place,
            "none of its layers has a name that LoRA adapts.",
            "Choose a model whose blocks have such layers: q_proj, v_proj, …",
        )
    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        target_modules=targets,
        task_type="CAUSAL_LM",
        bias="none",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return peft.get_peft_model(model, config)


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


FAMILIES = ("Llama", "Qwen2", "Qwen3", "Mistral", "Gemma", "Gemma2", "Gemma3")
_STATIC_ROPE = {"default", "linear", "llama3", "yarn", "proportional"}
"""Kinds of rotary embedding whose frequencies do not depend on the length of the text."""


Linear = tuple[Tensor, Tensor | None]
"""Weight (out, in) and bias."""


@dataclass(frozen=True, slots=True)
class Layer:
    qkv: Linear
    out: Linear
    gate_up: Linear
    down: Linear
    norm_in: Tensor  # float32, as all norms; Gemma's 1 + w is already added
    norm_attended: Tensor | None  # Gemma 2 and 3: after attention
    norm_mlp: Tensor
    norm_after: Tensor | None  # Gemma 2 and 3: after the MLP
    norm_qk: Tensor | None  # (heads + kv_heads, head_dim)
    activation: Callable[[Tensor], Tensor]
    window: int | None  # positions a token looks back on, itself included
    kind: str  # key of its rotary tables


@dataclass(frozen=True, slots=True)
class MergedWeights:
    embed: Tensor  # (vocabulary, hidden)
    embed_scale: Tensor | None
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Linear
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    eps: float
    softcap: float | None  # of attention scores
    final_softcap: float | None
    rotary: Callable[[Tensor, str], tuple[Tensor, Tensor]]
    """Positions (T,) and a kind of layer → cos and sin, each (T, head_dim)."""


def merge_weights(model: Any, dtype: torch.dtype, *, check_only: bool = False) -> MergedWeights:
    """Lay out the weights of a `...ForCausalLM` of transformers, as they are now.

    `check_only` joins nothing (the result cannot decode), it only finds what is unknown.

    Raises Unmergeable: something the decoder does not know; the text says what.
    """
    config = model.config
    _check_supported(model, config)
    inner = model.model
    first = inner.layers[0].self_attn
    join: Callable[..., Tensor] = operator.itemgetter(0) if check_only else torch.cat
    return MergedWeights(
        embed=_embedding_weight(inner.embed_tokens),
        embed_scale=getattr(inner.embed_tokens, "embed_scale", None),
        layers=tuple(
            _merge_layer(layer, config, index, dtype, join)
            for index, layer in enumerate(inner.layers)
        ),
        norm=_norm_weight(inner.norm),
        head=merge_linear(model.lm_head, dtype),
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=first.head_dim,
        scale=first.scaling,
        eps=getattr(inner.norm, "variance_epsilon", None) or inner.norm.eps,
        # Gemma 3 keeps the number and does not use it.
        softcap=config.attn_logit_softcapping if config.model_type == "gemma2" else None,
        final_softcap=getattr(config, "final_logit_softcapping", None),
        rotary=partial(_rotary_tables, inner.rotary_emb, dtype),
    )


def _check_supported(model: Any, config: Any) -> None:
    name = type(model).__name__
    known = type(model).__module__.startswith("transformers.models.")
    if not known or name not in {f"{family}ForCausalLM" for family in FAMILIES}:
        raise Unmergeable(f"the architecture {name}")
    if getattr(model, "is_quantized", False):
        raise Unmergeable("quantised weights")
    if getattr(config, "use_bidirectional_attention", False):
        raise Unmergeable("attention in both directions")
    rope = config.rope_parameters or {}
    kinds = [part for part in rope.values() if isinstance(part, dict)] or [rope]
    for kind in kinds:
        if kind.get("rope_type", "default") not in _STATIC_ROPE:
            raise Unmergeable(f"rotary embeddings of type {kind['rope_type']}")
        if kind.get("partial_rotary_factor", 1.0) != 1.0:
            raise Unmergeable("partial rotary embeddings")
    known_kinds = {"full_attention", "sliding_attention"}
    if others := set(getattr(config, "layer_types", None) or ()) - known_kinds:
        raise Unmergeable(f"layers of type {min(others)}")


def _merge_layer(
    layer: Any, config: Any, index: int, dtype: torch.dtype, join: Callable[..., Tensor]
) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    kinds = getattr(config, "layer_types", None)
    sandwich = hasattr(layer, "pre_feedforward_layernorm")
    after_attention = _norm_weight(layer.post_attention_layernorm)
    window = (
        config.sliding_window
        if config.model_type == "mistral"
        else getattr(attention, "sliding_window", None)
    )

    def join_linears(*modules: nn.Module) -> Linear:
        parts = [merge_linear(module, dtype) for module in modules]
        biases = [bias for _, bias in parts if bias is not None]
        if biases and len(biases) < len(parts):
            raise Unmergeable("a bias on some of its projections")
        bias = join(biases) if biases else None
        return join([weight for weight, _ in parts]), bias

    return Layer(
        qkv=join_linears(attention.q_proj, attention.k_proj, attention.v_proj),
        out=merge_linear(attention.o_proj, dtype),
        gate_up=join_linears(mlp.gate_proj, mlp.up_proj),
        down=merge_linear(mlp.down_proj, dtype),
        norm_in=_norm_weight(layer.input_layernorm),
        norm_attended=after_attention if sandwich else None,
        norm_mlp=_norm_weight(layer.pre_feedforward_layernorm) if sandwich else after_attention,
        norm_after=_norm_weight(layer.post_feedforward_layernorm) if sandwich else None,
        norm_qk=_qk_norm_weight(attention, config),
        activation=mlp.act_fn,
        window=window,
        kind=kinds[index] if kinds else "",
    )


def _norm_weight(module: Any) -> Tensor:
    if not type(module).__name__.endswith("RMSNorm"):
        raise Unmergeable(f"a norm of kind {type(module).__name__}")
    weight: Tensor = module.weight.detach().float()
    return 1.0 + weight if type(module).__name__.startswith("Gemma") else weight


def _qk_norm_weight(attention: Any, config: Any) -> Tensor | None:
    if not hasattr(attention, "q_norm"):
        return None
    q, k = _norm_weight(attention.q_norm), _norm_weight(attention.k_norm)
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    return torch.cat((q.expand(heads, -1), k.expand(kv_heads, -1)))


def _embedding_weight(module: nn.Module) -> Tensor:
    if not isinstance(module, nn.Embedding):
        raise Unmergeable(f"embeddings of kind {type(module).__name__}")
    return module.weight.detach()


def _rotary_tables(
    module: Any, dtype: torch.dtype, positions: Tensor, kind: str
) -> tuple[Tensor, Tensor]:
    like = torch.empty(0, dtype=dtype, device=positions.device)
    by_kind = (kind,) if hasattr(module, "layer_types") else ()
    cos, sin = module(like, positions[None], *by_kind)
    return cos[0], sin[0]
