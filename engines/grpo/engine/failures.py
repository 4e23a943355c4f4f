"""How the computing of an update fails."""

from __future__ import annotations

import torch


class NonFiniteUpdate(Exception):
    """A loss or a gradient is no finite number; says where."""


class OutOfMemory(Exception):
    """A forward or backward pass did not fit; `size` is the most that one held."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class UpdateCancelled(Exception):
    """Nobody waits for the result any more."""


def is_out_of_memory(error: RuntimeError) -> bool:
    text = str(error).lower()  # the CPU's allocator has no class of its own for it
    return isinstance(error, torch.OutOfMemoryError) or any(
        words in text for words in ("out of memory", "can't allocate memory")
    )
