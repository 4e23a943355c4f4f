"""Takes operations from a reply that a person has mended.

Nothing is half taken: either the whole text is understood, or it is said what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from engines.core.library import Library
from engines.core.text.reply import ParsedReply, ReplyProblem
from engines.core.types import Operation, ProposalFate, UnparsedReply, resubmitted_operation_id
from engines.training_free.curation import flag_repeats
from engines.training_free.parse import DropRow, Suggestion, parse_consolidation, parse_extraction

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
    fates: tuple[ProposalFate, ...] = ()  # of what a consolidation was about
    doubled: tuple[str, ...] = ()  # ideas left out: the step has brought them forth already


def read_resubmission(
    repair: UnparsedReply, text: str, library: Library, origin: ReplyOrigin, by: str
) -> Resubmission:
    """Read a reply that `by` has mended; `library` is the draft whose ids it may name.

    It may hold more proposals than the model was asked for: each is decided on anyway.
    """
    known = tuple(origin.evidence)
    parsed: ParsedReply[Any]
    try:
        if repair.kind == "extraction":
            parsed = parse_extraction(text, library, known=known, limit=None)
        else:
            parsed = parse_consolidation(text, library, known=known, bound=None)
    except ReplyProblem as problem:
        return Resubmission(problems=(str(problem),))
    if parsed.problems or parsed.notes:  # a person can name what a model need not
        return Resubmission(problems=(*parsed.problems, *parsed.notes))
    taken = dict(origin.taken)
    operations: list[Operation] = []
    doubled: list[str] = []
    unnamed = f"the reply as {by} mended it does not mention it"
    fates = {n: ProposalFate("", n, "dropped", reason=unnamed) for n in known}
    for number, found in enumerate(parsed.items, 1):
        if isinstance(found, DropRow):
            for n in found.sources:
                if not fates[n].operation and found.reason:
                    fates[n] = replace(fates[n], reason=found.reason)
        if not isinstance(found, Suggestion):
            continue
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
        operations.append(replace(operation, id=name, rationale=why))
        for n in found.sources:
            if not fates[n].operation:
                fates[n] = ProposalFate("", n, "merged" if found.sources[1:] else "used", name)
    told = tuple(fates.values()) if repair.kind == "consolidation" else ()
    flagged = tuple(operation for operation, _ in flag_repeats(operations, library))
    return Resubmission(flagged, doubled=tuple(doubled), fates=told)
