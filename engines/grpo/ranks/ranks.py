"""How the processes of one training run do the same work and add up what each has computed.

Every rank is given the whole batch and the same calls in the same order.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


class UpdateCancelled(Exception):
    """Nobody waits for the result any more: raised on every rank."""


class Ranks:
    """A single process: what it has computed is all there is.

    A subclass joins several. Every call but `share` is then made by all of them.
    """

    rank = 0  # of this process
    size = 1
    lockstep = False  # every pass through the model must be made by all ranks at once

    def share(self, items: Sequence[T], rank: int | None = None) -> list[T]:
        """The items that this rank, or another, computes: each belongs to exactly one rank."""
        return list(items[self.rank if rank is None else rank :: self.size])

    def gather(self, tensor: "Tensor") -> "Tensor":
        """(ranks, …): the tensors of all ranks, the same on each of them."""
        return tensor[None]

    def together(self, method: str, *arguments: object) -> AbstractContextManager[None]:
        """Around what a method of rank 0's engine does: the others do it, too."""
        return nullcontext()

    def check_agreement(self, weights_digest: Callable[[], str]) -> None:
        """Raises PolicyError: on every rank, where one has other weights than rank 0."""


ALONE = Ranks()
