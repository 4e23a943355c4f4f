"""Wordings that a reviewer puts together or compares: parts of a modify, two as one. Pure."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from engines.core.text.similarity import similarity, word_diff
from engines.core.types import MERGED, Decision, Operation

Near = tuple[str, float, str]
"""Id, similarity in [0, 1] and text of an experience."""
_NEAR_MOST, _NEAR_FROM = 5, 0.3
"""How many are told, and how like they are: below, two texts merely share a language."""


@dataclass(frozen=True, slots=True)
class ChangedPart:
    """One place at which two wordings differ: the words cut, and those put there instead."""

    number: int  # from 1, in reading order
    cut: str
    new: str


def changed_parts(before: str, after: str) -> tuple[ChangedPart, ...]:
    """The places at which they differ; changes with only blanks between them are one."""
    return tuple(piece for piece in _pieces(before, after) if isinstance(piece, ChangedPart))


def text_with_parts(before: str, after: str, chosen: Collection[int]) -> str:
    """`before` with these parts of the change alone: all of them give `after`, none `before`."""
    return "".join(
        piece if isinstance(piece, str) else piece.new if piece.number in chosen else piece.cut
        for piece in _pieces(before, after)
    )


def _pieces(before: str, after: str) -> list[str | ChangedPart]:
    """What both say as text, and between it what differs, in reading order."""
    changes = word_diff(before, after)
    last = len(changes) - 1

    def differs(at: int) -> bool:
        kind, text = changes[at]
        return kind != "same" or (0 < at < last and text.isspace())

    out: list[str | ChangedPart] = []
    for is_part, places in groupby(range(len(changes)), differs):
        piece = [changes[at] for at in places]
        if is_part:
            cut = "".join(text for kind, text in piece if kind != "new")
            new = "".join(text for kind, text in piece if kind != "cut")
            out.append(ChangedPart(sum(not isinstance(p, str) for p in out) + 1, cut, new))
        else:
            out.append("".join(text for _, text in piece))
    return out


def merge_decisions(
    first: Operation, others: Sequence[Operation], text: str, *, reviewer: str = ""
) -> tuple[tuple[Operation, Decision], ...]:
    """One batch that makes one wording of several proposals; evidence of all counts for it.

    The others come first: what they would change must not stand in the way of the one that stays.
    """
    why = f"{MERGED}{first.id}"
    rejected = [(op, Decision(op.id, "reject", reason=why, reviewer=reviewer)) for op in others]
    evidence = dict.fromkeys(name for op in others for name in op.evidence)
    more = tuple(name for name in evidence if name not in first.evidence)
    edit = Decision(first.id, "edit", text=text, reviewer=reviewer, evidence=more)
    return (*rejected, (first, edit))


def find_similar(text: str, others: Iterable[tuple[str, str]]) -> tuple[Near, ...]:
    """Those of the others, by id, that are most like a text, the likest first.

    Takes 20 microseconds for each: not for a key's own handler.
    """
    scores = ((name, similarity(text, said), said) for name, said in others)
    near = [each for each in scores if each[1] >= _NEAR_FROM]
    return tuple(sorted(near, key=lambda each: -each[1])[:_NEAR_MOST])
