"""Decisions in words, for every face that tells of one."""

from __future__ import annotations

from engines.core.types import GATE

DONE = {
    "approve": "approved",
    "edit": "approved as edited",
    "reject": "rejected",
    "defer": "put off",
}


def kind_title(kind: str) -> str:
    """What heads a change: `MODIFY E3`, or of a `keep`, which asks nothing, `NO CHANGE TO E3`."""
    return "NO CHANGE TO" if kind == "keep" else kind.upper()


def to_decide_text(open_count: int, put_off: int, what: str = "to decide") -> str:
    """`5 to decide, 1 later`: what was put off is told apart, alike on every face."""
    left = [f"{open_count - put_off} {what}"] if open_count > put_off or not put_off else []
    return ", ".join([*left, f"{put_off} later"] if put_off else left)


def misfit_text(reason: str) -> str:
    """What became of an approval that the gate turned down; `reason` is the gate's.

    `was approved, but no longer fits: E4 was deleted by op3.1`.
    """
    fits = "no longer fits" if "deleted by" in reason or "is gone" in reason else "does not fit"
    return f"was approved, but {fits}: {reason}"


def decided_text(action: str, reviewer: str, reason: str) -> str:
    """`approved by ann`; of the gate's own rejection what it says to the one who approved."""
    if reviewer == GATE:
        return misfit_text(reason)
    return f"{DONE[action]} by {reviewer or 'nobody'}"
