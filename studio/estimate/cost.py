"""What a run would cost, computed before anything is asked: calls, tokens and money by stage.

Pure. "At most" means: every group has contrast, every reply is as long as its limit and has to be
repaired, every verdict that can ask a judge does. Retries of failed calls are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from engines.data.sampler import Sampler
from engines.pipeline.budget import CallPricing
from engines.training_free.proposals import plan_calls

_PURPOSES = {
    "rollouts": "rollout",
    "judging": "judge",
    "summaries": "summary",
    "extraction": "extraction",
    "consolidation": "consolidation",
    "embeddings": "embedding",
    "evaluation": "evaluation",
}
STAGES = tuple(_PURPOSES)
REPAIR_TOKENS = 80
"""Of the message that says what was wrong with a reply."""
LIKELY_SHOWN, MOST_SHOWN = 2.5, 4
"""Tries of a group that the reflector reads, of those with known rewards: of each side two with
different answers, and the better ones mostly agree."""
ATTEMPT_TOKENS = 16
"""Of the heading above an attempt or a proposal."""
LONGEST_EXPERIENCE = 120
"""Tokens of one experience, where the most is asked for: the prompts want one sentence."""


@dataclass(frozen=True, slots=True)
class Range:
    """Likely and at most; both are means or sums, so they need not be whole."""

    likely: float = 0.0
    most: float = 0.0

    def __add__(self, other: Range) -> Range:
        return Range(self.likely + other.likely, self.most + other.most)

    def __mul__(self, other: Range) -> Range:
        return Range(self.likely * other.likely, self.most * other.most)


TOOL_RESULT = Range(50, 500)
"""Tokens of what a tool returns."""


def _exactly(value: float) -> Range:
    return Range(value, value)


def _whole(found: Range) -> Range:
    """Whole numbers, so that shown stages add up to their sum; what is above 0 is 1 or more."""
    return Range(round(max(found.likely, found.likely > 0)), round(max(found.most, found.most > 0)))


@dataclass(frozen=True, slots=True)
class Stage:
    """One kind of call. `cost_usd` is None where its model has no price; `done` was paid before."""

    name: str
    calls: Range
    prompt_tokens: Range
    reply_tokens: Range
    cost_usd: Range | None
    done: int = 0


@dataclass(frozen=True, slots=True)
class Estimate:
    """All stages that are not empty, and their sum."""

    stages: tuple[Stage, ...]

    @property
    def calls(self) -> Range:
        return sum((stage.calls for stage in self.stages), Range())

    @property
    def prompt_tokens(self) -> Range:
        return sum((stage.prompt_tokens for stage in self.stages), Range())

    @property
    def reply_tokens(self) -> Range:
        return sum((stage.reply_tokens for stage in self.stages), Range())

    @property
    def tokens(self) -> Range:
        return self.prompt_tokens + self.reply_tokens

    @property
    def cost_usd(self) -> Range | None:
        """None as soon as one stage that makes calls has no price."""
        known = [stage.cost_usd for stage in self.stages if stage.cost_usd is not None]
        return sum(known, Range()) if len(known) == len(self.stages) else None

    @property
    def done_calls(self) -> int:
        return sum(stage.done for stage in self.stages)


@dataclass(frozen=True, slots=True)
class Facts:
    """The input of the arithmetic. Lengths are tokens."""

    sampler: Sampler
    group_size: int
    policy: CallPricing
    reflector: CallPricing
    judge: CallPricing
    replies: Mapping[str, float]  # likely length of a reply, by purpose
    instructions: float
    question: float  # mean of the problems'
    truth: float
    extract: float  # the prompt without what is put into it
    consolidate: float
    summarise: float
    judging: float
    judged: Range = Range()  # calls of judges a verdict takes
    turns: Range = Range(1.0, 1.0)  # replies of a try
    summaries: Literal["auto", "always", "never"] = "auto"
    summarise_above: float = 700.0
    group_budget: float = 10_000.0  # of a group's tries together, above which long ones are retold
    unlike_read: int = 0  # groups of a step that are read although no try was good
    per_group: int = 1  # lessons a group may propose
    per_call: int = 8  # proposals that one call consolidates
    truth_given: bool = True
    lessons: bool = True  # False: weights are trained, and no reflector is asked
    contrast: float | None = None  # share of groups with contrast, measured; None: assumed
    contrast_of: int = 2  # group size it was measured with
    guidance: float = 0.0  # of the library as it stands
    citing: float = 0.0  # of the request to cite, part of the guidance
    experiences: int = 0
    experience: float = 40.0  # length of one
    limit: int | None = 50
    growth: float = 2.0  # experiences a step adds
    steps_done: int = 0
    held_out: int = 0  # rollouts of one evaluation
    held_out_question: float = 0.0
    evaluated_after: tuple[int, ...] = ()  # steps, 0 while the one before the first is due
    known: int = 0  # of an evaluation's rollouts, with the library as it stands
    replayed: bool = False  # rollouts come from a log and cost nothing
    under_way: Mapping[str, int] = field(default_factory=dict)  # recorded of the step under way
    lesson_known: bool = False  # the step under way has its lesson: only its evaluation is left
    done: Mapping[str, int] = field(default_factory=dict)  # recorded of the whole run
    embedding: CallPricing | None = None  # None: meanings are not compared
    at_most: float = 1.0  # how much longer than likely the same text can be, in tokens

    def contrast_share(self, group_size: int) -> float:
        """The share of groups that show a difference.

        Where nothing was measured, the chance to solve a problem is assumed to be uniform from 0
        to 1, so all G tries agree in 2 of G + 1 cases. A measured share is scaled to another
        group size by the same rule.
        """
        if not self.truth_given:
            return 1.0
        assumed = (group_size - 1) / (group_size + 1)
        if self.contrast is None:
            return assumed
        usual = (self.contrast_of - 1) / (self.contrast_of + 1)
        return min(1.0, self.contrast * assumed / usual) if usual else self.contrast


def estimate(facts: Facts) -> Estimate:
    """Add up what is still to be done."""
    paid = facts.under_way
    sums = {name: _Sum(paid.get(_PURPOSES[name], 0), facts.at_most) for name in STAGES}
    sampler, known, begun = facts.sampler, facts.known, facts.lesson_known
    if 0 in facts.evaluated_after:  # a fork begins with one too, after the steps it adopts
        _add_evaluation(facts, sums, facts.steps_done, known)
        known = 0
    for step in range(facts.steps_done + 1, sampler.total_steps + 1):
        if not begun:
            _add_step(facts, sums, step, len(sampler.batch(step)))
        if step in facts.evaluated_after:
            _add_evaluation(facts, sums, step, known if begun else 0)
        for each in sums.values():
            each.paid = Range()  # what is on record is of the first of these steps
        begun = False
    return _close_sums(facts, sums)


def estimate_evaluation(facts: Facts, parts: Sequence[tuple[float, int]]) -> Estimate:
    """An evaluation outside any run: so many rollouts with each guidance of so many tokens."""
    sums = {name: _Sum(0, facts.at_most) for name in STAGES}
    for guidance, tries in parts:
        part = replace(facts, guidance=guidance, held_out=tries)
        _add_evaluation(part, sums, facts.steps_done, known=0)
    return _close_sums(facts, sums)


def _close_sums(facts: Facts, sums: Mapping[str, _Sum]) -> Estimate:
    terms = dict.fromkeys(STAGES, facts.reflector) | {
        "rollouts": facts.policy,
        "evaluation": facts.policy,
        "judging": facts.judge,
        "embeddings": facts.embedding or facts.reflector,
    }
    stages = (
        sums[name].stage(name, terms[name], facts.done.get(_PURPOSES[name], 0)) for name in STAGES
    )
    return Estimate(tuple(stage for stage in stages if stage.calls.most or stage.done))


def estimate_doubled(facts: Facts) -> tuple[tuple[str, Estimate], ...]:
    """The whole run with each of three settings doubled, after it as it is ("")."""
    whole = replace(facts, steps_done=0, known=0, under_way={}, lesson_known=False, done={})
    names = ("practice.batch_size", "practice.group_size", "practice.epochs")
    doubled = ((name, estimate(_double_setting(whole, name))) for name in names)
    return (("", estimate(whole)), *doubled)


class _Sum:
    """Adds up one stage; the first calls are those that are `paid` for already."""

    def __init__(self, paid: int, at_most: float) -> None:
        self.paid = _exactly(paid)
        self._longer = Range(1.0, at_most)
        self._calls = self._prompt = self._reply = Range()

    def add(self, calls: Range, prompt: Range, reply: Range) -> None:
        """Add calls of which each has this prompt and reply."""
        paid = Range(min(self.paid.likely, calls.likely), min(self.paid.most, calls.most))
        self.paid = Range(self.paid.likely - paid.likely, self.paid.most - paid.most)
        left = Range(calls.likely - paid.likely, calls.most - paid.most)
        self._calls += left
        self._prompt += left * prompt * self._longer
        self._reply += left * reply

    def stage(self, name: str, terms: CallPricing, done: int) -> Stage:
        prompt, reply = self._prompt, self._reply
        cost = Range(
            terms.cost_usd(round(prompt.likely), round(reply.likely)),
            terms.cost_usd(round(prompt.most), round(reply.most)),
        )
        priced = cost if terms.has_price else None
        return Stage(name, _whole(self._calls), _whole(prompt), _whole(reply), priced, done)


def _add_step(facts: Facts, sums: Mapping[str, _Sum], step: int, batch: int) -> None:
    """One step's practice, with the library as it will likely be by then."""
    tries, library = batch * facts.group_size, _library_tokens(facts, step)
    rollout, reflected = _reply_tokens(facts, "rollout", facts.policy), facts.reflector
    asked = _exactly(facts.instructions + facts.question) + library
    if not facts.replayed:
        _add_tries(facts, sums["rollouts"], tries, asked, rollout)
    _add_judging(facts, sums, tries, rollout)

    share = facts.contrast_share(facts.group_size)
    if not facts.lessons or (facts.group_size < 2 and facts.truth_given):
        return  # a single try differs from nothing
    # Of the groups without contrast half are taken to be all wrong.
    unlike = min(facts.unlike_read, batch * (1 - share) / 2)
    used = Range(batch * share + unlike, batch)
    summary = _reply_tokens(facts, "summary", reflected)
    long_most = facts.summaries != "never"
    shown_of_group = Range(min(facts.group_size, LIKELY_SHOWN), min(facts.group_size, MOST_SHOWN))
    if not facts.truth_given:
        shown_of_group = _exactly(facts.group_size)  # all that is known is how often it was said
    together = rollout.likely * shown_of_group.likely
    long_likely = facts.summaries == "always" or (
        long_most and together > facts.group_budget and rollout.likely > facts.summarise_above
    )
    tries_read = used * shown_of_group * Range(long_likely, long_most)  # 1 or 0
    retelling = _exactly(facts.summarise + facts.question) + rollout
    sums["summaries"].add(tries_read, retelling, summary)
    if facts.group_size < 2:
        return  # a single try is summarised, but there is no other to compare it with

    shown = Range(
        summary.likely if tries_read.likely else rollout.likely,
        min(rollout.most, facts.group_budget),
    )
    heading = _exactly(ATTEMPT_TOKENS)
    attempts = shown * shown_of_group + heading * _exactly(facts.group_size)
    extraction = _reply_tokens(facts, "extraction", reflected)
    reading = _exactly(facts.extract + facts.question + facts.truth) + attempts + library
    _add_with_repeat(sums["extraction"], used, reading, extraction)

    proposals = (extraction + heading) * used
    # A step consolidates, if any of its groups shows a difference, at once or as a tree.
    any_used = Range(1 - (1 - share) ** batch, 1.0)
    calls = _consolidation_calls(facts, used)
    sent = Range(*(2 / n if n > 1 else 1.0 for n in (calls.likely, calls.most)))  # a call's share
    weighing = _exactly(facts.consolidate) + proposals * sent + library
    consolidation = _reply_tokens(facts, "consolidation", reflected)
    _add_with_repeat(sums["consolidation"], any_used * calls, weighing, consolidation)
    _add_embeddings(facts, sums, step, batch)


def _consolidation_calls(facts: Facts, used: Range) -> Range:
    """Calls of one consolidation; merged, half of the proposals are likely to be left."""
    found = []
    for groups, left in ((used.likely, 0.5), (used.most, 1.0)):
        n = math.ceil(groups * facts.per_group)
        if n <= facts.per_call:
            found.append(1.0)
            continue
        merging, most = plan_calls(n, facts.per_call)
        found.append(merging + min(most, math.ceil(n * left / facts.per_call)))
    return Range(*found)


def _add_embeddings(facts: Facts, sums: Mapping[str, _Sum], step: int, batch: int) -> None:
    """Each new wording is embedded once, the library's with the first; edits are not counted."""
    if facts.embedding is None:
        return
    most = batch * facts.per_group
    proposed = Range(min(facts.growth, most), most)
    # A request for the first wording, which is compared with the whole library, and one for each
    # further wording.
    asked = Range(min(1.0, proposed.likely), proposed.most)
    kept = facts.experiences if step == facts.steps_done + 1 else 0.0
    longest = max(LONGEST_EXPERIENCE, facts.experience)
    tokens = _exactly(kept * facts.experience) + proposed * Range(facts.experience, longest)
    each = Range(tokens.likely / (asked.likely or 1.0), tokens.most / (asked.most or 1.0))
    sums["embeddings"].add(asked, each, Range())


def _add_evaluation(facts: Facts, sums: Mapping[str, _Sum], step: int, known: int) -> None:
    tries = max(0, facts.held_out - known)
    rollout = _reply_tokens(facts, "evaluation", facts.policy)
    prompt = _exactly(facts.instructions + facts.held_out_question)
    asked = prompt + _library_tokens(facts, step + 1)
    _add_tries(facts, sums["evaluation"], tries, asked, rollout)
    _add_judging(facts, sums, tries, rollout)


def _add_tries(facts: Facts, into: _Sum, tries: int, asked: Range, reply: Range) -> None:
    """Tries of one or more turns; each later prompt holds the replies and results before it."""
    before = Range((facts.turns.likely - 1) / 2, (facts.turns.most - 1) / 2)
    into.add(_exactly(tries) * facts.turns, asked + (reply + TOOL_RESULT) * before, reply)


def _add_judging(facts: Facts, sums: Mapping[str, _Sum], tries: int, rollout: Range) -> None:
    verdicts = facts.judged * _exactly(tries)
    asked = _exactly(facts.judging + facts.question + facts.truth) + rollout
    _add_with_repeat(sums["judging"], verdicts, asked, _reply_tokens(facts, "judge", facts.judge))


def _add_with_repeat(into: _Sum, questions: Range, prompt: Range, reply: Range) -> None:
    """Questions that are at most asked again once, with the reply that could not be read."""
    again = (prompt.most + reply.most + REPAIR_TOKENS + prompt.most) / 2
    into.add(Range(questions.likely, 2 * questions.most), Range(prompt.likely, again), reply)


def _library_tokens(facts: Facts, step: int) -> Range:
    steps = step - 1 - facts.steps_done
    most = facts.sampler.batch_size * facts.per_group if facts.lessons else 0
    room = math.inf if facts.limit is None else max(0, facts.limit - facts.experiences)
    added = Range(min(steps * min(facts.growth, most), room), min(steps * most, room))
    longest = max(LONGEST_EXPERIENCE, facts.experience)
    # The request to cite comes with the first experience.
    asked = 0.0 if facts.guidance or not added.most else facts.citing
    return _exactly(facts.guidance + asked) + added * Range(facts.experience, longest)


def _reply_tokens(facts: Facts, purpose: str, terms: CallPricing) -> Range:
    most = terms.reply_tokens()
    return Range(min(facts.replies[purpose], most), most)


def _double_setting(facts: Facts, name: str) -> Facts:
    sampler, strategy = facts.sampler, facts.evaluated_after
    if name == "practice.group_size":
        return replace(facts, group_size=2 * facts.group_size)
    if name == "practice.epochs":
        more = replace(sampler, epochs=2 * sampler.epochs)
        again = tuple(step + sampler.total_steps for step in strategy if step)
        return replace(facts, sampler=more, evaluated_after=(*strategy, *again))
    more = replace(sampler, batch_size=2 * sampler.batch_size)
    if all(step % sampler.steps_per_epoch == 0 for step in strategy):  # after each epoch
        epochs = (step // sampler.steps_per_epoch for step in strategy)
        moved = tuple(epoch * more.steps_per_epoch for epoch in epochs)
    else:
        moved = tuple(step for step in strategy if step <= more.total_steps)
    # Twice the groups propose as much in a step as they did in two.
    return replace(facts, sampler=more, evaluated_after=moved, growth=2 * facts.growth)
