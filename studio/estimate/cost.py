"""What a run would cost, computed before anything is asked: calls, tokens and money by stage.

Pure. "At most" means: every group has contrast, every reply is as long as its limit and has to be
repaired, every verdict that can ask a judge does. Retries of failed calls are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from engines.data.sampler import Sampler
from engines.pipeline.budget import CallPricing
from engines.training_free.consolidation import plan_calls
from studio.config.settings.practice import PracticeConfig

_PURPOSES = {
    "rollouts": "rollout",
    "judging": "judge",
    "summaries": "summary",
    "extraction": "extraction",
    "consolidation": "consolidation",
    "embeddings": "embedding",
    "gate": "gate",
    "evaluation": "evaluation",
}
"""The stages, and the purpose that their calls have in the records."""
BYTES_A_TOKEN = 4.0
REPAIR_TOKENS = 80
"""Of the message that says what was wrong with a reply."""
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

    def pick(self, most: bool) -> float:
        return self.most if most else self.likely


SHOWN = Range(2.5, 4)
"""Tries of a group that the reflector reads, of those with known rewards: of each side two with
different answers, and the better ones mostly agree."""
TOOL_RESULT = Range(50, 500)
"""Tokens of what a tool returns."""


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
    practice: PracticeConfig
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
    contrast: float | None = None  # share of groups with contrast, measured; None: assumed
    contrast_of: int = 2  # group size it was measured with
    guidance: float = 0.0  # of the library as it stands
    experiences: int = 0
    experience: float = 40.0  # length of one
    growth: float = 2.0  # experiences a step adds
    steps_done: int = 0
    held_out: int = 0  # rollouts of one evaluation
    held_out_question: float = 0.0
    evaluated_first: bool = True  # the evaluation before the first step is due
    evaluated_every: int | None = None  # steps; None: after each epoch
    tried: int = 0  # tries of an operation before it is decided, at most; 0: it is not tried
    choice: int = 0  # tries of each of several lessons, to choose one
    known: int = 0  # of the next evaluation's rollouts
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
        if not self.practice.given_ground_truth:
            return 1.0
        assumed = (group_size - 1) / (group_size + 1)
        if self.contrast is None:
            return assumed
        usual = (self.contrast_of - 1) / (self.contrast_of + 1)
        return min(1.0, self.contrast * assumed / usual) if usual else self.contrast


@dataclass(frozen=True, slots=True)
class _Calls:
    """Calls of one stage that each have this prompt and reply."""

    stage: str
    n: float
    prompt: float
    reply: float


def estimate(facts: Facts) -> Estimate:
    return _sum_stages(facts, *(_run_calls(facts, most) for most in (False, True)))


def estimate_evaluation(facts: Facts, parts: Sequence[tuple[float, int]]) -> Estimate:
    """An evaluation outside any run: so many rollouts with each guidance of so many tokens."""

    def calls(most: bool) -> Iterator[_Calls]:
        for guidance, tries in parts:
            yield from _evaluation_calls(facts, most, tries, guidance)

    return _sum_stages(facts, calls(False), calls(True))


def estimate_doublings(facts: Facts) -> tuple[tuple[str, Estimate], ...]:
    """The whole run with each of three settings doubled, after it as it is ("")."""
    whole = replace(facts, steps_done=0, known=0, under_way={}, lesson_known=False, done={},
                    evaluated_first=True)  # fmt: skip
    sampler = facts.sampler
    # Twice the groups propose as much in a step as they did in two.
    larger = replace(sampler, batch_size=2 * sampler.batch_size)
    longer = replace(sampler, epochs=2 * sampler.epochs)
    return (
        ("", estimate(whole)),
        ("practice.batch_size", estimate(replace(whole, sampler=larger, growth=2 * facts.growth))),
        ("practice.group_size", estimate(replace(whole, group_size=2 * facts.group_size))),
        ("practice.epochs", estimate(replace(whole, sampler=longer))),
    )


def _sum_stages(facts: Facts, likely: Iterable[_Calls], most: Iterable[_Calls]) -> Estimate:
    terms = dict.fromkeys(_PURPOSES, facts.reflector) | {
        "rollouts": facts.policy,
        "gate": facts.policy,
        "evaluation": facts.policy,
        "judging": facts.judge,
        "embeddings": facts.embedding or facts.reflector,
    }
    sums = {name: ([0.0] * 3, [0.0] * 3) for name in _PURPOSES}  # calls, prompt and reply tokens
    for which, (found, longer) in enumerate(((likely, 1.0), (most, facts.at_most))):
        for calls in found:
            into = sums[calls.stage][which]
            into[0] += calls.n
            into[1] += calls.n * calls.prompt * longer
            into[2] += calls.n * calls.reply
    stages = []
    for name, purpose in _PURPOSES.items():
        paid, done = facts.under_way.get(purpose, 0), facts.done.get(purpose, 0)
        for amounts in sums[name]:
            left = max(0.0, 1 - paid / amounts[0]) if amounts[0] else 0.0
            # Whole numbers, so that shown stages add up to their sum; above 0 is 1 or more.
            amounts[:] = (round(max(amount * left, amount * left > 0)) for amount in amounts)
        count, prompt, reply = (Range(*pair) for pair in zip(*sums[name], strict=True))
        if count.most or done:
            cost = (terms[name].cost_usd(round(sent), round(got)) for _, sent, got in sums[name])
            priced = Range(*cost) if terms[name].has_price else None
            stages.append(Stage(name, count, prompt, reply, priced, done))
    return Estimate(tuple(stages))


def _run_calls(facts: Facts, most: bool) -> Iterator[_Calls]:
    sampler, known = facts.sampler, facts.known
    if facts.held_out and facts.evaluated_first:  # a fork begins with one too
        guidance = _library_tokens(facts, facts.steps_done, most)
        yield from _evaluation_calls(facts, most, facts.held_out - known, guidance)
        known = 0
    every = facts.evaluated_every
    for step, alike in _alike_steps(facts, most):
        if step > facts.steps_done + facts.lesson_known:
            for calls in _step_calls(facts, most, step):
                yield replace(calls, n=calls.n * alike)
        if facts.held_out and (sampler.ends_epoch(step) if every is None else step % every == 0):
            guidance = _library_tokens(facts, step, most)
            yield from _evaluation_calls(facts, most, facts.held_out - known, guidance)
            known = 0
    if facts.held_out and facts.practice.algorithm == "both":  # two of four cells are new
        guidance = _library_tokens(facts, sampler.total_steps, most) / 2
        yield from _evaluation_calls(facts, most, 2 * facts.held_out, guidance)


def _alike_steps(facts: Facts, most: bool) -> Iterator[tuple[int, int]]:
    """The steps to be done: the last of each stretch that costs the same, and its length."""
    sampler, step = facts.sampler, facts.steps_done
    full = _library_tokens(facts, sampler.total_steps, most)
    while step < sampler.total_steps:
        left = sampler.steps_per_epoch - step % sampler.steps_per_epoch - 1
        if facts.evaluated_every is not None:
            left = min(left, facts.evaluated_every - step % facts.evaluated_every)
        same = facts.practice.algorithm != "both" and _library_tokens(facts, step, most) == full
        # The first of all and the first after an evaluation may have more to do.
        first = step == facts.steps_done or sampler.ends_epoch(step)
        alike = left if same and not first and left > 1 else 1
        step += alike
        yield step, alike


def _step_calls(facts: Facts, most: bool, step: int) -> Iterator[_Calls]:
    """One step's practice, with the library as it will likely be by then."""
    batch, size, practice = facts.sampler.batch_length(step), facts.group_size, facts.practice
    library = _library_tokens(facts, step - 1, most)
    rollout = _reply_tokens(facts, "rollout", facts.policy, most)
    asked = facts.instructions + facts.question + library
    for calls in _try_calls(facts, most, "rollouts", batch * size, asked, rollout):
        if not (facts.replayed and calls.stage == "rollouts"):
            yield calls
    if practice.library_steps(step) == practice.library_steps(step - 1):
        return  # no reflector is asked
    if size < 2 and practice.given_ground_truth:
        return  # a single try differs from nothing

    share = facts.contrast_share(size)
    # Of the groups without contrast half are taken to be all wrong.
    unlike = min(practice.read_without_contrast, batch * (1 - share) / 2)
    read = batch if most else batch * share + unlike
    # Without a truth all that is known is how often an answer was said, so all are shown.
    shown = min(size, SHOWN.pick(most)) if practice.given_ground_truth else size
    budget = practice.read_chars / BYTES_A_TOKEN
    exceeds = rollout * shown > budget and rollout > practice.summarise_above_chars / BYTES_A_TOKEN
    retold = most or exceeds
    summary = _reply_tokens(facts, "summary", facts.reflector, most)
    if retold:
        prompt = facts.summarise + facts.question + rollout
        yield _Calls("summaries", read * shown, prompt, summary)
    if size < 2:
        return  # a single try is summarised, but there is no other to compare it with

    attempt = min(rollout, budget) if most or not retold else summary
    prompt = facts.extract + facts.question + facts.truth + library
    prompt += attempt * shown + ATTEMPT_TOKENS * size
    extraction = _reply_tokens(facts, "extraction", facts.reflector, most)
    drafts, worsened = practice.proposals, 0
    if most and facts.held_out and step > 1 and facts.sampler.ends_epoch(step - 1):
        worsened = practice.reflect_on_worsened
    yield _with_repeat("extraction", (read + worsened) * drafts, prompt, extraction, most)

    # A step consolidates, if any of its groups shows a difference, at once or as a tree.
    asks = 1.0 if most else 1 - (1 - share) ** batch
    asked_n = _consolidation_calls(facts, read, most)
    sent = (extraction + ATTEMPT_TOKENS) * read * (2 / asked_n if asked_n > 1 else 1)
    prompt = facts.consolidate + sent + library
    reply = _reply_tokens(facts, "consolidation", facts.reflector, most)
    yield _with_repeat("consolidation", asks * asked_n * drafts, prompt, reply, most)

    proposed = batch * practice.experiences_per_query
    wordings = proposed if most else min(facts.growth, proposed)
    if facts.tried:  # on average half of the tries tell; the library without any is tried once
        tries = facts.tried * (1 + wordings * (1 if most else 0.5))
        tries += facts.choice * (drafts + 1) * (drafts > 1)
        yield from _try_calls(facts, most, "gate", math.ceil(tries), asked, rollout)
    if facts.embedding is not None:  # each new wording, and with the first the whole library
        yield _Calls("embeddings", wordings * drafts, _longest(facts, most), 0.0)
        if step == facts.steps_done + 1 and facts.experiences:
            yield _Calls("embeddings", 1, facts.experiences * facts.experience, 0.0)


def _consolidation_calls(facts: Facts, read: float, most: bool) -> float:
    """Calls of one consolidation; merged, half of the proposals are likely to be left."""
    n, a_call = facts.practice.experiences_per_query * read, facts.practice.proposals_per_call
    if math.ceil(n) <= a_call:
        return 1.0
    merging, last = plan_calls(math.ceil(n), a_call)
    return merging + min(last, math.ceil(n * (1 if most else 0.5) / a_call))


def _evaluation_calls(facts: Facts, most: bool, tries: int, guidance: float) -> Iterator[_Calls]:
    reply = _reply_tokens(facts, "evaluation", facts.policy, most)
    asked = facts.instructions + facts.held_out_question + guidance
    return _try_calls(facts, most, "evaluation", tries, asked, reply)


def _try_calls(
    facts: Facts, most: bool, stage: str, tries: int, asked: float, reply: float
) -> Iterator[_Calls]:
    """Tries of one or more turns, and what judges them.

    Each later prompt of a try holds the replies and results before it.
    """
    turns = facts.turns.pick(most)
    before = (reply + TOOL_RESULT.pick(most)) * (turns - 1) / 2
    yield _Calls(stage, tries * turns, asked + before, reply)
    prompt = facts.judging + facts.question + facts.truth + reply
    verdict = _reply_tokens(facts, "judge", facts.judge, most)
    yield _with_repeat("judging", tries * facts.judged.pick(most), prompt, verdict, most)


def _with_repeat(stage: str, n: float, prompt: float, reply: float, most: bool) -> _Calls:
    """Questions that are at most asked again once, with the reply that could not be read."""
    if not most:
        return _Calls(stage, n, prompt, reply)
    return _Calls(stage, 2 * n, prompt + (reply + REPAIR_TOKENS) / 2, reply)


def _library_tokens(facts: Facts, after: int, most: bool) -> float:
    """What the library adds to a prompt after so many steps."""
    practice = facts.practice
    a_step = facts.sampler.batch_size * practice.experiences_per_query
    limit = practice.library_limit
    room = math.inf if limit is None else max(0, limit - facts.experiences)
    steps = practice.library_steps(after) - practice.library_steps(facts.steps_done)
    added = steps * (a_step if most else min(facts.growth, a_step))
    return facts.guidance + min(added, room) * _longest(facts, most)


def _longest(facts: Facts, most: bool) -> float:
    return max(LONGEST_EXPERIENCE, facts.experience) if most else facts.experience


def _reply_tokens(facts: Facts, purpose: str, terms: CallPricing, most: bool) -> float:
    longest = terms.reply_tokens()
    return longest if most else min(facts.replies[purpose], longest)
