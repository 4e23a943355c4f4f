"""How the processes of one training run add up what each has computed.

Every rank is given the whole batch and the same calls in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


class Ranks:
    """A single process: what it has computed is all there is.

    A subclass joins several. Every call but `share` is then made by all of them.
    """

    rank = 0  # of this process
    size = 1

    def share(self, items: Sequence[T]) -> list[T]:
        """The items that this rank computes: each item belongs to exactly one rank."""
        return list(items[self.rank :: self.size])

    def all_sum(self, tensor: Tensor) -> Tensor:
        """The sum over ranks, the same bits on each of them; the argument may be overwritten."""
        return tensor

    def all_max(self, tensor: Tensor) -> Tensor:
        """The elementwise maximum over ranks; the argument may be overwritten."""
        return tensor


ALONE = Ranks()
