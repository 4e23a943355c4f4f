"""Rehearsal's rollouts: a right or a typically wrong solution of one problem; and its judge.

The draw follows from seed and question alone, so that two prompts which differ only in their
experiences are compared with the same luck. The judge compares the stated answer with the expected
one; where none is expected it works the problem out, if it is of a kind that it knows, and gives
no verdict on others.
"""

from collections.abc import Sequence

import orjson

from engines.core.codec import seed_for
from engines.policies.rehearsal import prompt
from engines.policies.rehearsal.families import Family, Stance, Step, recognise, stance

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


_PARTLY = 0.5  # the expected answer was reached and then not stated


def is_judge_prompt(text: str) -> bool:
    return text.split("\n", 1)[0].strip() == "# Task: judge"


def judge_reply(text: str, fenced: bool) -> str:
    """Reply to a judge's prompt; `fenced` puts the JSON between fences."""
    found = prompt.parse_sections(text)
    graded = any('"score"' in line for line in found.get("Reply", ()))
    answers = prompt.unquote_lines(found.get("Expected answer", ()))
    expected = [prompt.normalise_answer(line) for line in answers]
    if not expected and (
        task := recognise(" ".join(prompt.unquote_lines(found.get("Problem", ()))))
    ):
        expected = [str(task.answer)]
    response = prompt.unquote_lines(found.get("Response", ()))
    if not expected:
        return "This is a rehearsal: no answer is expected, and the problem is of no known kind."
    lines, final = prompt.parse_attempt(response)
    reached = any(
        prompt.normalise_answer(word.strip("()[]:;!?")) in expected
        for line in lines
        for word in line.body.split()
    )
    score, why = _score_answer(final, expected, reached)
    reasoning = f"rehearsal (scripted): {why}"
    verdict = {"score": score} if graded else {"correct": score == 1.0}
    return prompt.fence(orjson.dumps({"reasoning": reasoning, **verdict}).decode(), fenced)


def _score_answer(final: str, expected: Sequence[str], reached: bool) -> tuple[float, str]:
    wanted = " or ".join(expected)
    if final in expected:
        return 1.0, f"the stated answer {final} is the expected one."
    stated = f"it states {final}" if final else "it states no answer"
    if reached:
        return _PARTLY, f"{stated}, expected is {wanted}, which stands in a step of it."
    return 0.0, f"{stated}, expected is {wanted}."
