"""Where a winner and a loser of one group part: the first step, and its words. Pure.

A step is a sentence of a reply, or a line of a tool call or of a tool's result. The winner has a
step of the loser too, in whatever place, where the words are alike, or where both find the same
numbers by the same calculation, however it is written: 16 - 7 after 3 + 4 = 7 is 16 - 3 - 4. What
only repeats the question or what was said before parts nobody. The first step of the loser after
that is where they part, beside the winner's next one, and so is a step by which another method
happens to reach the same number. Found so in GSM8K, by eye: see `tests/studio/review`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import islice, product
from math import isclose
from typing import Literal

from engines.core.text.similarity import Change
from engines.core.text.tool_text import call_text, said_text
from engines.core.types import Message
from studio.secrets.sanitize import sanitize

Piece = tuple[str, str]
"""A key and a text, in the order in which they were said; keys of tool calls begin with "call"."""

_MOST_STEPS, _MOST_TOKENS, MOST_OF_A_SIDE = 120, 120, 3
"""Compared of a side and of a step, and winners and losers tried: 9 pairs of 0.5 to 25 ms each."""
_MOST_LINES = 8
"""Of a tool's result: it follows from its call."""
_AROUND = 2
"""Lines of a call that are shown before and after the one where it parts."""
_MOST_SHOWN = 240
"""Characters of a step that stand together where only its words are shown."""
_SAME_WORDS, _SAME_CALL, _SAME_TOPIC = 0.6, 0.8, 0.25
"""Shares of words in common of the same step, the same call, and a step about the same things."""
_SAME_STEP = 0.9
_RESTATES = 0.8
"""Share of a step's words that were said before, from which it says nothing new."""

_SENTENCE = re.compile(r"[^\n]+?(?:[.!?。！？]+(?=\s|$)|$)", re.MULTILINE)
_LINE = re.compile(r"[^\n]+")
_CALL_LINE = re.compile(r"\A[^\n]+\n[^\n]+|[^\n]+")
"""The name of a tool is no step by itself: it goes with the first line of the code."""
_NUMBERING = re.compile(
    r"\s*(?:[-*•#>]+\s+)*"
    r"(?:\**(?:step\s*\d+\s*(?:\([^()]*\)\s*)?|\(?\d{1,2}\s?)[.:)]\**(?:\s|$))?",
    re.IGNORECASE,
)
_CALCULATOR = re.compile(r"<<[^<>]*>>")  # notes such as <<48/2=24>> in GSM8K
_NUMBER = r"\.?\d+(?:,\d{3})*(?:\.\d+)?"
_TOKEN = re.compile(rf"(?:(?<=[=(])|(?<== ))-?{_NUMBER}|(?<!\d){_NUMBER}|[^\W\d_]+|[^\w\s]")
_LATEX = re.compile(
    r"(\\[dt]?frac)\{([^{}]*)\}\{([^{}]*)\}|\\(?:(times|cdot)|div)(?![a-z])|\\[()\[\]$%,;!]"
)
_OPERATION = re.compile("(add|plus)|(subtract|minus)|(multipl|times)|(divid)")
_SPELT = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_NUMBER_WORDS = {word: str(number) for number, word in enumerate(_SPELT, 2)}  # "one" is a pronoun
Calculation = tuple[str, ...]
"""Numbers, the signs + - * / and brackets."""


@dataclass(frozen=True, slots=True)
class Equation:
    method: Calculation  # () where it cannot be read
    whole: Calculation  # the same with what its numbers were found by
    result: str
    behind: tuple[str, ...]  # other numbers behind it, sorted
    is_right: bool


_NO_EQUATION = Equation((), (), "", (), is_right=False)


@dataclass(frozen=True, slots=True)
class _Step:
    key: str
    start: int
    end: int
    tokens: tuple[tuple[str, int, int], ...]  # normalized, and where they stand in the piece
    words: frozenset[str]
    numbers: frozenset[str]
    fresh: frozenset[str]  # numbers that neither the question nor this side said before
    verbs: frozenset[int | None]  # its operations in words
    equation: Equation  # its last one

    @property
    def result(self) -> str:
        return self.equation.result

    @property
    def acts(self) -> bool:
        """Whether it calls a tool, or tells an operation with numbers."""
        return self.key.startswith("call") or bool(self.verbs and len(self.numbers) > 1)

    def findings(self, said: set[str]) -> frozenset[str]:
        """What it computes, or else its numbers that were not said before."""
        return frozenset((self.result,)) if self.result else self.numbers - said


@dataclass(frozen=True, slots=True)
class PartingStep:
    """The step of one side: characters of a piece, and what only this side says there."""

    key: str
    start: int
    end: int
    marked: tuple[tuple[int, int], ...]  # characters of the piece

    def words(self, pieces: Sequence[Piece], kind: Literal["cut", "new"]) -> tuple[Change, ...]:
        """The step in pieces, of which long ones are shortened; what differs is of this kind."""
        text, at = dict(pieces)[self.key], self.start
        out: list[Change] = []
        for start, end in self.marked:
            out += [("same", text[at:start]), (kind, text[start:end])]
            at = end
        whole = [*out, ("same", text[at : self.end])]
        shortened: list[Change] = [(kind, _shorten(piece)) for kind, piece in whole if piece]
        if not self.key.startswith("call"):
            return tuple(shortened)
        return (*_lines_before(text[: self.start]), *shortened, *_lines_after(text[self.end :]))


@dataclass(frozen=True, slots=True)
class Divergence:
    winner: PartingStep
    loser: PartingStep
    shared: float  # of the loser's steps, those before


def choose_pair(
    winners: Mapping[str, Sequence[Piece]], losers: Mapping[str, Sequence[Piece]], question: str
) -> tuple[str, str, Divergence] | None:
    """The winner and the loser that part latest, of those the most alike, and where."""
    found: list[tuple[float, int, int, str, str, Divergence]] = []
    sides = (islice(side.items(), MOST_OF_A_SIDE) for side in (winners, losers))
    for (winner, said), (loser, answered) in product(*sides):
        if (parts := find_divergence(said, answered, question)) is not None:
            marked = sum(end - start for start, end in parts.winner.marked + parts.loser.marked)
            found.append((-parts.shared, marked, len(found), winner, loser, parts))
    return min(found)[3:] if found else None  # the third is another for each


def find_divergence(
    winner: Sequence[Piece], loser: Sequence[Piece], question: str = ""
) -> Divergence | None:
    """Where they part; None where one of them says nothing."""
    asked = {token for token, _, _ in _tokens(question)}
    ours, theirs = _split_steps(winner, asked), _split_steps(loser, asked)
    if not ours or not theirs:
        return None
    computes = all(any(step.numbers - asked for step in side) for side in (ours, theirs))
    apart: dict[int, int] = {}  # the loser's own steps → the winner's last in common by then
    first, said, passed, rest = -1, set(asked), -1, 0
    met: set[int] = set()  # the winner's steps that were in the loser so far
    for i, step in enumerate(theirs[:-1]):
        findings = step.findings(said)
        same = (j for j, one in enumerate(ours) if _is_same(step, one, findings, asked))
        # What was found before is found again where the words are those, too.
        match = next(
            (j for j in same if j not in met or _share(step.words, ours[j].words) >= _SAME_STEP),
            None,
        )
        if match is not None:
            met.add(match)
            passed, rest = max(passed, match), i + 1
            if findings and computes:
                own = max(
                    (j for j in range(match) if ours[j].equation.method and j not in met),
                    default=-1,
                )
                since = {i for i, before in apart.items() if own <= before < match}
                _drop_detours(step, ours[match], theirs, apart, since)
        elif _says_something(step, findings, said, computes):
            apart[i] = passed
            first = i if first < 0 else first
        said |= step.words | step.numbers
    # Where only the end differs, a wrong way may have led to the winner's figures by chance.
    end = next(j for j in range(rest, len(theirs)) if theirs[j].numbers >= theirs[-1].numbers)
    i = next(iter(apart), first if first >= 0 else end)
    passed = apart.get(i, passed if first < 0 else -1)
    j = _find_counterpart(theirs[i], ours, passed + 1, asked)
    new, cut = _mark_words(ours[j], theirs[i])
    return Divergence(new, cut, i / len(theirs))


def said_pieces(messages: Sequence[Message]) -> tuple[Piece, ...]:
    """What a rollout said, called and was answered, sanitized."""
    out: list[Piece] = []
    for number, message in enumerate(messages):
        if message.role == "assistant":
            out += [(f"think{number}", message.reasoning), (f"answer{number}", said_text(message))]
            calls = (call_text(call.name, call.arguments) for call in message.tool_calls)
            out += [(f"call{number}.{at}", text) for at, text in enumerate(calls)]
        elif message.role == "tool":
            out.append((f"tool{number}", message.content))
    return tuple((key, sanitize(text)) for key, text in out if text)


def _lines_before(text: str) -> tuple[Change, ...]:
    """The tool's name and the last lines of these."""
    name, *lines = (line for line in text.split("\n") if line.strip() or not text)
    cut = ["…"] if len(lines) > _AROUND else []
    shown = [name, *cut, *map(_shorten, lines[-_AROUND:]), ""]
    return (("same", "\n".join(shown)),) if text else ()


def _lines_after(text: str) -> tuple[Change, ...]:
    lines = [line for line in text.split("\n") if line.strip()]
    cut = ["…"] if len(lines) > _AROUND else []
    shown = ["", *map(_shorten, lines[:_AROUND]), *cut]
    return (("same", "\n".join(shown)),) if lines else ()


def _shorten(text: str) -> str:
    half = _MOST_SHOWN // 2
    return text if len(text) <= _MOST_SHOWN else f"{text[:half]} … {text[-half:]}"


def _tokens(text: str) -> list[tuple[str, int, int]]:
    text = _CALCULATOR.sub(lambda found: " " * len(found[0]), text)
    text = _LATEX.sub(_plain_signs, text)
    numbered = _NUMBERING.match(text)
    out = []
    for found in _TOKEN.finditer(text, numbered.end() if numbered else 0):
        token = _NUMBER_WORDS.get(found[0].casefold(), found[0].casefold())
        if token[-1].isdecimal():
            token = f"{float(token.replace(',', '')):.12g}"
        out.append((token, *found.span()))
    return out


def _plain_signs(latex: re.Match[str]) -> str:
    """The same without LaTeX, in as many characters."""
    command, over, under, times = latex.groups()
    if command:
        return f"{'(':>{len(command) + 1}}{over})/{under} "
    last = latex[0][-1]
    sign = "*" if times else "/" if last == "v" else last if last in "$%" else " "
    return f"{sign:>{len(latex[0])}}"


def _split_steps(pieces: Sequence[Piece], asked: set[str]) -> list[_Step]:
    out, seen = [], set(asked)
    made: dict[str, Calculation] = {}  # how numbers of earlier steps were found
    for key, text in pieces:
        pattern = {"call": _CALL_LINE, "tool": _LINE}.get(key[:4], _SENTENCE)
        most = _MOST_LINES if pattern is _LINE else None
        for part in islice(pattern.finditer(text), most):
            if pattern is _CALL_LINE and part[0].lstrip().startswith("#"):
                continue  # what a program says of itself changes nothing
            at = part.start()
            tokens = tuple((t, a + at, b + at) for t, a, b in _tokens(part[0])[:_MOST_TOKENS])
            names = [token for token, _, _ in tokens if token != "$"]
            numbers = frozenset(name for name in names if name[-1].isdecimal())
            words = frozenset(name for name in names if name[0].isalpha())
            if not words and not numbers:
                continue
            # `n <= 2` in a program finds nothing.
            found = [] if pattern is _CALL_LINE else find_equations(names, made)
            made |= {e.result: e.whole for e in found if e.is_right and e.result not in asked}
            verbs = filter(None, map(_OPERATION.match, words))
            out.append(
                _Step(key, at, part.end(), tokens, words, numbers, numbers - seen,
                      frozenset(verb.lastindex for verb in verbs),
                      found[-1] if found else _NO_EQUATION)
            )  # fmt: skip
            seen |= numbers
            if len(out) == _MOST_STEPS:
                return out
    return out


def _is_same(step: _Step, other: _Step, findings: frozenset[str], asked: set[str]) -> bool:
    """Whether a step of the other side says what this one says."""
    if [token for token, _, _ in step.tokens] == [token for token, _, _ in other.tokens]:
        return True
    if step.key[:4] != other.key[:4] and "call" in (step.key[:4], other.key[:4]):
        return False
    alike = _share(step.words, other.words)
    operation = step.verbs == other.verbs or not (step.verbs and other.verbs)
    if step.key.startswith("call") or not findings:
        calls = step.key.startswith("call")
        if calls and _other_tokens(step) != _other_tokens(other):
            return False  # `<` is not `<=`, and n + 1 is not n - 1
        least = _SAME_CALL if calls else _SAME_WORDS
        return alike >= least and step.numbers == other.numbers and operation
    if step.result and other.result:
        # "write 6" and "write 6, carry 1" are two steps; that it is in 3 days is no news.
        noted, too = (
            [n for n in e.behind if n not in asked] for e in (step.equation, other.equation)
        )
        return step.result == other.result and noted == too and _is_same_way(step, other)
    both = _share(step.words | step.numbers, other.words | other.numbers)
    stated = other.fresh if step.result else other.numbers
    return both >= _SAME_TOPIC and findings <= stated and operation


def _other_tokens(step: _Step) -> list[str]:
    """Signs and numbers of a step, each as often as it stands there."""
    return sorted(token for token, _, _ in step.tokens if not token[0].isalpha())


def _is_same_way(step: _Step, other: _Step) -> bool:
    one, two = step.equation, other.equation
    if not (one.method and two.method) or is_same_calculation(one.method, two.method):
        return True
    alike = _share(step.words, other.words) >= _SAME_TOPIC
    return alike and is_same_calculation(one.whole, two.whole)


def _drop_detours(
    shared: _Step, other: _Step, steps: Sequence[_Step], apart: dict[int, int], since: set[int]
) -> None:
    """A detour to a result that both have is harmless: 3 * 2 = 6 before 6 + 1 = 7.

    It is none where the winner has a step of its own at that place, as it has none for `since`,
    unless the winner's step does without that number.
    """
    used = set(shared.numbers)
    for i in sorted(apart, reverse=True):
        result = steps[i].result
        if result in used and (i in since or result not in other.numbers):
            used |= steps[i].numbers
            del apart[i]


def _says_something(step: _Step, findings: frozenset[str], said: set[str], computes: bool) -> bool:
    if findings or step.acts:
        return True
    return not computes and len(step.words & said) < _RESTATES * len(step.words)


def _find_counterpart(step: _Step, others: Sequence[_Step], first: int, asked: set[str]) -> int:
    """From `first` on the first step that finds anything, else the one most like this."""
    said = asked.union(*(one.words | one.numbers for one in others[:first]))
    for j, other in enumerate(others[first:], first):
        if other.findings(said) or other.acts:
            return j
    rest = range(min(first, len(others) - 1), len(others))
    return max(rest, key=lambda j: (_share(step.words, others[j].words), -j))


def _share(one: frozenset[str], other: frozenset[str]) -> float:
    total = len(one) + len(other)
    return 2 * len(one & other) / total if total else 1.0


def _mark_words(ours: _Step, theirs: _Step) -> tuple[PartingStep, PartingStep]:
    """Both steps with what only one of them says; up to two words in between go with it."""
    old, new = ([token for token, _, _ in step.tokens] for step in (ours, theirs))
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    marked: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    for side, step in enumerate((ours, theirs)):
        last = -9
        for tag, *ends in matcher.get_opcodes():
            i, j = ends[2 * side : 2 * side + 2]
            if tag == "equal" or i == j:
                continue
            start, end = step.tokens[i][1], step.tokens[j - 1][2]
            between = {token for token, _, _ in step.tokens[max(last, 0) : i]}
            if i - last <= 2 and not between & {"=", *step.numbers, *SIGNS}:
                start = marked[side].pop()[0]
            marked[side].append((start, end))
            last = j
    return (
        PartingStep(ours.key, ours.start, ours.end, tuple(marked[0])),
        PartingStep(theirs.key, theirs.start, theirs.end, tuple(marked[1])),
    )


SIGNS = dict(zip("+-*/x×·÷−", "+-*/***/-", strict=True)) | {"plus": "+", "minus": "-"}
SIGNS["times"] = "*"
_EQUALS = {"is", "are", "equals", "makes", "gives", "leaves"}
_MOST_IN_EQUATION = 100


def find_equations(names: Sequence[str], known: Mapping[str, Calculation]) -> list[Equation]:
    """What stands in front of each "=", and the number behind it.

    `known` are numbers with what they were found by. Words stand for "=" where there is none,
    and where the calculation comes out right.
    """
    in_words = "=" not in names
    out: list[Equation] = []
    run: list[str] = []
    for at, name in enumerate(names):
        has_operand = bool(run) and run[-1] not in "+-*/("
        if name == "=" or (in_words and name in _EQUALS):
            result = next((each for each in names[at + 1 :] if each[-1].isdecimal()), "")
            method = tuple(run) if has_operand and len(run) > 1 else ()
            # In "3 on Monday, 4 times 3 is 3 * 4 = 12" it is the last that counts.
            parts = (method[k:] for k in range(len(method)) if k == 0 or method[k - 1] in "+-*/")
            right = next((each for each in parts if result and _comes_to(each, result)), ())
            if result and (right or not in_words):
                method = right or (method if _evaluate(method, {}) is not None else ())
                numbers = (each for each in names[at + 1 :] if each[-1].isdecimal())
                behind = tuple(sorted(each for each in numbers if each != result))
                found = Equation(method, _expand(method, known), result, behind, bool(right))
                out.append(found)
            run = []
        elif name in SIGNS:
            run = [*run[: None if has_operand else -1], SIGNS[name]] if run else []
        elif name[-1].isdecimal() or name == "(":
            run = [name] if has_operand else [*run, name]
        elif name in (")", "%"):
            run += [")"] if name == ")" else ["/", "100.0"] if has_operand else []
        elif not name.isalpha():
            run = []
    return out


def _comes_to(calculation: Calculation, result: str) -> bool:
    value = _evaluate(calculation, {})
    return (
        len(calculation) > 1 and value is not None and isclose(value, float(result), rel_tol=0.01)
    )


def _expand(method: Calculation, known: Mapping[str, Calculation]) -> Calculation:
    parts = [("(", *known[name], ")") if name in known else (name,) for name in method]
    whole = tuple(name for part in parts for name in part)
    return whole if len(whole) <= _MOST_IN_EQUATION else method


def is_same_calculation(one: Calculation, other: Calculation) -> bool:
    """Whether both follow the numbers that they have in common alike, whatever those are.

    So 10 + 4 - 9 is not 9 - 4, and 16 - (3 + 4) is 16 - 3 - 4.
    """
    numbers, others = ({*each} - {"1", *"+-*/()"} for each in (one, other))
    apart = numbers - others, others - numbers
    if not numbers & others or "0" in numbers ^ others or (all(apart) and {*"+-"} & {*one, *other}):
        return False  # nothing in common; 5 - 3 is not 6 - 1 - 3, but 40 * 0.5 is 40 / 2
    common = enumerate(sorted(numbers & others), 1)
    values = {name: float(name) * (1 + n / 10) + n / 3 for n, name in common}
    first, second = _evaluate(one, values), _evaluate(other, values)
    return None not in (first, second) and isclose(first or 0, second or 0, rel_tol=1e-3)


def _evaluate(calculation: Calculation, values: Mapping[str, float]) -> float | None:
    """None where it is none. `values` stand for numbers."""
    left = [*reversed(calculation)]

    def factor() -> float:
        if (name := left.pop()) != "(":
            return values.get(name, float(name))
        inner = terms()
        if left.pop() != ")":
            raise ValueError
        return inner

    def product() -> float:
        found = factor()
        while left and left[-1] in "*/":
            found = found * factor() if left.pop() == "*" else found / factor()
        return found

    def terms() -> float:
        found = product()
        while left and left[-1] in "+-":
            found = found + product() if left.pop() == "+" else found - product()
        return found

    try:
        found = terms()
    except (ValueError, IndexError, ZeroDivisionError):
        return None
    return None if left else found
