"""AdamW whose moments are spread over the ranks: each keeps those of its part of the weights.

Owns the partition. Every rank has the whole gradient (its norm is clipped) and the whole weights;
after a step each has moved its part and they exchange the results.

Source: ZeRO, arXiv:1910.02054 §5.1 (optimiser states).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from engines.grpo.engine.optimiser import Optimiser, Snapshot

if TYPE_CHECKING:
    from torch import Tensor

    from engines.grpo.ranks.ranks import Ranks
    from engines.grpo.settings import GRPOSettings
    from engines.policies.hf_local.model import LocalModel


class ShardedOptimiser(Optimiser):
    """As `Optimiser`; moments in its snapshots are those of this rank's part.

    `load` also takes a snapshot with the moments of all weights, as checkpoints have them.
    """

    def __init__(self, local: LocalModel, settings: GRPOSettings, *, ranks: Ranks) -> None:
        self._ranks = ranks
        super().__init__(local, settings)

    @property
    def part(self) -> slice:
        """Which elements of the vector of weights are this rank's."""
        whole, size = self._whole.numel(), self._ranks.size
        return slice(whole * self._ranks.rank // size, whole * (self._ranks.rank + 1) // size)

    def snapshot(self) -> Snapshot:
        own = super().snapshot()
        return Snapshot(self._whole.clone(), own.first, own.second, own.moments)

    def step(self, gradient: Tensor, learning_rate: float) -> None:
        super().step(gradient[self.part].contiguous(), learning_rate)

    def _set_master(self, master: Tensor, snapshot: Snapshot | None) -> None:
        self._whole = master
        if snapshot is not None and snapshot.first.numel() == master.numel():
            snapshot = replace(
                snapshot, first=snapshot.first[self.part], second=snapshot.second[self.part]
            )
        super()._set_master(master[self.part].clone(), snapshot)

    def _update_model(self) -> None:
        """After a step: fetch what the other ranks made of their parts. All call it."""
        moved = torch.zeros_like(self._whole)
        moved[self.part] = self._master.detach()
        self._whole = self._ranks.all_sum(moved)  # each element has one term that is not 0
        self._copy_to_model(self._whole)
