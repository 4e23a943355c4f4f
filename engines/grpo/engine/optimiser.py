"""AdamW over everything that learns, its schedule, and its state as it is kept and saved.

Adapters are float32 whatever the base model is, as PEFT makes them: a bfloat16 would round small
steps away. The learning rate counts steps in which the optimiser has moved, which it has not for a
batch without contrast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from engines.core.errors import PolicyError
from engines.core.frozen import frozen
from engines.grpo.settings import GRPOSettings, Schedule, SFTSettings

if TYPE_CHECKING:
    from torch import Tensor

    from engines.grpo.loss.loss import TokenScores
    from engines.policies.hf_local.model import LocalModel


T = TypeVar("T")

MOMENTS = {"first_moment": "exp_avg", "second_moment": "exp_avg_sq"}
"""What a checkpoint calls AdamW's means of gradients and of their squares, and what torch does."""


@frozen
class Snapshot:
    """Weights and moments at one moment, this process's part of them; nothing else has them."""

    tensors: tuple[Tensor, ...]
    moments: int  # steps that the two means have seen


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
        self._local, self._max_grad_norm = local, settings.max_grad_norm
        self._shapes = {name: parameter.shape for name, parameter in named}
        self._adamw: Any = torch.optim.AdamW(
            [parameter for _, parameter in named], lr=0.0, weight_decay=0.0
        )
        self._begin()

    def restart(self, adapter: Mapping[str, Tensor]) -> None:
        """Begin anew from an adapter. Raises ValueError: it is not of the model's shape."""
        self._local.check_adapter(adapter)
        self._write(None, [adapter[name] for name in self._shapes])
        self._forget_moments()

    def snapshot(self) -> Snapshot:
        return Snapshot(tuple(own.clone() for own in self._own_tensors()), self.moments)

    @torch.no_grad()
    def load(self, snapshot: Snapshot) -> None:
        for own, kept in zip(self._own_tensors(), snapshot.tensors, strict=True):
            own.copy_(kept)
        self._set_moments(snapshot.moments)

    @property
    def moments(self) -> int:
        """Steps that the moments have seen."""
        return int(next(iter(self._states()))["step"])

    def adapter(self) -> dict[str, Tensor]:
        """Copies of the weights, by name."""
        return dict(zip(self._shapes, self._read(None), strict=True))

    def moment_vectors(self) -> dict[str, Tensor]:
        """(P,) each, on the CPU: the moments of all weights, in order of their names."""
        return {
            name: torch.cat([part.reshape(-1).cpu() for part in self._read(key)])
            for name, key in MOMENTS.items()
        }

    def load_moments(self, vectors: Mapping[str, Tensor], moments: int) -> None:
        """Take over what `moment_vectors` gave, after so many steps."""
        sizes = [shape.numel() for shape in self._shapes.values()]
        for name, key in MOMENTS.items():
            parts = zip(torch.split(vectors[name], sizes), self._shapes.values(), strict=True)
            self._write(key, [part.view(shape) for part, shape in parts])
        self._set_moments(moments)

    def zero_grad(self) -> None:
        self._adamw.zero_grad()

    def forward(self, work: Callable[[], T]) -> T:
        """Do work with the model; all passes whose gradient counts are made here."""
        return work()

    def backward(self, loss: Tensor) -> None:
        """Add a loss's gradient; those of all ranks are summed."""
        loss.backward()  # type: ignore[no-untyped-call]

    def step(self, learning_rate: float, score: Callable[[], TokenScores] | None = None) -> float:
        """Clip what has accumulated and move; returns the norm that it had.

        Where ranks train together, `score` is a last pass of each, whose loss does not count.
        """
        self._adamw.param_groups[0]["lr"] = learning_rate
        norm = torch.nn.utils.clip_grad_norm_(self._held(), self._max_grad_norm)
        self._adamw.step()
        return float(norm)

    @property
    def overflowed(self) -> bool:
        """Whether the last step moved nothing, since scaled gradients in float16 overflowed."""
        return False

    def share_weights(self) -> None:
        """After a change that stays: give the model what others may read of it at any time."""

    def _begin(self) -> None:
        """The state of AdamW, which torch makes at its first step."""
        for held in self._held():
            self._adamw.state[held] = {
                "step": torch.tensor(0.0),
                **{key: torch.zeros_like(held.detach()) for key in MOMENTS.values()},
            }

    def _held(self) -> Sequence[Tensor]:
        """What AdamW moves: a parameter for each name, or this rank's part of it."""
        held: Sequence[Tensor] = self._adamw.param_groups[0]["params"]
        return held

    def _states(self) -> list[dict[str, Tensor]]:
        return [self._adamw.state[held] for held in self._held()]

    def _own_tensors(self) -> list[Tensor]:
        """Everything that a step changes, as far as it lies in this process."""
        moments = [state[key] for state in self._states() for key in MOMENTS.values()]
        return [tensor.detach() for tensor in (*self._held(), *moments)]

    def _forget_moments(self) -> None:
        for state in self._states():
            for key in MOMENTS.values():
                state[key].zero_()
        self._set_moments(0)

    def _set_moments(self, moments: int) -> None:
        for state in self._states():
            state["step"].fill_(moments)

    def _read(self, key: str | None) -> list[Tensor]:
        """By name, whole: copies of the weights (None), or of a moment of each."""
        found = self._held() if key is None else [state[key] for state in self._states()]
        return [tensor.detach().clone() for tensor in found]

    @torch.no_grad()
    def _write(self, key: str | None, values: Sequence[Tensor]) -> None:
        """The reverse of `_read`."""
        held = self._held() if key is None else [state[key] for state in self._states()]
        for tensor, value in zip(held, values, strict=True):
            tensor.copy_(value)


def schedule_factor(done: int, planned: int, *, schedule: Schedule, warmup: float) -> float:
    """What the learning rate is multiplied with at the next optimiser step.

    `done` steps of `planned` were taken before it. The rate rises over the share `warmup` of
    them, where the first step already moves; then it stays, or falls to 0 on a line or half a
    cosine.
    """
    rising = math.ceil(warmup * planned)
    if done < rising:
        return (done + 1) / rising
    if schedule == "constant":
        return 1.0
    progress = min(1.0, (done - rising) / max(1, planned - rising))
    if schedule == "linear":
        return 1.0 - progress
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def learning_rate(curve: GRPOSettings | SFTSettings, done: int, planned: int) -> float:
    """Of the next optimiser step, `done` of `planned` having been taken."""
    return curve.learning_rate * schedule_factor(
        done, planned, schedule=curve.schedule, warmup=curve.warmup
    )
