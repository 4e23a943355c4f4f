"""Rehearsal as judge: compares the stated answer with the expected one.

Where no answer is expected it works the problem out, if it is of a kind that it knows; of what it
cannot judge it says so, and gives no verdict.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from engines.policies.rehearsal import prompt
from engines.policies.rehearsal.families import recognise

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
