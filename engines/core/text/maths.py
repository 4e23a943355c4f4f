"""The value of an expression of whole numbers: +, -, * and round brackets.

Text of a model is parsed and walked, never evaluated as a program; no expression within the
limits takes longer than a moment.
"""

import ast
import operator
import re
from collections.abc import Callable

MAX_CHARS = 200
"""Which bounds the depth of the walk as well."""
MAX_DIGITS = 30
"""Of every number, the results in between included."""

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
_LIMIT = 10**MAX_DIGITS
# Python's grammar has more numbers (0x1f, 1_000, 1e3) and more white space.
_ODD = re.compile(r"[^0-9+\-*() ]")


class ExpressionError(Exception):
    """An expression without a value here; the text says why, for the model."""


def value_of(expression: str) -> int:
    """Raises ExpressionError where it is no such expression, or beyond a limit."""
    if len(expression) > MAX_CHARS:
        raise ExpressionError(f"the expression is longer than {MAX_CHARS} characters")
    if odd := _ODD.search(expression):
        raise ExpressionError(f"{odd[0]!a} is not allowed, only whole numbers, + - * and brackets")
    if not expression.strip():
        raise ExpressionError("there is no expression")
    if max(map(len, re.findall(r"\d+", expression)), default=0) > MAX_DIGITS:
        raise _too_large_error()
    # A leading zero is no number to Python, and one to everybody else.
    plain = re.sub(r"(?<!\d)0+(?=\d)", "", expression).strip()
    try:
        tree = ast.parse(plain, mode="eval")
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ExpressionError("the expression cannot be read") from error
    return _evaluate_node(tree.body)


def _evaluate_node(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate_node(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _evaluate_node(operand)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() as op, right=right):
            apply = _OPERATORS[type(op)]
            value = apply(_evaluate_node(left), _evaluate_node(right))
            if abs(value) >= _LIMIT:
                raise _too_large_error()
            return value
    raise ExpressionError("only +, - and * of whole numbers are computed")


def _too_large_error() -> ExpressionError:
    return ExpressionError(f"a number has more than {MAX_DIGITS} digits")


_TEXT = re.compile(r'(?:[^"\\]|\\.)+', re.DOTALL)
"""What stands between two quotes, within a string as well as between two of them."""
_BACKSLASHES = re.compile(r"\\+")
_WORD = re.compile(r"[A-Za-z]*")
_ROW = re.compile(r"\s|\w|&|\[\d")  # what comes behind the end of a row of a matrix
_HEX = re.compile(r"u[0-9a-fA-F]{4}")
_COMMANDS = re.compile(
    r"n(?:abla|atural|cong|earrow|eq|egthinspace|equiv|ewcommand|ewline|ewpage|umberwithin|geq\w*|gtr|leftarrow|leftrightarrow"
    r"|leq\w*|obreak|ocite|oindent|olimits|onumber|orm|ormalsize|ot|otag|otin|parallel|preceq"
    r"|rightarrow|Rightarrow|shortmid|subset\w*|succeq|supset\w*|triangle\w*|um|[vV][dD]ash|warrow)"
    r"|r(?:aisebox|angle|brace|brack|ceil|ef|enewcommand|estriction|floor|group|ho|ight\w*|lap|m"
    r"|oot|times|ule|vert|Vert|isingdotseq)"
    r"|t(?:abular|ag|an|anh|au|binom|ext\w*|frac|h(?:eta|erefore|inspace|ick\w*)|ilde|imes|iny|itle|o|op|oprule|ensor"
    r"|riangle\w*|woheadrightarrow)"
)
"""Commands that begin like the escapes of a new line, a return and a tab."""
_LIKE_WORDS = frozenset(("ne", "neg", "nexists", "ni", "nless", "nmid", "nprec", "nsim", "nu"))
"""Commands that could be a new line and a word, as in "Let\nu be": their place decides."""
_BEFORE_TEX = re.compile(r"(?:\A|[\s=+\-*/^_|<>&~({\[])\Z")


def escape_tex(text: str) -> str:
    """Double the backslashes that JSON would take for an escape where TeX is meant, or refuse.

    Escapes that are meant stay: a quote, a new line before prose, a doubled backslash.
    """
    return _TEXT.sub(lambda found: _escape_chunk(found[0]), text) if "\\" in text else text


def _escape_chunk(chunk: str) -> str:
    if "\\" not in chunk:
        return chunk
    runs = list(_BACKSLASHES.finditer(chunk))
    single = [False] * len(runs)
    doubled, dollars, last = False, 0, 0
    for number, run in enumerate(runs):
        dollars += chunk.count("$", last, run.start())
        last = run.end()
        if len(run[0]) % 2:
            single[number] = _is_literal(chunk, run.start(), run.end(), dollars % 2 == 1)
        else:
            doubled = doubled or bool(_WORD.match(chunk, last)[0][1:])  # type: ignore[index]
    plain = any(single) and not doubled  # `\\` is the end of a row, then
    parts, last = [], 0
    for run, literal in zip(runs, single, strict=True):
        escape = len(run[0]) % 2
        times = 2 if plain and _ROW.match(chunk, run.end()) else 1
        count = (len(run[0]) - escape) * times + escape + literal
        parts += [chunk[last : run.start()], "\\" * count]
        last = run.end()
    return "".join([*parts, chunk[last:]])


def _is_literal(chunk: str, start: int, end: int, in_math: bool) -> bool:
    """Whether the last backslash before `end` stands for itself."""
    word = _WORD.match(chunk, end)[0]  # type: ignore[index]
    if not word:
        return chunk[end : end + 1] not in ('"', "/", "'", "\n")
    if word[0] not in "nrt":
        return _HEX.match(chunk, end) is None
    if word in _LIKE_WORDS:
        return in_math or bool(_BEFORE_TEX.search(chunk[max(0, start - 1) : start]))
    return bool(_COMMANDS.fullmatch(word))
