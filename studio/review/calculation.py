"""The calculations in a step of a solution, and whether two of them are the same. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isclose

Calculation = tuple[str, ...]
"""Numbers, the signs + - * / and brackets."""

SIGNS = dict(zip("+-*/x×·÷−", "+-*/***/-", strict=True)) | {"plus": "+", "minus": "-"}
SIGNS["times"] = "*"
_EQUALS = {"is", "are", "equals", "makes", "gives", "leaves"}
_MOST_TOKENS = 100


@dataclass(frozen=True, slots=True)
class Equation:
    method: Calculation  # () where it cannot be read
    whole: Calculation  # the same with what its numbers were found by
    result: str
    behind: tuple[str, ...]  # other numbers behind it, sorted
    is_right: bool


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
    return whole if len(whole) <= _MOST_TOKENS else method


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
