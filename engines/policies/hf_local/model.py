"""A loaded model with its tokenizer and adapter. Whoever runs it holds `lock`."""

import contextlib
import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
import transformers
from torch import Tensor, nn

from engines.core.errors import PolicyError
from engines.policies.hf_local.settings import LocalSettings
from engines.policies.hf_local.weights import MergedWeights, Unmergeable, merge_weights, raw_bytes

SANE_WINDOW = 10**7
"""Tokenizers without a limit say 10^30."""
NO_WINDOW = 2048
"""Positions of a model whose config names none."""


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
            cause = "the model supports no gradient checkpointing."
            move = "Write gradient_checkpointing: false."
            raise PolicyError(f"policy {self.name!r}", cause, move)
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
