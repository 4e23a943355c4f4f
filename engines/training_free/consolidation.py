"""What a batch as a whole should change: proposals become operations, checked by the linter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from engines.core.errors import CallFailed
from engines.core.library import Library
from engines.core.text.prompts import load_prompt
from engines.core.text.reply import ParsedReply, RepairResult
from engines.core.types import (
    CallKey,
    Group,
    Lesson,
    LostWork,
    Operation,
    Proposal,
    Reflection,
    operation_id,
)
from engines.training_free.asking import PACKAGE, Reflector, library_text, reply_losses
from engines.training_free.curation import past_decisions_block, withhold_rejected
from engines.training_free.lint import OperationLinter
from engines.training_free.parse import Suggestion, parse_suggestions
from engines.training_free.reading import proposals_block


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
            **self._reflector.objectives,
            proposals=proposals_block(proposals),
            library=library_text(library),
            curated=past_decisions_block(library),
            room=self._room_text(library),
        )

        def parse(text: str) -> ParsedReply[Suggestion]:
            bound = self._reflector.settings.max_operations
            return parse_suggestions(text, library, sources="proposals", known=numbers, limit=bound)

        where = f"step {step}"
        try:
            answered = await self._reflector.ask(
                CallKey("consolidation", epoch, step), prompt, parse
            )
        except CallFailed as error:
            lost = LostWork("consolidation", where, str(error))
            return Lesson(step, library.version, losses=(lost,), usage=error.usage)
        suggested = self._suggest_operations(batch, proposals, answered)
        operations, withheld = await withhold_rejected(suggested, library)
        named = [
            replace(operation, id=operation_id(step, number))
            for number, operation in enumerate((*operations, *withheld), 1)
        ]
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
            losses=reply_losses("consolidation", where, answered),
            usage=answered.usage + self._linter.take_usage(),
            refs=answered.refs,
            notes=answered.notes,
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
        model = answered.completions[-1].model or self._reflector.policy.name
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

    def _room_text(self, library: Library) -> str:
        limit = self._settings.library_limit
        if limit is None:
            return self._room_open.render()
        held = len(library.experiences)
        left = max(0, limit - held)
        return self._room_left.render(held=str(held), limit=str(limit), left=str(left))
