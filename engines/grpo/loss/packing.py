"""Several examples in one row, each as if it stood alone.

Positions begin again with every example, from which transformers makes an
attention mask that keeps them apart (wherever no other mask and no cache is given).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engines.grpo.loss.sft_data import Example


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """R rows of L positions; an example's tokens stand next to each other in one row."""

    ids: Tensor  # (R, L) int64
    positions: Tensor  # (R, L) int64, from 0 in each example and in each row's padding
    targets: Tensor  # (R, L) int64, the token after each position; 0 where not learnt
    learnt: Tensor  # (R, L) bool, True where that token belongs to a reply

    @property
    def tokens(self) -> int:
        """How many are learnt."""
        return int(self.learnt.sum())

    def to(self, device: torch.device) -> PackedBatch:
        parts = (self.ids, self.positions, self.targets, self.learnt)
        return PackedBatch(*(part.to(device) for part in parts))


def pack_into_rows(examples: Sequence[Example], limit: int) -> list[list[Example]]:
    """Rows of at most `limit` tokens: first fit, the longest first; ties keep their order.

    An example longer than `limit` has a row for itself.
    """
    rows: list[list[Example]] = []
    room: list[int] = []
    for example in sorted(examples, key=len, reverse=True):
        size = len(example)
        at = next((n for n, left in enumerate(room) if size <= left), None)
        if at is None:
            rows.append([example])
            room.append(limit - size)
        else:
            rows[at].append(example)
            room[at] -= size
    return rows


def group_into_forwards(rows: Sequence[list[Example]], limit: int) -> list[list[list[Example]]]:
    """Neighbouring rows taken together while rows times the longest stay within `limit`."""
    taken: list[list[list[Example]]] = []
    longest = 0
    for row in rows:
        size = sum(len(example) for example in row)
        if taken and max(longest, size) * (len(taken[-1]) + 1) <= limit:
            taken[-1].append(row)
            longest = max(longest, size)
        else:
            taken.append([row])
            longest = size
    return taken


def pack(rows: Sequence[Sequence[Example]], pad_id: int) -> PackedBatch:
    """Lay rows out, padded on the right."""
    width = max(sum(len(example) for example in row) for row in rows)
    ids = torch.full((len(rows), width), pad_id, dtype=torch.int64)
    positions = torch.zeros_like(ids)
    targets = torch.zeros_like(ids)
    learnt = torch.zeros_like(ids, dtype=torch.bool)
    for number, row in enumerate(rows):
        at = 0
        for example in row:
            size, shown = len(example), len(example.prompt_ids)
            whole = torch.tensor((*example.prompt_ids, *example.token_ids), dtype=torch.int64)
            ids[number, at : at + size] = whole
            positions[number, at : at + size] = torch.arange(size)
            targets[number, at : at + size - 1] = whole[1:]
            # Position p predicts p + 1; nothing predicts the first token of an example.
            learnt[number, at + max(0, shown - 1) : at + size - 1] = True
            at += size
        positions[number, at:] = torch.arange(width - at)
    return PackedBatch(ids, positions, torch.where(learnt, targets, 0), learnt)
