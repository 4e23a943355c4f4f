"""How many rows each pane gets of those that lie one above the other. Pure."""

from __future__ import annotations

from collections.abc import Sequence

Rows = tuple[int, ...]
_STILL = 2


def share_rows(room: int, needs: Sequence[int], least: Sequence[int], now: Rows = ()) -> Rows:
    """Rows of each pane, borders included; together they are `room`.

    Panes stay as they are `now` while that shows all. Else each gets what it needs, the first
    ones first where that is too much, and the second one gets the rest. Where something is cut
    either way, nothing moves for two rows: drawing borders anew costs more than they show.

    Args:
        room: rows there are; no less than all of `least`.
        needs: rows in which each pane shows all that it holds.
        least: rows that each pane gets at any rate.
        now: rows they have; () where they have none yet.
    """
    if sum(now) == room and all(has >= need for has, need in zip(now, needs, strict=True)):
        return now
    given = list(least)
    left = room - sum(given)
    for at, need in enumerate(needs):
        more = min(max(0, need - given[at]), max(0, left))
        given[at] += more
        left -= more
    slack = min(
        _STILL, max(0, left)
    )  # of the first one, so that the next change finds it large enough
    given[0] += slack
    given[-1 if len(given) == 1 else 1] += max(0, left) - slack
    out = tuple(given)
    if not sum(needs) > room == sum(now):
        return out
    is_near = all(abs(a - b) <= _STILL for a, b in zip(out, now, strict=True))
    return now if is_near and now[0] >= min(needs[0], out[0]) else out
