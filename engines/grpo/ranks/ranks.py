"""How the processes of one training run add up what each has computed.

Owns the protocol and the case of a single process. Every rank is given the whole batch and the
same calls in the same order; `share` says which part of it is its own to compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


class Ranks(Protocol):
    """The processes that train together. Every call but `share` is made by all of them."""

    @property
    def rank(self) -> int:
        """Of this process, from 0."""
        ...

    @property
    def size(self) -> int: ...

    def share(self, items: Sequence[T]) -> list[T]:
        """The items that this rank computes: each item belongs to exactly one rank."""
        ...

    def all_sum(self, tensor: Tensor) -> Tensor:
        """The sum over ranks, the same bits on each of them; the argument may be overwritten."""
        ...

    def all_max(self, tensor: Tensor) -> Tensor:
        """The elementwise maximum over ranks; the argument may be overwritten."""
        ...


class OneRank:
    """A single process: what it has computed is all there is."""

    rank = 0
    size = 1

    def share(self, items: Sequence[T]) -> list[T]:
        return list(items)

    def all_sum(self, tensor: Tensor) -> Tensor:
        return tensor

    def all_max(self, tensor: Tensor) -> Tensor:
        return tensor


def strided_share(items: Sequence[T], rank: int, size: int) -> list[T]:
    """Every size-th item, from the rank's own number on."""
    return list(items[rank::size])


ALONE: Ranks = OneRank()
