"""The order in which a run meets its problems: step → indices of the problems in its batch.

It follows from (seed, epoch) alone: a resumed run needs no other cursor than its step.
"""

import random
from functools import lru_cache

from engines.core.codec import seed_for
from engines.core.frozen import frozen


@frozen
class Sampler:
    """Batches of a run; steps and epochs count from 1 over the whole run."""

    n: int  # problems in the data set
    batch_size: int  # problems a step; the last batch of an epoch holds the remainder
    epochs: int  # times every problem is met
    seed: int  # of the run
    shuffle: bool = True  # False keeps the order of the file in every epoch
    truncate: int | None = None  # only the first so many, cut before shuffling; None: all of them

    def __post_init__(self) -> None:
        for name in ("n", "batch_size", "epochs", "truncate"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")

    @property
    def problems_per_epoch(self) -> int:
        return self.n if self.truncate is None else min(self.n, self.truncate)

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.problems_per_epoch // self.batch_size)

    @property
    def total_steps(self) -> int:
        return self.steps_per_epoch * self.epochs

    def epoch_of(self, step: int) -> int:
        """The epoch a step belongs to; step 0, before the first, is epoch 0."""
        self._check(step, lowest=0)
        return -(-step // self.steps_per_epoch)

    def ends_epoch(self, step: int) -> bool:
        self._check(step)
        return step % self.steps_per_epoch == 0

    def order(self, epoch: int) -> tuple[int, ...]:
        """Indices of all problems as the epoch meets them."""
        if not self.shuffle:
            return tuple(range(self.problems_per_epoch))
        return _shuffled_indices(self.problems_per_epoch, self.seed, epoch)

    def batch(self, step: int) -> tuple[int, ...]:
        """Indices of the step's problems; position in the tuple is position in the batch."""
        self._check(step)
        start = (step - 1) % self.steps_per_epoch * self.batch_size
        return self.order(self.epoch_of(step))[start : start + self.batch_size]

    def _check(self, step: int, lowest: int = 1) -> None:
        if not lowest <= step <= self.total_steps:
            raise ValueError(f"step {step} is outside {lowest} to {self.total_steps}")


@lru_cache(maxsize=8)
def _shuffled_indices(count: int, seed: int, epoch: int) -> tuple[int, ...]:
    # Cached: every step of an epoch asks for the same order.
    indices = list(range(count))
    random.Random(seed_for(seed, "order", epoch)).shuffle(indices)
    return tuple(indices)
