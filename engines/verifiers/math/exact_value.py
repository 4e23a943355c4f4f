r"""Equality of simple expressions by exact arithmetic, thousands of times a second.

Polynomials with rational coefficients in letters, pi and square roots, and tuples of them: what
most answers are. Says nothing (None) to all else, and wherever the general checker reads with more
leniency (units, percent, mixed numbers, rounding). sympy needs 2 to 80 ms for the same.
"""

import math
import re
from fractions import Fraction

MAX_CHARS, MAX_DIGITS, MAX_TERMS, MAX_POWER, MAX_DEPTH = 160, 15, 40, 8, 12
MAX_RADICAND = 10**9

Monomial = tuple[int, tuple[str, ...]]  # square-free radicand, letters in order, repeated
Value = dict[Monomial, Fraction]

_TOKEN = re.compile(
    r"\\[dt]?frac|\\sqrt|\\cdot|\\times|\\pi|\d+(?:\.\d+)?|\.\d+|[A-Za-z]|[-+*/^(){}]|(?P<odd>\S)"
)
_SPACING = re.compile(r"\\left(?=\()|\\right(?=\))|\\[,;! ]|\s+")
_NAMED = re.compile(r"([A-Za-z])\s*=([^=]+)")


class _Undecidable(Exception):
    """Not an expression that is decided here."""


def same_value(gold: str, answer: str) -> bool | None:
    """Whether two expressions are equal; None where that is for the general checker to say.

    `x = 3` answers 3 and 3 answers `x = 3`. Decimals that differ by less than 1e-4 are left
    to the general checker, which rounds.
    """
    if max(len(gold), len(answer)) > MAX_CHARS:
        return None
    gold, answer = gold.strip().strip("$").strip(), answer.strip().strip("$").strip()
    gold_name, answer_name = _NAMED.fullmatch(gold), _NAMED.fullmatch(answer)
    if gold_name and answer_name and gold_name[1] != answer_name[1]:
        return None
    try:
        return _same_expression(
            gold_name[2] if gold_name else gold, answer_name[2] if answer_name else answer
        )
    except (_Undecidable, ZeroDivisionError):
        return None


def _same_expression(gold: str, answer: str) -> bool | None:
    ours, theirs = _tuple_members(gold), _tuple_members(answer)
    if len(ours) != len(theirs):
        return None
    found = [_same_part(*pair) for pair in zip(ours, theirs, strict=True)]
    return None if None in found else all(found)


def _same_part(gold: str, answer: str) -> bool | None:
    one, other = _parse_expression(gold), _parse_expression(answer)
    difference = _sum(one, {key: -number for key, number in other.items()})
    if not difference:
        return True
    if _variables(one) != _variables(other):
        return None  # perhaps a unit, or a word
    if "." not in gold + answer:
        return False
    if _variables(one) - {"\\pi"}:
        return None
    distance = sum(
        float(number) * math.sqrt(root) * math.pi ** len(pis)
        for (root, pis), number in difference.items()
    )
    return False if abs(distance) > 1e-4 else None


def _tuple_members(text: str) -> list[str]:
    """The members of a tuple, or the text itself."""
    text = _SPACING.sub(" ", text).strip()
    inner = text[1:-1]
    if not (text.startswith("(") and text.endswith(")") and "," in inner):
        return [text]
    if "(" in inner or "{" in inner.replace("\\frac{", "").replace("\\sqrt{", "").replace("}{", ""):
        raise _Undecidable
    return inner.split(",")


def _variables(value: Value) -> set[str]:
    return {letter for _, letters in value for letter in letters}


def _parse_expression(text: str) -> Value:
    tokens = []
    for match in _TOKEN.finditer(text):
        if match["odd"]:
            raise _Undecidable
        tokens.append(match[0])
    reader = _Parser(tokens)
    value = reader.parse_sum(0)
    if reader.at < len(tokens):
        raise _Undecidable
    if list(value) in ([(1, ("e",))], [(1, ("E",))]):
        raise _Undecidable  # e is a number to some and a name to others
    return value


class _Parser:
    """Recursive descent over one expression's tokens."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.at = tokens, 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, wanted: str = "") -> str:
        token = self.peek()
        if not token or (wanted and token != wanted):
            raise _Undecidable
        self.at += 1
        return token

    def parse_sum(self, depth: int) -> Value:
        if depth > MAX_DEPTH:
            raise _Undecidable
        value: Value = {}
        sign = Fraction(-1 if self.peek() == "-" else 1)
        if self.peek() in ("-", "+"):
            self.take()
        while True:
            value = _sum(value, _product({(1, ()): sign}, self.parse_term(depth)))
            if self.peek() not in ("-", "+"):
                return value
            sign = Fraction(-1 if self.take() == "-" else 1)

    def parse_term(self, depth: int) -> Value:
        value, divided = self.parse_power(depth), False
        while (token := self.peek()) not in ("", "+", "-", ")", "}"):
            before = self.tokens[self.at - 1]
            if token in ("*", "\\cdot", "\\times"):
                self.take()
                value = _product(value, self.parse_power(depth))
            elif token == "/":
                self.take()
                value, divided = _product(value, _inverse(self.parse_power(depth))), True
            elif divided or token[0].isdigit() or token[0] == "." or token.endswith("frac"):
                raise _Undecidable  # 1/2x, 2 3, and 2 1/2, which is a sum
            elif before.isalpha() and (token == "(" or token.isalpha()):
                raise _Undecidable  # f(x), cm, odd
            else:
                value = _product(value, self.parse_power(depth))
        return value

    def parse_power(self, depth: int) -> Value:
        base = self.parse_atom(depth)
        if self.peek() != "^":
            return base
        self.take()
        if braced := self.peek() == "{":
            self.take()
        exponent = self.take()
        if braced:
            self.take("}")
        if not exponent.isdecimal() or len(exponent) > 2 or int(exponent) > MAX_POWER:
            raise _Undecidable
        if not braced and len(exponent) > 1:
            raise _Undecidable  # x^12 is x^1 2 to LaTeX
        value: Value = {(1, ()): Fraction(1)}
        for _ in range(int(exponent)):
            value = _product(value, base)
        return value

    def parse_atom(self, depth: int) -> Value:
        token = self.take()
        if token[0].isdecimal() or token[0] == ".":
            if len(token) > MAX_DIGITS or not token.isascii():
                raise _Undecidable
            return _constant(Fraction(token))
        if token == "\\pi" or (token.isalpha() and token not in "iI"):
            return {(1, (token,)): Fraction(1)}
        if token == "(":
            value = self.parse_sum(depth + 1)
            self.take(")")
            return value
        if token.endswith("frac"):
            above = self.parse_braced(depth)
            return _product(above, _inverse(self.parse_braced(depth)))
        if token == "\\sqrt":
            return _root(self.parse_braced(depth))
        raise _Undecidable

    def parse_braced(self, depth: int) -> Value:
        self.take("{")
        value = self.parse_sum(depth + 1)
        self.take("}")
        return value


def _constant(number: Fraction, radicand: int = 1) -> Value:
    return {(radicand, ()): number} if number else {}


def _sum(one: Value, other: Value) -> Value:
    total = dict(one)
    for key, number in other.items():
        total[key] = total.get(key, Fraction(0)) + number
    return {key: number for key, number in total.items() if number}


def _product(one: Value, other: Value) -> Value:
    if len(one) * len(other) > MAX_TERMS:
        raise _Undecidable
    total: Value = {}
    for (root, letters), number in one.items():
        for (other_root, other_letters), other_number in other.items():
            shared = math.gcd(root, other_root)
            key = (root * other_root // shared**2, tuple(sorted(letters + other_letters)))
            total = _sum(total, {key: number * other_number * shared})
    return total


def _inverse(value: Value) -> Value:
    if not value:
        raise ZeroDivisionError
    ((root, letters), number), *others = value.items()
    if others or letters:
        raise _Undecidable
    return _constant(1 / (number * root), root)


def _root(value: Value) -> Value:
    if not value:
        return {}
    if list(value) != [(1, ())] or value[1, ()] < 0:
        raise _Undecidable
    number = value[1, ()]
    rest = number.numerator * number.denominator
    if rest > MAX_RADICAND:
        raise _Undecidable
    outside, free, factor = 1, 1, 2
    while factor**3 <= rest:  # what is left has at most two prime factors
        while rest % factor**2 == 0:
            rest, outside = rest // factor**2, outside * factor
        if rest % factor == 0:
            rest, free = rest // factor, free * factor
        factor += 1
    if math.isqrt(rest) ** 2 == rest:
        rest, outside = 1, outside * math.isqrt(rest)
    return _constant(Fraction(outside, number.denominator), free * rest)
