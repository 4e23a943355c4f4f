"""What every rank but the first does: wait for a word of rank 0, do its part, wait again.

Reads no run file and writes nothing: what it trains, and with which settings, rank 0 tells it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from engines.core.errors import PolicyError
from engines.grpo.engine.grpo import GRPOEngine
from engines.grpo.ranks.accelerated import STOP, EngineCall
from engines.grpo.ranks.prepared import DeepSpeedOptimiser, PreparedOptimiser
from engines.grpo.ranks.ranks import UpdateCancelled
from engines.grpo.ranks.sampling import DecodeShares, answer_share
from engines.policies.hf_local.loading import load_local

if TYPE_CHECKING:
    from torch import Tensor

    from engines.grpo.ranks.accelerated import AcceleratedRanks
    from engines.grpo.settings import GRPOSettings
    from engines.policies.hf_local.model import LocalModel
    from engines.policies.hf_local.settings import LocalSettings

OWN_DEVICES = ("auto", "cpu", "cuda")
"""Values of `device` that mean another one in each process, where there are several."""


@dataclass(frozen=True, slots=True)
class OpenModel:
    """Load a model as rank 0 has it; each rank puts it on its own device."""

    local: LocalSettings
    adapter: dict[str, Tensor]
    settings: GRPOSettings
    total_steps: int
    seed: int


def open_engine(
    ranks: AcceleratedRanks,
    local: LocalModel,
    settings: GRPOSettings,
    *,
    total_steps: int,
    seed: int,
    tell: Callable[[str], None],
) -> GRPOEngine:
    """The engine of rank 0, once the others have theirs.

    Raises PolicyError: the model was put on a device by name or on several, or another rank is
    gone.
    """
    if local.settings.device not in OWN_DEVICES:
        cause = f"{local.settings.device} leaves no device of its own to each process."
        move = "Set it to auto, or train with one process."
        raise PolicyError("policy.local.device", cause, move)
    alike = replace(local.settings, threads=local.threads)
    opening = OpenModel(alike, local.adapter_state(), settings, total_steps, seed)
    ranks.send(opening)
    return _build_engine(ranks, local, opening, tell)


def run_rank_worker(ranks: AcceleratedRanks) -> None:
    """Do as rank 0 says until it says stop.

    Raises PolicyError: rank 0 is gone, or the weights here came to differ from its own.
    """
    local: LocalModel | None = None
    engine: GRPOEngine | None = None
    while (word := ranks.receive()) != STOP:
        if isinstance(word, OpenModel):
            own = replace(word.local, device=str(ranks.accelerator.device))
            local = load_local(own, lambda line: None)
            local.load_adapter_state(word.adapter)
            engine = _build_engine(ranks, local, word, lambda line: None)  # rank 0 says it
            continue
        assert local is not None and engine is not None, "rank 0 opens first"
        match word:
            case DecodeShares():
                answer_share(ranks, local, word)
            case EngineCall(method=method, arguments=arguments):
                with suppress(UpdateCancelled):  # as on rank 0, where nobody waits for it any more
                    getattr(engine, method)(*arguments)
            case _:
                raise TypeError(f"rank 0 said {word!r}")


def _build_engine(
    ranks: AcceleratedRanks, local: LocalModel, word: OpenModel, tell: Callable[[str], None]
) -> GRPOEngine:
    kind = DeepSpeedOptimiser if ranks.deepspeed else PreparedOptimiser
    engine = GRPOEngine(
        word.settings,
        local,
        total_steps=word.total_steps,
        seed=word.seed,
        ranks=ranks,
        tell=tell,
        make_optimiser=partial(kind, ranks=ranks),
    )
    ranks.check_agreement(local.weights_digest)
    return engine
