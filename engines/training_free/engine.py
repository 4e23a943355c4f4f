"""Training-Free GRPO: lessons in words from where winners and losers part.

Two questions are put to the reflector: what a group shows (`reflect`) and what the batch as a
whole should change (`consolidate`). Changes nothing: operations go to the gate.

Source: arXiv:2510.08191, Training-Free Group Relative Policy Optimization, section 2.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from engines.core.errors import CallFailed
from engines.core.library import Library
from engines.core.protocols import Ledger, Policy
from engines.core.text.prompts import load_prompt, quote
from engines.core.text.reply import ParsedReply, RepairResult, ask_with_repair
from engines.core.types import (
    NO_USAGE,
    CallKey,
    Completion,
    Group,
    GroupOutcome,
    Lesson,
    LostWork,
    Message,
    Operation,
    Proposal,
    RecordRef,
    Reflection,
    Usage,
    WeightUpdate,
    operation_id,
)
from engines.training_free.curation import past_decisions_block, withhold_rejected
from engines.training_free.lint import OperationLinter
from engines.training_free.parse import Suggestion, parse_suggestions
from engines.training_free.reading import (
    ShownAttempt,
    attempts_block,
    library_block,
    proposals_block,
    shown_attempts,
)
from engines.training_free.settings import TrainingFreeSettings

ANY_OF = "any one of:"
"""Stands above several accepted answers in a prompt."""

_PACKAGE = "engines.training_free"

_Parse = Callable[[str], ParsedReply[Suggestion]]
_Reply = Coroutine[Any, Any, tuple[Completion, RecordRef]]


class TrainingFreeEngine:
    """Implements `engines.core.protocols.Engine` with a frozen model that reads."""

    def __init__(
        self,
        settings: TrainingFreeSettings,
        reflector: Policy,
        ledger: Ledger,
        linter: OperationLinter | None = None,
        put_off: Callable[[], Sequence[Operation]] = lambda: (),
    ) -> None:
        self._put_off = put_off  # operations of earlier steps that are still open
        self._linter = linter or OperationLinter()
        self._settings = settings
        self._reflector = reflector
        self._ledger = ledger
        self._summarise = load_prompt(_PACKAGE, "summarise")
        self._extract = load_prompt(_PACKAGE, "extract")
        self._consolidate = load_prompt(_PACKAGE, "consolidate")
        self._repair = load_prompt(_PACKAGE, "repair")
        self._room_open = load_prompt(_PACKAGE, "room_open")
        self._pinned = load_prompt(_PACKAGE, "pinned")
        self._room_left = load_prompt(_PACKAGE, "room_left")

    def plan(self, total_steps: int) -> str:
        """Nothing here follows from how long a run is."""
        return ""

    async def reflect(self, group: Group, library: Library) -> Reflection:
        """Draw a group's lessons. A group without contrast costs no call."""
        outcome = self._outcome(group)
        if outcome != "used":
            return Reflection(group.step, group.position, outcome)
        shown, losses, usage, refs = await self._read_attempts(group)

        def failed(reason: str, usage: Usage) -> Reflection:
            lost = (*losses, LostWork("extraction", group.id, reason))
            return Reflection(
                group.step, group.position, "failed", losses=lost, usage=usage, refs=refs
            )

        if len(shown) < 2:
            return failed("fewer than two attempts could be read", usage)
        numbers, limit = [attempt.index for attempt in shown], self._settings.experiences_per_query
        prompt = self._extract.render(
            agent_objective=quote(self._settings.agent_objective),
            learning_objective=quote(self._settings.learning_objective),
            problem=quote(group.problem.question),
            truth=quote(self._expected_answer(group)),
            attempts=attempts_block(shown, self._settings.given_ground_truth),
            library=self._library_text(library),
            curated=past_decisions_block(library),
            limit=str(limit),
        )

        def parse(text: str) -> ParsedReply[Suggestion]:
            return parse_suggestions(text, library, sources="attempts", known=numbers, limit=limit)

        key = CallKey("extraction", group.epoch, group.step, group.position)
        try:
            answered = await self._ask(key, prompt, parse)
        except CallFailed as error:
            return failed(str(error), usage + error.usage)
        ids = {rollout.index: rollout.id for rollout in group.rollouts}
        return Reflection(
            step=group.step,
            position=group.position,
            outcome="used" if answered.items or not answered.problems else "failed",
            proposals=tuple(
                Proposal(s.kind, s.target, s.text, s.reason, tuple(ids[n] for n in s.sources))
                for s in answered.items
            ),
            prompt_hash=self._extract.hash,
            losses=(*losses, *_losses("extraction", group.id, answered)),
            usage=usage + answered.usage,
            refs=(*refs, *answered.refs),
        )

    async def consolidate(
        self, batch: Sequence[Group], reflections: Sequence[Reflection], library: Library
    ) -> Lesson:
        """Turn the batch's proposals into operations; without any, no call is made."""
        step, epoch = batch[0].step, batch[0].epoch
        proposals = [
            (group.id, proposal)
            for group, reflection in zip(batch, reflections, strict=True)
            for proposal in reflection.proposals
        ]
        if not proposals:
            return Lesson(step, library.version)
        numbers = list(range(1, len(proposals) + 1))
        prompt = self._consolidate.render(
            agent_objective=quote(self._settings.agent_objective),
            learning_objective=quote(self._settings.learning_objective),
            proposals=proposals_block(proposals),
            library=self._library_text(library),
            curated=past_decisions_block(library),
            room=self._room_text(library),
        )

        def parse(text: str) -> ParsedReply[Suggestion]:
            return parse_suggestions(text, library, sources="proposals", known=numbers, limit=None)

        where = f"step {step}"
        try:
            answered = await self._ask(CallKey("consolidation", epoch, step), prompt, parse)
        except CallFailed as error:
            lost = LostWork("consolidation", where, str(error))
            return Lesson(step, library.version, losses=(lost,), usage=error.usage)
        suggested = self._suggest_operations(batch, proposals, answered)
        operations, withheld = withhold_rejected(suggested, library)
        named = [
            replace(operation, id=operation_id(step, number))
            for number, operation in enumerate((*operations, *withheld), 1)
        ]
        operations, withheld = tuple(named[: len(operations)]), tuple(named[len(operations) :])
        beside = (*operations, *self._put_off())
        linted = [
            replace(op, flags=(*op.flags, *await self._linter.flags(op, library, beside)))
            for op in operations
        ]
        return Lesson(
            step,
            library.version,
            tuple(linted),
            losses=_losses("consolidation", where, answered),
            usage=answered.usage + self._linter.take_usage(),
            refs=answered.refs,
            withheld=withheld,
            prompt_hash=self._consolidate.hash,
        )

    def _suggest_operations(
        self,
        batch: Sequence[Group],
        proposals: Sequence[tuple[str, Proposal]],
        answered: RepairResult[Suggestion],
    ) -> list[Operation]:
        """The consolidated suggestions as operations that have no id yet."""
        model = answered.completions[-1].model or self._reflector.name
        problem_ids = {group.id: group.problem.id for group in batch}
        operations = []
        for found in answered.items:
            rests_on = [proposals[number - 1] for number in found.sources]
            operation = found.as_operation(
                evidence=[rollout for _, one in rests_on for rollout in one.evidence],
                problems=[problem_ids[group] for group, _ in rests_on],
                proposer=model,
                prompt_hash=self._consolidate.hash,
            )
            operations.append(operation)
        return operations

    async def apply(self, update: WeightUpdate) -> int:
        raise ValueError("a frozen model has no weights to update")

    async def save(self, folder: Path) -> str:
        """The library is the only state, and it is not the engine's."""
        return ""

    async def restore(self, folder: Path) -> None:
        """See `save`."""

    def _outcome(self, group: Group) -> GroupOutcome:
        if self._settings.given_ground_truth:
            return group.reward_outcome
        return "failed" if all(r.attempt.status == "failed" for r in group.rollouts) else "used"

    def _expected_answer(self, group: Group) -> str:
        """The expected answer; of several each on a line of its own below a heading."""
        if not self._settings.given_ground_truth:
            return "(not shown)"
        accepted = group.problem.accepted_answers
        if len(accepted) < 2:
            return group.problem.answer or "(not given)"
        return "\n".join([ANY_OF, *(" ".join(text.split()) for text in accepted)])

    def _library_text(self, library: Library) -> str:
        block, pinned = library_block(library), library.pinned_ids
        return f"{block}\n\n{self._pinned.render(ids=', '.join(pinned))}" if pinned else block

    def _room_text(self, library: Library) -> str:
        limit = self._settings.library_limit
        if limit is None:
            return self._room_open.render()
        held = len(library.experiences)
        left = max(0, limit - held)
        return self._room_left.render(held=str(held), limit=str(limit), left=str(left))

    async def _read_attempts(
        self, group: Group
    ) -> tuple[tuple[ShownAttempt, ...], tuple[LostWork, ...], Usage, tuple[RecordRef, ...]]:
        """Each attempt as text, summarised where it is too long to be read whole."""
        attempts = shown_attempts(group, self._settings.given_ground_truth)
        mode, above = self._settings.summarise, self._settings.summarise_above_chars
        long = [a for a in attempts if mode == "always" or (mode == "auto" and len(a.text) > above)]
        replies = await asyncio.gather(*(self._ask_summary(group, attempt) for attempt in long))
        read = {attempt.index: attempt for attempt in attempts if attempt not in long}
        losses: list[LostWork] = []
        usage, refs = NO_USAGE, []
        for attempt, reply in zip(long, replies, strict=True):
            if isinstance(reply, LostWork):
                losses.append(reply)
                continue
            completion, ref = reply
            usage += completion.usage
            refs.append(ref)
            read[attempt.index] = replace(attempt, text=completion.text.strip())
        shown = tuple(read[a.index] for a in attempts if a.index in read)
        return shown, tuple(losses), usage, tuple(refs)

    async def _ask_summary(
        self, group: Group, attempt: ShownAttempt
    ) -> tuple[Completion, RecordRef] | LostWork:
        prompt = self._summarise.render(
            problem=quote(group.problem.question),
            reward=attempt.reward_note(self._settings.given_ground_truth),
            attempt=quote(attempt.text),
        )
        key = CallKey("summary", group.epoch, group.step, group.position, attempt.index)
        try:
            completion, ref = await self._ask_reflector(key, [Message("user", prompt)])
        except CallFailed as error:
            return LostWork("summary", f"{group.id}r{attempt.index}", str(error))
        if not completion.text.strip():
            return LostWork("summary", f"{group.id}r{attempt.index}", "the summary is empty")
        return completion, ref

    async def _ask(self, key: CallKey, prompt: str, parse: _Parse) -> RepairResult[Suggestion]:
        def send(number: int, messages: Sequence[Message]) -> _Reply:
            return self._ask_reflector(replace(key, turn=number), messages)

        return await ask_with_repair(
            send,
            [Message("user", prompt)],
            parse,
            lambda problem: self._repair.render(problem=problem),
        )

    def _ask_reflector(self, key: CallKey, messages: Sequence[Message]) -> _Reply:
        return self._ledger.ask(key, self._reflector, messages, self._settings.sampling)


def _losses(kind: str, where: str, answered: RepairResult[Suggestion]) -> tuple[LostWork, ...]:
    """What one repair turn could not mend: a whole reply, or single proposals of it."""
    if answered.items:
        return tuple(
            LostWork("proposal", where, problem, answered.reply) for problem in answered.problems
        )
    said = " ".join(answered.problems)
    return (LostWork(kind, where, said, answered.reply),) if said else ()
