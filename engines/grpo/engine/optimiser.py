"""AdamW over everything that learns, laid out as one vector of float32.

A model in bfloat16 would round small steps away, so sums are kept here and rounded copies are
given to it. One vector also makes snapshots and sums over ranks single operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from engines.core.errors import PolicyError

if TYPE_CHECKING:
    from torch import Tensor

    from engines.grpo.ranks.ranks import Ranks
    from engines.grpo.settings import GRPOSettings, SFTSettings
    from engines.policies.hf_local.model import LocalModel


MOMENTS = ("first_moment", "second_moment")
"""What the last two tensors of a snapshot are called in a checkpoint; the first is `master`."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Weights and moments at one moment; nothing else refers to the tensors."""

    master: Tensor  # (P,) float32
    first: Tensor  # (P,) float32, mean of gradients
    second: Tensor  # (P,) float32, mean of their squares
    moments: int  # steps that the two means have seen

    def tensors(self) -> dict[str, Tensor]:
        """On the CPU, under the names that a checkpoint has for them."""
        moments = zip(MOMENTS, (self.first.cpu(), self.second.cpu()), strict=True)
        return {"master": self.master.cpu(), **dict(moments)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], moments: int) -> Snapshot:
        """What `tensors` gave, with `moments` beside it."""
        first, second = (tensors[name] for name in MOMENTS)
        return cls(tensors["master"], first, second, moments)


class Optimiser:
    """The weights that learn, their gradient and their moments.

    Raises PolicyError: the model has nothing to train.
    """

    def __init__(self, local: LocalModel, settings: GRPOSettings | SFTSettings) -> None:
        named = local.trainable_parameters()
        if not named:
            raise PolicyError(
                f"policy {local.name!r}",
                "none of its weights can be trained.",
                "Give it an adapter: policy.local.lora.rank, for instance 8.",
            )
        self._parameters = [parameter for _, parameter in named]
        self._home: torch.device = self._parameters[0].device
        self._weight_decay = settings.weight_decay
        self.restart()

    def restart(self) -> None:
        """Begin anew from the weights that the model has."""
        flat = [p.detach().reshape(-1).float().to(self._home) for p in self._parameters]
        self._set_master(torch.cat(flat), None)

    def snapshot(self) -> Snapshot:
        state = self._adamw.state[self._master]
        return Snapshot(
            self._master.detach().clone(),
            state["exp_avg"].clone(),
            state["exp_avg_sq"].clone(),
            int(state["step"].item()),
        )

    def load(self, snapshot: Snapshot) -> None:
        """Take weights and moments over, into the model too."""
        self._set_master(snapshot.master.to(self._home).clone(), snapshot)
        self._copy_to_model(snapshot.master)

    def zero_grad(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def gradient(self) -> Tensor:
        """(P,) float32: what has accumulated since `zero_grad`."""
        return torch.cat(
            [
                (torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1).float()
                for p in self._parameters
            ]
        )

    def step(self, gradient: Tensor, learning_rate: float) -> None:
        """Move against a gradient, already clipped."""
        self._master.grad = gradient
        self._adamw.param_groups[0]["lr"] = learning_rate
        self._adamw.step()
        self._master.grad = None
        self._update_model()

    def _set_master(self, master: Tensor, snapshot: Snapshot | None) -> None:
        self._master = torch.nn.Parameter(master)
        self._adamw = torch.optim.AdamW([self._master], weight_decay=self._weight_decay)
        zeros = torch.zeros_like(master)
        self._adamw.state[self._master] = {
            "step": torch.tensor(float(snapshot.moments if snapshot else 0)),
            "exp_avg": snapshot.first.to(master.device).clone() if snapshot else zeros,
            "exp_avg_sq": snapshot.second.to(master.device).clone() if snapshot else zeros.clone(),
        }

    def _update_model(self) -> None:
        """After a step."""
        self._copy_to_model(self._master)

    @torch.no_grad()
    def _copy_to_model(self, weights: Tensor) -> None:
        sizes = [parameter.numel() for parameter in self._parameters]
        for parameter, piece in zip(self._parameters, torch.split(weights, sizes), strict=True):
            parameter.copy_(piece.view_as(parameter))


class ShardedOptimiser(Optimiser):
    """AdamW whose moments are spread over the ranks: each keeps those of its part of the weights.

    Every rank has the whole gradient (its norm is clipped) and the whole weights; after a step
    each has moved its part and they exchange the results. Moments in its snapshots are those of
    this rank's part; `load` also takes those of all weights, as checkpoints have them.

    Source: ZeRO, arXiv:1910.02054 §5.1 (optimiser states).
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


def clip_gradient(gradient: Tensor, max_norm: float) -> tuple[Tensor, float]:
    """The gradient at no more than a norm, and the norm that it had."""
    norm = float(gradient.norm())
    return (gradient * (max_norm / norm) if norm > max_norm else gradient), norm
