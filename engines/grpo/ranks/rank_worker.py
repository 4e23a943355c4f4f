"""What every rank but the first does: wait for a word of rank 0, do its part, wait again.

Owns the words and the loop. A follower reads no run file and writes nothing: what it trains, and
with which settings, rank 0 tells it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from engines.core.types import Group, Reflection, WeightUpdate
from engines.grpo.engine.grpo import GRPOEngine
from engines.grpo.engine.optimiser import MOMENTS, Optimiser
from engines.grpo.engine.update import Stopped
from engines.grpo.ranks.distributed import Stop
from engines.grpo.ranks.sharded_optimiser import Sharded
from engines.policies.hf_local.decoding import Drawn, Row, Watch, decode
from engines.policies.hf_local.loading import load_local

if TYPE_CHECKING:
    from torch import Tensor

    from engines.core.library import Library
    from engines.grpo.checkpoint.contents import EngineState
    from engines.grpo.ranks.distributed import Connected
    from engines.grpo.settings import GRPOSettings
    from engines.policies.hf_local.model import LocalModel
    from engines.policies.hf_local.settings import LocalSettings

WEIGHTS = "the weights"


@dataclass(frozen=True, slots=True)
class Open:
    """Load a model as rank 0 has it; each rank puts it on its own device."""

    local: LocalSettings
    settings: GRPOSettings
    total_steps: int
    seed: int


@dataclass(frozen=True, slots=True)
class Load:
    state: EngineState


@dataclass(frozen=True, slots=True)
class Sample:
    """Decode the rank's share, at most `most` rows at a time."""

    shares: tuple[tuple[Row, ...], ...]  # by rank
    most: int


@dataclass(frozen=True, slots=True)
class Consolidate:
    batch: tuple[Group, ...]
    reflections: tuple[Reflection, ...]
    library: Library


@dataclass(frozen=True, slots=True)
class Span:
    """The schedule spans so many batches from here on."""

    total_steps: int


@dataclass(frozen=True, slots=True)
class Apply:
    update: WeightUpdate


@dataclass(frozen=True, slots=True)
class Beat:
    """Rank 0 is still there; a person thinks, or rewards are computed."""


@dataclass(frozen=True, slots=True)
class Gather:
    """Hand over the rank's part of the optimiser's moments."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Why a share could not be decoded."""

    reason: str


def follow(others: Connected) -> None:
    """Do as rank 0 says until it says stop.

    Args:
        others: of a rank above 0.

    Raises:
        PolicyError: rank 0 is gone, or the weights here came to differ from its own.
    """
    local: LocalModel | None = None
    engine: GRPOEngine | None = None
    while True:
        word = others.heard()
        if isinstance(word, Stop):
            return
        if isinstance(word, Beat):
            continue
        if isinstance(word, Open):
            device = others.device_like(word.local.device)
            local = load_local(replace(word.local, device=device), lambda line: None)
            engine = an_engine(others, local, word, lambda line: None)  # rank 0 says it
            continue
        assert local is not None and engine is not None, "rank 0 opens first"
        match word:
            case Sample(shares=shares, most=most):
                others.gathered(_share(local, shares[others.rank], most))
            case Consolidate():
                with suppress(Stopped):  # as on rank 0, where nobody waits for it any more
                    asyncio.run(engine.consolidate(word.batch, word.reflections, word.library))
            case Span(total_steps=total_steps):
                engine.plan(total_steps)
            case Apply(update=update):
                asyncio.run(engine.apply(update))
                others.agree(local.weights_digest(), WEIGHTS)
            case Load(state=state):
                engine.load_state(state)
                others.agree(local.weights_digest(), WEIGHTS)
            case Gather():
                others.gathered(moments(engine))
            case _:
                raise TypeError(f"rank 0 said {word!r}")


def an_engine(
    others: Connected, local: LocalModel, word: Open, tell: Callable[[str], None]
) -> GRPOEngine:
    """The engine that every rank has."""
    return GRPOEngine(
        word.settings,
        local,
        total_steps=word.total_steps,
        seed=word.seed,
        ranks=others,
        tell=tell,
        optimiser=partial(Sharded, ranks=others) if others.sharded else Optimiser,
    )


def moments(engine: GRPOEngine) -> tuple[Tensor, ...]:
    """The optimiser's two means of gradients, as far as they are this rank's."""
    kept = engine.state().optimiser
    return tuple(kept[name] for name in MOMENTS)


def decode_share(
    local: LocalModel, rows: Sequence[Row], most: int, watch: Watch | None = None
) -> list[Drawn]:
    """As `decode`, `most` rows at a time; `watch` counts rows over all of them."""
    made: list[Drawn] = []
    for begin in range(0, len(rows), most):
        part = rows[begin : begin + most]
        made += decode(
            local, part, None if watch is None else moved(watch, range(begin, len(rows)))
        )
    return made


def moved(watch: Watch, places: Sequence[int]) -> Watch:
    """The watch for some of its rows: row i of those is its row `places[i]`."""
    return Watch(
        stop=watch.stop,
        dropped=lambda index: watch.dropped(places[index]),
        streamed=frozenset(i for i, place in enumerate(places) if place in watch.streamed),
        shown=lambda grown: watch.shown([(places[i], drawn) for i, drawn in grown]),
    )


def _share(local: LocalModel, rows: Sequence[Row], most: int) -> list[Drawn] | Failed:
    try:
        with local.lock:
            return decode_share(local, rows, most)
    except RuntimeError as error:  # memory ran out, mostly: rank 0 decides what follows
        return Failed(str(error))
