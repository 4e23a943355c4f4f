"""How the computing of an update fails."""

from __future__ import annotations

import torch


class NonFiniteUpdate(Exception):
    """A loss or a gradient is no finite number; says where."""


class OutOfMemory(Exception):
    """A forward or backward pass did not fit; the text is for one that was halved before.

    Args:
        size: the most that one pass held.
        what: it is counted in.
        advice: what a person can change.
    """

    def __init__(self, size: int, what: str, advice: str) -> None:
        super().__init__(
            f"out of memory with {size} {what} to a forward, also after halving; {advice}."
        )
        self.size = size


class UpdateCancelled(Exception):
    """Nobody waits for the result any more."""


def is_out_of_memory(error: RuntimeError) -> bool:
    text = str(error).lower()  # the CPU's allocator has no class of its own for it
    return isinstance(error, torch.OutOfMemoryError) or any(
        words in text for words in ("out of memory", "can't allocate memory")
    )
