"""The value of an expression of whole numbers: +, -, * and round brackets.

Text of a model is parsed and walked, never evaluated as a program; no expression within the
limits takes longer than a moment.
"""

from __future__ import annotations

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
