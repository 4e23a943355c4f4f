"""What a batch as a whole should change: its proposals become operations, checked by the linter.

Owns what each proposal rests on, which are alike, and what reviewers made of earlier ideas. Few
proposals are consolidated by one call. More are merged first, group by group, so that no call is
shown more than it can attend to; none is dropped on the way without a reason. Also takes operations
from a reply that a person has mended: the whole text is understood, or it is said what is wrong.

Source: arXiv:2510.08191, Training-Free Group Relative Policy Optimization, section 2. Beyond the
paper, a group in which no rollout was good is read for what the verifier says of all of them.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from engines.core.errors import CallFailed
from engines.core.library import Library, Provenance
from engines.core.library_notes import PastDecision
from engines.core.protocols import Earlier, Ledger, Policy
from engines.core.text.prompts import load_prompt, quote
from engines.core.text.reply import ParsedReply, RepairResult, ReplyProblem
from engines.core.text.similarity import SimilarTexts, similarity
from engines.core.types import (
    NO_USAGE,
    NOT_ONE,
    REJECTED_BEFORE,
    CallKey,
    Flag,
    Group,
    Lesson,
    LostWork,
    Operation,
    Proposal,
    ProposalFate,
    RecordRef,
    Reflection,
    UnparsedReply,
    Usage,
    WeightUpdate,
    operation_id,
    resubmitted_operation_id,
)
from engines.core.waiting import gather_all
from engines.training_free.lint import OperationLinter
from engines.training_free.reading import (
    PACKAGE,
    ConsolidationRow,
    DropRow,
    GroupReader,
    Reflector,
    Suggestion,
    library_seen,
    library_text,
    parse_consolidation,
    parse_extraction,
    past_decisions_block,
    proposals_block,
    reply_losses,
)
from engines.training_free.settings import TrainingFreeSettings

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


UNNAMED = "the reflector did not mention it"
_MERGING, _CONSOLIDATING = 1, 2
_LEVELS = {_MERGING: "merge", _CONSOLIDATING: "part"}
"""Levels of a tree of calls: the index of their keys, and what one is called."""

Answer = RepairResult[ConsolidationRow]
Ask = Callable[[CallKey, Sequence[Candidate]], Awaitable[Answer]]


@dataclass(slots=True)
class _Account:
    """What the calls about one batch have brought so far."""

    evidence: BatchEvidence
    seen: Library  # of the library what the reflector is shown
    drafts: list[tuple[Operation, tuple[int, ...]]] = field(default_factory=list)
    dropped: dict[int, str] = field(default_factory=dict)  # why, by the number of a proposal
    losses: list[LostWork] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refs: list[RecordRef] = field(default_factory=list)
    usage: Usage = NO_USAGE

    def take(self, key: CallKey, answers: Sequence[Answer]) -> bool:
        """Count what the calls of one level cost and lost; False where none had a reply."""
        where, told = f"step {key.step}", list[LostWork]()
        for number, answer in enumerate(answers, 1):
            self.usage += answer.usage
            self.refs += answer.refs
            self.notes += answer.notes
            lost = reply_losses("consolidation", where, answer)
            if key.index != NOT_ONE:
                # Its proposals go on without it, so there is nothing for a person to mend.
                part = f"{where}, {_LEVELS[key.index]} {number} of {len(answers)}"
                lost = tuple(LostWork("consolidation call", part, one.reason) for one in lost)
            told += lost
        if answers and not any(answer.completions for answer in answers):
            told = [LostWork("consolidation", where, told[0].reason)]
        self.losses += told
        return not any(loss.kind == "consolidation" for loss in told)

    def drop(self, candidates: Sequence[Candidate], reason: str) -> None:
        for number in (number for one in candidates for number in one.numbers):
            self.dropped.setdefault(number, reason)

    def merge(self, shown: Sequence[Candidate], answer: Answer) -> list[Candidate]:
        """What goes on of one call's proposals: merged, or as it is where nothing was said of it.

        Only what was dropped with a reason goes no further.
        """
        left, named = [], set[int]()
        for row in sorted(answer.items, key=lambda row: isinstance(row, DropRow)):
            if isinstance(row, Suggestion) and row.sources:
                into = Proposal(row.kind, row.target, row.text, row.reason, ())
                left.append(self.evidence.merge([shown[n - 1] for n in row.sources], into))
                named.update(row.sources)
            elif isinstance(row, DropRow) and row.reason:
                gone = set(row.sources) - named
                self.drop([shown[n - 1] for n in gone], row.reason)
                named |= gone
        return left + [one for n, one in enumerate(shown, 1) if n not in named]

    def fates(self, operations: Sequence[tuple[str, tuple[int, ...]]]) -> tuple[ProposalFate, ...]:
        """One for each proposal; of several operations that rest on it the first counts."""
        found: dict[int, ProposalFate] = {}
        groups = self.evidence.groups
        for name, numbers in operations:
            for n in numbers:
                fate = ProposalFate(groups[n - 1], n, "merged" if numbers[1:] else "used", name)
                found.setdefault(n, fate)
        for n, why in self.dropped.items():
            found.setdefault(n, ProposalFate(groups[n - 1], n, "dropped", reason=why))
        return tuple(fate for _, fate in sorted(found.items()))


class Consolidator:
    """Turns the proposals of a batch into one lesson."""

    def __init__(
        self,
        reflector: Reflector,
        linter: OperationLinter,
        put_off: Callable[[], Sequence[Operation]],
    ) -> None:
        self._put_off = put_off  # operations of earlier steps that are still open
        self._linter = linter
        self._reflector, self._settings = reflector, reflector.settings
        self._consolidate = load_prompt(PACKAGE, "consolidate")
        self._merge = load_prompt(PACKAGE, "merge")
        self._room_open = load_prompt(PACKAGE, "room_open")
        self._room_left = load_prompt(PACKAGE, "room_left")

    async def consolidate(
        self, batch: Sequence[Group], reflections: Sequence[Reflection], library: Library
    ) -> Lesson:
        """Turn the batch's proposals into operations, and tell the fate of each.

        Without any, no call is made.
        """
        step, epoch = batch[0].step, batch[0].epoch
        shows_rewards = self._settings.given_ground_truth
        evidence = BatchEvidence.read(batch, reflections, rewards_known=shows_rewards)
        targets = [one.proposal.target for one in evidence.candidates]
        account = _Account(evidence, library_seen(library, batch, targets))
        if not account.evidence.candidates:
            return Lesson(step, library.version)
        if not await self._ask_all(CallKey("consolidation", epoch, step), account, library):
            account.drop(account.evidence.candidates, "the consolidation failed")
        # Each under a name by which it is found again: some may be withheld.
        numbers = {str(n): behind for n, (_, behind) in enumerate(account.drafts)}
        drafts = [replace(draft, id=str(n)) for n, (draft, _) in enumerate(account.drafts)]
        operations, withheld = await withhold_rejected(drafts, library)
        both = (*operations, *withheld)
        named = [replace(op, id=operation_id(step, number)) for number, op in enumerate(both, 1)]
        fates = account.fates(
            [(op.id, numbers[draft.id]) for op, draft in zip(named, both, strict=True)]
        )
        operations, withheld = tuple(named[: len(operations)]), tuple(named[len(operations) :])
        flags = await self._linter.flags_of(operations, library, self._put_off())
        linted = [
            replace(operation, flags=(*operation.flags, *found))
            for operation, found in zip(operations, flags, strict=True)
        ]
        return Lesson(
            step,
            library.version,
            tuple(linted),
            losses=tuple(account.losses),
            usage=account.usage + self._linter.take_usage(),
            refs=tuple(account.refs),
            notes=tuple(account.notes),
            withheld=withheld,
            prompt_hash=self._consolidate.hash if account.refs else "",
            fates=fates,
        )

    async def _ask_all(self, key: CallKey, account: _Account, library: Library) -> bool:
        """One call, or a tree of them as `plan_calls` says; False where nothing came of it.

        In a tree the proposals of a call that fails go on as they are.
        """
        limit = self._settings.proposals_per_call
        left, calls = list(account.evidence.candidates), 1
        if is_tree := len(left) > limit:
            merging, calls = plan_calls(len(left), limit)
            key = replace(key, index=_MERGING)
            # In a thread: it compares thousands of texts, and the run goes on meanwhile.
            groups = await asyncio.to_thread(arrange, left, merging, 1)
            answers = await _ask_each(
                key, groups, lambda key, shown: self._ask_to_merge(key, shown, account, library)
            )
            if not account.take(key, answers):
                return False
            merged = map(account.merge, groups, answers)
            left = sorted(chain.from_iterable(merged), key=lambda one: one.numbers)
            key = replace(key, index=_CONSOLIDATING)
        total = len(left)
        groups = await asyncio.to_thread(arrange, left, calls, limit) if left else []
        answers = await _ask_each(
            key, groups, lambda key, shown: self._ask_to_decide(key, shown, account, library, total)
        )
        if not account.take(key, answers):
            return False
        for shown, answer in zip(groups, answers, strict=True):
            rest = self._take_operations(shown, answer, account)
            if not answer.problems:
                account.drop(rest, UNNAMED)
            elif not is_tree:
                account.drop(rest, "no object that could be read names it")
            else:
                for one in rest:
                    own = one.proposal
                    found = Suggestion(own.kind, own.target, own.text, own.rationale, ())
                    self._add_draft(found, [one], account)
        return True

    async def _ask_to_merge(
        self, key: CallKey, shown: Sequence[Candidate], account: _Account, library: Library
    ) -> Answer:
        """Only the experiences that these are about are shown: the rest is weighed later."""
        about = {one.proposal.target for one in shown}
        part = replace(library, experiences=tuple(e for e in library.experiences if e.id in about))
        prompt = self._merge.render(
            **self._reflector.objectives,
            library=library_text(part, counts=True) if part.experiences else "(none)",
            proposals=_proposals_text(shown, account.evidence),
        )
        numbers, bound = range(1, len(shown) + 1), self._settings.operations_per_call

        def parse(text: str) -> ParsedReply[ConsolidationRow]:
            return parse_consolidation(text, part, known=numbers, bound=bound)

        return await self._reflector.ask(key, prompt, parse)

    async def _ask_to_decide(
        self,
        key: CallKey,
        shown: Sequence[Candidate],
        account: _Account,
        library: Library,
        total: int,
    ) -> Answer:
        """Ask what becomes of these of `total` candidates; once more for those left out."""
        prompt = self._consolidate.render(
            **self._reflector.objectives,
            library=library_text(account.seen, counts=True),
            curated=past_decisions_block(library),
            proposals=_proposals_text(shown, account.evidence),
            room=self._room_text(library, len(shown), total),
        )
        reading = _AccountedReply(shown, library, self._settings.operations_per_call)
        answer = await self._reflector.ask(key, prompt, reading.parse, reading.rank)
        asked = reading.question(answer.items)
        problems = tuple(each for each in answer.problems if not asked or asked not in each)
        return replace(answer, problems=problems)

    def _take_operations(
        self, shown: Sequence[Candidate], answer: Answer, account: _Account
    ) -> list[Candidate]:
        """Take in operations and drops; returns the candidates that neither names."""
        for row in answer.items:
            behind = [shown[number - 1] for number in row.sources]
            if isinstance(row, DropRow):
                account.drop(behind, row.reason or "the reflector gave no reason")
            else:
                self._add_draft(row, behind, account, answer.completions[-1].model)
        named = _named(answer.items)
        return [one for number, one in enumerate(shown, 1) if number not in named]

    def _add_draft(
        self, found: Suggestion, behind: Sequence[Candidate], account: _Account, model: str = ""
    ) -> None:
        operation = found.as_operation(
            evidence=[rollout for one in behind for rollout in one.proposal.evidence],
            problems=[each for one in behind for each in account.evidence.problems_of(one)],
            proposer=model or self._reflector.policy.name,
            prompt_hash=self._consolidate.hash,
        )
        numbers = dict.fromkeys(number for one in behind for number in one.numbers)
        account.drafts.append((operation, tuple(numbers)))

    def _room_text(self, library: Library, shown: int, total: int) -> str:
        """What the library still takes; where that is little, each call's share of it."""
        limit = self._settings.library_limit
        if limit is None:
            return self._room_open.render()
        held = len(library.experiences)
        left = max(0, limit - held)
        share = left if left >= total else math.ceil(left * shown / total)
        return self._room_left.render(held=str(held), limit=str(limit), left=str(share))


class _AccountedReply:
    """Reads replies about some proposals, and asks for those that no object names."""

    def __init__(self, shown: Sequence[Candidate], library: Library, bound: int) -> None:
        self._shown, self._library, self._bound = shown, library, bound
        self._first: tuple[ConsolidationRow, ...] = ()

    def parse(self, text: str) -> ParsedReply[ConsolidationRow]:
        known = range(1, len(self._shown) + 1)
        parsed = parse_consolidation(text, self._library, known=known, bound=self._bound)
        rows = parsed.items
        if self._first and rows and not _named(self._first) & _named(rows):
            rows = (*self._first, *rows)  # asked for what was missing, it sent only that
        self._first = self._first or rows
        asked = self.question(rows)
        return replace(parsed, items=rows, problems=parsed.problems + ((asked,) if asked else ()))

    def question(self, rows: Sequence[ConsolidationRow]) -> str:
        """What to ask about the proposals that no row names, with their texts; "" for none."""
        named = _named(rows)
        left = {n: one.proposal for n, one in enumerate(self._shown, 1) if n not in named}
        if not left:
            return ""
        numbers = ", ".join(map(str, left))
        asked = f"Named by no object: {numbers}. Let an operation or a drop name each of these:"
        texts = (
            f"{n} ({one.kind}{f' {one.target}' if one.target else ''}): {one.text}"
            for n, one in left.items()
        )
        return f"{asked}\n\n{quote(chr(10).join(texts))}"

    def rank(self, rows: Sequence[ConsolidationRow]) -> tuple[int, ...]:
        """A reply that leaves out fewer proposals is the better one."""
        return len(_named(rows)), sum(isinstance(row, Suggestion) for row in rows)


async def _ask_each(key: CallKey, groups: Sequence[Sequence[Candidate]], ask: Ask) -> list[Answer]:
    """Ask about all groups at the same time, as far as the model's limits allow."""

    async def try_to_ask(place: int, shown: Sequence[Candidate]) -> Answer:
        try:
            return await ask(replace(key, position=place) if key.index != NOT_ONE else key, shown)
        except CallFailed as error:
            return RepairResult((), (str(error),), "", (), (), lost=error.usage)

    return await gather_all(try_to_ask(*each) for each in enumerate(groups))


def _named(rows: Sequence[ConsolidationRow]) -> set[int]:
    return {number for row in rows for number in row.sources}


def _proposals_text(shown: Sequence[Candidate], evidence: BatchEvidence) -> str:
    return proposals_block([(one.proposal, evidence.note(one)) for one in shown])


class TrainingFreeEngine:
    """Implements `engines.core.protocols.Engine` with a frozen model that reads."""

    def __init__(
        self,
        settings: TrainingFreeSettings,
        reflector: Policy,
        ledger: Ledger,
        linter: OperationLinter | None = None,
        put_off: Callable[[], Sequence[Operation]] = lambda: (),
        draft: int = 0,
    ) -> None:
        self._more = (linter or OperationLinter(), put_off)
        self.reflector = Reflector(settings, reflector, ledger, draft)
        self._reader = GroupReader(self.reflector)
        self._consolidator = Consolidator(self.reflector, *self._more)

    def with_draft(self, draft: int) -> TrainingFreeEngine:
        """The same engine, whose questions about a batch are asked with seeds of their own."""
        now = self.reflector
        return TrainingFreeEngine(now.settings, now.policy, now.ledger, *self._more, draft)

    def plan(self, total_steps: int) -> None:
        """Nothing here follows from how long a run is."""

    async def reflect(self, group: Group, library: Library, earlier: Earlier = ()) -> Reflection:
        return await self._reader.reflect(group, library, earlier)

    async def consolidate(
        self, batch: Sequence[Group], reflections: Sequence[Reflection], library: Library
    ) -> Lesson:
        return await self._consolidator.consolidate(batch, reflections, library)

    async def apply(self, update: WeightUpdate) -> int:
        raise ValueError("a frozen model has no weights to update")

    async def save(self, folder: Path) -> str:
        """The library is the only state, and it is not the engine's."""
        return ""

    async def restore(self, folder: Path) -> None:
        """See `save`."""
