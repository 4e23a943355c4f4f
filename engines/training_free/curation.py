"""What reviewers made of earlier ideas: what is not proposed again, and what prompts show."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from engines.core.flags import REJECTED_BEFORE
from engines.core.library import Library, Provenance
from engines.core.review_memory import PastDecision
from engines.core.text.prompts import quote
from engines.core.text.similar_texts import SimilarTexts
from engines.core.text.similarity import similarity_above
from engines.core.types import Flag, Operation

SAME_IDEA = 0.85
"""Similarity from which a wording is that of an idea which was rejected."""
SHOWN = 8
"""Decisions that a prompt shows, the newest first."""
_SHOWN_CHARS = 400
_INDEXED_FROM = 20
"""Operations above which rejected ideas are indexed: an index costs as much as comparing these."""


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


async def withhold_rejected(
    operations: Sequence[Operation], library: Library
) -> tuple[tuple[Operation, ...], tuple[Operation, ...]]:
    """Part operations into those to propose and those to withhold.

    An operation that repeats a rejected idea is withheld, unless at least as many new problems
    speak for it as stood behind the rejected ideas like it: then it is proposed, flagged. In
    a first epoch every problem is new, and one alone must not ask again what a person has
    answered; each rejection doubles what it takes.
    """
    # In a thread: thousands of texts are compared, and the run goes on meanwhile.
    found = await asyncio.to_thread(_flag_repeats, operations, library)
    return tuple(op for op, again in found if again), tuple(op for op, again in found if not again)


def flag_repeat(operation: Operation, library: Library) -> Operation:
    """Flagged where the idea was rejected before, and withheld from nobody."""
    return _flag_repeats((operation,), library)[0][0]


def _flag_repeats(
    operations: Sequence[Operation], library: Library
) -> list[tuple[Operation, bool]]:
    """Each operation with what is to be said of it, and whether it may be proposed."""
    rejections = _Rejections(library, index=len(operations) > _INDEXED_FROM)
    found = []
    for operation in operations:
        flag, again = _repeat_flag(operation, rejections.similar_to(operation))
        flagged = replace(operation, flags=(*operation.flags, flag)) if flag else operation
        found.append((flagged, again))
    return found


def _repeat_flag(
    operation: Operation, alike: Sequence[tuple[PastDecision, float]]
) -> tuple[Flag | None, bool]:
    """What is to be said of a repeated idea, and whether it may be proposed."""
    if not alike:
        return None, True
    score = max(score for _, score in alike)
    last = alike[-1][0]
    why = f": {last.reason}" if last.reason else " without a reason"
    said = f"{last.reviewer or 'a reviewer'} rejected it{why}"
    old = {problem for idea, _ in alike for problem in idea.problems}
    new = [problem for problem in operation.problems if problem not in old]
    again = len(new) >= max(1, len(old))
    some = f"new problems that speak for it: {len(new)}; then: {len(old)}"
    detail = f"{said}; {some if again else 'nothing new speaks for it'}"
    return Flag(REJECTED_BEFORE, round(score, 3), detail), again


class _Wordings:
    """Texts by their places in a list; with `index` those that are alike are found by one."""

    def __init__(self, texts: Sequence[str], *, index: bool) -> None:
        self._texts = texts
        self._index = SimilarTexts(SAME_IDEA) if index else None
        if self._index is not None:
            self._index.hold({str(at): text for at, text in enumerate(texts)})

    def alike(self, text: str) -> dict[int, float]:
        """Where texts say the same, in their order, and how alike they are."""
        if self._index is not None:
            return dict(sorted((int(at), score) for at, score in self._index.alike(text).items()))
        scores = ((at, _idea_similarity(text, other)) for at, other in enumerate(self._texts))
        return {at: score for at, score in scores if score is not None}


class _Rejections:
    """Rejected ideas that still count.

    A rejection counts no longer where the idea has been let in since, where what it was about
    says something else now, or where the operation changes what says the idea already. That
    of a rule about a duplicate never counts: it says where the idea stands, not that it is bad.
    """

    def __init__(self, library: Library, *, index: bool) -> None:
        self._library = library
        self._ideas = [i for i in library.curated if i.is_rejection and not i.doubled]
        self._indexed = index
        self._wordings = _Wordings([idea.text for idea in self._ideas], index=index)
        self._let_in: dict[int, bool] = {}

    def similar_to(self, operation: Operation) -> list[tuple[PastDecision, float]]:
        """Those that an operation repeats, oldest first, each with its similarity.

        The wording of a rejected addition stays rejected wherever it would go; a rejected
        change is about its own experience only, and so is a deletion.
        """
        about = self._library.get(operation.target)
        covered: dict[int, float] = {}
        if operation.kind == "delete":
            near = {at: 1.0 for at, idea in enumerate(self._ideas) if idea.kind == "delete"}
        else:
            near = (
                self._wordings.alike(operation.text) if operation.kind in ("add", "modify") else {}
            )
            if operation.kind == "modify" and about is not None and near:
                covered = self._wordings.alike(about.text)
        found = []
        for at, score in near.items():
            idea = self._ideas[at]
            if idea.kind != "add" and (idea.kind, idea.target) != (
                operation.kind,
                operation.target,
            ):
                continue
            if idea.kind != "add" and idea.target_text and about is not None:
                counts = _idea_similarity(about.text, idea.target_text) is not None
            else:
                counts = not (idea.kind == "add" and at in covered) and not self._is_let_in(at)
            if counts:
                found.append((idea, score))
        return found

    def _is_let_in(self, at: int) -> bool:
        if at not in self._let_in:
            marks, wordings = self._marks
            idea = self._ideas[at]
            self._let_in[at] = any(marks[n].at >= idea.at for n in wordings.alike(idea.text))
        return self._let_in[at]

    @cached_property
    def _marks(self) -> tuple[Sequence[Provenance], _Wordings]:
        """How all wordings of the library came about, and what they say."""
        marks = [mark for e in self._library.experiences for mark in e.history]
        return marks, _Wordings([mark.text for mark in marks], index=self._indexed)


def _idea_similarity(one: str, other: str) -> float | None:
    """How alike two wordings of one idea are; None where they are of two."""
    return 1.0 if one == other else similarity_above(one, other, SAME_IDEA)


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 1]}…"
