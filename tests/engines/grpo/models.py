"""Builders of tiny random models with a tokenizer, without network.

A family is named as in FAMILIES. The weights are random but spread widely enough that a
wrong norm, bias or position shows in the log-probabilities.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from engines.policies.hf_local.model import LocalModel
from engines.policies.hf_local.settings import LocalSettings, LoraSettings
from engines.policies.open import load_local

transformers.utils.logging.disable_progress_bar()

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
MERGED = ("an", "in", "er", "on", "th", "the", "Wh", "at", "What", " 4", " is")
"""Tokens of several characters; the rest are bytes."""
VOCABULARY = 320


def a_tokenizer(template: str | None = TEMPLATE) -> transformers.PreTrainedTokenizerFast:
    """Byte-level, digits apart; "<|end|>" ends a turn, and there is no padding token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *alphabet))}
    pairs = []
    for token in (word.replace(" ", "Ġ") for word in MERGED):
        for cut in range(1, len(token)):
            if token[:cut] in vocabulary and token[cut:] in vocabulary:
                pairs.append((token[:cut], token[cut:]))
                vocabulary[token] = len(vocabulary)
                break
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(list(SPECIAL))
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|end|>", clean_up_tokenization_spaces=False
    )
    made.chat_template = template
    return made


_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": None,
    "tie_word_embeddings": True,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {"attention_bias": True, "tie_word_embeddings": False}),
    "llama3 rope": ("LlamaConfig", {"rope_parameters": _LLAMA3}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 32}),
    "mistral": ("MistralConfig", {"sliding_window": 12, "head_dim": 16}),
    "gemma": ("GemmaConfig", {"head_dim": 16}),
    "gemma2": (
        "Gemma2Config",
        {"head_dim": 16, "sliding_window": 12, "attn_logit_softcapping": 5.0},
    ),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 16, "sliding_window": 12}),
}


def a_model(family: str = "llama", *, seed: int = 0, **changes: Any) -> Any:
    """A `...ForCausalLM` with random weights; `changes` go into its config."""
    kind, own = FAMILIES[family]
    config = getattr(transformers, kind)(**{**_COMMON, **own, **changes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                spread = 0.3 if "norm" in name or "bias" in name else parameter.shape[-1] ** -0.5
                parameter.add_(torch.randn_like(parameter) * spread)
    return model.eval()


def a_folder(
    folder: Path,
    family: str = "llama",
    *,
    seed: int = 0,
    template: str | None = TEMPLATE,
    **changes: Any,
) -> Path:
    """The model of `a_model` and a tokenizer, saved."""
    a_model(family, seed=seed, **changes).save_pretrained(folder)
    a_tokenizer(template).save_pretrained(folder)
    return folder


def a_local(
    folder: Path,
    family: str = "llama",
    *,
    lora: LoraSettings | None = None,
    trained: bool = False,
    settings: dict[str, Any] | None = None,
    says_little: bool = False,
    **changes: Any,
) -> LocalModel:
    """A loaded model.

    With `trained` its adapter is one that changes the replies; one that `says_little` ends
    every reply with a token at which its random words would not stop for long.
    """
    a_folder(folder, family, **changes)
    wanted = LocalSettings(
        str(folder),
        lora=LoraSettings() if trained and lora is None else lora,
        **{"threads": 1, **(settings or {})},
    )
    local = load_local(wanted, lambda line: None)
    if trained:
        train(local)
    if says_little:
        local.eos_ids |= frozenset(range(6, VOCABULARY, 8))
    return local


def train(local: LocalModel, seed: int = 1) -> None:
    """Random values in the adapter, as after many steps: B is no longer 0."""
    generator = torch.Generator().manual_seed(seed)
    state = {
        name: torch.randn(value.shape, generator=generator) * 0.2
        for name, value in local.adapter_state().items()
    }
    local.load_adapter_state(state)


def with_dropout(local: LocalModel, share: float) -> LocalModel:
    """The model as if its adapter had been trained elsewhere with dropout."""
    for module in local.model.modules():
        for name in getattr(module, "lora_dropout", ()):
            module.lora_dropout[name] = torch.nn.Dropout(share).eval()
    return local
