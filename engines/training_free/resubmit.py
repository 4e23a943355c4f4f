"""Takes operations from a reply that a person has mended.

Nothing is half taken: either the whole text is understood, or it is said what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from engines.core.library import Library
from engines.core.text.reply import ReplyProblem
from engines.core.types import Operation, UnparsedReply, resubmitted_operation_id
from engines.training_free.curation import flag_repeat
from engines.training_free.parse import parse_suggestions

Idea = tuple[str, str | None, str]
"""Kind, target and text of a proposal or an operation: what makes two of them the same."""


@dataclass(frozen=True, slots=True)
class ReplyOrigin:
    """Where a reply stands in its step."""

    evidence: Mapping[int, tuple[str, ...]]  # the rollouts behind every number it may name
    problem_of: Mapping[str, str]  # of each rollout
    proposer: str
    prompt_hash: str
    taken: Mapping[Idea, str]  # what the step has brought forth → where it stands, in words


@dataclass(frozen=True, slots=True)
class Resubmission:
    """What a mended reply holds; nothing where something is still wrong with it."""

    operations: tuple[Operation, ...] = ()
    problems: tuple[str, ...] = ()  # what is still wrong
    doubled: tuple[str, ...] = ()  # ideas left out: the step has brought them forth already


def read_resubmission(
    repair: UnparsedReply, text: str, library: Library, origin: ReplyOrigin, by: str
) -> Resubmission:
    """Read a reply that `by` has mended; `library` is the draft whose ids it may name.

    It may hold more proposals than the model was asked for: each is decided on anyway.
    """
    sources = "attempts" if repair.kind == "extraction" else "proposals"
    known = tuple(origin.evidence)
    try:
        parsed = parse_suggestions(text, library, sources=sources, known=known, limit=None)
    except ReplyProblem as problem:
        return Resubmission(problems=(str(problem),))
    if parsed.problems or parsed.notes:  # a person can name what a model need not
        return Resubmission(problems=(*parsed.problems, *parsed.notes))
    taken = dict(origin.taken)
    operations: list[Operation] = []
    doubled: list[str] = []
    for number, found in enumerate(parsed.items, 1):
        idea = (found.kind, found.target, found.text)
        if idea in taken:
            doubled.append(f"Object {number} is left out: {taken[idea]}.")
            continue
        taken[idea] = f"it stands in object {number} already"
        evidence = [rollout for n in found.sources for rollout in origin.evidence[n]]
        operation = found.as_operation(
            evidence=evidence,
            problems=[origin.problem_of[rollout] for rollout in evidence],
            proposer=origin.proposer,
            prompt_hash=origin.prompt_hash,
        )
        name = resubmitted_operation_id(repair.id, len(operations) + 1)
        why = f"{found.reason} (mended by {by})".strip()
        operations.append(flag_repeat(replace(operation, id=name, rationale=why), library))
    return Resubmission(tuple(operations), doubled=tuple(doubled))
