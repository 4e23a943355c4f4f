"""Samples replies for a batch of prompts; whoever calls holds the model's lock.

Draws one uniform number per row and token, and takes the inverse of the distribution. A row's
numbers follow from its own seed and count, so its tokens do not depend on who shares its batch (up
to rounding in the logits).
"""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from engines.core.frozen import frozen
from engines.policies.hf_local.model import Layer, LocalModel, MergedWeights

SHOWN_EVERY = 8
"""Tokens between two looks at what streams to the screen."""
_DROP_SHARE = 6
"""One in so many rows has to be finished before the batch is packed again."""


@frozen
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
    local: LocalModel, rows: Sequence[DecodeRequest], watch: DecodeHooks | None = None
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
    local: LocalModel,
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


def _finish_reason(local: LocalModel, row: DecodeRequest, one: DecodedReply) -> str:
    if one.token_ids[-1] in local.eos_ids:
        return "stop"
    if row.stop and _has_stop_string(local, row, one.token_ids):
        return "stop"
    return "length" if len(one.token_ids) >= row.max_tokens else ""


def _has_stop_string(local: LocalModel, row: DecodeRequest, ids: list[int]) -> bool:
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

    def __init__(self, local: LocalModel) -> None:
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


_ROOM = 32
"""Reply tokens the cache has room for at first; doubled when they are used up."""
_PREFILL = 8192
"""Prompt tokens computed at a time, so that many prompts need no more memory than a few."""
_STRIDE = 16
"""Attention to replies takes whole strides: torch's batched product of fewer is slower."""


class FastDecoder:
    """Decodes one batch. `start` once, then `step` for each token.

    Each distinct prompt is computed and kept once. Its keys and values are shared by its rows and
    those of the replies stand apart, so that attention to the prompt is one product per prompt
    instead of one per row (9 times faster at 8 rows a prompt), and a finished row leaves little
    behind.
    """

    can_drop = True

    def __init__(self, weights: MergedWeights, device: torch.device) -> None:
        self.w, self.device = weights, device
        self.written = 0  # reply tokens in the cache

    def start(self, prompts: Sequence[Sequence[int]], owner: Sequence[int], total: int) -> Tensor:
        """Compute P distinct prompts, and give the logits (R, V) of each row's first token.

        `owner` has of each of the R rows the index of its prompt, ascending. `total` positions
        may be used, by the longest prompt with its reply.
        """
        w, device = self.w, self.device
        lengths = [len(prompt) for prompt in prompts]
        width = max(lengths)
        # Padded on the right: positions are then the columns, and a causal mask hides the rest.
        ids = torch.tensor([[*p, *[0] * (width - len(p))] for p in prompts], device=device)
        self.lengths = torch.tensor(lengths, device=device)  # (P,)
        positions = torch.arange(total, device=device)
        self.cos, self.sin = sign_sines(*w.rotary(positions))
        self.ragged = min(lengths) < width
        shape = (len(prompts), w.kv_heads, width, w.head_dim)
        self.prefix = [(w.embed.new_empty(shape), w.embed.new_empty(shape)) for _ in w.layers]
        every = torch.arange(len(prompts), device=device)
        parts = torch.split(every, max(1, _PREFILL // width))
        logits = torch.cat([self._prefill_prompts(ids, part) for part in parts])  # (P, V)
        self._lay_out_rows(torch.tensor(owner, device=device))
        size = (len(owner), w.kv_heads, _ROOM, w.head_dim)
        # Zeros, not leftovers: a hidden column weighs 0, and 0 times NaN is NaN.
        self.suffix = [(w.embed.new_zeros(size), w.embed.new_zeros(size)) for _ in w.layers]
        return logits[self.owner]

    def step(self, tokens: Tensor) -> Tensor:
        """Take one token per row, (R,), and give the logits (R, V) of the next."""
        if self.written == self.suffix[0][0].shape[2]:
            self.suffix = [(_double(keys), _double(values)) for keys, values in self.suffix]
        at = self.lengths[self.owner] + self.written  # (R,) positions
        rope = self.cos[at][:, None], self.sin[at][:, None]
        masks = self._masks()
        x = F.embedding(tokens, self.w.embed)  # (R, hidden)
        for index, layer in enumerate(self.w.layers):
            x = self._decode_layer(layer, x, index, rope, masks)
        self.written += 1
        return self._logits(x)

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only, given by ascending index."""
        used = self._visible_columns()
        self.suffix = [
            (keys[:, :, :used].index_select(0, rows), values[:, :, :used].index_select(0, rows))
            for keys, values in self.suffix
        ]
        owner = self.owner[rows]
        there, owner = torch.unique(owner, return_inverse=True)
        if len(there) < len(self.lengths):
            self.lengths = self.lengths[there]
            self.prefix = [
                (keys.index_select(0, there), values.index_select(0, there))
                for keys, values in self.prefix
            ]
        self._lay_out_rows(owner)

    def _prefill_prompts(self, ids: Tensor, part: Tensor) -> Tensor:
        """Fill the cache of some prompts and give the logits after them."""
        x = F.embedding(ids[part], self.w.embed)  # (p, T, hidden)
        for index, layer in enumerate(self.w.layers):
            x = self._prefill_layer(layer, x, index, part)
        last = x[torch.arange(len(part), device=self.device), self.lengths[part] - 1]
        return self._logits(last)

    def _lay_out_rows(self, owner: Tensor) -> None:
        """Lay out rows of one prompt beside each other: slots (P, G), some of them empty."""
        count = len(self.lengths)
        sizes = owner.bincount(minlength=count)
        self.owner, self.group = owner, int(sizes.max())
        self.full = len(owner) == count * self.group
        if self.full:
            return
        within = torch.arange(len(owner), device=owner.device) - (sizes.cumsum(0) - sizes)[owner]
        self.slot = owner * self.group + within  # (R,) → slot
        self.row = torch.zeros(count * self.group, dtype=torch.long, device=owner.device)
        self.row[self.slot] = torch.arange(len(owner), device=owner.device)  # slot → row

    def _visible_columns(self) -> int:
        """Columns of the reply's cache that a step looks at, the written ones first."""
        return (self.written // _STRIDE + 1) * _STRIDE

    def _masks(self) -> tuple[Tensor | None, Tensor]:
        """What is added to scores: 0 where a token is seen, -inf where it is hidden.

        Of the prompt, (P, 1, 1, T), None where all is seen; of the reply, (R or 1, 1, 1, S).
        """
        width, dtype = self.prefix[0][0].shape[2], self.w.embed.dtype
        columns = torch.arange(width, device=self.device)
        own = torch.arange(self._visible_columns(), device=self.device)
        of_reply = _additive_mask(own > self.written, dtype)
        if not self.ragged:
            return None, of_reply
        of_prompt = _additive_mask(columns >= self.lengths[:, None], dtype)
        return of_prompt[:, None, None], of_reply

    def _logits(self, x: Tensor) -> Tensor:
        return F.linear(self._rms_norm(x, self.w.norm), *self.w.head)

    def _rms_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x.float(), weight.shape[-1:], weight, self.w.eps).to(x.dtype)

    def _project_heads(
        self, layer: Layer, x: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values: (..., heads, head_dim), the first two turned."""
        w = self.w
        qkv = F.linear(self._rms_norm(x, layer.norm_in), *layer.qkv)
        qkv = qkv.view(*x.shape[:-1], w.heads + 2 * w.kv_heads, w.head_dim)
        qk = qkv[..., : w.heads + w.kv_heads, :]
        if layer.norm_qk is not None:
            plain = F.rms_norm(qk.float(), (w.head_dim,), None, w.eps)
            qk = (plain * layer.norm_qk).to(x.dtype)
        qk = torch.addcmul(qk * cos, qk.roll(w.head_dim // 2, -1), sin)
        return qk[..., : w.heads, :], qk[..., w.heads :, :], qkv[..., w.heads + w.kv_heads :, :]

    def _prefill_layer(self, layer: Layer, x: Tensor, index: int, part: Tensor) -> Tensor:
        w, width = self.w, x.shape[1]
        cos, sin = self.cos[:width, None], self.sin[:width, None]
        q, k, v = self._project_heads(layer, x, cos, sin)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))  # (P, heads, T, head_dim)
        keys, values = self.prefix[index]
        keys[part], values[part] = k, v
        mixed = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=w.scale, enable_gqa=w.heads != w.kv_heads
        )
        return self._finish_layer(layer, x, mixed.transpose(1, 2).flatten(-2))

    def _decode_layer(
        self,
        layer: Layer,
        x: Tensor,
        index: int,
        rope: tuple[Tensor, Tensor],
        masks: tuple[Tensor | None, Tensor],
    ) -> Tensor:
        w, now = self.w, self.written
        rows, repeat = x.shape[0], w.heads // w.kv_heads
        q, k, v = self._project_heads(layer, x, *rope)
        keys, values = self.suffix[index]
        keys[:, :, now], values[:, :, now] = k, v
        q = q.reshape(rows, w.kv_heads, repeat, w.head_dim)
        shown_keys, shown_values = self.prefix[index]
        # (P, kv_heads, G·repeat, T)
        shown = self._attention_scores(self._group_rows(q), shown_keys, masks[0])
        used = self._visible_columns()
        own = self._attention_scores(q, keys[:, :, :used], masks[1])  # (R, kv_heads, repeat, S)
        width = shown.shape[-1]
        share = _softmax(torch.cat((self._ungroup_rows(shown), own), -1))
        mixed = share[..., width:] @ values[:, :, :used]
        mixed += self._ungroup_rows(self._group_rows(share[..., :width]) @ shown_values)
        return self._finish_layer(layer, x, mixed.reshape(rows, -1))

    def _group_rows(self, x: Tensor) -> Tensor:
        """(R, kv_heads, repeat, N) → (P, kv_heads, G·repeat, N)."""
        if not self.full:
            x = x.index_select(0, self.row)
        return x.view(-1, self.group, *x.shape[1:]).transpose(1, 2).flatten(2, 3)

    def _ungroup_rows(self, x: Tensor) -> Tensor:
        """(P, kv_heads, G·repeat, N) → (R, kv_heads, repeat, N)."""
        prompts, heads, _, width = x.shape
        x = x.view(prompts, heads, self.group, -1, width).transpose(1, 2).flatten(0, 1)
        return x if self.full else x.index_select(0, self.slot)

    def _attention_scores(self, q: Tensor, k: Tensor, added: Tensor | None) -> Tensor:
        """(N, heads, A, head_dim) and (N, heads, B, head_dim) → (N, heads, A, B)."""
        if q.dtype == torch.float32 and q.device.type == "cpu":
            # There `baddbmm` fills its result with zeros first: a sixth of its time.
            scores = (q * self.w.scale) @ k.transpose(2, 3)
        else:
            scores = torch.baddbmm(
                q.new_empty(()),
                q.flatten(0, 1),
                k.flatten(0, 1).transpose(1, 2),
                beta=0,
                alpha=self.w.scale,
            ).view(*q.shape[:3], k.shape[2])
        return scores if added is None else scores.add_(added)

    def _finish_layer(self, layer: Layer, x: Tensor, mixed: Tensor) -> Tensor:
        x = x + F.linear(mixed, *layer.out)
        gate, up = F.linear(self._rms_norm(x, layer.norm_mlp), *layer.gate_up).chunk(2, -1)
        return x + F.linear(layer.activation(gate) * up, *layer.down)


def sign_sines(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Turns (-x2, x1)·sin into roll(x)·sin: the sign of the first half is in the table."""
    half = sin.shape[-1] // 2
    return cos, torch.cat((-sin[..., :half], sin[..., half:]), -1)


def _softmax(scores: Tensor) -> Tensor:
    return scores.softmax(-1, dtype=torch.float32).to(scores.dtype)


def _additive_mask(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where False, -inf where True."""
    zero = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    return zero.masked_fill_(hidden, float("-inf"))


def _double(cache: Tensor) -> Tensor:
    return torch.cat((cache, torch.zeros_like(cache)), 2)
