"""The processes of one training run, joined by accelerate, and what rank 0 tells the others.

The only file that imports accelerate, which reads what was started (DDP, FSDP2, DeepSpeed) from
the environment that its launcher sets.

Failures: whoever ends without a word closes its connections, and every other rank's next
exchange then fails at once. A rank that hangs in a computation is given up after `TIMEOUT_S`.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from engines.core.errors import PolicyError
from engines.grpo.ranks.ranks import Ranks, UpdateCancelled

TIMEOUT_S = 1800.0
WAIT = timedelta(days=30)
"""How long a rank waits for the next word: rank 0 also waits, for a person."""
PLACE = "distributed training"
STOP = "stop"


@dataclass(frozen=True, slots=True)
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
            cause = f"the processes did not find each other ({_short_error_text(error)})."
            move = "See that all of them run and that nothing else uses the port."
            raise PolicyError(PLACE, cause, move) from error
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
            move = "Resume the run, which goes on from its last checkpoint."
            raise PolicyError(PLACE, f"the ranks have come apart ({self.apart}).", move)
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
