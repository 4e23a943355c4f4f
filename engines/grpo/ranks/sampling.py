"""Rollouts sampled on every rank: rank 0 gives each its share of the prompts and collects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engines.policies.hf_local.decoding import DecodedReply, DecodeHooks, DecodeRequest, decode

if TYPE_CHECKING:
    from engines.grpo.ranks.accelerated import AcceleratedRanks
    from engines.policies.hf_local.model import LocalModel
    from engines.policies.hf_local.policy import HFLocal


@dataclass(frozen=True, slots=True)
class DecodeShares:
    """Decode the rank's share, at most `most` rows at a time."""

    shares: tuple[tuple[DecodeRequest, ...], ...]  # by rank
    most: int


def share_sampling(ranks: AcceleratedRanks, policy: HFLocal) -> None:
    """Have a policy decode over all ranks from now on."""

    def decode_on_all(
        local: LocalModel, rows: Sequence[DecodeRequest], watch: DecodeHooks | None = None
    ) -> list[DecodedReply]:
        """As `decode`, whole prompts to a rank; the caller holds the model's lock.

        Raises:
            DecodingCancelled: as `decode`, once the others are done.
            RuntimeError: a rank's memory ran out.
        """
        places = split_by_prompt(rows, ranks.size)
        most = max(1, -(-local.max_batch // ranks.size))
        watch = watch or DecodeHooks()
        if not any(places[1:]) and not ranks.divides_weights:
            return _decode_share(local, rows, most, watch)
        shares = tuple(tuple(rows[i] for i in own) for own in places)
        ranks.send(DecodeShares(shares, most))
        replies = [DecodedReply() for _ in rows]
        answers = _decode_and_gather(ranks, local, shares[0], most, _watch_rows(watch, places[0]))
        for own, answer in zip(places, answers, strict=True):
            if isinstance(answer, Exception):
                raise answer
            for place, reply in zip(own, answer, strict=True):
                replies[place] = reply
        return replies

    policy.local.max_batch *= ranks.size
    policy.decode = decode_on_all


def answer_share(ranks: AcceleratedRanks, local: LocalModel, word: DecodeShares) -> None:
    """The part of another rank."""
    _decode_and_gather(ranks, local, word.shares[ranks.rank], word.most, DecodeHooks())


def split_by_prompt(rows: Sequence[DecodeRequest], size: int) -> list[list[int]]:
    """Ascending indices of the rows that each of `size` ranks decodes.

    Those of one prompt stay together, and numbers are as even as that allows.
    """
    prompts: dict[tuple[int, ...], list[int]] = {}
    for index, row in enumerate(rows):
        prompts.setdefault(row.prompt_ids, []).append(index)
    shares: list[list[int]] = [[] for _ in range(size)]
    for group in sorted(prompts.values(), key=len, reverse=True):
        min(shares, key=len).extend(group)
    return [sorted(share) for share in shares]


def _decode_and_gather(
    ranks: AcceleratedRanks,
    local: LocalModel,
    rows: Sequence[DecodeRequest],
    most: int,
    watch: DecodeHooks,
) -> list[list[DecodedReply] | Exception]:
    """What each rank has made of its share, on rank 0, which alone is watched. All call it."""
    own: list[DecodedReply] | Exception
    try:
        with ranks.whole_weights():
            own = _decode_share(local, rows, most, watch)
    except Exception as error:  # the others are still to be heard, whatever it is
        own = error
    if ranks.divides_weights:
        local.drop_decoding_weights()
    if ranks.rank:  # memory ran out, mostly: rank 0 decides what follows
        ranks.collect(RuntimeError(str(own)) if isinstance(own, Exception) else own)
        return []
    return [own, *ranks.collect(None)[1:]]


def _decode_share(
    local: LocalModel, rows: Sequence[DecodeRequest], most: int, watch: DecodeHooks
) -> list[DecodedReply]:
    """As `decode`, `most` rows at a time; `watch` counts rows over all of them."""
    replies: list[DecodedReply] = []
    for begin in range(0, len(rows), most):
        hooks = _watch_rows(watch, range(begin, len(rows)))
        replies += decode(local, rows[begin : begin + most], hooks)
    return replies


def _watch_rows(watch: DecodeHooks, places: Sequence[int]) -> DecodeHooks:
    """The watch for some of its rows: row i of those is its row `places[i]`."""
    return DecodeHooks(
        stop=watch.stop,
        dropped=lambda index: watch.dropped(places[index]),
        streamed=frozenset(i for i, place in enumerate(places) if place in watch.streamed),
        shown=lambda grown: watch.shown([(places[i], drawn) for i, drawn in grown]),
    )
