"""Several comparisons at once: Holm's step-down correction of their p-values. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def holm_adjusted(p_values: Sequence[float]) -> tuple[float, ...]:
    """The p-values as they hold for all at once, in the order given.

    The i-th smallest of m becomes max over j <= i of (m - j + 1)·p_(j), at most 1.
    Source: Holm, Scandinavian Journal of Statistics 6 (1979), 65-70.
    """
    found, least = [0.0] * len(p_values), 0.0
    for rank, at in enumerate(sorted(range(len(p_values)), key=lambda at: p_values[at])):
        least = min(1.0, max(least, (len(p_values) - rank) * p_values[at]))
        found[at] = least
    return tuple(found)
