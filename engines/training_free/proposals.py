"""The proposals of a batch: what each rests on, which are alike, what became of earlier ones.

Pure. What is asked about them is `consolidation`'s. Also takes operations from a reply that a
person has mended: either the whole text is understood, or it is said what is wrong.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from engines.core.library import Library, Provenance
from engines.core.library_notes import PastDecision
from engines.core.text.prompts import quote
from engines.core.text.reply import ParsedReply, ReplyProblem
from engines.core.text.similarity import SimilarTexts, similarity
from engines.core.types import (
    REJECTED_BEFORE,
    Flag,
    Group,
    Operation,
    Proposal,
    ProposalFate,
    Reflection,
    UnparsedReply,
    resubmitted_operation_id,
)
from engines.training_free.reading import DropRow, Suggestion, parse_consolidation, parse_extraction

ALIKE = 0.35
"""Similarity from which two proposals are put before the reflector together."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proposal as a call is shown it: one of the batch, or several that were merged."""

    proposal: Proposal  # its evidence is that of all behind it
    numbers: tuple[int, ...]  # of those in the batch, from 1


@dataclass(frozen=True, slots=True)
class BatchEvidence:
    """What the proposals of a batch rest on."""

    candidates: tuple[Candidate, ...]  # one for each proposal, in sample order
    groups: tuple[str, ...]  # of each proposal
    problem_of: Mapping[str, str]  # of each group
    won: Mapping[str, bool]  # of each judged rollout; empty where rewards are hidden

    @classmethod
    def read(
        cls, batch: Sequence[Group], reflections: Sequence[Reflection], *, rewards_known: bool
    ) -> BatchEvidence:
        drawn = [
            (group.id, proposal)
            for group, reflection in zip(batch, reflections, strict=True)
            for proposal in reflection.proposals
        ]
        won = {
            rollout.id: group.informative and verdict.reward == max(group.rewards)
            for group in batch if rewards_known
            for rollout, verdict in zip(group.rollouts, group.verdicts, strict=True)
            if verdict.reward is not None
        }  # fmt: skip
        return cls(
            tuple(Candidate(proposal, (n,)) for n, (_, proposal) in enumerate(drawn, 1)),
            tuple(group for group, _ in drawn),
            {group.id: group.problem.id for group in batch},
            won,
        )

    def groups_of(self, candidate: Candidate) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.groups[number - 1] for number in candidate.numbers))

    def problems_of(self, candidate: Candidate) -> tuple[str, ...]:
        found = (self.problem_of[group] for group in self.groups_of(candidate))
        return tuple(dict.fromkeys(found))

    def merge(self, candidates: Iterable[Candidate], into: Proposal) -> Candidate:
        """Candidates as one that reads like `into`; the evidence is that of all of them."""
        numbers = sorted({number for one in candidates for number in one.numbers})
        found = (rollout for n in numbers for rollout in self.candidates[n - 1].proposal.evidence)
        return Candidate(replace(into, evidence=tuple(dict.fromkeys(found))), tuple(numbers))

    def note(self, candidate: Candidate) -> str:
        """`2 problems: 3 winners, 5 losers (s1p0, s1p4)`."""
        problems, groups = len(self.problems_of(candidate)), self.groups_of(candidate)
        shown = candidate.proposal.evidence
        sides = Counter(self.won[rollout] for rollout in shown if rollout in self.won)
        seen = [(sides[True], "winner"), (sides[False], "loser")]
        text = ", ".join(
            _count_text(*side) for side in (seen if sides else [(len(shown), "attempt")])
        )
        listed = ", ".join(groups[:8]) + (f" and {len(groups) - 8} more" if groups[8:] else "")
        return f"{_count_text(problems, 'problem')}: {text} ({listed})"


def plan_calls(n: int, limit: int) -> tuple[int, int]:
    """Calls for `n` proposals: that merge, and at most so many that consolidate what is left.

    Both together are at most 2.5 √n + 2. A call is shown `limit` proposals, and more only where
    that many calls do not suffice.

    Source: ComBEE, where a flat batch of 100 lessons lost most of what it held and groups of
        about √n did not.
    """
    most = int(2.5 * math.sqrt(n) + 2)
    first = math.ceil(n / max(limit, math.ceil(n / (most // 2))))
    return first, most - first


def arrange(candidates: Sequence[Candidate], calls: int, limit: int) -> list[list[Candidate]]:
    """Part candidates into groups of about one size, so that those which are alike meet.

    At most `calls` groups, and none above `limit` where that many suffice. What is like no
    other stays in the order of the samples.
    """
    parts = max(1, min(calls, math.ceil(len(candidates) / limit)))
    order = _order_alike(candidates) if parts > 1 else list(candidates)
    ends = [len(order) * part // parts for part in range(parts + 1)]
    return [order[start:end] for start, end in pairwise(ends)]


def _order_alike(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Each followed by those that are like it, the most alike first.

    Proposals about one experience are always alike: only one operation can come of them.
    """
    index = SimilarTexts(ALIKE)
    index.hold({str(at): one.proposal.text for at, one in enumerate(candidates)})
    about: dict[str | None, list[int]] = defaultdict(list)
    for at, one in enumerate(candidates):
        about[one.proposal.target].append(at)
    order: list[int] = []
    left = set(range(len(candidates)))
    for at, one in enumerate(candidates):
        if at not in left:
            continue
        scores = {int(near): score for near, score in index.alike(one.proposal.text).items()}
        if one.proposal.target is not None:
            scores |= dict.fromkeys(about[one.proposal.target], 2.0)
        near = left.intersection(scores) - {at}
        alike = [at, *sorted(near, key=lambda n: (-scores[n], n))]
        order += alike
        left.difference_update(alike)
    return [candidates[at] for at in order]


def _count_text(count: int, word: str) -> str:
    return f"{count or 'no'} {word}{'' if count == 1 else 's'}"


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
