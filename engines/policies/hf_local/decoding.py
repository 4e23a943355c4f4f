"""Samples replies for a batch of prompts; whoever calls holds the model's lock.

Draws one uniform number per row and token, and takes the inverse of the distribution. A row's
numbers follow from its own seed and count, so its tokens do not depend on who shares its batch (up
to rounding in the logits).
"""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from engines.policies.hf_local.fast_decoder import FastDecoder

if TYPE_CHECKING:
    from engines.policies.hf_local.model import LocalModel


SHOWN_EVERY = 8
"""Tokens between two looks at what streams to the screen."""
_DROP_SHARE = 6
"""One in so many rows has to be finished before the batch is packed again."""


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """One reply to be made; `max_tokens` fits the window."""

    prompt_ids: tuple[int, ...]
    seed: int
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()


@dataclass(slots=True)
class DecodedReply:
    """What was sampled, the end of turn included; `finish` is "" while it goes on."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: str = ""


class DecodingCancelled(Exception):
    """Whoever watched a batch wants no more of it."""


@dataclass(slots=True)
class DecodeHooks:
    """What happens around a batch while it is decoded, all of it optional.

    `stop` ends it at the next token; a row that is `dropped` ends without a reply. `shown`
    receives the `streamed` rows, by index, every SHOWN_EVERY tokens.
    """

    stop: Callable[[], bool] = lambda: False
    dropped: Callable[[int], bool] = lambda index: False
    streamed: frozenset[int] = frozenset()
    shown: Callable[[Sequence[tuple[int, DecodedReply]]], None] = lambda grown: None


def decode(
    local: "LocalModel", rows: Sequence[DecodeRequest], watch: DecodeHooks | None = None
) -> list[DecodedReply]:
    """Sample a reply for each row, aligned with them; `finish` of a dropped one stays "".

    Raises:
        DecodingCancelled: `watch.stop` said so.
        FloatingPointError: the model's scores are no numbers.
    """
    watch = watch or DecodeHooks()
    order = sorted(range(len(rows)), key=lambda index: rows[index].prompt_ids)
    drawn = [DecodedReply() for _ in rows]
    with torch.inference_mode(), local.without_checkpointing():
        _decode_rows(local, rows, order, drawn, watch)
    return drawn


def _decode_rows(
    local: "LocalModel",
    rows: Sequence[DecodeRequest],
    order: list[int],
    drawn: list[DecodedReply],
    watch: DecodeHooks,
) -> None:
    prompts: dict[tuple[int, ...], int] = {}
    owner = [prompts.setdefault(rows[i].prompt_ids, len(prompts)) for i in order]
    decoder = (
        FastDecoder(local.decoding_weights(), local.device)
        if local.decoder_note is None
        else PlainDecoder(local)
    )
    total = max(len(row.prompt_ids) + row.max_tokens for row in rows)
    logits = decoder.start(list(prompts), owner, total)
    chance = _BatchSampler([rows[i] for i in order], local.device)
    live = order  # row index of each line of the batch
    number = 0
    while True:
        tokens, logp = chance.sample(logits, number)
        # One transfer for both; a float64 holds every token id exactly.
        pairs = torch.stack((tokens.double(), logp.double())).tolist()
        for index, token, score in zip(live, *pairs, strict=True):
            one = drawn[index]
            if one.finish:
                continue
            if math.isnan(score):
                raise FloatingPointError("its scores are not numbers: the weights have diverged")
            one.token_ids.append(int(token))
            one.logprobs.append(score)
            one.finish = _finish_reason(local, rows[index], one)
        number += 1
        if watch.streamed and number % SHOWN_EVERY == 0:
            watch.shown([(i, drawn[i]) for i in live if i in watch.streamed])
        if watch.stop():
            raise DecodingCancelled
        alive = [
            line
            for line, index in enumerate(live)
            if not drawn[index].finish and not watch.dropped(index)
        ]
        if not alive:
            return
        going = len(live)
        if (going - len(alive)) * _DROP_SHARE >= going and decoder.can_drop:
            lines = torch.tensor(alive, device=local.device)
            decoder.keep(lines)
            chance.keep(lines)
            tokens, live = tokens[lines], [live[line] for line in alive]
        logits = decoder.step(tokens)


def _finish_reason(local: "LocalModel", row: DecodeRequest, one: DecodedReply) -> str:
    if one.token_ids[-1] in local.eos_ids:
        return "stop"
    if row.stop and _has_stop_string(local, row, one.token_ids):
        return "stop"
    return "length" if len(one.token_ids) >= row.max_tokens else ""


def _has_stop_string(local: "LocalModel", row: DecodeRequest, ids: list[int]) -> bool:
    # A character takes at most four tokens, so an end that just came lies in this tail.
    tail = 4 * max(map(len, row.stop)) + 4
    text = local.tokenizer.decode(ids[-tail:], skip_special_tokens=True)
    if not any(stop in text for stop in row.stop):
        return False
    whole = local.tokenizer.decode(ids, skip_special_tokens=True)
    return any(stop in whole for stop in row.stop)


class _BatchSampler:
    """The sampling settings of the rows in a batch, as tensors.

    A row of temperature 0 takes the likeliest token, with log-probabilities at 1.
    """

    def __init__(self, rows: Sequence[DecodeRequest], device: torch.device) -> None:
        def column(values: Sequence[float], dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        self.columns = {
            "seeds": column([wrap_int64(row.seed) for row in rows], torch.int64),
            "temperature": column([row.temperature or 1.0 for row in rows]),
            "greedy": column([row.temperature == 0 for row in rows], torch.bool),
        }
        if any(row.top_p < 1 for row in rows):  # it sorts the vocabulary
            self.columns["top_p"] = column([min(row.top_p, 1.0) for row in rows])

    def sample(self, logits: Tensor, number: int) -> tuple[Tensor, Tensor]:
        columns = dict(self.columns)
        return pick_tokens(logits, uniforms(columns.pop("seeds"), number), **columns)

    def keep(self, lines: Tensor) -> None:
        self.columns = {name: column[lines] for name, column in self.columns.items()}


class PlainDecoder:
    """Transformers' own forward, for what the fast decoder, which see, does not know."""

    def __init__(self, local: "LocalModel") -> None:
        self.local = local
        named = inspect.signature(local.base.forward).parameters
        self.takes_positions = "position_ids" in named
        self.last_only = {"logits_to_keep": 1} if "logits_to_keep" in named else {}

    def start(self, prompts: Sequence[Sequence[int]], owner: Sequence[int], total: int) -> Tensor:
        pad, device = self.local.pad_id, self.local.device
        width = max(map(len, prompts))
        rows = [prompts[index] for index in owner]
        ids = torch.tensor([[pad] * (width - len(p)) + [*p] for p in rows], device=device)
        lengths = torch.tensor([len(p) for p in rows], device=device)
        self.seen = (torch.arange(width, device=device) >= width - lengths[:, None]).long()
        positions = (self.seen.cumsum(-1) - 1).clamp_(min=0)
        self.cache: Any = None
        self.position = positions[:, -1:]
        return self._forward(ids, positions)

    def step(self, tokens: Tensor) -> Tensor:
        self.seen = torch.cat((self.seen, torch.ones_like(self.seen[:, :1])), 1)
        self.position = self.position + 1
        return self._forward(tokens[:, None], self.position)

    def keep(self, rows: Tensor) -> None:
        self.cache.batch_select_indices(rows)
        self.seen, self.position = self.seen[rows], self.position[rows]

    @property
    def can_drop(self) -> bool:
        return hasattr(self.cache, "batch_select_indices")

    def _forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """(N, T) → (N, V), logits after the last of the T."""
        own = {"position_ids": positions} if self.takes_positions else {}
        out = self.local.model(
            input_ids=ids,
            attention_mask=self.seen,
            cache=self.cache,
            use_cache=True,
            **own,
            **self.last_only,
        )
        self.cache = out.cache
        logits: Tensor = out.logits[:, -1]
        return logits


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
