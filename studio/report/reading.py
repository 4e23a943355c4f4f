"""What of a run was read for lessons: why nothing was, and which verdicts are doubted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines.core.state.run_state import RunState
from engines.core.types import GroupOutcome

_LIMIT = "practice.read_without_contrast"


def counted_outcomes(groups: Mapping[GroupOutcome, int]) -> str:
    """`9 used, 3 all-wrong`: what did not happen is left out."""
    return ", ".join(f"{n} {name}" for name, n in groups.items() if n) or "none"


def nothing_read_text(groups: Mapping[GroupOutcome, int], settings: Mapping[str, Any]) -> str:
    """Why no group was read for lessons, and what to change; "" where one was.

    `groups` are those of a step or a run, `settings` those that it was practised with.
    """
    n = sum(groups.values())
    wrong = groups.get("all-wrong", 0) + groups.get("all-equal", 0)
    if not n or groups.get("used") or groups.get("critique"):
        return ""
    moves = []
    if wrong and settings.get(_LIMIT) == 0:
        moves.append(f"{_LIMIT}=0 leaves groups without a good try unread: set it above 0")
    elif wrong:
        moves.append(
            "where no try is good nothing says why: give a verifier with a critique, data with "
            "answers, easier problems, or more tries (practice.group_size)"
        )
    if groups.get("all-right"):
        moves.append("where all tries are right there is nothing to learn: give harder problems")
    if groups.get("unjudged"):
        moves.append("the verifier had no opinion on any try of a group: look at it")
    if groups.get("failed"):
        moves.append("what failed stands under what was lost")
    said = ", ".join(
        f"{number} of {n} {'group' if n == 1 else 'groups'} {name.replace('-', ' ')}"
        for name, number in groups.items()
        if number
    )
    return f"nothing was read: {said}; {'; '.join(moves)}"


def doubts_text(state: RunState) -> str:
    """How many verdicts the reflector doubts; "" where there is none."""
    n = sum(step.doubts for step in state.steps.values())
    if not n or state.started is None:
        return ""
    what = (
        "1 verdict contradicts its attempt" if n == 1 else f"{n} verdicts contradict their attempts"
    )
    first = next(iter(state.doubts.items()), None)
    shown = f", as {first[0]}: {first[1]}" if first else ""
    return f"{what}, says the reflector{shown}"
