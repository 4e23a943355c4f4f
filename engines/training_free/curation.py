"""What reviewers made of earlier ideas: what is not proposed again, and what prompts show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engines.core.flags import REJECTED_BEFORE
from engines.core.library import Library
from engines.core.review_memory import PastDecision
from engines.core.text.prompts import quote
from engines.core.text.similarity import similarity_above
from engines.core.types import Flag, Operation

SAME_IDEA = 0.85
"""Similarity from which a wording is that of an idea which was rejected."""
SHOWN = 8
"""Decisions that a prompt shows, the newest first."""
_SHOWN_CHARS = 400


def past_decisions_block(library: Library) -> str:
    """The newest rejections and edits as quoted blocks; "(none)" where there are none.

    Nothing in it tells when or in which run: equal decisions give equal prompts.
    """
    newest: dict[tuple[str, str, str, str], None] = {}
    for idea in reversed(library.curated):
        newest.setdefault((idea.kind, idea.text, idea.became, idea.reason))
        if len(newest) == SHOWN:
            break
    blocks = []
    for number, (kind, text, became, reason) in enumerate(newest, 1):
        what = "Reworded" if became else "Rejected"
        lines = [_shorten(text), *([f"became: {_shorten(became)}"] if became else [])]
        lines.append(f"because: {_shorten(reason) or '(no reason given)'}")
        blocks.append(f"### {what} {number} · {kind}\n" + quote("\n".join(lines)))
    return "\n\n".join(blocks) or "(none)"


def withhold_rejected(
    operations: Sequence[Operation], library: Library
) -> tuple[tuple[Operation, ...], tuple[Operation, ...]]:
    """Part operations into those to propose and those to withhold.

    An operation that repeats a rejected idea is withheld, unless at least as many new problems
    speak for it as stood behind the rejected ideas like it: then it is proposed, flagged. In
    a first epoch every problem is new, and one alone must not ask again what a person has
    answered; each rejection doubles what it takes. `similar_rejections` says which still count.
    """
    proposed: list[Operation] = []
    withheld: list[Operation] = []
    for operation in operations:
        alike = similar_rejections(operation, library)
        if not alike:
            proposed.append(operation)
            continue
        score = max(score for _, score in alike)
        last = alike[-1][0]
        why = f": {last.reason}" if last.reason else " without a reason"
        said = f"{last.reviewer or 'a reviewer'} rejected it{why}"
        old = {problem for idea, _ in alike for problem in idea.problems}
        new = [problem for problem in operation.problems if problem not in old]
        again = len(new) >= max(1, len(old))
        some = f"new problems that speak for it: {len(new)}; then: {len(old)}"
        detail = f"{said}; {some if again else 'nothing new speaks for it'}"
        flag = Flag(REJECTED_BEFORE, round(score, 3), detail)
        flagged = replace(operation, flags=(*operation.flags, flag))
        (proposed if again else withheld).append(flagged)
    return tuple(proposed), tuple(withheld)


def similar_rejections(operation: Operation, library: Library) -> list[tuple[PastDecision, float]]:
    """Rejected ideas that an operation repeats, oldest first, each with its similarity.

    A rejection counts no longer where the idea has been let in since, where what it was about
    says something else now, or where the operation changes what says the idea already. That
    of a rule about a duplicate never counts: it says where the idea stands, not that it is bad.
    """
    found = []
    for idea in library.curated:
        if not idea.is_rejection or idea.doubled:
            continue
        score = _repeat_similarity(operation, idea)
        if score is not None and _still_counts(operation, idea, library):
            found.append((idea, score))
    return found


def _still_counts(operation: Operation, idea: PastDecision, library: Library) -> bool:
    about = library.get(operation.target)
    if idea.kind != "add" and idea.target_text and about is not None:
        return _idea_similarity(about.text, idea.target_text) is not None
    said = about.text if about is not None and operation.kind == "modify" else ""
    if idea.kind == "add" and said and _idea_similarity(said, idea.text) is not None:
        return False
    return not any(
        mark.at >= idea.at and _idea_similarity(mark.text, idea.text) is not None
        for experience in library.experiences
        for mark in experience.history
    )


def _repeat_similarity(operation: Operation, idea: PastDecision) -> float | None:
    """How far an operation is a rejected idea; None where it is another one.

    The wording of a rejected addition stays rejected wherever it would go; a rejected
    change is about its own experience only, and so is a deletion.
    """
    same_target = operation.target == idea.target
    if operation.kind == idea.kind == "delete":
        return 1.0 if same_target else None
    same_place = idea.kind == "add" or (idea.kind == operation.kind == "modify" and same_target)
    if operation.kind not in ("add", "modify") or not same_place:
        return None
    return _idea_similarity(operation.text, idea.text)


def _idea_similarity(one: str, other: str) -> float | None:
    """How alike two wordings of one idea are; None where they are of two."""
    return similarity_above(one, other, SAME_IDEA)


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 1]}…"
