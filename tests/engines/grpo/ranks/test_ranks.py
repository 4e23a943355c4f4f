"""Who computes what where several processes train together."""

from __future__ import annotations

import pytest

from engines.grpo.ranks.ranks import Ranks


def ranks(size: int) -> list[Ranks]:
    made = []
    for rank in range(size):
        one = Ranks()
        one.rank, one.size = rank, size
        made.append(one)
    return made


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_each_item_is_computed_by_exactly_one_rank(size: int) -> None:
    items = list("abcd")
    shares = [one.share(items) for one in ranks(size)]
    assert sorted(item for share in shares for item in share) == items
