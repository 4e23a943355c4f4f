"""A loaded model with its tokenizer and adapter. Whoever runs it holds `lock`."""

import contextlib
import hashlib
import json
import operator
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
import transformers
from torch import Tensor, nn

from engines.core.errors import PolicyError
from engines.core.frozen import frozen
from engines.policies.hf_local.settings import PROJECTIONS, LocalSettings, LoraSettings

SANE_WINDOW = 10**7
"""Tokenizers without a limit say 10^30."""
NO_WINDOW = 2048
"""Positions of a model whose config names none."""


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
        raise PolicyError(
            f"adapter {folder}",
            f"it does not fit the model ({type(error).__name__}: {reason[:200]}).",
            "Choose the model that it was trained on, or leave it out.",
        ) from None


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


FAMILIES = ("Llama", "Qwen2", "Qwen3", "Mistral")
_STATIC_ROPE = {"default", "linear", "llama3", "yarn", "proportional"}
"""Kinds of rotary embedding whose frequencies do not depend on the length of the text."""


Linear = tuple[Tensor, Tensor | None]
"""Weight (out, in) and bias."""


@frozen
class Layer:
    qkv: Linear
    out: Linear
    gate_up: Linear
    down: Linear
    norm_in: Tensor  # float32, as all norms
    norm_mlp: Tensor
    norm_qk: Tensor | None  # (heads + kv_heads, head_dim)
    activation: Callable[[Tensor], Tensor]


@frozen
class MergedWeights:
    embed: Tensor  # (vocabulary, hidden)
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Linear
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    eps: float
    rotary: Callable[[Tensor], tuple[Tensor, Tensor]]
    """Positions (T,) → cos and sin, each (T, head_dim)."""


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
        layers=tuple(_merge_layer(layer, config, dtype, join) for layer in inner.layers),
        norm=_norm_weight(inner.norm),
        head=merge_linear(model.lm_head, dtype),
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=first.head_dim,
        scale=first.scaling,
        eps=inner.norm.variance_epsilon,
        rotary=partial(_rotary_tables, inner.rotary_emb, dtype),
    )


def _check_supported(model: Any, config: Any) -> None:
    name = type(model).__name__
    known = type(model).__module__.startswith("transformers.models.")
    if not known or name not in {f"{family}ForCausalLM" for family in FAMILIES}:
        raise Unmergeable(f"the architecture {name}")
    if getattr(model, "is_quantized", False):
        raise Unmergeable("quantised weights")
    rope = config.rope_parameters or {}
    if rope.get("rope_type", "default") not in _STATIC_ROPE:
        raise Unmergeable(f"rotary embeddings of type {rope['rope_type']}")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise Unmergeable("partial rotary embeddings")
    layer_types = set(getattr(config, "layer_types", None) or ())
    is_windowed = config.model_type == "mistral" and config.sliding_window is not None
    if is_windowed or layer_types - {"full_attention"}:
        raise Unmergeable("sliding windows")


def _merge_layer(layer: Any, config: Any, dtype: torch.dtype, join: Callable[..., Tensor]) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp

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
        norm_mlp=_norm_weight(layer.post_attention_layernorm),
        norm_qk=_qk_norm_weight(attention, config),
        activation=mlp.act_fn,
    )


def _norm_weight(module: Any) -> Tensor:
    if not type(module).__name__.endswith("RMSNorm"):
        raise Unmergeable(f"a norm of kind {type(module).__name__}")
    weight: Tensor = module.weight.detach().float()
    return weight


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


def _rotary_tables(module: Any, dtype: torch.dtype, positions: Tensor) -> tuple[Tensor, Tensor]:
    like = torch.empty(0, dtype=dtype, device=positions.device)
    cos, sin = module(like, positions[None])
    return cos[0], sin[0]


class Lock(Protocol):
    """`threading.Lock`, or what stands for it where several processes take turns."""

    def locked(self) -> bool: ...
    def __enter__(self) -> bool: ...
    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> None: ...


class LocalModel:
    """A model in this process, always in eval mode: no pass ever drops anything out.

    Each of `eos_ids` ends a reply; `window` counts positions, prompt and reply together.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        settings: LocalSettings,
        *,
        device: torch.device,
        dtype: torch.dtype,
        threads: int,
        base_digest: str,
    ) -> None:
        self.model, self.tokenizer, self.settings = model, tokenizer, settings
        self.device, self.dtype, self.threads = device, dtype, threads
        self.base_digest = base_digest
        self.name = f"hf:{settings.path}"
        self.lock: Lock = threading.Lock()
        self.max_batch = max(1, settings.max_batch)  # rows decoded; halved when memory ran out
        self.eos_ids = _eos_ids(self.base, tokenizer)
        pad = tokenizer.pad_token_id
        self.pad_id = min(self.eos_ids, default=0) if pad is None else int(pad)
        self.window = _context_window(self.base.config, tokenizer)
        # Where ranks divide the weights: the adapter, set after each change that stays.
        self.whole_adapter: Mapping[str, Tensor] | None = None
        self._disabled = False
        self._updates = 0
        self._merged: tuple[tuple[int, ...], MergedWeights] | None = None
        self._digest: tuple[tuple[int, ...], str] | None = None
        self._set_eval_mode()
        # Why transformers' own forward decodes; None where the fast decoder does.
        self.decoder_note = self._decoder_note()

    @property
    def base(self) -> Any:
        """The transformers model, below an adapter where there is one."""
        wrapped = hasattr(self.model, "peft_config") and hasattr(self.model, "get_base_model")
        return self.model.get_base_model() if wrapped else self.model

    def trainable_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Parameters that learn, sorted by name."""
        named = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        return sorted(named, key=lambda pair: pair[0])

    def adapter_state(self) -> dict[str, Tensor]:
        """Copies of what is trainable, by name."""
        whole = self.whole_adapter or dict(self.trainable_parameters())
        return {name: tensor.detach().clone() for name, tensor in whole.items()}

    def check_adapter(self, state: Mapping[str, Tensor]) -> None:
        """Raises ValueError: names or shapes are not those of this adapter."""
        own = self.whole_adapter or dict(self.trainable_parameters())
        odd = sorted(set(own) ^ set(state)) or sorted(
            name for name in own if own[name].shape != state[name].shape
        )
        if odd:
            raise ValueError(f"{odd[0]} does not fit this adapter ({len(odd)} such)")

    def load_adapter_state(self, state: Mapping[str, Tensor]) -> None:
        """Put values back that `adapter_state` gave.

        Raises ValueError: names or shapes are not those of this adapter; nothing was changed.
        """
        self.check_adapter(state)
        with torch.no_grad():
            for name, parameter in self.trainable_parameters():
                parameter.copy_(state[name])
        self.mark_changed()

    @contextlib.contextmanager
    def exchange_adapter(self, state: Mapping[str, Tensor]) -> Iterator[None]:
        """The model with other values of its adapter, for the time of the block."""
        own = self.adapter_state()
        self.load_adapter_state(state)
        try:
            yield
        finally:
            self.load_adapter_state(own)

    @contextlib.contextmanager
    def disable_adapter(self) -> Iterator[None]:
        """The model as it was before its adapter, for the time of the block."""
        if not hasattr(self.model, "disable_adapter"):
            yield
            return
        before, self._disabled = self._disabled, True
        try:
            with self.model.disable_adapter():
                yield
        finally:
            self._disabled = before

    def decode_text(self, ids: Sequence[int]) -> str:
        """What sampled ids say, without the token that ends the turn."""
        said = ids[:-1] if ids and ids[-1] in self.eos_ids else ids
        text: str = self.tokenizer.decode(list(said), skip_special_tokens=True)
        return text

    def mark_changed(self) -> None:
        """Say that weights changed, so that what was merged from them is stale."""
        self._updates += 1

    def weights_digest(self) -> str:
        """Hex digest of base and adapter."""
        key = self._weights_key()
        if self._digest is None or self._digest[0] != key:
            digest = hashlib.sha256(self.base_digest.encode())
            frozen = sorted((n, p) for n, p in self.model.named_parameters() if "lora_" in n)
            whole = self.whole_adapter and sorted(self.whole_adapter.items())
            for name, parameter in whole or self.trainable_parameters() or frozen:
                digest.update(name.encode())
                digest.update(raw_bytes(parameter))
            self._digest = (key, digest.hexdigest())
        return self._digest[1]

    def decoding_weights(self) -> MergedWeights:
        """Weights for the fused decoder, merged at most once per change of weights."""
        key = self._weights_key()
        if self._merged is None or self._merged[0] != key:
            self._merged = None  # the old ones are freed before the new ones are made
            with torch.inference_mode():
                self._merged = (key, merge_weights(self.base, self.dtype))
        return self._merged[1]

    def drop_decoding_weights(self) -> None:
        """Free what `decoding_weights` keeps, a second copy of the model."""
        self._merged = None

    def facts(self) -> dict[str, Any]:
        """What decides the numbers of a run, as plain JSON values."""
        return {
            "name": self.name,
            "threads": self.threads,
            "device": str(self.device),
            "dtype": str(self.dtype).removeprefix("torch."),
            "base": self.base_digest,
            "trainable": self._trainable_count(),
            "parameters": self._parameter_count(),
            "decoder": "transformers" if self.decoder_note else "fused",
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }

    def trainable_note(self) -> str:
        count, every = self._trainable_count(), self._parameter_count()
        share = 100 * count / every
        return f"trainable {count:,} of {every:,} parameters ({share:.2g} %)"

    def _trainable_count(self) -> int:
        return sum(parameter.numel() for _, parameter in self.trainable_parameters())

    def _parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def _weights_key(self) -> tuple[int, ...]:
        # An optimiser counts up each parameter's version, so a forgotten `mark_changed` is
        # harmless. Divided weights are laid out anew by every pass.
        learning = () if self.whole_adapter else self.model.parameters()
        versions = sum(p._version for p in learning if p.requires_grad)
        return (int(self._disabled), self._updates, versions)

    @contextlib.contextmanager
    def without_checkpointing(self) -> Iterator[None]:
        """Without gradient checkpointing, under which transformers' layers keep no cache."""
        if not self.settings.gradient_checkpointing:
            yield
            return
        self._set_checkpointing(False)
        try:
            yield
        finally:
            self._set_checkpointing(True)

    def _set_eval_mode(self) -> None:
        self.model.eval()
        if not self.settings.gradient_checkpointing:
            return
        if not self.base.supports_gradient_checkpointing:
            raise PolicyError(
                f"policy {self.name!r}",
                "the model supports no gradient checkpointing.",
                "Write gradient_checkpointing: false.",
            )
        self.base.activation_checkpointing_enable({"use_reentrant": False})
        self._set_checkpointing(True)

    def _set_checkpointing(self, on: bool) -> None:
        from transformers.modeling_layers import GradientCheckpointingLayer

        for module in self.model.modules():
            # transformers checkpoints only in training mode. The flag of these modules alone
            # turns that on, and no dropout, which reads the flag of the modules inside.
            if isinstance(module, GradientCheckpointingLayer):
                module.training = on

    def _decoder_note(self) -> str | None:
        try:
            with torch.inference_mode():
                merge_weights(self.base, self.dtype, check_only=True)
        except Unmergeable as odd:
            return (
                f"The fast decoder does not know {odd}; transformers' own forward samples, "
                "which is slower."
            )
        return None


def is_out_of_memory(error: RuntimeError) -> bool:
    text = str(error).lower()  # the CPU's allocator has no class of its own for it
    return isinstance(error, torch.OutOfMemoryError) or any(
        words in text for words in ("out of memory", "can't allocate memory")
    )


def empty_gpu_cache() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    named = [tokenizer.eos_token_id]
    for config in (getattr(model, "generation_config", None), model.config):
        eos = getattr(config, "eos_token_id", None)
        named += eos if isinstance(eos, list | tuple) else [eos]
    return frozenset(int(one) for one in named if one is not None)


def _context_window(config: Any, tokenizer: Any) -> int:
    text = config.get_text_config()
    positions = getattr(text, "max_position_embeddings", None)
    limit = getattr(tokenizer, "model_max_length", None)
    known = [int(n) for n in (positions, limit) if n and n < SANE_WINDOW]
    return min(known, default=NO_WINDOW)
