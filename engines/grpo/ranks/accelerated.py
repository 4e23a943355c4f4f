"""The ranks of a training run joined by accelerate: what rank 0 says, and the part of every other.

accelerate reads what was started (DDP, FSDP2, DeepSpeed) from the environment that its launcher
sets. A rank waits for a word of rank 0, does its part, waits again: it reads no run file and writes
nothing. All three reduce to the mean of the ranks' gradients. Losses here are shares of one loss,
so each is multiplied with the number of ranks. They reduce once to an optimiser step, in a last
pass that every rank makes, whatever it had to compute before.

Failures: whoever ends without a word closes its connections, and every other rank's next
exchange then fails at once. A rank that hangs in a computation is given up after `TIMEOUT_S`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from engines.core.errors import PolicyError
from engines.core.frozen import frozen
from engines.core.types import Tell
from engines.grpo.engine import grpo, optimiser
from engines.grpo.loss.loss import TokenScores
from engines.grpo.ranks.ranks import Ranks, UpdateCancelled
from engines.policies.hf_local.decoding import DecodedReply, DecodeHooks, DecodeRequest, decode
from engines.policies.open import load_local

if TYPE_CHECKING:
    from engines.grpo.settings import GRPOSettings
    from engines.policies.hf_local.model import LocalModel
    from engines.policies.hf_local.policy import HFLocal
    from engines.policies.hf_local.settings import LocalSettings


TIMEOUT_S = 1800.0
WAIT = timedelta(days=30)
"""How long a rank waits for the next word: rank 0 also waits, for a person."""
PLACE = "distributed training"
STOP = "stop"


@frozen
class EngineCall:
    """A method of the engine, which every rank carries out as rank 0 does."""

    method: str
    arguments: tuple[object, ...]


class AcceleratedRanks(Ranks):
    """This process among the others.

    Made by all of them at the same time, and waits until all are there.

    Raises PolicyError: the others did not come.
    """

    def __init__(self, *, gpu: bool) -> None:
        from accelerate import Accelerator
        from accelerate.utils import DistributedType, InitProcessGroupKwargs

        self.apart = ""  # why nothing can be done together any more
        deepspeed = _is_set("ACCELERATE_USE_DEEPSPEED")
        options: dict[str, Any] = {"timeout": timedelta(seconds=TIMEOUT_S)}
        if not gpu:
            options["backend"] = "gloo"
        # With bf16 the base weights are bfloat16, and passes as those of one process. Gradients in
        # float16 need accelerate's scaling; DeepSpeed has its own ways.
        scaled = deepspeed or os.environ.get("ACCELERATE_MIXED_PRECISION") == "fp16"
        try:
            self.accelerator: Any = Accelerator(
                mixed_precision=None if scaled else "no",
                # DeepSpeed takes no part in what accelerate calls training on the CPU.
                cpu=not gpu and not deepspeed,
                kwargs_handlers=[InitProcessGroupKwargs(**options)],
            )
            # Words travel between CPUs: a GPU that waits for one would be busy all the while.
            self._words = dist.new_group(backend="gloo", timeout=WAIT)
        except (RuntimeError, ValueError) as error:
            raise PolicyError(
                PLACE,
                f"the processes did not find each other ({_short_error_text(error)}).",
                "See that all of them run and that nothing else uses the port.",
            ) from error
        state = self.accelerator.state
        if not gpu and _is_set("ACCELERATE_USE_FSDP"):
            # accelerate 1.15 divides weights over accelerators only. On CPUs, where it is tried
            # out, the same code does it once this is set.
            from accelerate import FullyShardedDataParallelPlugin

            state.distributed_type = DistributedType.FSDP
            state.fsdp_plugin = FullyShardedDataParallelPlugin()
        self.rank, self.size = state.process_index, state.num_processes
        self.deepspeed = state.distributed_type == DistributedType.DEEPSPEED
        self.divides_weights = state.distributed_type == DistributedType.FSDP
        self.lockstep = self.deepspeed or self.divides_weights
        self.module: Any = None  # as prepared

    def gather(self, tensor: Tensor) -> Tensor:
        with _explain_lost_rank():
            whole: Tensor = self.accelerator.gather(tensor[None])
        return whole

    @contextmanager
    def together(self, method: str, *arguments: object) -> Iterator[None]:
        """As `Ranks`. A failure in the midst of it leaves the ranks apart, and ends the run."""
        if self.rank == 0:
            self.send(EngineCall(method, arguments))
        try:
            yield
        except UpdateCancelled:
            raise
        except Exception as error:
            self.apart = self.apart or f"{type(error).__name__}: {error}"
            raise

    def check_agreement(self, weights_digest: Callable[[], str]) -> None:
        digests: list[Any] = [None] * self.size
        with _explain_lost_rank():
            dist.all_gather_object(digests, weights_digest(), group=self._words)
        odd = [rank for rank, said in enumerate(digests) if said != digests[0]]
        if odd:
            raise PolicyError(
                PLACE,
                f"the weights of rank {odd[0]} differ from rank 0's, so the ranks would train "
                "apart.",
                "Resume the run; if it happens again, use the same versions and devices on "
                "every machine.",
            )

    @contextmanager
    def whole_weights(self) -> Iterator[None]:
        """The model's weights as plain tensors in every process, for the time of the block."""
        from torch.distributed.fsdp import FSDPModule

        modules = self.module.modules() if self.divides_weights else ()
        parts = [module for module in modules if isinstance(module, FSDPModule)]
        for part in parts:
            part.unshard()
        try:
            yield
        finally:
            for part in parts:
                part.reshard()

    def send(self, word: object) -> None:
        """Tell every other rank, by pickle: the channel is ours alone. For rank 0.

        Raises PolicyError: a rank is gone, or was before.
        """
        if self.apart:
            raise PolicyError(
                PLACE,
                f"the ranks have come apart ({self.apart}).",
                "Resume the run, which goes on from its last checkpoint.",
            )
        try:
            self._broadcast(word)
        except PolicyError as error:
            self.apart = error.cause
            raise

    def receive(self) -> object:
        """What rank 0 says next; for the others, which wait here."""
        return self._broadcast(None)

    def collect(self, word: Any) -> list[Any]:
        """What each rank says, in order of ranks; on rank 0 alone."""
        words: list[Any] = [None] * self.size
        with _explain_lost_rank():
            dist.gather_object(word, words if self.rank == 0 else None, dst=0, group=self._words)
        return words

    def stop(self) -> None:
        """Let the other ranks go, and do nothing together again; for rank 0."""
        with suppress(PolicyError):  # they are gone already
            self.send(STOP)
        self.apart = self.apart or "the run has ended"

    def close(self) -> None:
        """Let go of the others; whoever still waits for this rank fails at once."""
        from accelerate.state import AcceleratorState, GradientState

        # Connections are closed with the last reference to them, as a prepared model has.
        self.module = self._words = None
        self.accelerator.free_memory()
        if dist.is_initialized():
            dist.destroy_process_group()
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()

    def _broadcast(self, word: object) -> object:
        words = [word]
        with _explain_lost_rank():
            dist.broadcast_object_list(words, src=0, group=self._words)
        return words[0]


def gpu_count() -> int:
    """How many this process sees."""
    return torch.cuda.device_count()


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").lower() in ("1", "true", "yes")


@contextmanager
def _explain_lost_rank() -> Iterator[None]:
    """Turns torch's account of a lost rank into words."""
    try:
        yield
    except RuntimeError as error:
        raise PolicyError(
            PLACE,
            f"another process of the run has ended or is silent ({_short_error_text(error)}).",
            "Its own message says why; then resume the run, which goes on from its last "
            "checkpoint.",
        ) from error


def _short_error_text(error: BaseException) -> str:
    """Without the source line in front and the advice behind."""
    line = str(error).strip().partition("\n")[0]
    return line.rpartition(".cc:")[2].partition("] ")[2].partition(". ")[0] or line[:200]


@frozen
class DecodeShares:
    """Decode the rank's share."""

    shares: tuple[tuple[DecodeRequest, ...], ...]  # by rank


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
        watch = watch or DecodeHooks()
        if not any(places[1:]) and not ranks.divides_weights:
            return decode(local, rows, watch)
        shares = tuple(tuple(rows[i] for i in own) for own in places)
        ranks.send(DecodeShares(shares))
        replies = [DecodedReply() for _ in rows]
        answers = _decode_and_gather(ranks, local, shares[0], _watch_rows(watch, places[0]))
        for own, answer in zip(places, answers, strict=True):
            if isinstance(answer, Exception):
                raise answer
            for place, reply in zip(own, answer, strict=True):
                replies[place] = reply
        return replies

    policy.decode = decode_on_all


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
    ranks: AcceleratedRanks, local: LocalModel, rows: Sequence[DecodeRequest], watch: DecodeHooks
) -> list[list[DecodedReply] | Exception]:
    """What each rank has made of its share, on rank 0, which alone is watched. All call it."""
    own: list[DecodedReply] | Exception
    try:
        with ranks.whole_weights():
            own = decode(local, rows, watch) if rows else []
    except Exception as error:  # the others are still to be heard, whatever it is
        own = error
    if ranks.divides_weights:
        local.drop_decoding_weights()
    if ranks.rank:  # memory ran out, mostly: rank 0 decides what follows
        ranks.collect(RuntimeError(str(own)) if isinstance(own, Exception) else own)
        return []
    return [own, *ranks.collect(None)[1:]]


def _watch_rows(watch: DecodeHooks, places: Sequence[int]) -> DecodeHooks:
    """The watch for some of its rows: row i of those is its row `places[i]`."""
    return DecodeHooks(
        stop=watch.stop,
        dropped=lambda index: watch.dropped(places[index]),
        streamed=frozenset(i for i, place in enumerate(places) if place in watch.streamed),
        shown=lambda grown: watch.shown([(places[i], drawn) for i, drawn in grown]),
    )


T = TypeVar("T")


class _Passes(nn.Module):
    """A module whose forward is any work with the model, so that its hooks are around that."""

    def __init__(self, local: LocalModel) -> None:
        super().__init__()
        self.model = local.model
        # What FSDP divides by, and how it ties weights again that are one tensor.
        self._no_split_modules = local.base._no_split_modules
        self.tie_weights = local.base.tie_weights

    def forward(self, work: Callable[[], TokenScores]) -> TokenScores:
        # FSDP warns of views, on which its hooks can be lost.
        return TokenScores(*(scores.clone() for scores in work()))


class PreparedOptimiser(optimiser.Optimiser):
    """As accelerate has DDP and FSDP2. All ranks make the same calls."""

    def __init__(
        self, local: LocalModel, settings: GRPOSettings, *, ranks: AcceleratedRanks
    ) -> None:
        self._ranks, self._accelerator = ranks, ranks.accelerator
        super().__init__(local, settings)

    def forward(self, work: Callable[[], T]) -> T:
        # DDP would exchange buffers in each forward, of which ranks have different numbers.
        passes = self._ranks.module if self._ranks.lockstep else self._passes
        done: T = passes(work)
        return done

    def backward(self, loss: Tensor) -> None:
        self._accelerator.sync_gradients = False
        with self._accelerator.no_sync(self._ranks.module):
            self._accelerator.backward(loss * self._ranks.size)

    def step(self, learning_rate: float, score: Callable[[], TokenScores] | None = None) -> float:
        assert score is not None
        self._adamw.param_groups[0]["lr"] = learning_rate
        self._accelerator.sync_gradients = True
        self._accelerator.backward(self._ranks.module(score).logp.sum() * 0)
        norm = self._accelerator.clip_grad_norm_(self._held(), self._max_grad_norm)
        self._adamw.step()
        return float(_whole(norm))

    @property
    def overflowed(self) -> bool:
        return bool(self._adamw.step_was_skipped)

    def zero_grad(self) -> None:
        self._accelerator.sync_gradients = True  # accelerate ignores the call otherwise
        super().zero_grad()

    def share_weights(self) -> None:
        if self._ranks.divides_weights:
            self._local.whole_adapter = self.adapter()

    def _begin(self) -> None:
        self._passes = _Passes(self._local)
        self._ranks.module, self._adamw = self._accelerator.prepare(self._passes, self._adamw)
        super()._begin()
        if self._ranks.divides_weights:
            self.share_weights()
            # The whole weights are laid out once, and learn if the adapter is switched on then.
            with self._ranks.whole_weights():
                pass

    def _own_tensors(self) -> list[Tensor]:
        return [getattr(own, "_local_tensor", own) for own in super()._own_tensors()]

    def _read(self, key: str | None) -> list[Tensor]:
        return [_whole(tensor) for tensor in super()._read(key)]

    def _write(self, key: str | None, values: Sequence[Tensor]) -> None:
        held = self._held() if key is None else [state[key] for state in self._states()]
        super()._write(key, [_part_like(t, v) for t, v in zip(held, values, strict=True)])


class DeepSpeedOptimiser(PreparedOptimiser):
    """DeepSpeed's engine: ZeRO keeps AdamW's state as flat pieces, a part on each rank."""

    def backward(self, loss: Tensor) -> None:
        # DeepSpeed divides by the accumulation steps that its file names.
        steps = self._accelerator.deepspeed_plugin.get_value("gradient_accumulation_steps")
        super().backward(loss * steps)

    def _begin(self) -> None:
        config = self._accelerator.deepspeed_plugin.deepspeed_config
        config["train_micro_batch_size_per_gpu"] = 1  # batches are none of its business
        config["gradient_clipping"] = self._max_grad_norm
        super()._begin()
        # DeepSpeed links its pieces of the moments with the weights at the first step; they are
        # read, or put back, before.
        self._adamw.optimizer._lazy_init_hp_params_optimizer_state()

    def _own_tensors(self) -> list[Tensor]:
        named = [parameter.detach() for _, parameter in self._local.trainable_parameters()]
        return [*named, *super()._own_tensors()]

    def _read(self, key: str | None) -> list[Tensor]:
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        named = self._local.trainable_parameters()
        if key is None:
            return [safe_get_full_fp32_param(parameter).clone() for _, parameter in named]
        return [safe_get_full_optimizer_state(parameter, key).clone() for _, parameter in named]

    @torch.no_grad()
    def _write(self, key: str | None, values: Sequence[Tensor]) -> None:
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

        for (_, parameter), value in zip(self._local.trainable_parameters(), values, strict=True):
            if key is None:
                parameter.copy_(value)
                safe_set_full_fp32_param(parameter, value)
            else:
                safe_set_full_optimizer_state(parameter, value, key)


def _whole(tensor: Any) -> Any:
    """Of a tensor that is divided over the ranks; any other as it is."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _part_like(tensor: Any, value: Tensor) -> Tensor:
    """A whole value divided as a tensor is; every rank has it, so nothing is sent."""
    if not hasattr(tensor, "full_tensor"):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(
        value.to(tensor.device), tensor.device_mesh, tensor.placements, src_data_rank=None
    )


@frozen
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
    tell: Tell,
) -> grpo.GRPOEngine:
    """The engine of rank 0, once the others have theirs.

    Raises PolicyError: another rank is gone.
    """
    alike = replace(local.settings, threads=local.threads)
    opening = OpenModel(alike, local.adapter_state(), settings, total_steps, seed)
    ranks.send(opening)
    return _build_engine(ranks, local, opening, tell)


def run_rank_worker(ranks: AcceleratedRanks) -> None:
    """Do as rank 0 says until it says stop.

    Raises PolicyError: rank 0 is gone, or the weights here came to differ from its own.
    """
    local: LocalModel | None = None
    engine: grpo.GRPOEngine | None = None
    while (word := ranks.receive()) != STOP:
        if isinstance(word, OpenModel):
            own = replace(word.local, device=str(ranks.accelerator.device))
            local = load_local(own, lambda line: None)
            local.load_adapter_state(word.adapter)
            engine = _build_engine(ranks, local, word, lambda line: None)  # rank 0 says it
            continue
        assert local is not None and engine is not None, "rank 0 opens first"
        match word:
            case DecodeShares(shares=shares):
                _decode_and_gather(ranks, local, shares[ranks.rank], DecodeHooks())
            case EngineCall(method=method, arguments=arguments):
                with suppress(UpdateCancelled):  # as on rank 0, where nobody waits for it any more
                    getattr(engine, method)(*arguments)
            case _:
                raise TypeError(f"rank 0 said {word!r}")


def _build_engine(
    ranks: AcceleratedRanks, local: LocalModel, word: OpenModel, tell: Tell
) -> grpo.GRPOEngine:
    kind = DeepSpeedOptimiser if ranks.deepspeed else PreparedOptimiser
    engine = grpo.GRPOEngine(
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
