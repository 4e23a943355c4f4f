"""How often each problem of a step is tried, from how its last groups ended. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def tries_by_streak(
    problems: Sequence[str], streaks: Mapping[str, int], group_size: int
) -> tuple[int, ...]:
    """Fewer tries where all were right twice in a row, more where all failed.

    A solved problem keeps one or two, so that forgetting is noticed. What that saves goes to
    problems without a right try, at most twice `group_size` each: a step never makes more tries
    than with `group_size` each. `streaks` is `RunState.streaks`.
    """
    few = fewest_tries(group_size)
    tries = [few if streaks.get(name, 0) >= 2 else group_size for name in problems]
    saved = group_size * len(problems) - sum(tries)
    failed = [at for at, name in enumerate(problems) if streaks.get(name, 0) < 0]
    for number in range(min(saved, group_size * len(failed))):
        tries[failed[number % len(failed)]] += 1
    return tuple(tries)


def fewest_tries(group_size: int) -> int:
    """Of a problem that was right twice; two can still differ where a group has room."""
    return min(2, max(1, group_size // 2))
