"""AdamW and the model as accelerate prepares them: DDP, FSDP2, or DeepSpeed's engine.

All of them reduce to the mean of the ranks' gradients. Losses here are shares of one loss, so
each is multiplied with the number of ranks. They reduce once to an optimiser step, in a last pass
that every rank makes, whatever it had to compute before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from engines.grpo.engine.optimiser import Optimiser
from engines.grpo.forward.forward import TokenScores

if TYPE_CHECKING:
    from torch import Tensor

    from engines.grpo.ranks.accelerated import AcceleratedRanks
    from engines.grpo.settings import GRPOSettings
    from engines.policies.hf_local.model import LocalModel

T = TypeVar("T")


class _Passes(nn.Module):
    """A module whose forward is any work with the model, so that its hooks are around that."""

    def __init__(self, local: LocalModel) -> None:
        super().__init__()
        self.model = local.model
        # What FSDP divides by, and how it ties weights again that are one tensor.
        self._no_split_modules = local.base._no_split_modules
        self.tie_weights = local.base.tie_weights

    def forward(self, work: Callable[[], TokenScores]) -> TokenScores:
        # FSDP warns of views, on which its hooks can be lost.
        return TokenScores(*(scores.clone() for scores in work()))


class PreparedOptimiser(Optimiser):
    """As accelerate has DDP and FSDP2. All ranks make the same calls."""

    def __init__(
        self, local: LocalModel, settings: GRPOSettings, *, ranks: AcceleratedRanks
    ) -> None:
        self._ranks, self._accelerator = ranks, ranks.accelerator
        super().__init__(local, settings)

    def forward(self, work: Callable[[], T]) -> T:
        # DDP would exchange buffers in each forward, of which ranks have different numbers.
        passes = self._ranks.module if self._ranks.lockstep else self._passes
        done: T = passes(work)
        return done

    def backward(self, loss: Tensor) -> None:
        self._accelerator.sync_gradients = False
        with self._accelerator.no_sync(self._ranks.module):
            self._accelerator.backward(loss * self._ranks.size)

    def step(self, learning_rate: float, score: Callable[[], TokenScores] | None = None) -> float:
        assert score is not None
        self._adamw.param_groups[0]["lr"] = learning_rate
        self._accelerator.sync_gradients = True
        self._accelerator.backward(self._ranks.module(score).logp.sum() * 0)
        norm = self._accelerator.clip_grad_norm_(self._held(), self._max_grad_norm)
        self._adamw.step()
        return float(_whole(norm))

    @property
    def overflowed(self) -> bool:
        return bool(self._adamw.step_was_skipped)

    def zero_grad(self) -> None:
        self._accelerator.sync_gradients = True  # accelerate ignores the call otherwise
        super().zero_grad()

    def share_weights(self) -> None:
        if self._ranks.divides_weights:
            self._local.whole_adapter = self.adapter()

    def _begin(self) -> None:
        self._passes = _Passes(self._local)
        self._ranks.module, self._adamw = self._accelerator.prepare(self._passes, self._adamw)
        super()._begin()
        if self._ranks.divides_weights:
            self.share_weights()
            # The whole weights are laid out once, and learn if the adapter is switched on then.
            with self._ranks.whole_weights():
                pass

    def _own_tensors(self) -> list[Tensor]:
        return [getattr(own, "_local_tensor", own) for own in super()._own_tensors()]

    def _read(self, key: str | None) -> list[Tensor]:
        return [_whole(tensor) for tensor in super()._read(key)]

    def _write(self, key: str | None, values: Sequence[Tensor]) -> None:
        held = self._held() if key is None else [state[key] for state in self._states()]
        super()._write(key, [_part_like(t, v) for t, v in zip(held, values, strict=True)])


class DeepSpeedOptimiser(PreparedOptimiser):
    """DeepSpeed's engine: ZeRO keeps AdamW's state as flat pieces, a part on each rank."""

    def backward(self, loss: Tensor) -> None:
        # DeepSpeed divides by the accumulation steps that its file names.
        steps = self._accelerator.deepspeed_plugin.get_value("gradient_accumulation_steps")
        super().backward(loss * steps)

    def _begin(self) -> None:
        config = self._accelerator.deepspeed_plugin.deepspeed_config
        config["train_micro_batch_size_per_gpu"] = 1  # batches are none of its business
        config["gradient_clipping"] = self._max_grad_norm
        super()._begin()
        # DeepSpeed links its pieces of the moments with the weights at the first step; they are
        # read, or put back, before.
        self._adamw.optimizer._lazy_init_hp_params_optimizer_state()

    def _own_tensors(self) -> list[Tensor]:
        named = [parameter.detach() for _, parameter in self._local.trainable_parameters()]
        return [*named, *super()._own_tensors()]

    def _read(self, key: str | None) -> list[Tensor]:
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        named = self._local.trainable_parameters()
        if key is None:
            return [safe_get_full_fp32_param(parameter).clone() for _, parameter in named]
        return [safe_get_full_optimizer_state(parameter, key).clone() for _, parameter in named]

    @torch.no_grad()
    def _write(self, key: str | None, values: Sequence[Tensor]) -> None:
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

        for (_, parameter), value in zip(self._local.trainable_parameters(), values, strict=True):
            if key is None:
                parameter.copy_(value)
                safe_set_full_fp32_param(parameter, value)
            else:
                safe_set_full_optimizer_state(parameter, value, key)


def _whole(tensor: Any) -> Any:
    """Of a tensor that is divided over the ranks; any other as it is."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _part_like(tensor: Any, value: Tensor) -> Tensor:
    """A whole value divided as a tensor is; every rank has it, so nothing is sent."""
    if not hasattr(tensor, "full_tensor"):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(
        value.to(tensor.device), tensor.device_mesh, tensor.placements, src_data_rank=None
    )
