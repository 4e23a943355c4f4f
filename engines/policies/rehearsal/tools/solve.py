"""Rehearsal's tries with an interpreter: a call, and then what the interpreter said.

The answer is read from the tool's result. Without one it is a guess, which is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from engines.policies.rehearsal.families import Step
from engines.policies.rehearsal.solve import draws_right, step_line
from engines.policies.rehearsal.tools import messages as conversation
from engines.policies.rehearsal.tools.problems import ToolProblem, recognise_tool_problem

INTERPRETER = "python"
_BY_HEAD = (
    "Rehearsal is a scripted stand-in for a model. This problem needs the tool python, which it "
    "cannot call here, so it answers by head."
)
_NUMBER = re.compile(
    r"(?:(?:result|output|stdout|value)\s*:\s*)?(-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)", re.I
)


@dataclass(frozen=True, slots=True)
class Turn:
    """A text and, where a tool is called, the arguments of the call as JSON."""

    text: str
    arguments: str | None = None
    tool: str = INTERPRETER
    finish: str = "stop"

    @property
    def tokens(self) -> int:
        called = "" if self.arguments is None else f"{self.tool}{self.arguments}"
        return conversation.token_count(self.text) + conversation.token_count(called)


def solve_with_tools(
    request: Mapping[str, Any], instructions: str, seed: int, temperature: float
) -> Turn | None:
    """The next turn of a try; None where nothing that is asked needs an interpreter."""
    asked: tuple[str, ToolProblem] | None = None
    result: str | None = None
    for message in request["messages"]:
        told = conversation.result_text(message)
        question = conversation.content_text(message).strip()
        if told is not None:
            result = told
        elif message["role"] == "user" and (problem := recognise_tool_problem(question)):
            asked, result = (question, problem), None
    if asked is None:
        return None
    question, problem = asked
    if result is not None:
        return Turn(_last_text(problem, result))
    native = INTERPRETER in conversation.native_tools(request)
    if not native and INTERPRETER not in conversation.tools_in_words(request):
        return Turn(f"{_BY_HEAD}\n#### {problem.guess}")
    right = draws_right(problem.family, 1, question, instructions, seed, temperature)
    way = problem.right if right else problem.wrong
    text = f"{step_line(1, problem.start)}\n{step_line(2, way.step)}"
    if native:
        return Turn(text, orjson.dumps({"code": way.code}).decode())
    return Turn(f"{text}\n```{INTERPRETER}\n{way.code}\n```")


def _last_text(problem: ToolProblem, result: str) -> str:
    """What is made of a result: its last line that is a number, or else a guess."""
    numbers = [m[1] for line in result.splitlines() if (m := _NUMBER.fullmatch(line.strip()))]
    if numbers:
        answer = numbers[-1]
        step = Step("result", "give the number that the interpreter printed", answer)
    else:
        answer = str(problem.guess)
        step = Step("guess", "the interpreter printed no number, so guess it by head", answer)
    return f"{step_line(3, step)}\n#### {answer}"
