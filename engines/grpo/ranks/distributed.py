"""The processes of one training run: how they find each other, add up, and hear what is next.

Owns the process group and the channel on which rank 0 tells the others what to do. Reads no
environment; who starts the processes says which one this is.

Failures: whoever ends without a word closes its connections, and every other rank's next
exchange then fails at once. A rank that hangs is given up after `TIMEOUT_S`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from engines.core.errors import PolicyError
from engines.grpo.ranks.ranks import Ranks

TIMEOUT_S = 1800.0
"""Longest silence between ranks: the decoding of one batch, not the wait for a person, since
rank 0 says every `BEAT_S` that it is still there."""
BEAT_S = 60.0
PLACE = "distributed training"
STOP, HEARTBEAT = "stop", "heartbeat"
"""The word after which the other ranks end, and that by which they know that rank 0 is there."""
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class RankProcess:
    """Which process of a run this is. `local_rank` counts on its own machine."""

    rank: int
    size: int
    local_rank: int
    address: str  # where they meet, as `torch.distributed` has it: tcp://HOST:PORT, file://PATH


class DistributedRanks(Ranks):
    """This process among the others.

    Made by all of them at the same time, and waits until all are there. With `gpu` sums are made
    between GPUs (nccl), else on the CPU (gloo), as words always are. `sharded`: each rank keeps
    the optimiser's moments of its part of the weights only.

    Raises PolicyError: the others did not come.
    """

    def __init__(
        self,
        process: RankProcess,
        *,
        gpu: bool,
        sharded: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.rank, self.size = process.rank, process.size
        self.local_rank = process.local_rank
        self.gpu, self.sharded = gpu, sharded
        self.apart = ""  # why nothing can be done together any more
        self.over = threading.Event()  # set when it is let go of, so that nobody speaks later
        self._speaking = threading.Lock()  # one word at a time: rank 0 also speaks from a thread
        if gpu:
            torch.cuda.set_device(process.local_rank)
        try:
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if gpu else "gloo",
                init_method=process.address,
                rank=self.rank,
                world_size=self.size,
                timeout=timedelta(seconds=timeout_s),
            )
        except (RuntimeError, ValueError) as error:
            raise PolicyError(
                PLACE,
                f"the {self.size} processes did not find each other ({_short_error_text(error)}).",
                "See that all of them run and that nothing else uses the port.",
            ) from error

    def device_like(self, kind: str) -> str:
        """Where this rank's model belongs if rank 0's is on a device of a kind ("cuda", "cpu")."""
        return f"{kind}:{self.local_rank}" if kind == "cuda" else kind

    def all_sum(self, tensor: Tensor) -> Tensor:
        return self._reduce(tensor, dist.ReduceOp.SUM)

    def all_max(self, tensor: Tensor) -> Tensor:
        return self._reduce(tensor, dist.ReduceOp.MAX)

    def send(self, word: object) -> None:
        """Tell every other rank, by pickle: the channel is ours alone. For rank 0.

        Raises PolicyError: a rank is gone, or was before.
        """
        with self._speaking:
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

    def stop(self) -> None:
        """Let the other ranks go, and do nothing together again; for rank 0."""
        self.over.set()
        with suppress(PolicyError):  # they are gone already
            self.send(STOP)
        self.apart = self.apart or "the run has ended"

    def gather(self, word: Any) -> list[Any]:
        """What each rank says, in order of ranks; empty on all but rank 0."""
        words: list[Any] = [None] * self.size
        with _explain_lost_rank():
            dist.gather_object(word, words if self.rank == 0 else None, dst=0)
        return words if self.rank == 0 else []

    def check_agreement(self, word: str, what: str) -> None:
        """Return where every rank says the same.

        Raises PolicyError: on every rank, where one differs.
        """
        words: list[Any] = [None] * self.size
        with _explain_lost_rank():
            dist.all_gather_object(words, word)
        odd = [rank for rank, said in enumerate(words) if said != words[0]]
        if odd:
            raise PolicyError(
                PLACE,
                f"{what} of rank {odd[0]} differs from rank 0's, so the ranks would train apart.",
                "Resume the run; if it happens again, use the same versions and devices on "
                "every machine.",
            )

    def close(self) -> None:
        """Let go of the others; whoever still waits for this rank fails at once."""
        self.over.set()
        if dist.is_initialized():
            dist.destroy_process_group()

    def _broadcast(self, word: object) -> object:
        words = [word]
        with _explain_lost_rank():
            dist.broadcast_object_list(words, src=0, device=_CPU)
        return words[0]

    def _reduce(self, tensor: Tensor, how: Any) -> Tensor:
        with _explain_lost_rank():
            dist.all_reduce(tensor, how)
        return tensor


def gpu_count() -> int:
    """How many this process sees."""
    return torch.cuda.device_count()


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
