"""What one group shows: its attempts are read, and changes of the library proposed."""

from __future__ import annotations

from dataclasses import replace

from engines.core.errors import CallFailed
from engines.core.library import Library
from engines.core.text.prompts import load_prompt, quote
from engines.core.text.reply import ParsedReply
from engines.core.types import (
    NO_USAGE,
    CallKey,
    Completion,
    Group,
    GroupOutcome,
    LostWork,
    Message,
    Proposal,
    RecordRef,
    Reflection,
    Usage,
)
from engines.core.waiting.gather import gather_all
from engines.training_free.asking import PACKAGE, Reflector, library_text, reply_losses
from engines.training_free.curation import past_decisions_block
from engines.training_free.parse import Suggestion, parse_suggestions
from engines.training_free.reading import ShownAttempt, attempts_block, shown_attempts

ANY_OF = "any one of:"
"""Stands above several accepted answers in a prompt."""


class GroupReader:
    """Reads groups, one call each besides the summaries."""

    def __init__(self, reflector: Reflector) -> None:
        self._reflector, self._settings = reflector, reflector.settings
        self._summarise = load_prompt(PACKAGE, "summarise")
        self._extract = load_prompt(PACKAGE, "extract")

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
            **self._reflector.objectives,
            problem=quote(group.problem.question),
            truth=quote(self._expected_answer(group)),
            attempts=attempts_block(shown, self._settings.given_ground_truth),
            library=library_text(library),
            curated=past_decisions_block(library),
            limit=str(limit),
        )

        def parse(text: str) -> ParsedReply[Suggestion]:
            return parse_suggestions(text, library, sources="attempts", known=numbers, limit=limit)

        key = CallKey("extraction", group.epoch, group.step, group.position)
        try:
            answered = await self._reflector.ask(key, prompt, parse)
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
            losses=(*losses, *reply_losses("extraction", group.id, answered)),
            usage=usage + answered.usage,
            refs=(*refs, *answered.refs),
            notes=answered.notes,
        )

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

    async def _read_attempts(
        self, group: Group
    ) -> tuple[tuple[ShownAttempt, ...], tuple[LostWork, ...], Usage, tuple[RecordRef, ...]]:
        """Each attempt as text, summarised where it is too long to be read whole."""
        attempts = shown_attempts(group, self._settings.given_ground_truth)
        mode, above = self._settings.summarise, self._settings.summarise_above_chars
        long = [a for a in attempts if mode == "always" or (mode == "auto" and len(a.text) > above)]
        replies = await gather_all(self._ask_summary(group, attempt) for attempt in long)
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
            completion, ref = await self._reflector.ask_once(key, [Message("user", prompt)])
        except CallFailed as error:
            return LostWork("summary", f"{group.id}r{attempt.index}", str(error))
        if not completion.text.strip():
            return LostWork("summary", f"{group.id}r{attempt.index}", "the summary is empty")
        return completion, ref
