"""What became of the proposals of a step, in words: what an operation merges, what was dropped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engines.core.state.run_state import RunState
from engines.core.types import ProposalFate
from studio.secrets.sanitize import one_line


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
