"""Rehearsal's rollouts: a right or a typically wrong solution of one problem.

The draw follows from seed and question alone, so that two prompts which differ only in their
experiences are compared with the same luck.
"""

from __future__ import annotations

from engines.core.ids import seed_for
from engines.policies.rehearsal.families import Family, Step, recognise
from engines.policies.rehearsal.skill import Stance, stance

UNKNOWN = (
    "Rehearsal is a scripted stand-in for a model. It knows four kinds of problem only: "
    "addition, subtraction, stories of two steps and mixed expressions. This is none of them.\n"
    "#### unknown"
)
# How likely the right solution is at one trap, and how much less for each further one.
_CHANCES: dict[Stance, tuple[float, float]] = {
    "silent": (0.34, 0.06),
    "stated": (0.93, 0.03),
    "denied": (0.06, 0.01),
}


def solve(question: str, instructions: str, seed: int, temperature: float) -> str:
    """Answer a question in front of which the instructions stand.

    At temperature 0 the likelier solution is given, whatever the seed.
    """
    task = recognise(question)
    if task is None:
        return UNKNOWN
    if draws_right(task.family, task.traps, question, instructions, seed, temperature):
        return _solution_text(task.right, task.answer)
    return _solution_text(task.wrong, task.wrong_answer)


def draws_right(
    family: Family, traps: int, question: str, instructions: str, seed: int, temperature: float
) -> bool:
    """Whether the right solution is given to a question with so many traps."""
    start, less = _CHANCES[stance(family, instructions)]
    luck = 0.5 if temperature == 0 else seed_for(seed, "rehearsal", question) / 2**31
    return luck < start - less * min(max(traps - 1, 0), 2)


def step_line(number: int, step: Step) -> str:
    return f"Step {number} ({step.label}): {step.clause}: {step.instance}."


def _solution_text(steps: tuple[Step, ...], answer: int) -> str:
    return "\n".join([*(step_line(n, step) for n, step in enumerate(steps, 1)), f"#### {answer}"])
