"""Draws tokens: one uniform number per row and token, and the inverse of the distribution.

Pure. A row's numbers follow from its own seed and count, so its tokens do not depend on who
shares its batch (up to rounding in the logits).
"""

from __future__ import annotations

import torch
from torch import Tensor

_GAMMA = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed number
_STEP = 0x632BE59BD9B4E019
"""Another odd number than the seeds are spread by, so that the two never run in step."""
_MIX = (-4658895280553007687, -7723592293110705685)  # 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def uniforms(seeds: Tensor, number: int) -> Tensor:
    """Numbers (R,) in [0, 1) with 24 bits, for the token `number` of rows with these seeds (R,).

    Source: SplitMix64 (Steele, Lea, Flood 2014), used as a hash of seed and count, so that
        no generator's state has to be kept, moved to a device or dropped with a row.
    """
    start = _mix_bits(seeds * _GAMMA + _GAMMA)
    return ((_mix_bits(start + wrap_int64((number + 1) * _STEP)) >> 40) & 0xFFFFFF).float() * 2**-24


def pick_tokens(
    logits: Tensor,
    uniform: Tensor,
    *,
    temperature: Tensor | None = None,
    greedy: Tensor | None = None,
    top_p: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Choose one token per row.

    Logits are (R, V) of any float type, all else (R,): `uniform` in [0, 1), a `temperature`
    above 0, and bool in `greedy`, True for rows that take the likeliest token.

    Returns:
        Tokens (R,) and their log-probabilities (R,) float32 under log_softmax(logits / T).
        Those of rows with top_p below 1 are not what they were drawn from.
    """
    scaled = logits.float()
    if temperature is not None:
        scaled = scaled / temperature[:, None]
    logp = torch.log_softmax(scaled, dim=-1)
    token = _inverse_cdf(
        logp.exp() if top_p is None else _top_p_weights(logp.exp(), top_p), uniform
    )
    if greedy is not None:
        token = torch.where(greedy, logits.argmax(dim=-1), token)
    return token, logp.gather(1, token[:, None])[:, 0]


def _inverse_cdf(weights: Tensor, uniform: Tensor) -> Tensor:
    """The first token whose cumulated weight exceeds its share `uniform` of the whole."""
    cumulated = weights.cumsum(dim=-1)  # (R, V)
    total = cumulated[:, -1:]
    # Rounding must not lift the target to the whole: the token found would have weight 0.
    below = torch.nextafter(total, torch.zeros_like(total))
    target = torch.minimum(uniform[:, None] * total, below)
    found = torch.searchsorted(cumulated, target, right=True)[:, 0]
    return found.clamp_(max=weights.shape[-1] - 1)


def _top_p_weights(weights: Tensor, top_p: Tensor) -> Tensor:
    """Zero outside the smallest set of likeliest tokens that holds at least `top_p`."""
    ordered, place = weights.sort(dim=-1, descending=True)
    before = ordered.cumsum(dim=-1) - ordered
    ordered = ordered.masked_fill(before >= top_p[:, None], 0.0)
    return torch.zeros_like(weights).scatter_(1, place, ordered)


def _mix_bits(x: Tensor) -> Tensor:
    x = (x ^ _shift_right(x, 30)) * _MIX[0]
    x = (x ^ _shift_right(x, 27)) * _MIX[1]
    return x ^ _shift_right(x, 31)


def wrap_int64(x: int) -> int:
    """Modulo 2^64, as torch stores it."""
    return (x + 2**63) % 2**64 - 2**63


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Right shift without the sign: int64 holds what is an unsigned number here."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
