"""What reviewers made of earlier ideas: what is not proposed again, and what prompts show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engines.core.flags import REJECTED_BEFORE
from engines.core.library import Library
from engines.core.review_memory import PastDecision
from engines.core.text.prompts import quote
from engines.core.text.similar_texts import SimilarTexts
from engines.core.text.similarity import similarity_above
from engines.core.time_slice import TimeSlice
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
    proposed: list[Operation] = []
    withheld: list[Operation] = []
    rejections = _Rejections(library)
    await rejections.index()
    turn = TimeSlice()
    for operation in operations:
        await turn.give_way()
        flag, again = _repeat_flag(operation, rejections.similar_to(operation))
        flagged = replace(operation, flags=(*operation.flags, flag)) if flag else operation
        (proposed if again else withheld).append(flagged)
    return tuple(proposed), tuple(withheld)


def flag_repeat(operation: Operation, library: Library) -> Operation:
    """Flagged where the idea was rejected before, and withheld from nobody."""
    flag, _ = _repeat_flag(operation, _Rejections(library).similar_to(operation))
    return replace(operation, flags=(*operation.flags, flag)) if flag else operation


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


class _Rejections:
    """Rejected ideas that still count.

    A rejection counts no longer where the idea has been let in since, where what it was about
    says something else now, or where the operation changes what says the idea already. That
    of a rule about a duplicate never counts: it says where the idea stands, not that it is bad.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._ideas = [i for i in library.curated if i.is_rejection and not i.doubled]
        self._texts: SimilarTexts | None = None
        self._let_in: dict[PastDecision, bool] = {}

    async def index(self) -> None:
        """Prepare for many operations."""
        self._texts = SimilarTexts(SAME_IDEA)
        await self._texts.hold({str(at): idea.text for at, idea in enumerate(self._ideas)})

    def similar_to(self, operation: Operation) -> list[tuple[PastDecision, float]]:
        """Those that an operation repeats, oldest first, each with its similarity."""
        near: dict[int, float | None] = dict.fromkeys(range(len(self._ideas)))
        if self._texts is not None and operation.kind in ("add", "modify"):
            found = self._texts.alike(operation.text)
            near = {at: found[str(at)] for at in sorted(map(int, found))}
        scored = (
            (self._ideas[at], _repeat_similarity(operation, self._ideas[at], score))
            for at, score in near.items()
        )
        return [
            (idea, score)
            for idea, score in scored
            if score is not None and self._still_counts(operation, idea)
        ]

    def _still_counts(self, operation: Operation, idea: PastDecision) -> bool:
        about = self._library.get(operation.target)
        if idea.kind != "add" and idea.target_text and about is not None:
            return _idea_similarity(about.text, idea.target_text) is not None
        said = about.text if about is not None and operation.kind == "modify" else ""
        if idea.kind == "add" and said and _idea_similarity(said, idea.text) is not None:
            return False
        if idea not in self._let_in:
            self._let_in[idea] = any(
                mark.at >= idea.at and _idea_similarity(mark.text, idea.text) is not None
                for experience in self._library.experiences
                for mark in experience.history
            )
        return not self._let_in[idea]


def _repeat_similarity(
    operation: Operation, idea: PastDecision, alike: float | None
) -> float | None:
    """How far an operation is a rejected idea; None where it is another one.

    `alike` is the similarity of the wordings where it is known.

    The wording of a rejected addition stays rejected wherever it would go; a rejected
    change is about its own experience only, and so is a deletion.
    """
    same_target = operation.target == idea.target
    if operation.kind == idea.kind == "delete":
        return 1.0 if same_target else None
    same_place = idea.kind == "add" or (idea.kind == operation.kind == "modify" and same_target)
    if operation.kind not in ("add", "modify") or not same_place:
        return None
    return alike or _idea_similarity(operation.text, idea.text)


def _idea_similarity(one: str, other: str) -> float | None:
    """How alike two wordings of one idea are; None where they are of two."""
    return similarity_above(one, other, SAME_IDEA)


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 1]}…"
