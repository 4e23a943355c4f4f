"""Log-probabilities of completions under the weights as they are.

Each distinct prompt is computed once, and its keys and values are repeated to the rows that
continue it. Where a family's cache cannot be shared so, whole sequences are computed instead; both
give the same. No pass has dropout: a ratio of two differently dropped passes is noise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from torch import Tensor

    from engines.grpo.loss.loss import Rows
    from engines.policies.hf_local.model import LocalModel


SHARING = frozenset({"llama", "mistral", "qwen2", "qwen3", "gemma"})
"""Families whose cache is one pair of keys and values to a layer, and nothing more."""

LOGITS_AT_ONCE = 2**27
"""Entries of a logits tensor above which it is computed in pieces, again in the backward pass."""


class TokenScores(NamedTuple):
    """Per completion token; 0 where not trainable."""

    logp: Tensor  # (B, T) float32, with gradient where it is enabled
    entropy: Tensor  # (B, T) float32, without gradient


def completion_logps(
    local: LocalModel, rows: Rows, *, temperature: float, share: bool | None = None
) -> TokenScores:
    """log_softmax(logits / T)[token] of every trainable completion token.

    The caller holds the model's lock; `rows` are on its device. `share` computes each distinct
    prompt once; None: wherever that is possible and pays.
    """
    base = local.base
    if share is None:
        share = len(rows.prompts) < len(rows.completions) and can_share_prompts(local)
    hidden = (_shared_prompt_states if share else _whole_sequence_states)(base, rows)
    picked = hidden[rows.trainable]  # (N, H)
    targets = rows.completions[rows.trainable]
    logp, entropy = score_tokens(base, picked, targets, temperature)
    flat = rows.trainable.flatten().nonzero()[:, 0]
    empty = logp.new_zeros(rows.trainable.numel())
    shape = rows.trainable.shape
    return TokenScores(
        empty.index_put((flat,), logp).view(shape), empty.index_put((flat,), entropy).view(shape)
    )


def can_share_prompts(local: LocalModel) -> bool:
    """Whether a prompt's cache may be repeated: full attention, and no recomputation."""
    config = local.base.config
    layers = getattr(config, "layer_types", None)
    if layers:
        full = all(kind == "full_attention" for kind in layers)
    else:
        full = getattr(config, "sliding_window", None) is None
    return config.model_type in SHARING and full and not local.settings.gradient_checkpointing


def _shared_prompt_states(base: Any, rows: Rows) -> Tensor:
    """(B, T, H) hidden states that predict each completion token, prompts computed once."""
    from transformers import DynamicCache

    backbone = getattr(base, base.base_model_prefix)
    device = rows.prompts.device
    wide, long = rows.prompts.shape[1], rows.completions.shape[1]
    steps = torch.arange(max(wide, long), device=device)
    shown = steps[:wide] < rows.prompt_lengths[:, None]  # (U, P)
    cache = DynamicCache(config=base.config)
    prefix = backbone(
        input_ids=rows.prompts,
        attention_mask=shown,
        position_ids=steps[None, :wide],
        cache=cache,
        use_cache=True,
    ).last_hidden_state
    ends = prefix[torch.arange(len(prefix), device=device), rows.prompt_lengths - 1]  # (U, H)
    first = rows.repeat_prompts(ends)[:, None]  # (B, 1, H)
    if long == 1:
        return first
    for layer in cache.layers:
        layer.keys = rows.repeat_prompts(layer.keys)
        layer.values = rows.repeat_prompts(layer.values)
    begins = rows.prompt_lengths[rows.prompt_of, None]  # (B, 1)
    fed = rows.completions[:, :-1]
    rest = backbone(
        input_ids=fed,
        # The prompt's own tokens, and all of the completion: what pads that comes after it,
        # where causality hides it.
        attention_mask=torch.cat(
            [shown[rows.prompt_of], torch.ones_like(fed, dtype=torch.bool)], 1
        ),
        position_ids=begins + steps[None, : long - 1],
        cache=cache,
        use_cache=True,
    ).last_hidden_state
    return torch.cat([first, rest], dim=1)


def _whole_sequence_states(base: Any, rows: Rows) -> Tensor:
    """The same from whole sequences, each of them prompt and completion without a gap."""
    begins = rows.prompt_lengths[rows.prompt_of, None]  # (B, 1)
    wide, long = rows.prompts.shape[1], rows.completions.shape[1]
    device = rows.prompts.device
    spots = torch.arange(wide + long, device=device)[None]  # (1, P + T)
    after = (spots - begins).clamp(0, long - 1)
    prompts = torch.nn.functional.pad(rows.prompts[rows.prompt_of], (0, long))
    ids = torch.where(spots < begins, prompts, rows.completions.gather(1, after))
    kept = spots < begins + rows.lengths[:, None]
    hidden: Tensor = getattr(base, base.base_model_prefix)(
        input_ids=ids, attention_mask=kept, position_ids=spots.expand(len(ids), -1), use_cache=False
    ).last_hidden_state
    at = begins - 1 + torch.arange(long, device=device)[None]  # (B, T)
    return hidden.gather(1, at[..., None].expand(-1, -1, hidden.shape[-1]))


def score_tokens(
    base: Any, hidden: Tensor, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """(N,) log-probabilities and entropies; large vocabularies piece by piece."""
    head = base.get_output_embeddings()

    def score_piece(states: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        raw = head(states)
        wide = raw if raw.dtype == torch.float64 else raw.float()
        logits = _adjust_logits(wide, base.config)
        if temperature != 1:
            logits = logits / temperature
        scored: tuple[Tensor, Tensor] = _TokenLogps.apply(logits, ids)  # type: ignore[no-untyped-call]
        return scored

    size = max(1, LOGITS_AT_ONCE // head.weight.shape[0])
    if len(hidden) <= size:
        return score_piece(hidden, targets)
    pieces = [
        checkpoint(score_piece, states, ids, use_reentrant=False)
        for states, ids in zip(torch.split(hidden, size), torch.split(targets, size), strict=True)
    ]
    logps, entropies = zip(*pieces, strict=True)
    return torch.cat(logps), torch.cat(entropies)


def _adjust_logits(logits: Tensor, config: Any) -> Tensor:
    """What some families do behind `lm_head`: Gemma caps, Cohere multiplies, Granite divides."""
    cap = getattr(config, "final_logit_softcapping", None)
    if cap:
        logits = torch.tanh(logits / cap) * cap
    scale = getattr(config, "logit_scale", None) or 1.0
    share = getattr(config, "logits_scaling", None) or 1.0
    if scale != 1:
        logits = logits * scale
    return logits if share == 1 else logits / share


class _TokenLogps(torch.autograd.Function):
    """Log-probabilities and entropies from (n, V) logits, in few passes over them."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        logps = torch.log_softmax(logits, dim=-1)
        found = logps.gather(1, ids[:, None])[:, 0]
        shares = logps.exp()
        entropy = logps.mul_(shares).sum(-1).neg_()
        ctx.save_for_backward(shares, ids)
        ctx.mark_non_differentiable(entropy)
        return found, entropy

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None]:
        shares, ids = ctx.saved_tensors
        into = shares * -grad[:, None]
        return into.scatter_add_(1, ids[:, None], grad[:, None]), None
