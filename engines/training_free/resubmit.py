"""Takes operations from a reply that a person has mended.

The same parser reads it, against the library as it is now. Nothing is half taken: either
the whole text is understood, or it is said what is wrong. Owns no queue and no journal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engines.core.library import Library
from engines.core.text.reply import MAX_REPLY_CHARS, ReplyProblem
from engines.core.types import Operation, UnparsedReply, resubmitted_operation_id
from engines.training_free.curation import withhold_rejected
from engines.training_free.parse import Suggestion, parse_suggestions

Idea = tuple[str, str | None, str]
"""Kind, target and text of a proposal or an operation: what makes two of them the same."""


@dataclass(frozen=True, slots=True)
class ReplyOrigin:
    """Where a reply stands in its step.

    `evidence` gives the rollouts behind every number the reply may name, `problem_of` the
    problem of each rollout; `taken` is what the step has brought forth already.
    """

    evidence: Mapping[int, tuple[str, ...]]
    problem_of: Mapping[str, str]
    proposer: str
    prompt_hash: str
    taken: Mapping[Idea, str]  # idea → where it stands, in words


@dataclass(frozen=True, slots=True)
class Resubmission:
    """What a mended reply holds; `problems` says what is still wrong, and then it holds nothing.

    `doubled` tells of ideas left out because the step has brought them forth already.
    """

    operations: tuple[Operation, ...] = ()
    problems: tuple[str, ...] = ()
    doubled: tuple[str, ...] = ()


def read_resubmission(
    repair: UnparsedReply, text: str, library: Library, origin: ReplyOrigin, by: str
) -> Resubmission:
    """Read a mended reply.

    Args:
        repair: what waits to be mended.
        text: the reply as the person left it. It may hold more proposals than the model
            was asked for: each of them is decided on anyway.
        library: the draft whose ids it may name.
        origin: what its numbers mean.
        by: who mended it.
    """
    if len(text) > MAX_REPLY_CHARS:
        return Resubmission(problems=(too_long_reason(text),))
    sources = "attempts" if repair.kind == "extraction" else "proposals"
    known = tuple(origin.evidence)
    try:
        parsed = parse_suggestions(text, library, sources=sources, known=known, limit=None)
    except ReplyProblem as problem:
        return Resubmission(problems=(str(problem),))
    if parsed.problems:
        return Resubmission(problems=parsed.problems)
    taken = dict(origin.taken)
    operations: list[Operation] = []
    doubled: list[str] = []
    for number, found in enumerate(parsed.items, 1):
        idea = (found.kind, found.target, found.text)
        if idea in taken:
            doubled.append(f"Object {number} is left out: {taken[idea]}.")
            continue
        taken[idea] = f"it stands in object {number} already"
        name = resubmitted_operation_id(repair.id, len(operations) + 1)
        operations.append(_make_operation(name, found, origin, by))
    return Resubmission(
        tuple(_flag_repeat(op, library) for op in operations), doubled=tuple(doubled)
    )


def _flag_repeat(operation: Operation, library: Library) -> Operation:
    """Flagged where the idea was rejected before: what a person mended is withheld from nobody."""
    proposed, withheld = withhold_rejected((operation,), library)
    return (*proposed, *withheld)[0]


def too_long_reason(text: str) -> str:
    return f"It has {len(text):,} characters, and at most {MAX_REPLY_CHARS:,} are read."


def _make_operation(name: str, found: Suggestion, origin: ReplyOrigin, by: str) -> Operation:
    evidence = _unique([one for n in found.sources for one in origin.evidence[n]])
    return Operation(
        id=name,
        kind=found.kind,
        target=found.target,
        text=found.text,
        rationale=f"{found.reason} (mended by {by})".strip(),
        evidence=evidence,
        proposer=origin.proposer,
        prompt_hash=origin.prompt_hash,
        problems=_unique([origin.problem_of[one] for one in evidence]),
    )


def _unique(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
