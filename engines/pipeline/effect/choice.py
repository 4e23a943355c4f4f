"""The best of several lessons of one batch: which of them goes on to be proved and reviewed.

Owns the problems and tries that lessons are chosen by, and the choice. Proves nothing: the score
of the best of several is too high by the choice itself, the more so the more there were (the
winner's curse; Capen, Clapp and Campbell 1971). So its verdict comes from problems that the choice
did not see, at the ordinary share of the run's error: sample splitting (Cox, Biometrika 62, 1975,
441-444), which needs no other correction, however the choice was made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from engines.core import events as ev
from engines.core.ids import digest
from engines.core.library import Library
from engines.core.settings import LEAST_TRIED
from engines.core.state.run_state import StepState
from engines.core.types import NO_USAGE, Decision, Problem
from engines.core.waiting.gather import gather_all
from engines.pipeline.effect.effect_gate import EffectGate, pair_rewards
from engines.pipeline.evaluation.evaluate import Measurement, measure

FIRST_TRY = 1_000
"""Tries of a choice are numbered from here: verdicts of later steps draw none of them again."""


def choice_size(problems: int, k: int, left: int) -> tuple[int, int]:
    """How many problems lessons are chosen by, and how many tries of each.

    Half of what a verdict takes of both, and of the problems `left` at most a third, so that a
    verdict has enough others.
    """
    return max(LEAST_TRIED, min(-(-problems // 2), left // 3)), -(-k // 2)


def choice_problems(gate: EffectGate, step: int, batch: Sequence[str]) -> tuple[Problem, ...]:
    """By chance, others in each step."""
    left = gate.problems_without(gate.apart(batch))
    count, _ = choice_size(gate.problems, gate.k, len(left))
    return tuple(sorted(left, key=lambda one: digest([gate.seed, "choice", step, one.id]))[:count])


async def compare_lessons(
    gate: EffectGate, now: StepState, base: Library, drafts: Sequence[ev.LessonDraft]
) -> ev.LessonsCompared:
    """Score each lesson by what it gains over the library, and choose the best, or the first such.

    What changes no wording scores 0 without any try, and so may win where all others do harm. Where
    all do, the least harmful is chosen, and its verdict tells. Lessons of one wording are tried
    once, and not at all where there is no other.
    """
    libraries = [_with_lesson(base, draft) for draft in drafts]
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
        return await gather_all(
            measure(setup, book, problems, pinned, step=step, payer=payer) for book, pinned in arms
        )
    finally:
        for book, _ in arms:
            book.close()


def _with_lesson(base: Library, draft: ev.LessonDraft) -> Library:
    """The library with those operations of a lesson that fit it."""
    reviewed = [(op, Decision(op.id, "approve", reviewer="gate")) for op in draft.lesson.operations]
    return replace(base.commit(reviewed).library, version=base.version)


def _wordings(library: Library) -> tuple[str, ...]:
    return tuple(sorted(experience.text for experience in library.experiences))


def _gain(before: Measurement, after: Measurement) -> float | None:
    """The mean over problems of what their tries gained; None where no pair was judged."""
    gains = [math.fsum(row) / len(row) for row in pair_rewards(before, after) if row]
    return math.fsum(gains) / len(gains) if gains else None
