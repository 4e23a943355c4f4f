"""What every rank but the first does: wait for a word of rank 0, do its part, wait again.

Reads no run file and writes nothing: what it trains, and with which settings, rank 0 tells it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from engines.grpo.engine.grpo import GRPOEngine
from engines.grpo.engine.optimiser import MOMENTS, Optimiser, ShardedOptimiser
from engines.grpo.engine.weight_engine import UpdateCancelled, WeightEngine
from engines.grpo.ranks.distributed import HEARTBEAT, STOP
from engines.policies.hf_local.decoding import DecodedReply, DecodeHooks, DecodeRequest, decode
from engines.policies.hf_local.loading import load_local

if TYPE_CHECKING:
    from torch import Tensor

    from engines.grpo.ranks.distributed import DistributedRanks
    from engines.grpo.settings import GRPOSettings
    from engines.policies.hf_local.model import LocalModel
    from engines.policies.hf_local.settings import LocalSettings

WEIGHTS = "the weights"


@dataclass(frozen=True, slots=True)
class OpenModel:
    """Load a model as rank 0 has it; each rank puts it on its own device."""

    local: LocalSettings
    settings: GRPOSettings
    total_steps: int
    seed: int


@dataclass(frozen=True, slots=True)
class DecodeShares:
    """Decode the rank's share, at most `most` rows at a time."""

    shares: tuple[tuple[DecodeRequest, ...], ...]  # by rank
    most: int


@dataclass(frozen=True, slots=True)
class EngineCall:
    """Call a method of the engine, as rank 0 does; `load_state` and `apply` are then compared."""

    method: Literal["plan", "consolidate", "apply", "load_state"]
    arguments: tuple[Any, ...]


def run_rank_worker(others: DistributedRanks) -> None:
    """Do as rank 0 says until it says stop.

    Raises PolicyError: rank 0 is gone, or the weights here came to differ from its own.
    """
    local: LocalModel | None = None
    engine: WeightEngine | None = None
    while True:
        word = others.receive()
        if word == STOP:
            return
        if word == HEARTBEAT:
            continue
        if isinstance(word, OpenModel):
            device = others.device_like(word.local.device)
            local = load_local(replace(word.local, device=device), lambda line: None)
            engine = build_engine(others, local, word, lambda line: None)  # rank 0 says it
            continue
        assert local is not None and engine is not None, "rank 0 opens first"
        match word:
            case DecodeShares(shares=shares, most=most):
                others.gather(_decode_share_or_fail(local, shares[others.rank], most))
            case EngineCall(method=method, arguments=arguments):
                with suppress(UpdateCancelled):  # as on rank 0, where nobody waits for it any more
                    answer = getattr(engine, method)(*arguments)
                    if asyncio.iscoroutine(answer):
                        asyncio.run(answer)
                if method in ("apply", "load_state"):
                    others.check_agreement(local.weights_digest(), WEIGHTS)
            case "moments":
                others.gather(rank_moments(engine))
            case _:
                raise TypeError(f"rank 0 said {word!r}")


def build_engine(
    others: DistributedRanks, local: LocalModel, word: OpenModel, tell: Callable[[str], None]
) -> WeightEngine:
    return GRPOEngine(
        word.settings,
        local,
        total_steps=word.total_steps,
        seed=word.seed,
        ranks=others,
        tell=tell,
        make_optimiser=partial(ShardedOptimiser, ranks=others) if others.sharded else Optimiser,
    )


def rank_moments(engine: WeightEngine) -> tuple[Tensor, ...]:
    """The optimiser's two means of gradients, as far as they are this rank's."""
    kept = engine.state().optimiser
    return tuple(kept[name] for name in MOMENTS)


def decode_share(
    local: LocalModel, rows: Sequence[DecodeRequest], most: int, watch: DecodeHooks
) -> list[DecodedReply]:
    """As `decode`, `most` rows at a time; `watch` counts rows over all of them."""
    replies: list[DecodedReply] = []
    for begin in range(0, len(rows), most):
        hooks = remap_hooks(watch, range(begin, len(rows)))
        replies += decode(local, rows[begin : begin + most], hooks)
    return replies


def remap_hooks(watch: DecodeHooks, places: Sequence[int]) -> DecodeHooks:
    """The watch for some of its rows: row i of those is its row `places[i]`."""
    return DecodeHooks(
        stop=watch.stop,
        dropped=lambda index: watch.dropped(places[index]),
        streamed=frozenset(i for i, place in enumerate(places) if place in watch.streamed),
        shown=lambda grown: watch.shown([(places[i], drawn) for i, drawn in grown]),
    )


def _decode_share_or_fail(
    local: LocalModel, rows: Sequence[DecodeRequest], most: int
) -> list[DecodedReply] | RuntimeError:
    try:
        with local.lock:
            return decode_share(local, rows, most, DecodeHooks())
    except RuntimeError as error:  # memory ran out, mostly: rank 0 decides what follows
        return RuntimeError(str(error))
