"""The gate by effect: proposed operations are tried before anybody decides about them.

Owns which problems an operation is tried on, what each verdict may spend of the run's error, and
when tries stop. Decides nothing: a verdict becomes a flag that reviewers see. Each rollout is kept
by content (`engines.record.scores`), so that the library without the operation is measured once for
many, and a run that was cut repeats none.
"""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from engines.core import codec, errors, library_notes, settings, waiting
from engines.core import events as ev
from engines.core.frozen import frozen
from engines.core.library import CommitResult, Library
from engines.core.state.run_state import RunState, StepState
from engines.core.text.tokens import text_tokens
from engines.core.types import NO_USAGE, Decision, Names, Operation, Problem, operation_step
from engines.pipeline.effect.sequential import SequentialPlan, judge_look
from engines.pipeline.evaluation.evaluate import (
    Measurement,
    MeasurementSetup,
    PinnedVersion,
    measure,
    write_whole,
)
from engines.pipeline.guidance import PromptWriter
from engines.pipeline.recorder import Recorder
from engines.record.scores import ScoreBook

TRIED = ("add", "modify", "delete")
"""Kinds of operation that change what stands in a prompt."""
_ROUNDING = 1e-9  # of sums of shares


@dataclass(frozen=True)
class EffectGate:
    """How a run's operations are tried.

    `pool` is what a verdict is about; each committed version of the library is tried on the next
    `problems` of it. The error of the whole run is shared among its steps and, in a step, among
    its operations; what was spent on an operation that was found to help may be spent again
    (online fallback, Tian and Ramdas 2021), so that the chance that a run finds help in any
    operation without effect stays below `error`, however its verdicts depend on each other.
    """

    pool: tuple[Problem, ...]
    problems: int
    k: int
    error: float
    by_lesson: bool  # try a whole lesson first, and parts of it only where it does not help
    by_itself: bool  # whether every lesson is tried; else only what somebody asks about
    held_back: bool  # the batch's own problems are in the pool, and stay out of its lesson's tries
    seed: int
    measuring: MeasurementSetup | None  # None: nothing is opened, it can only plan
    book: Callable[[str, str], ScoreBook]
    account: str
    writer: PromptWriter
    weights: Callable[[], str] | None
    measured: str = ""  # a hash of how tries are made and judged
    # A lesson and what somebody asks about are tried in turn, or both would pay for the same tries.
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    @cached_property
    def _order(self) -> tuple[Problem, ...]:
        """By chance, so that every slice is a sample of the pool."""
        return tuple(sorted(self.pool, key=lambda problem: codec.digest([self.seed, problem.id])))

    def plan(self, error: float, apart: Sequence[str] = ()) -> SequentialPlan:
        """What a decision takes at most, and what it could see."""
        pool = len(self.problems_without(apart))
        return SequentialPlan(min(self.problems, pool), self.k, error, pool)

    def describe(self, count: int, error: float, apart: Sequence[str] = ()) -> dict[str, Any]:
        """What so many verdicts take at most, and the smallest effect they would likely show."""
        plan = self.plan(error / max(1, count), apart)
        effect = plan.smallest_effect()
        return {
            "operations": count,
            "problems": plan.problems,
            "problems_wanted": self.problems,
            "k": plan.k,
            "most_rollouts": plan.problems * plan.k * (count + 1),
            "smallest_effect": round(effect, 3) if effect <= 1 else None,
        }

    def choose_problems(self, version: int, apart: Sequence[str] = ()) -> tuple[Problem, ...]:
        """The slice that operations on a version of the library are tried on."""
        pool = self.problems_without(apart)
        count = min(self.problems, len(pool))
        at = version * count % max(1, len(pool))
        return (pool + pool)[at : at + count]

    def problems_without(self, apart: Sequence[str]) -> tuple[Problem, ...]:
        left_out = frozenset(map(codec.question_of, apart))
        return tuple(problem for problem in self._order if problem.id not in left_out)

    def apart(self, batch: Sequence[str], chosen_by: Sequence[str] = ()) -> Names:
        """What a verdict leaves out: the batch behind a lesson, and what that was chosen by."""
        return (*(batch if self.held_back else ()), *chosen_by)

    def apart_of(self, state: RunState, operations: Sequence[Operation]) -> Names:
        """Of the steps that proposed them, which a deferred one is long past."""
        found: dict[str, None] = {}
        for step in sorted({operation_step(op.id) for op in operations} & state.steps.keys()):
            now = state.steps[step]
            chosen_by = now.choice.problems if now.choice is not None else ()
            found |= dict.fromkeys(self.apart(now.problems, chosen_by))
        return tuple(found)

    async def try_lesson(self, recorder: Recorder, base: Library, step: int, steps: int) -> None:
        """Try what a step proposes, as far as that is not done; each verdict is journalled.

        `steps` are left, this one included.
        """
        state = recorder.state
        lesson = state.steps[step].lesson
        wanted = lesson.operations if lesson else ()
        earlier = [one for one in state.effects if one.step != step]
        share = max(0.0, self.error - spent_error(earlier)) / steps
        await self.try_operations(recorder, base, step, wanted, share)

    async def try_operations(
        self,
        recorder: Recorder,
        base: Library,
        step: int,
        wanted: Sequence[Operation],
        error: float,
    ) -> None:
        """Try operations with so much error to share, each with those that were found to help."""
        wanted = [op for op in wanted if op.kind in TRIED]
        trials = _Trials(self, recorder, step)
        async with self._turn:
            if self.by_lesson:
                steps = dict.fromkeys(operation_step(op.id) for op in wanted)
                for one in steps:
                    lesson = [op for op in wanted if operation_step(op.id) == one]
                    base = await trials.try_whole(lesson, base, error / len(steps))
                return
            for number, operation in enumerate(wanted):
                share = error / (len(wanted) - number)
                found, base = await trials.try_together([operation], base, share)
                if found is not None and found.effect.verdict != "helps":
                    error -= share

    async def try_asked(
        self, recorder: Recorder, draft: Library, wanted: Sequence[Operation]
    ) -> None:
        """Try operations that somebody asks about, on the draft that holds earlier decisions.

        They may spend half of the error that is left, so that there is some for the next.
        """
        state = recorder.state
        await self.try_operations(recorder, draft, state.step, wanted, self._error_left(state))

    def describe_asked(
        self, state: RunState, draft: Library, wanted: Sequence[Operation]
    ) -> dict[str, Any]:
        """`describe` of those somebody asks about that have no verdict, at the run's own prices.

        Dollars are those of tokens on average: too many where what is read costs less.

        Raises ConflictError: the run has no error left to spend.
        """
        wanted = self._without_verdict(state, draft, wanted)
        error, alike = self._error_left(state), dict[Names, list[Operation]]()
        if wanted and error < _ROUNDING:
            raise errors.ConflictError(
                "review.gate.error",
                "the run has spent it, and what is tried now could prove nothing.",
                "Decide by what is known.",
            )
        for operation in wanted:
            alike.setdefault(self.apart_of(state, [operation]), []).append(operation)
        share = error / max(1, len(wanted))
        parts = [self.describe(len(ops), share * len(ops), apart) for apart, ops in alike.items()]
        effects = [part["smallest_effect"] for part in parts]
        facts = self.describe(0, error) | {
            "operations": len(wanted),
            "problems": min((part["problems"] for part in parts), default=0),
            "most_rollouts": sum(part["most_rollouts"] for part in parts),
            "smallest_effect": None if None in effects else max(effects, default=None),
        }
        spent = state.spent_on.get("rollouts", NO_USAGE)
        most = facts["most_rollouts"]
        times = most / max(1, sum(step.rollouts_done for step in state.steps.values()))
        tokens = spent.tokens * times + most * sum(text_tokens(op.text) for op in wanted)
        cost = spent.cost_usd and round(spent.cost_usd * tokens / max(1, spent.tokens), 6)
        return facts | {"tokens": round(tokens), "cost_usd": cost}

    def _without_verdict(
        self, state: RunState, draft: Library, wanted: Sequence[Operation]
    ) -> list[Operation]:
        if self.by_lesson and len(wanted) > 1:
            whole = with_operations(draft, wanted)
            names = tuple(op.id for op in wanted)
            about = "" if whole is None else self.hash_trial(state, wanted, draft, whole)
            found = find_verdict(state, names, about)
            return [] if found is not None and found.effect.verdict == "helps" else [*wanted]
        left = []
        for operation in wanted:
            if (candidate := with_operations(draft, [operation])) is None:
                continue
            about = self.hash_trial(state, [operation], draft, candidate)
            found = find_verdict(state, (operation.id,), about)
            if found is None:
                left.append(operation)
            elif found.effect.verdict == "helps":
                draft = candidate
        return left

    def hash_trial(
        self, state: RunState, operations: Sequence[Operation], base: Library, candidate: Library
    ) -> str:
        """All that a verdict is about: both libraries, the problems, and how they are tried."""
        problems = self.choose_problems(base.version, self.apart_of(state, operations))
        weights = "" if self.weights is None else self.weights()
        tries = [[problem.id for problem in problems], self.k, self.measured, weights]
        return codec.digest([base.content_hash, candidate.content_hash, tries])

    def affordable_error(self, state: RunState, error: float) -> float:
        """A share of the run's error, or half of what is left where that is less.

        It is where a library was edited while its run stood still: a step's operations are tried
        anew on it.
        """
        left = self._error_left(state)
        return error if error <= 2 * left + _ROUNDING else left

    def _error_left(self, state: RunState) -> float:
        return max(0.0, self.error - spent_error(state.effects)) / 2

    async def measure(
        self,
        base: Library,
        candidate: Library,
        *,
        payer: str,
        step: int,
        apart: Sequence[str],
        error: float,
        tell: Callable[[int, int], None] = lambda made, most: None,
    ) -> library_notes.Effect:
        """Try two libraries on the same problems with the same seeds until the tries tell.

        `tell` gets, before each look, how many tries of `candidate` there are, and may be at most.
        """
        assert self.measuring is not None
        plan, measuring = self.plan(error, apart), self.measuring
        problems = self.choose_problems(base.version, apart)
        payer, made = f"{self.account} gate {payer}", 0
        opened = [await self.open_arm(library) for library in (base, candidate)]
        try:
            for number, look in enumerate(plan.looks):
                tell(made, plan.problems * plan.k)
                made = look.problems * look.tries
                arms = await waiting.gather_all(
                    measure(
                        replace(measuring, k=look.tries),
                        book,
                        problems[: look.problems],
                        pinned,
                        step=step,
                        payer=payer,
                    )
                    for book, pinned in opened
                )
                rows = tuple(pair_rewards(*arms))
                result = judge_look(plan, number, rows)
                if result.verdict is not None:
                    break
        finally:
            for book, _ in opened:
                book.close()
        return library_notes.Effect(
            difference=result.difference,
            low=result.interval.low,
            high=result.interval.high,
            verdict=result.verdict or "cannot tell",
            problems=sum(map(bool, rows)),
            rollouts=sum(arm.known_count for arm in arms),
            method="gate",
            usage=arms[0].paid + arms[1].paid,
        )

    async def open_arm(self, library: Library) -> tuple[ScoreBook, PinnedVersion]:
        """Where the scores of a library are kept, to be closed; and what is measured."""
        weights = "" if self.weights is None else self.weights()
        book = await waiting.run_to_end(partial(self.book, self.writer.describe(library), weights))
        writer = replace(self.writer)
        await writer.prepare(library)
        return book, PinnedVersion(write_whole(writer, library), library.version)


@frozen
class _Trials:
    """The operations of one step, tried in turn."""

    gate: EffectGate
    recorder: Recorder
    step: int

    async def try_whole(self, lesson: Sequence[Operation], base: Library, error: float) -> Library:
        """A lesson at once, and its parts where it does not help; the library with what did."""
        parts = 2 * len(lesson) - 2
        of_part = error / 2 / parts if parts else 0.0
        return await self.bisect(lesson, base, error / 2 if parts else error, of_part)

    async def bisect(
        self, group: Sequence[Operation], base: Library, error: float, error_of_part: float
    ) -> Library:
        """Try all at once, and halves of what does not help; returns the library with what did."""
        found, tried = await self.try_together(group, base, error)
        if len(group) == 1 or (found is not None and found.effect.verdict == "helps"):
            return tried
        half = len(group) // 2
        for part in (group[:half], group[half:]):
            base = await self.bisect(part, base, error_of_part, error_of_part)
        return base

    async def try_together(
        self, group: Sequence[Operation], base: Library, error: float
    ) -> tuple[ev.EffectMeasured | None, Library]:
        """The verdict, journalled, and the library with the operations if they help.

        None where they do not fit the library, or no error is left. A verdict that is known is not
        asked for again.
        """
        candidate = with_operations(base, group)
        if candidate is None:
            return None, base
        state, names = self.recorder.state, tuple(op.id for op in group)
        about = self.gate.hash_trial(state, group, base, candidate)
        found = find_verdict(state, names, about)
        if found is None:

            def tell(made: int, most: int) -> None:
                tried = {"operations": len(group), "made": made, "most": most}
                self.recorder.emit(ev.StageEntered(self.step, "gate", tried))

            if (error := self.gate.affordable_error(state, error)) < _ROUNDING:
                return None, base
            effect = await self.gate.measure(
                base,
                candidate,
                payer=f"{' '.join(names)} {about}",
                step=self.step,
                apart=self.gate.apart_of(state, group),
                error=error,
                tell=tell,
            )
            found = ev.EffectMeasured(self.step, names, effect, error, about)
            await self.recorder.record(found)
        return found, candidate if found.effect.verdict == "helps" else base


def find_verdict(state: RunState, operations: Names, about: str) -> ev.EffectMeasured | None:
    """What was found of operations, tried together as `hash_trial` has it."""
    found = (one for one in state.effects if (one.operations, one.base) == (operations, about))
    return next(found, None)


def pair_rewards(before: Measurement, after: Measurement) -> Iterator[tuple[float, ...]]:
    """Of each problem, what each of its tries gained; tries with an unknown reward are left out."""
    for one, other in zip(before.rewards, after.rewards, strict=True):
        pairs = zip(one, other, strict=True)
        yield tuple(b - a for a, b in pairs if a is not None and b is not None)


def with_operations(base: Library, operations: Sequence[Operation]) -> Library | None:
    """The library with operations carried out; None where one of them does not fit."""
    done = _carry_out(base, operations)
    fits = all(outcome.applied for outcome in done.outcomes)
    return replace(done.library, version=base.version) if fits else None


def _carry_out(base: Library, operations: Sequence[Operation]) -> CommitResult:
    """Commit operations as far as they fit."""
    return base.commit([(op, Decision(op.id, "approve", reviewer="gate")) for op in operations])


def spent_error(effects: Sequence[ev.EffectMeasured]) -> float:
    """What verdicts have used up; those that found help leave theirs to be used again."""
    return math.fsum(one.error for one in effects if one.effect.verdict != "helps")


def open_trials(state: RunState, names: Sequence[str]) -> tuple[Operation, ...]:
    """The open operations of these ids; without any, all open ones that can be tried.

    Raises ConflictError: one is not open, or is of a kind that changes no prompt.
    """
    known = {op.id: op for op in state.open_operations}
    for name in names:
        if name not in known:
            raise errors.ConflictError(
                f"operation {name}",
                "it is not open in this run: it is decided, or was never proposed.",
                f"Open are: {', '.join(known) or 'none'}.",
            )
        if known[name].kind not in TRIED:
            raise errors.ConflictError(
                f"operation {name}",
                f"it is of the kind {known[name].kind}, which changes no wording.",
                f"Tried are: {', '.join(TRIED)}.",
            )
    return tuple(known[name] for name in names) or tuple(
        op for op in known.values() if op.kind in TRIED
    )


FIRST_TRY = 1_000
"""Tries of a choice are numbered from here: verdicts of later steps draw none of them again."""


def choice_size(problems: int, k: int, left: int) -> tuple[int, int]:
    """How many problems lessons are chosen by, and how many tries of each.

    Half of what a verdict takes of both, and of the problems `left` at most a third, so that a
    verdict has enough others.
    """
    return max(settings.LEAST_TRIED, min(-(-problems // 2), left // 3)), -(-k // 2)


def choice_problems(gate: EffectGate, step: int, batch: Sequence[str]) -> tuple[Problem, ...]:
    """By chance, others in each step."""
    left = gate.problems_without(gate.apart(batch))
    count, _ = choice_size(gate.problems, gate.k, len(left))
    return tuple(
        sorted(left, key=lambda one: codec.digest([gate.seed, "choice", step, one.id]))[:count]
    )


async def compare_lessons(
    gate: EffectGate, now: StepState, base: Library, drafts: Sequence[ev.LessonDraft]
) -> ev.LessonsCompared:
    """Score each lesson by what it gains over the library, and choose the best, or the first such.

    What changes no wording scores 0 without any try, and so may win where all others do harm. Where
    all do, the least harmful is chosen, and its verdict tells. Lessons of one wording are tried
    once, and not at all where there is no other.
    """
    libraries = []
    for draft in drafts:
        carried_out = _carry_out(base, draft.lesson.operations).library
        libraries.append(replace(carried_out, version=base.version))
    names = [_wordings(library) for library in libraries]
    arms = {_wordings(base): base, **dict(zip(names, libraries, strict=True))}
    problems: tuple[Problem, ...] = ()
    found: Sequence[Measurement] = ()
    if len(set(names)) > 1:
        problems = choice_problems(gate, now.step, now.problems)
        found = await _measure_each(gate, tuple(arms.values()), problems, now.step)
    scores = {name: _gain(found[0], one) for name, one in zip(arms, found, strict=False)}
    scored = tuple(
        replace(draft, score=scores.get(name)) for draft, name in zip(drafts, names, strict=True)
    )
    known = [-math.inf if one.score is None else one.score for one in scored]
    ids, k = tuple(one.id for one in problems), choice_size(gate.problems, gate.k, 0)[1]
    usage = sum((one.paid for one in found), NO_USAGE)
    return ev.LessonsCompared(now.step, scored, known.index(max(known)), ids, k, usage)


async def _measure_each(
    gate: EffectGate, libraries: Sequence[Library], problems: Sequence[Problem], step: int
) -> Sequence[Measurement]:
    assert gate.measuring is not None
    k = choice_size(gate.problems, gate.k, 0)[1]
    setup = replace(gate.measuring, k=k, first_try=FIRST_TRY)
    arms = [await gate.open_arm(library) for library in libraries]
    payer = f"{gate.account} choice of step {step}"
    try:
        return await waiting.gather_all(
            measure(setup, book, problems, pinned, step=step, payer=payer) for book, pinned in arms
        )
    finally:
        for book, _ in arms:
            book.close()


def _wordings(library: Library) -> Names:
    return tuple(sorted(experience.text for experience in library.experiences))


def _gain(before: Measurement, after: Measurement) -> float | None:
    """The mean over problems of what their tries gained; None where no pair was judged."""
    gains = [math.fsum(row) / len(row) for row in pair_rewards(before, after) if row]
    return math.fsum(gains) / len(gains) if gains else None
