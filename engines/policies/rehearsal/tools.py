"""Rehearsal's rollouts with an interpreter: a call, and then what the interpreter said.

Owns the four kinds of problem, with the right and the typical wrong program of each. Knows no
answer: it is read from the tool's result, and without one it is a guess, which is wrong.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import orjson

from engines.core.types import Message
from engines.policies.rehearsal import prompt
from engines.policies.rehearsal.solve import Draw, Step, format_steps, recognise


@dataclass(frozen=True, slots=True)
class Way:
    """One way to go on after the first step: what is said before the call, and the program."""

    step: Step
    code: str

    def fill_in(self, values: Mapping[str, object]) -> "Way":
        instance = self.step.instance.format(**values)
        return Way(replace(self.step, instance=instance), self.code.format(**values))


@dataclass(frozen=True, slots=True)
class ToolProblem:
    """A recognised problem with both ways. `guess` is what it comes to by head: a wrong number."""

    family: str
    start: Step
    right: Way
    wrong: Way
    guess: str = ""


_COUNT = (
    "count = 0\nfor n in {span}:\n    if n % {divisor} == 0 and n % {other} != 0:\n"
    "        count += 1\nprint(count)"
)
_DIGIT_SUM = (
    "n = 1\nfor k in range(2, {end}):\n    n *= k\n"
    "total = 0\nwhile n >= 1:\n    total += {digit}\n    {division}\nprint(total)"
)
_SUM = "total = sum(n ** {power} for n in range({first}, {end}))"
# How each kind is worded, and both ways with the numbers of the problem left open.
_KINDS = {
    r"remainder\b.*?(?P<base>\d+)\s*\^\s*(?P<exponent>\d+)\b\D+(?P<modulus>\d+)": ToolProblem(
        family="remainder",
        start=Step(
            "power",
            "when the remainder of a large power is asked, let the interpreter work it out",
            "{base}^{exponent} divided by {modulus}",
        ),
        right=Way(
            Step(
                "three arguments",
                "when the remainder of a power is asked, call pow with three arguments",
                "pow({base}, {exponent}, {modulus})",
            ),
            "print(pow({base}, {exponent}, {modulus}))",
        ),
        wrong=Way(
            Step(
                "decimal power",
                "work out the power as a decimal number and take the remainder of it",
                "{base}.0 ** {exponent} % {modulus}",
            ),
            "print({base}.0 ** {exponent} % {modulus})",
        ),
    ),
    r"from (?P<first>\d+) (?:to|through|up to) (?P<last>\d+)\b.*\b(?:divisible|multiples)\b"
    r"\D*(?P<divisor>\d+)\D*\bnot\b\D*(?P<other>\d+)": ToolProblem(
        family="inclusive",
        start=Step(
            "bounds",
            "when numbers between two bounds are counted, go through them in a loop",
            "{first} through {last}",
        ),
        right=Way(
            Step(
                "inclusive end",
                "when a range must hold its last number, end it one above that number",
                "range({first}, {end})",
            ),
            _COUNT.replace("{span}", "range({first}, {end})"),
        ),
        wrong=Way(
            Step(
                "range",
                "begin the range at the first number and end it at the last",
                "range({first}, {last})",
            ),
            _COUNT.replace("{span}", "range({first}, {last})"),
        ),
    ),
    r"\bdigits?\b(?=.*(?:factorial|\d!)).*?(?P<last>\d+)": ToolProblem(
        family="whole",
        start=Step(
            "factorial",
            "when the digits of a factorial are asked, multiply it out first",
            "{last}!",
        ),
        right=Way(
            Step(
                "whole division",
                "when a large number is taken apart digit by digit, divide it with // and keep "
                "it whole",
                "n = n // 10",
            ),
            _DIGIT_SUM.replace("{digit}", "n % 10").replace("{division}", "n = n // 10"),
        ),
        wrong=Way(
            Step("shift", "divide the number by ten and take the next digit", "n = n / 10"),
            _DIGIT_SUM.replace("{digit}", "int(n % 10)").replace("{division}", "n = n / 10"),
        ),
    ),
    r"(?P<terms>squares|cubes).* from (?P<first>\d+) (?:to|through|up to) (?P<last>\d+)\b": (
        ToolProblem(
            family="printed",
            start=Step(
                "terms",
                "when many terms are added, let the interpreter add them",
                "{terms} from {first} through {last}",
            ),
            right=Way(
                Step(
                    "print",
                    "when code has worked out a value, print that value in its last line",
                    "print(total)",
                ),
                f"{_SUM}\nprint(total)",
            ),
            wrong=Way(Step("name", "give the value a name and end there", "total"), _SUM),
        )
    ),
}


def recognise_tool_problem(question: str) -> ToolProblem | None:
    """Read a question; None when it belongs to none of these kinds, or is worked out by head."""
    if recognise(question):
        return None
    for wording, kind in _KINDS.items():
        if match := re.search(wording, question, re.I | re.S):
            values: dict[str, object] = {**match.groupdict()}
            values["end"] = int(match.groupdict().get("last", 0)) + 1
            values["power"] = 2 if values.get("terms") == "squares" else 3
            return replace(
                kind,
                start=replace(kind.start, instance=kind.start.instance.format(**values)),
                right=kind.right.fill_in(values),
                wrong=kind.wrong.fill_in(values),
                guess=re.findall(r"\d+", question)[-1],
            )
    return None


INTERPRETER = "python"
_IN_WORDS = "To use a tool, reply with one fenced block"
_NAMED = re.compile(r"^- ([\w-]+):", re.M)
_RESULTS = "Tool results"
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
        return prompt.token_count(self.text) + prompt.token_count(called)


def solve_with_tools(messages: Sequence[Message], tools: Sequence[str], draw: Draw) -> Turn | None:
    """Return the next turn of a rollout; None where the question needs no interpreter."""
    problem: ToolProblem | None = None
    question, result = "", None
    for message in messages:
        text = message.content.strip()
        if message.role == "tool":
            result = text
        elif message.role == "user" and text.startswith(_RESULTS):
            result = "\n".join(prompt.unquote_lines(text.splitlines()))
        elif message.role == "user" and (recognised := recognise_tool_problem(text)):
            problem, question, result = recognised, text, None
    if problem is None:
        return None
    if result is not None:
        return Turn(_last_text(problem, result))
    native = INTERPRETER in tools
    _, _, offer = prompt.instructions_text(messages).partition(_IN_WORDS)
    in_words = not tools and INTERPRETER in _NAMED.findall(offer)
    if not native and not in_words:
        return Turn(f"{_BY_HEAD}\n#### {problem.guess}")
    way = problem.right if draw.takes_right(problem.family, question) else problem.wrong
    text = format_steps((problem.start, way.step))
    if native:
        return Turn(text, orjson.dumps({"code": way.code}).decode())
    return Turn(f"{text}\n```{INTERPRETER}\n{way.code}\n```")


def _last_text(problem: ToolProblem, result: str) -> str:
    """Return what is made of a result: its last line that is a number, or else a guess."""
    answer = problem.guess
    step = Step("guess", "the interpreter printed no number, so guess it by head", answer)
    for line in result.splitlines():
        if number := _NUMBER.fullmatch(line.strip()):
            answer = number[1]
            step = Step("result", "give the number that the interpreter printed", answer)
    return format_steps((step,), answer, start=3)
