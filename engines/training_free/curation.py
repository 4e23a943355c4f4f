"""What reviewers made of earlier ideas: what is not proposed again, and what prompts show."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property

from engines.core.flags import REJECTED_BEFORE
from engines.core.library import Library, Provenance
from engines.core.review_memory import PastDecision
from engines.core.text.prompts import quote
from engines.core.text.similar_texts import SimilarTexts
from engines.core.text.similarity import similarity
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
    found = await asyncio.to_thread(flag_repeats, operations, library)
    return tuple(op for op, again in found if again), tuple(op for op, again in found if not again)


def flag_repeats(operations: Sequence[Operation], library: Library) -> list[tuple[Operation, bool]]:
    """Each operation, flagged where its idea was rejected, and whether it may be proposed."""
    rejections = _Rejections(library)
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


def _index(texts: Iterable[str]) -> SimilarTexts:
    """Texts by their places, so that those which say the same are found."""
    index = SimilarTexts(SAME_IDEA)
    index.hold({str(at): text for at, text in enumerate(texts)})
    return index


class _Rejections:
    """Rejected ideas that still count.

    A rejection counts no longer where the idea has been let in since, where what it was about
    says something else now, or where the operation changes what says the idea already. That
    of a rule about a duplicate never counts: it says where the idea stands, not that it is bad.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._ideas = [i for i in library.curated if i.is_rejection and not i.doubled]
        self._wordings = _index(idea.text for idea in self._ideas)
        self._let_in: dict[int, bool] = {}

    def similar_to(self, operation: Operation) -> list[tuple[PastDecision, float]]:
        """Those that an operation repeats, oldest first, each with its similarity.

        The wording of a rejected addition stays rejected wherever it would go; a rejected
        change is about its own experience only, and so is a deletion.
        """
        about, kind = self._library.get(operation.target), operation.kind
        covered: dict[str, float] = {}
        near: dict[int, float] = {}
        if kind == "delete":
            near = {at: 1.0 for at, idea in enumerate(self._ideas) if idea.kind == "delete"}
        elif kind in ("add", "modify"):
            near = {int(at): score for at, score in self._wordings.alike(operation.text).items()}
        if kind == "modify" and about is not None and near:
            covered = self._wordings.alike(about.text)
        found = []
        for at, score in sorted(near.items()):
            idea = self._ideas[at]
            if idea.kind == "add":
                counts = str(at) not in covered and not self._is_let_in(at)
            elif (idea.kind, idea.target) != (kind, operation.target):
                counts = False
            elif idea.target_text and about is not None:
                counts = similarity(about.text, idea.target_text) >= SAME_IDEA
            else:
                counts = not self._is_let_in(at)
            if counts:
                found.append((idea, score))
        return found

    def _is_let_in(self, at: int) -> bool:
        if at not in self._let_in:
            marks, wordings = self._marks
            since = self._ideas[at].at
            alike = wordings.alike(self._ideas[at].text)
            self._let_in[at] = any(marks[int(n)].at >= since for n in alike)
        return self._let_in[at]

    @cached_property
    def _marks(self) -> tuple[Sequence[Provenance], SimilarTexts]:
        """How all wordings of the library came about, and what they say."""
        marks = [mark for e in self._library.experiences for mark in e.history]
        return marks, _index(mark.text for mark in marks)


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 1]}…"
