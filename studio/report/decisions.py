"""Decisions in words, and what became of proposals, for every face that tells of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from engines.core.codec import fields_of
from engines.core.state.run_state import RunState
from engines.core.types import GATE, ProposalFate
from studio.secrets.sanitize import one_line

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


def curation_text(of: RunState | Mapping[str, Any]) -> str:
    """`curation: 12 of 40 decided`; "" of a run that practises. `of`: its state or its row."""
    if isinstance(of, RunState):
        of = {**fields_of(of, "curates", "proposed"), "open": len(of.open_operations)}
    if not of.get("curates"):
        return ""
    return f"curation: {of['proposed'] - of['open']} of {of['proposed']} decided"


def step_name(step: int) -> str:
    """`step 3`; a commit of what a person decided after the end has no step."""
    return f"step {step}" if step else "outside its steps"


def no_practice_text(state: RunState | None) -> str:
    """Why a curation run has no groups, rollouts or curve; "" of a run that practises."""
    if state is None or not state.curates:
        return ""
    return f"{one_line(state.curates, 60)}: it practises nothing, its operations are on 2 Review"


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


def merged_text(operation_id: str, fates: Iterable[ProposalFate]) -> str:
    """`proposals 1 (s3p0), 4 (s3p2)` where an operation merges several; else ""."""
    found = [one for one in fates if one.operation == operation_id and one.fate == "merged"]
    listed = ", ".join(f"{one.proposal} ({one.group})" for one in found)
    return f"proposals {listed}" if listed else ""


def dropped_texts(fates: Iterable[ProposalFate], texts: Sequence[str]) -> list[str]:
    """Each dropped proposal and why: `3 (s3p1) Round: … because: too vague`.

    `texts` say what each proposal of the batch wants, in the order in which fates number them.
    """
    return [
        f"{one.proposal} ({one.group}) {one_line(texts[one.proposal - 1], 200)}"
        f" because: {one_line(one.reason, 200)}"
        for one in fates
        if one.fate == "dropped" and one.proposal <= len(texts)
    ]


def fates_under_review(state: RunState) -> tuple[tuple[ProposalFate, ...], list[str]]:
    """The fates of the step under way, and what its proposals want."""
    step = state.current
    if step is None or step.lesson is None:
        return (), []
    wishes = (wish for at in sorted(step.reflections) for wish in step.reflections[at].proposals)
    return step.lesson.fates, [wish.text or f"{wish.kind} {wish.target}" for wish in wishes]
