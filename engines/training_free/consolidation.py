"""What a batch as a whole should change: proposals become operations, checked by the linter.

Few proposals are consolidated by one call. More are merged first, group by group, so that no
call is shown more than it can attend to; none is dropped on the way without a reason.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from engines.core.errors import CallFailed
from engines.core.library import Library
from engines.core.text.prompts import load_prompt, quote
from engines.core.text.reply import ParsedReply, RepairResult
from engines.core.types import (
    NO_USAGE,
    NOT_ONE,
    CallKey,
    Group,
    Lesson,
    LostWork,
    Operation,
    Proposal,
    ProposalFate,
    RecordRef,
    Reflection,
    Usage,
    operation_id,
)
from engines.core.waiting import gather_all
from engines.training_free.lint import OperationLinter
from engines.training_free.proposals import (
    BatchEvidence,
    Candidate,
    arrange,
    past_decisions_block,
    plan_calls,
    withhold_rejected,
)
from engines.training_free.reading import (
    PACKAGE,
    ConsolidationRow,
    DropRow,
    Reflector,
    Suggestion,
    library_seen,
    library_text,
    parse_consolidation,
    proposals_block,
    reply_losses,
)

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
