"""What one group shows: its attempts are read, and changes of the library proposed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from engines.core.errors import CallFailed
from engines.core.ids import digest
from engines.core.library import Library
from engines.core.protocols import Earlier
from engines.core.text.prompts import load_prompt, quote
from engines.core.text.reply import ParsedReply
from engines.core.types import (
    NO_USAGE,
    CallKey,
    Completion,
    Credit,
    Doubt,
    Group,
    GroupOutcome,
    LostWork,
    Message,
    Proposal,
    RecordRef,
    Reflection,
    Usage,
)
from engines.core.waiting import gather_all
from engines.training_free.consolidation import past_decisions_block
from engines.training_free.reading import (
    PACKAGE,
    DoubtRow,
    ExtractionRow,
    Reflector,
    ShownAttempt,
    Suggestion,
    attempts_block,
    choose_attempts,
    cut_middle,
    library_before_text,
    library_seen,
    library_text,
    parse_extraction,
    reply_losses,
    rest_block,
    says_why,
    shown_attempts,
)

ANY_OF = "any one of:"
"""Stands above several accepted answers in a prompt."""


class GroupReader:
    """Reads groups, one call each besides the summaries."""

    def __init__(self, reflector: Reflector) -> None:
        self._reflector, self._settings = reflector, reflector.settings
        self._summarise = load_prompt(PACKAGE, "summarise")
        self._extract = load_prompt(PACKAGE, "extract")
        self._credit = load_prompt(PACKAGE, "credit")
        self._reviewed = load_prompt(PACKAGE, "reviewed")
        self._questions = {
            "used": load_prompt(PACKAGE, "contrast"),
            "critique": load_prompt(PACKAGE, "critique"),
        }

    async def reflect(self, group: Group, library: Library, earlier: Earlier = ()) -> Reflection:
        """Draw a group's lessons. A group that is not read costs no call."""
        outcome = await self._outcome(group, earlier)
        if outcome not in self._questions:
            return Reflection(group.step, group.position, outcome)
        attempts = shown_attempts(group, self._settings.given_ground_truth)
        chosen, rest = choose_attempts(attempts, self._settings.min_contrast)
        shown, losses, usage, refs = await self._shorten_attempts(group, chosen)

        def fail(reason: str, usage: Usage) -> Reflection:
            lost = (*losses, LostWork("extraction", group.id, reason))
            return Reflection(
                group.step, group.position, "failed", losses=lost, usage=usage, refs=refs
            )

        if len(shown) + len(rest) < (2 if outcome == "used" else 1) or not shown:
            return fail("too few attempts could be read", usage)
        numbers = sorted(attempt.index for attempt in (*shown, *rest))
        limit = self._settings.experiences_per_query
        question = self._questions[outcome]
        prompt = question.render(
            problem=quote(group.problem.asked),
            truth=quote(self._expected_answer(group)),
            attempts=attempts_block(shown),
            rest=rest_block(rest, shown),
            before=library_before_text(group, library),
        )

        def parse(text: str) -> ParsedReply[ExtractionRow]:
            return parse_extraction(text, library, known=numbers, limit=limit)

        key = CallKey("extraction", group.epoch, group.step, group.position)
        system = self._instructions(library_seen(library, (group,)))
        try:
            answered = await self._reflector.ask(key, prompt, parse, system=system)
        except CallFailed as error:
            return fail(str(error), usage + error.usage)
        return replace(
            _rows_as_reflection(group, answered.items),
            outcome=outcome if answered.items or not answered.problems else "failed",
            prompt_hash=digest([self._extract.hash, question.hash], 6),
            losses=(*losses, *reply_losses("extraction", group.id, answered)),
            usage=usage + answered.usage,
            refs=(*refs, *answered.refs),
            notes=answered.notes,
        )

    def _instructions(self, library: Library) -> str:
        """What every question of a step begins with, byte for byte, so that models cache it."""
        curated = past_decisions_block(library)
        return self._extract.render(
            **self._reflector.objectives,
            library=library_text(library),
            credit=f"\n\n{self._credit.render()}" if library.experiences else "",
            reviewed=f"\n\n{self._reviewed.render(curated=curated)}" if library.curated else "",
            limit=str(self._settings.experiences_per_query),
            max_words=str(self._settings.max_words),
        )

    async def _outcome(self, group: Group, earlier: Earlier) -> GroupOutcome:
        if not self._settings.given_ground_truth:
            return "failed" if all(r.attempt.status == "failed" for r in group.rollouts) else "used"
        if self._waits_for_words(group) and await self._is_within_limit(earlier):
            return "critique"
        return group.outcome_at(self._settings.min_contrast)

    def _waits_for_words(self, group: Group) -> bool:
        """Whether only what the verifier says can teach anything here, and it says something."""
        outcome = group.outcome_at(self._settings.min_contrast)
        return outcome in ("all-wrong", "all-equal") and says_why(group)

    async def _is_within_limit(self, earlier: Earlier) -> bool:
        """Whether fewer such groups than are read stand before this one in its batch.

        Their place decides and not who ends first, so that a resumed step reads the same.
        """
        left = self._settings.read_without_contrast
        for at, judged in enumerate(earlier):
            if left <= 0 or len(earlier) - at < left:
                break
            # Shielded: it is waited for by others, too.
            left -= self._waits_for_words(await asyncio.shield(judged))
        return left > 0

    def _expected_answer(self, group: Group) -> str:
        """The expected answer; of several each on a line of its own below a heading."""
        if not self._settings.given_ground_truth:
            return "(not shown)"
        accepted = group.problem.accepted_answers
        if len(accepted) < 2:
            return group.problem.answer or "(not given)"
        return "\n".join([ANY_OF, *(" ".join(text.split()) for text in accepted)])

    async def _shorten_attempts(
        self, group: Group, attempts: Sequence[ShownAttempt]
    ) -> tuple[tuple[ShownAttempt, ...], tuple[LostWork, ...], Usage, tuple[RecordRef, ...]]:
        """The attempts with texts that fit together, summarised or cut where they did not."""
        above = self._settings.summarise_above_chars
        is_long = sum(len(a.text) for a in attempts) > self._settings.read_chars
        long = [a for a in attempts if is_long and len(a.text) > above]
        replies = await gather_all(self._ask_summary(group, attempt) for attempt in long)
        read = {attempt.index: attempt for attempt in attempts if attempt not in long}
        losses: list[LostWork] = []
        usage, refs = NO_USAGE, []
        for attempt, reply in zip(long, replies, strict=True):
            if isinstance(reply, LostWork):
                losses.append(reply)
                continue
            completion, ref = reply
            if not self._reflector.draft:  # all drafts read the same summaries
                usage += completion.usage
            refs.append(ref)
            read[attempt.index] = replace(attempt, text=completion.text.strip())
        shown = [read[a.index] for a in attempts if a.index in read]
        if sum(len(a.text) for a in shown) > self._settings.read_chars:
            most = self._settings.read_chars // len(shown)
            shown = [replace(a, text=cut_middle(a.text, most)) for a in shown]
        return tuple(shown), tuple(losses), usage, tuple(refs)

    async def _ask_summary(
        self, group: Group, attempt: ShownAttempt
    ) -> tuple[Completion, RecordRef] | LostWork:
        prompt = self._summarise.render(
            problem=quote(group.problem.asked),
            reward=attempt.reward_note,
            attempt=quote(cut_middle(attempt.text, self._settings.read_chars)),
        )
        key = CallKey("summary", group.epoch, group.step, group.position, attempt.index)
        try:
            completion, ref = await self._reflector.ask_once(key, [Message("user", prompt)])
        except CallFailed as error:
            return LostWork("summary", f"{group.id}r{attempt.index}", str(error))
        if not completion.text.strip():
            return LostWork("summary", f"{group.id}r{attempt.index}", "the summary is empty")
        return completion, ref


def _rows_as_reflection(group: Group, rows: Sequence[ExtractionRow]) -> Reflection:
    """A reply's rows with rollouts for the numbers of attempts.

    An experience is credited only with attempts that had it before them.
    """
    ids = {rollout.index: rollout.id for rollout in group.rollouts}
    before = {rollout.index: rollout.shown for rollout in group.rollouts}
    proposals, credits, doubts = [], [], []
    for row in rows:
        if isinstance(row, Suggestion):
            evidence = tuple(ids[n] for n in row.sources)
            proposals.append(Proposal(row.kind, row.target, row.text, row.reason, evidence))
        elif isinstance(row, DoubtRow):
            doubts += [Doubt(ids[n], row.reason) for n in row.sources]
        else:
            had = [
                n for n in row.sources if (shown := before[n]) is None or row.experience in shown
            ]
            if had or not row.sources:
                credits.append(Credit(row.experience, row.use, tuple(ids[n] for n in had)))
    return Reflection(
        step=group.step,
        position=group.position,
        outcome="used",
        proposals=tuple(proposals),
        credits=tuple(credits),
        doubts=tuple(dict((doubt.rollout, doubt) for doubt in doubts).values()),
    )
