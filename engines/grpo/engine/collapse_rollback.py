"""Where a collapsed run goes back to: the guard's memory, and the weights that it names.

Whether a run has collapsed is judged by `collapse`; going back is the engine's.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from engines.core.types import Group
from engines.grpo.engine import collapse
from engines.grpo.settings import GRPOSettings

if TYPE_CHECKING:
    from torch import Tensor

    from engines.policies.hf_local.model import LocalModel


class CollapseRollback:
    """Watches the reward, and keeps the adapters that a fall may lead back to."""

    def __init__(self, settings: GRPOSettings, local: LocalModel) -> None:
        self._drop, self._patience = settings.collapse_drop, settings.collapse_patience
        self._local = local
        self._watch = collapse.CollapseState()
        self._kept: dict[int, dict[str, Tensor]] = {}  # by the step that made them

    def observe_batch(self, batch: Sequence[Group], weights: int) -> collapse.Collapse | None:
        """Take a batch in, with the step whose weights made it; whether the run has collapsed."""
        means = [statistics.fmean(group.rewards) for group in batch if group.rewards]
        entry = collapse.batch_reward(batch[0].step, weights, means)
        if entry is None or self._drop is None:
            return None
        if weights not in self._kept:
            now = self._local.adapter_state()
            self._kept[weights] = {name: tensor.cpu() for name, tensor in now.items()}
        self._watch = collapse.add_batch(
            self._watch, entry, self._kept.keys(), patience=self._patience
        )
        needed = collapse.weights_to_keep(self._watch, patience=self._patience)
        self._kept = {step: kept for step, kept in self._kept.items() if step in needed}
        return collapse.find_collapse(self._watch, drop=self._drop, patience=self._patience)

    def give_up(self, step: int) -> None:
        """Watch no more: with the weights of the beginning it is no better."""
        self._watch = replace(self._watch, given_up=step)
        self._kept = {}

    def roll_back(self, to: int, step: int) -> None:
        """Give the model the adapter of step `to`; `step` is the one that asked for it."""
        self._local.load_adapter_state(self._kept[to])
        self._watch = collapse.record_rollback(self._watch, to, step)

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Plain values, and the kept adapters, each tensor's name behind `STEP/`."""
        kept = {
            f"{step}/{name}": tensor
            for step, adapter in sorted(self._kept.items())
            for name, tensor in adapter.items()
        }
        return asdict(self._watch), kept

    def load(self, remembered: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Go on from what `state` gave."""
        self._watch, self._kept = collapse.collapse_state_from_dict(remembered), {}
        for key, tensor in tensors.items():
            step, _, name = key.partition("/")
            self._kept.setdefault(int(step), {})[name] = tensor
