"""The decoder for what the fast one does not know: transformers' own forward, token by token.

Also shares the computation of a prompt among its rows, as far as the model's cache can be
expanded.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from engines.policies.hf_local.model import LocalModel


class PlainDecoder:
    """Decodes one batch; see `FastDecoder` for the methods."""

    def __init__(self, local: LocalModel) -> None:
        self.local = local
        named = inspect.signature(local.base.forward).parameters
        self.takes_positions = "position_ids" in named
        self.last_only = {"logits_to_keep": 1} if "logits_to_keep" in named else {}

    def start(self, prompts: Sequence[Sequence[int]], owner: Sequence[int], total: int) -> Tensor:
        pad, device = self.local.pad_id, self.local.device
        width = max(map(len, prompts))
        ids = torch.tensor([[pad] * (width - len(p)) + [*p] for p in prompts], device=device)
        rows = torch.tensor(owner, device=device)
        lengths = torch.tensor([len(p) for p in prompts], device=device)
        self.seen = (torch.arange(width, device=device) >= width - lengths[:, None]).long()
        positions = (self.seen.cumsum(-1) - 1).clamp_(min=0)
        if len(prompts) < len(owner) and not self._can_expand():
            ids, self.seen, positions = ids[rows], self.seen[rows], positions[rows]
            rows = torch.arange(len(owner), device=device)
        self.cache: Any = None
        logits = self._forward(ids, positions)
        self.position = positions[:, -1:]
        if len(rows) > len(ids):
            self.keep(rows)
        return logits[rows]

    def step(self, tokens: Tensor) -> Tensor:
        self.seen = torch.cat((self.seen, torch.ones_like(self.seen[:, :1])), 1)
        self.position = self.position + 1
        return self._forward(tokens[:, None], self.position)

    def keep(self, rows: Tensor) -> None:
        self.cache.batch_select_indices(rows)
        self.seen, self.position = self.seen[rows], self.position[rows]

    @property
    def can_drop(self) -> bool:
        return hasattr(self.cache, "batch_select_indices")

    def _can_expand(self) -> bool:
        from transformers import DynamicCache

        return not getattr(self.local.base, "_is_stateful", False) and hasattr(
            DynamicCache, "batch_select_indices"
        )

    def _forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """(N, T) → (N, V), logits after the last of the T."""
        own = {"position_ids": positions} if self.takes_positions else {}
        out = self.local.model(
            input_ids=ids,
            attention_mask=self.seen,
            past_key_values=self.cache,
            use_cache=True,
            **own,
            **self.last_only,
        )
        self.cache = out.past_key_values
        logits: Tensor = out.logits[:, -1]
        return logits
