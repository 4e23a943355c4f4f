"""What a batch as a whole should change: its proposals become operations, checked by the linter.

Owns what each proposal rests on, which are alike, and what reviewers made of earlier ideas. Few
proposals are consolidated by one call, more by several, of alike ones each, so that no call is
shown more than it can attend to; none is dropped without a reason. Also takes operations
from a reply that a person has mended: the whole text is understood, or it is said what is wrong.

Source: arXiv:2510.08191, Training-Free Group Relative Policy Optimization, section 2. Beyond the
paper, a group in which no rollout was good is read for what the verifier says of all of them.
"""

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from engines.core import errors, library_notes, protocols, waiting
from engines.core.frozen import frozen
from engines.core.library import Library, Provenance
from engines.core.text.prompts import load_prompt, quote
from engines.core.text.reply import ParsedReply, RepairResult, ReplyProblem
from engines.core.text.similarity import SimilarTexts, similarity
from engines.core.types import (
    NO_USAGE,
    REJECTED_BEFORE,
    CallKey,
    Flag,
    Group,
    Lesson,
    LostWork,
    Names,
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


@frozen
class Candidate:
    """One proposal of the batch, and the group and the problem that it was drawn from."""

    number: int  # in the batch, from 1
    proposal: Proposal
    group: str
    problem: str

    def note(self, won: Mapping[str, bool]) -> str:
        """`3 winners, 5 losers (s1p0)`; `won` is empty where rewards are hidden."""
        evidence = self.proposal.evidence
        sides = Counter(won[rollout] for rollout in evidence if rollout in won)
        text = _count_text(len(evidence), "attempt")
        if sides:
            text = f"{_count_text(sides[True], 'winner')}, {_count_text(sides[False], 'loser')}"
        return f"{text} ({self.group})"


def list_candidates(
    batch: Sequence[Group], reflections: Sequence[Reflection]
) -> tuple[Candidate, ...]:
    """Return the proposals of a batch in sample order."""
    drawn = [
        (proposal, group.id, group.problem.id)
        for group, reflection in zip(batch, reflections, strict=True)
        for proposal in reflection.proposals
    ]
    return tuple(Candidate(number, *one) for number, one in enumerate(drawn, 1))


def winners(batch: Sequence[Group]) -> dict[str, bool]:
    """Return whether each judged rollout is one of the best of a group that shows a contrast."""
    return {
        rollout.id: group.informative and verdict.reward == max(group.rewards)
        for group in batch
        for rollout, verdict in zip(group.rollouts, group.verdicts, strict=True)
        if verdict.reward is not None
    }


def arrange(candidates: Sequence[Candidate], limit: int) -> list[list[Candidate]]:
    """Part candidates into as few groups of at most `limit`, so that those which are alike meet.

    Each is followed by those that are like it, the most alike first. Proposals about one
    experience are always alike: only one operation can come of them.
    """
    parts = math.ceil(len(candidates) / limit)
    if parts < 2:
        return [list(candidates)]
    index = SimilarTexts(ALIKE)
    index.hold({str(at): each.proposal.text for at, each in enumerate(candidates)})
    about: dict[str | None, list[int]] = defaultdict(list)
    for at, each in enumerate(candidates):
        about[each.proposal.target].append(at)
    order: dict[int, None] = {}
    for at, each in enumerate(candidates):
        if at in order:
            continue
        target = each.proposal.target
        same_target = [] if target is None else about[target]
        scores = index.alike(each.proposal.text)
        alike = sorted(scores, key=lambda near: -scores[near])
        order |= dict.fromkeys([at, *same_target, *map(int, alike)])
    ordered = [candidates[at] for at in order]
    ends = [len(ordered) * part // parts for part in range(parts + 1)]
    return [ordered[start:end] for start, end in pairwise(ends)]


def _count_text(count: int, word: str) -> str:
    return f"{count or 'no'} {word}{'' if count == 1 else 's'}"


Idea = tuple[str, str | None, str]
"""Kind, target and text of a proposal or an operation: what makes two of them the same."""


@frozen
class ReplyOrigin:
    """Where a reply stands in its step."""

    evidence: Mapping[int, Names]  # the rollouts behind every number it may name
    problem_of: Mapping[str, str]  # of each rollout
    proposer: str
    prompt_hash: str
    taken: Mapping[Idea, str]  # what the step has brought forth → where it stands, in words


@frozen
class Resubmission:
    """What a mended reply holds; nothing where something is still wrong with it."""

    operations: tuple[Operation, ...] = ()
    problems: Names = ()  # what is still wrong
    fates: tuple[ProposalFate, ...] = ()  # of what a consolidation was about
    doubled: Names = ()  # ideas left out: the step has brought them forth already


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


def flag_repeats(operations: Sequence[Operation], library: Library) -> list[tuple[Operation, bool]]:
    """Each operation, flagged where its idea was rejected, and whether it may be proposed.

    One that repeats a rejected idea is withheld, unless at least as many new problems speak for it
    as stood behind the rejected ideas like it: then it is proposed, flagged. In a first epoch every
    problem is new, and one alone must not ask again what a person has answered; each rejection
    doubles what it takes.
    """
    rejections = _Rejections(library)
    found = []
    for operation in operations:
        flag, again = _repeat_flag(operation, rejections.similar_to(operation))
        flagged = replace(operation, flags=(*operation.flags, flag)) if flag else operation
        found.append((flagged, again))
    return found


def _repeat_flag(
    operation: Operation, alike: Sequence[tuple[library_notes.PastDecision, float]]
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

    A rejection counts no longer where the idea has been let in since, or where what it was about
    says something else now. That of a rule about a duplicate never counts: it says where the idea
    stands, not that it is bad.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._ideas = [i for i in library.notes.curated if i.is_rejection and not i.doubled]
        self._wordings = _index(idea.text for idea in self._ideas)

    def similar_to(self, operation: Operation) -> list[tuple[library_notes.PastDecision, float]]:
        """Those that an operation repeats, oldest first, each with its similarity.

        The wording of a rejected addition stays rejected wherever it would go; a rejected
        change is about its own experience only, and so is a deletion.
        """
        about, kind = self._library.get(operation.target), operation.kind
        near: dict[int, float] = {}
        if kind == "delete":
            near = {at: 1.0 for at, idea in enumerate(self._ideas) if idea.kind == "delete"}
        elif kind in ("add", "modify"):
            near = {int(at): score for at, score in self._wordings.alike(operation.text).items()}
        alike = []
        for at, score in sorted(near.items()):
            idea = self._ideas[at]
            if idea.kind != "add" and (idea.kind, idea.target) != (kind, operation.target):
                continue
            if idea.kind != "add" and idea.target_text and about is not None:
                counts = similarity(about.text, idea.target_text) >= SAME_IDEA
            else:
                let_in = self._let_in_wordings.alike(idea.text)
                counts = all(self._let_in[int(n)].at < idea.at for n in let_in)
            if counts:
                alike.append((idea, score))
        return alike

    @cached_property
    def _let_in(self) -> list[Provenance]:
        """How all wordings of the library came about."""
        return [mark for e in self._library.experiences for mark in e.history]

    @cached_property
    def _let_in_wordings(self) -> SimilarTexts:
        return _index(mark.text for mark in self._let_in)


UNNAMED = "the reflector did not mention it"
_PART = 1
"""The index in the keys of several calls about one batch."""

Answer = RepairResult[ConsolidationRow]


@dataclass(slots=True)
class _Account:
    """What the calls about one batch have brought so far."""

    candidates: tuple[Candidate, ...]
    won: Mapping[str, bool]  # of each judged rollout; empty where rewards are hidden
    seen: Library  # of the library what the reflector is shown
    drafts: list[tuple[Operation, list[int]]] = field(default_factory=list)
    dropped: dict[int, str] = field(default_factory=dict)  # why, by the number of a proposal
    losses: list[LostWork] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refs: list[RecordRef] = field(default_factory=list)
    usage: Usage = NO_USAGE

    def take(self, step: int, answers: Sequence[Answer]) -> bool:
        """Count what the calls cost and lost; False where none had a reply."""
        where, lost = f"step {step}", list[LostWork]()
        for number, answer in enumerate(answers, 1):
            self.usage += answer.usage
            self.refs += answer.refs
            self.notes += answer.notes
            for loss in reply_losses("consolidation", where, answer):
                if len(answers) > 1:
                    # Its proposals go on without it, so there is nothing for a person to mend.
                    part = f"{where}, part {number} of {len(answers)}"
                    loss = LostWork("consolidation call", part, loss.reason)
                lost.append(loss)
        if not any(answer.completions for answer in answers):
            lost = [LostWork("consolidation", where, lost[0].reason)]
        self.losses += lost
        return not any(loss.kind == "consolidation" for loss in lost)

    def drop(self, candidates: Iterable[Candidate], reason: str) -> None:
        for candidate in candidates:
            self.dropped.setdefault(candidate.number, reason)

    def fates(self, operations: Sequence[tuple[str, list[int]]]) -> tuple[ProposalFate, ...]:
        """One for each proposal; of several operations that rest on it the first counts."""
        fates: dict[int, ProposalFate] = {}
        groups = {candidate.number: candidate.group for candidate in self.candidates}
        for name, numbers in operations:
            for n in numbers:
                fate = ProposalFate(groups[n], n, "merged" if numbers[1:] else "used", name)
                fates.setdefault(n, fate)
        for n, why in self.dropped.items():
            fates.setdefault(n, ProposalFate(groups[n], n, "dropped", reason=why))
        return tuple(fate for _, fate in sorted(fates.items()))


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
        self._room_open = load_prompt(PACKAGE, "room_open")
        self._room_left = load_prompt(PACKAGE, "room_left")

    async def consolidate(
        self, batch: Sequence[Group], reflections: Sequence[Reflection], library: Library
    ) -> Lesson:
        """Turn the batch's proposals into operations, and tell the fate of each.

        Without any, no call is made.
        """
        step, epoch = batch[0].step, batch[0].epoch
        candidates = list_candidates(batch, reflections)
        if not candidates:
            return Lesson(step, library.version)
        won = winners(batch) if self._settings.given_ground_truth else {}
        targets = [candidate.proposal.target for candidate in candidates]
        account = _Account(candidates, won, library_seen(library, batch, targets))
        if not await self._ask_all(CallKey("consolidation", epoch, step), account, library):
            account.drop(candidates, "the consolidation failed")
        # In a thread: thousands of texts are compared, and the run goes on meanwhile.
        drafts = [draft for draft, _ in account.drafts]
        flagged = await asyncio.to_thread(flag_repeats, drafts, library)
        operations: list[Operation] = []
        withheld: list[Operation] = []
        rests_on: list[tuple[str, list[int]]] = []
        every = zip(flagged, account.drafts, strict=True)
        # Those that are proposed have the first numbers.
        ordered = sorted(every, key=lambda pair: not pair[0][1])
        for number, ((operation, again), (_, numbers)) in enumerate(ordered, 1):
            name = operation_id(step, number)
            (operations if again else withheld).append(replace(operation, id=name))
            rests_on.append((name, numbers))
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
            withheld=tuple(withheld),
            prompt_hash=self._consolidate.hash if account.refs else "",
            fates=account.fates(rests_on),
        )

    async def _ask_all(self, key: CallKey, account: _Account, library: Library) -> bool:
        """Ask about all proposals, in parts of those that are alike; False where none replies.

        The proposals of a part that fails become operations as they are.
        """
        limit = self._settings.proposals_per_call
        # In a thread: it compares thousands of texts, and the run goes on meanwhile.
        parts = await asyncio.to_thread(arrange, account.candidates, limit)
        keys = [key]
        if len(parts) > 1:
            keys = [replace(key, index=_PART, position=place) for place in range(len(parts))]
        answers = await waiting.gather_all(
            self._ask_to_decide(key, shown, account, library)
            for key, shown in zip(keys, parts, strict=True)
        )
        if not account.take(key.step, answers):
            return False
        for shown, answer in zip(parts, answers, strict=True):
            unnamed = self._take_operations(shown, answer, account)
            if not answer.problems:
                account.drop(unnamed, UNNAMED)
            elif len(parts) == 1:
                account.drop(unnamed, "no object that could be read names it")
            else:
                for candidate in unnamed:
                    own = candidate.proposal
                    same = Suggestion(own.kind, own.target, own.text, own.rationale, ())
                    self._add_draft(same, [candidate], account)
        return True

    async def _ask_to_decide(
        self, key: CallKey, shown: Sequence[Candidate], account: _Account, library: Library
    ) -> Answer:
        """Ask what becomes of these candidates; once more for those left out."""
        prompt = self._consolidate.render(
            **self._reflector.objectives,
            library=library_text(account.seen, counts=True),
            curated=past_decisions_block(library),
            proposals=proposals_block([(one.proposal, one.note(account.won)) for one in shown]),
            room=self._room_text(library, len(shown), len(account.candidates)),
        )
        reading = _AccountedReply(shown, library, self._settings.operations_per_call)
        try:
            answer = await self._reflector.ask(key, prompt, reading.parse, reading.rank)
        except errors.CallFailed as error:
            return RepairResult((), (str(error),), "", (), (), lost=error.usage)
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
        self, row: Suggestion, behind: Sequence[Candidate], account: _Account, model: str = ""
    ) -> None:
        operation = row.as_operation(
            evidence=[rollout for one in behind for rollout in one.proposal.evidence],
            problems=[one.problem for one in behind],
            proposer=model or self._reflector.policy.name,
            prompt_hash=self._consolidate.hash,
        )
        account.drafts.append((operation, [one.number for one in behind]))

    def _room_text(self, library: Library, shown: int, total: int) -> str:
        """What the library still takes; where that is little, each call's share of it."""
        limit = self._settings.library_limit
        if limit is None:
            return self._room_open.render()
        held = len(library.experiences)
        left = max(0, limit - held)
        share = left if left >= total else math.ceil(left * shown / total)
        return self._room_left.render(held=str(held), limit=str(limit), left=str(share))


@dataclass(slots=True)
class _AccountedReply:
    """Reads replies about some proposals, and asks for those that no object names."""

    shown: Sequence[Candidate]
    library: Library
    bound: int
    first: tuple[ConsolidationRow, ...] = ()

    def parse(self, text: str) -> ParsedReply[ConsolidationRow]:
        known = range(1, len(self.shown) + 1)
        parsed = parse_consolidation(text, self.library, known=known, bound=self.bound)
        rows = parsed.items
        if self.first and rows and not _named(self.first) & _named(rows):
            rows = (*self.first, *rows)  # asked for what was missing, it sent only that
        self.first = self.first or rows
        asked = self.question(rows)
        return replace(parsed, items=rows, problems=parsed.problems + ((asked,) if asked else ()))

    def question(self, rows: Sequence[ConsolidationRow]) -> str:
        """What to ask about the proposals that no row names, with their texts; "" for none."""
        named = _named(rows)
        left = {n: one.proposal for n, one in enumerate(self.shown, 1) if n not in named}
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


def _named(rows: Sequence[ConsolidationRow]) -> set[int]:
    return {number for row in rows for number in row.sources}


class TrainingFreeEngine:
    """Implements `engines.core.protocols.Engine` with a frozen model that reads."""

    def __init__(
        self,
        settings: TrainingFreeSettings,
        reflector: protocols.Policy,
        ledger: protocols.Ledger,
        linter: OperationLinter | None = None,
        put_off: Callable[[], Sequence[Operation]] = lambda: (),
        draft: int = 0,
    ) -> None:
        linter = linter or OperationLinter()
        self.reflector = Reflector(settings, reflector, ledger, draft)
        self.reflect = GroupReader(self.reflector).reflect
        self.consolidate = Consolidator(self.reflector, linter, put_off).consolidate
        self.with_draft = partial(TrainingFreeEngine, settings, reflector, ledger, linter, put_off)

    def plan(self, total_steps: int) -> None:
        """Nothing here follows from how long a run is."""

    async def apply(self, update: WeightUpdate) -> int:
        raise ValueError("a frozen model has no weights to update")

    async def save(self, folder: Path) -> str:
        """The library is the only state, and it is not the engine's."""
        return ""

    async def restore(self, folder: Path) -> None:
        """See `save`."""
