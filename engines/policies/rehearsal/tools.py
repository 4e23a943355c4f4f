"""Rehearsal's rollouts with an interpreter: a call, and then what the interpreter said.

Owns the four kinds of problem, with the right and the typical wrong program of each. Knows no
answer: it is read from the tool's result, and without one it is a guess, which is wrong.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from engines.policies.rehearsal.families import Step, ToolFamily, recognise
from engines.policies.rehearsal.prompt import unquote_lines
from engines.policies.rehearsal.solve import draws_right, step_line


@dataclass(frozen=True, slots=True)
class Way:
    """One way to go on after the first step: what is said before the call, and the program."""

    step: Step
    code: str


@dataclass(frozen=True, slots=True)
class ToolProblem:
    """A recognised problem with both ways. `guess` is what it comes to by head: a wrong number."""

    family: ToolFamily
    start: Step
    right: Way
    wrong: Way
    guess: int


_POWER = re.compile(r"(\d+)\s*(?:\^|\*\*|to the power(?: of)?)\s*(\d+)\b\D+(\d+)", re.I)
_BOUNDS = re.compile(r"\bfrom (\d+) (?:to|through|up to) (\d+)\b", re.I)
_DIVISORS = re.compile(r"\b(?:divisible|multiples)\b\D*(\d+)\D*\bnot\b\D*(\d+)", re.I)
_FACTORIAL = re.compile(r"(\d+)!|\bfactorial of (\d+)", re.I)
_DIGITS = re.compile(r"\bdigits?\b", re.I)
_TERMS = re.compile(r"\b(squares|cubes)\b", re.I)


def recognise_tool_problem(question: str) -> ToolProblem | None:
    """Read a question; None when it belongs to none of these kinds, or is worked out by head."""
    if recognise(question):
        return None
    if "remainder" in question.lower() and (found := _POWER.search(question)):
        base, exponent, modulus = (int(number) for number in found.groups())
        return _remainder_problem(base, exponent, modulus) if modulus else None
    if _DIGITS.search(question) and (found := _FACTORIAL.search(question)):
        return _factorial_problem(int(found[1] or found[2]))
    if not (bounds := _BOUNDS.search(question)):
        return None
    first, last = int(bounds[1]), int(bounds[2])
    if found := _DIVISORS.search(question):
        divisor, other = int(found[1]), int(found[2])
        return _counting_problem(first, last, divisor, other) if divisor and other else None
    if found := _TERMS.search(question):
        return _sum_problem(first, last, found[1].lower())
    return None


def _remainder_problem(base: int, exponent: int, modulus: int) -> ToolProblem:
    exact, rounded = f"pow({base}, {exponent}, {modulus})", f"{base}.0 ** {exponent} % {modulus}"
    start = Step(
        "power",
        "when the remainder of a large power is asked, let the interpreter work it out",
        f"{base}^{exponent} divided by {modulus}",
    )
    clause = "when the remainder of a power is asked, call pow with three arguments"
    right = Way(Step("three arguments", clause, exact), f"print({exact})")
    clause = "work out the power as a decimal number and take the remainder of it"
    wrong = Way(Step("decimal power", clause, rounded), f"print({rounded})")
    return ToolProblem("remainder", start, right, wrong, guess=modulus)


def _counting_problem(first: int, last: int, divisor: int, other: int) -> ToolProblem:
    start = Step(
        "bounds",
        "when numbers between two bounds are counted, go through them in a loop",
        f"{first} through {last}",
    )

    def way(label: str, clause: str, end: int) -> Way:
        span = f"range({first}, {end})"
        condition = f"n % {divisor} == 0 and n % {other} != 0"
        code = f"count = 0\nfor n in {span}:\n    if {condition}:\n        count += 1\nprint(count)"
        return Way(Step(label, clause, span), code)

    clause = "when a range must hold its last number, end it one above that number"
    right = way("inclusive end", clause, last + 1)
    wrong = way("range", "begin the range at the first number and end it at the last", last)
    return ToolProblem("inclusive", start, right, wrong, guess=last - first + 1)


def _factorial_problem(number: int) -> ToolProblem:
    start = Step(
        "factorial", "when the digits of a factorial are asked, multiply it out first", f"{number}!"
    )

    def way(label: str, clause: str, division: str, digit: str) -> Way:
        product = f"n = 1\nfor k in range(2, {number + 1}):\n    n *= k"
        code = f"{product}\ntotal = 0\nwhile n >= 1:\n    total += {digit}\n    {division}"
        return Way(Step(label, clause, division), f"{code}\nprint(total)")

    clause = (
        "when a large number is taken apart digit by digit, divide it with // and keep it whole"
    )
    right = way("whole division", clause, "n = n // 10", "n % 10")
    clause = "divide the number by ten and take the next digit"
    wrong = way("shift", clause, "n = n / 10", "int(n % 10)")
    # Nine divides every such sum from 6! on, so this is none.
    return ToolProblem("whole", start, right, wrong, guess=9 * number + 1)


def _sum_problem(first: int, last: int, terms: str) -> ToolProblem:
    power = 2 if terms == "squares" else 3
    start = Step(
        "terms",
        "when many terms are added, let the interpreter add them",
        f"{terms} from {first} through {last}",
    )
    code = f"total = sum(n ** {power} for n in range({first}, {last + 1}))"
    clause = "when code has worked out a value, print that value in its last line"
    right = Way(Step("print", clause, "print(total)"), f"{code}\nprint(total)")
    clause = "give the value a name and end there"
    wrong = Way(Step("name", clause, "total"), code)
    return ToolProblem("printed", start, right, wrong, guess=last**power)


CHARS_PER_TOKEN = 4  # the usual rule of thumb; there is no tokenizer to ask
_ROLES = ("system", "developer", "user", "assistant", "tool")
_IN_WORDS = "To use a tool, reply with one fenced block"
_NAMED = re.compile(r"^- ([\w-]+):", re.M)
_RESULTS = "Tool results"
_FUNCTION_NAME = re.compile(r"[\w-]{1,64}", re.ASCII)


def token_count(text: str) -> int:
    return -(-len(text) // CHARS_PER_TOKEN)


def content_text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part["text"] for part in content)
    return content or ""


def instructions_text(messages: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(content_text(m) for m in messages if m["role"] in ("system", "developer"))


def native_tools(request: Mapping[str, Any]) -> frozenset[str]:
    """Names of the functions that may be called."""
    if request.get("tool_choice") == "none":
        return frozenset()
    return frozenset(tool["function"]["name"] for tool in request.get("tools") or ())


def tools_in_words(request: Mapping[str, Any]) -> frozenset[str]:
    """Names of the tools that may be asked for in a fenced block."""
    if request.get("tools"):
        return frozenset()
    _, told, after = instructions_text(request["messages"]).partition(_IN_WORDS)
    return frozenset(_NAMED.findall(after)) if told else frozenset()


def result_text(message: Mapping[str, Any]) -> str | None:
    """What a message says that tools gave; None for any other message."""
    text = content_text(message)
    if message["role"] == "user" and text.startswith(_RESULTS):
        return "\n".join(unquote_lines(text.splitlines()))
    return text if message["role"] == "tool" else None


def are_tools(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_tool(tool) for tool in value)


def _is_tool(tool: Any) -> bool:
    function = _function(tool)
    return (
        function is not None
        and _FUNCTION_NAME.fullmatch(function["name"]) is not None
        and isinstance(function.get("description") or "", str)
        and isinstance(function.get("parameters") or {}, Mapping)
    )


def _function(value: Any) -> Mapping[str, Any] | None:
    """The function of a tool or a call; None where there is none with a name."""
    if not isinstance(value, Mapping) or value.get("type") != "function":
        return None
    function = value.get("function")
    named = isinstance(function, Mapping) and isinstance(function.get("name"), str)
    return function if named else None


def messages_error(messages: object) -> str | None:
    """What is wrong with the messages of a request, as a sentence."""
    if not isinstance(messages, list) or not messages:
        return '"messages" must be a non-empty array.'
    waiting: list[str] = []  # ids of calls that are still to be answered
    for n, message in enumerate(messages):
        if not isinstance(message, Mapping) or message.get("role") not in _ROLES:
            return f'"messages[{n}].role" must be one of {", ".join(_ROLES)}.'
        if not _is_readable(message.get("content")):
            return f'"messages[{n}].content" must be text, an array of text parts or null.'
        if message["role"] == "tool":
            if message.get("tool_call_id") not in waiting:
                return f'"messages[{n}].tool_call_id" must be the id of a call not answered yet.'
            waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            return f'"messages[{n}].role" must be tool: the call {waiting[0]} is not answered.'
        calls = message.get("tool_calls")
        if calls is not None and not (message["role"] == "assistant" and _are_calls(calls)):
            form = "an array of function calls with ids of their own, in an assistant message"
            return f'"messages[{n}].tool_calls" must be {form}.'
        waiting = [call["id"] for call in calls or ()]
    return f'"messages" must hold an answer to the call {waiting[0]}.' if waiting else None


def _are_calls(calls: Any) -> bool:
    if not isinstance(calls, list) or not calls:
        return False
    functions = [_function(call) for call in calls]
    if not all(f is not None and isinstance(f.get("arguments"), str) for f in functions):
        return False
    ids = [call.get("id") for call in calls]
    return all(isinstance(id, str) and id for id in ids) and len(set(ids)) == len(ids)


def _is_readable(content: object) -> bool:
    if isinstance(content, list):
        return all(
            isinstance(part, Mapping)
            and part.get("type") == "text"
            and isinstance(part.get("text"), str)
            for part in content
        )
    return content is None or isinstance(content, str)


def tools_error(request: Mapping[str, Any]) -> str | None:
    """What is wrong with fields that only go with tools, as a sentence."""
    for name in ("tool_choice", "parallel_tool_calls"):
        if request.get(name) not in (None, "none") and not request.get("tools"):
            return f'"{name}" is allowed only where "tools" are offered.'
    return None


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
        return token_count(self.text) + token_count(called)


def solve_with_tools(
    request: Mapping[str, Any], instructions: str, seed: int, temperature: float
) -> Turn | None:
    """The next turn of a try; None where nothing that is asked needs an interpreter."""
    asked: tuple[str, ToolProblem] | None = None
    result: str | None = None
    for message in request["messages"]:
        told = result_text(message)
        question = content_text(message).strip()
        if told is not None:
            result = told
        elif message["role"] == "user" and (problem := recognise_tool_problem(question)):
            asked, result = (question, problem), None
    if asked is None:
        return None
    question, problem = asked
    if result is not None:
        return Turn(_last_text(problem, result))
    native = INTERPRETER in native_tools(request)
    if not native and INTERPRETER not in tools_in_words(request):
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
