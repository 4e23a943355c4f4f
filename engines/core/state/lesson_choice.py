"""The choice of one of several lessons of a batch, as a run's journal has it."""

from __future__ import annotations

from dataclasses import dataclass

from engines.core.types import Lesson, Reflection, Usage


@dataclass(frozen=True, slots=True)
class LessonDraft:
    """One of several lessons of a batch; what was read for the first are events of their own."""

    lesson: Lesson
    reflections: tuple[Reflection, ...] = ()
    # Mean gain over the library on the problems of the choice; None: not tried, or never judged.
    score: float | None = None


@dataclass(frozen=True, slots=True)
class LessonsCompared:
    """Several lessons of one batch were tried to choose one: it is proposed, the others are kept.

    The scores serve to choose alone: no operation of the step is tried on `problems` again.
    """

    step: int
    drafts: tuple[LessonDraft, ...]  # of a finished step none: its journal tells
    chosen: int  # its place among them, from 0
    problems: tuple[str, ...]  # ids; () where the lessons all say the same
    k: int  # tries of each problem
    usage: Usage  # of the tries

    @property
    def text(self) -> str:
        """`lesson 2 of 3 was chosen on 8 other problems, 1 try each (+0.00, +0.25, -0.12)`."""
        if not self.problems:
            return f"all {len(self.drafts)} lessons say the same, so none was tried to choose one"
        which = f"lesson {self.chosen + 1} of {len(self.drafts)}"
        scores = ("?" if d.score is None else f"{d.score:+.2f}" for d in self.drafts)
        tries = "1 try" if self.k == 1 else f"{self.k} tries"
        where = f"{len(self.problems)} other problems, {tries} each"
        return f"{which} was chosen on {where} ({', '.join(scores)})"
