"""The proposals of a batch: what each rests on, which ones are alike, and how many calls they take.

Pure. What is asked about them is `consolidation`'s.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from engines.core.text.similar_texts import SimilarTexts
from engines.core.types import Group, Proposal, Reflection

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
