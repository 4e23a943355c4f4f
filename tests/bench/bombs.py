r"""Twenty answers that no checker can work out.

Owns the list alone: each must cost its own recorded outcome, "timeout" or "too long", and
nothing else. All but those that are too long ran past five seconds on a 2-core machine
(November 2026), so that no deadline in use is near the time that they would take.
"""

from __future__ import annotations

MEGABYTE = 1_000_000


def _nested(before: str, inside: str, after: str, depth: int) -> str:
    return "\\boxed{" + before * depth + inside + after * depth + "}"


def _matrix(rows: int, columns: int, kind: str = "pmatrix") -> str:
    cells = [
        ["abcdefghjkmn"[r * c % 12] + f"^{{{r + c}}}" for c in range(columns)] for r in range(rows)
    ]
    body = "\\\\".join("&".join(row) for row in cells)
    return f"\\boxed{{\\begin{{{kind}}}{body}\\end{{{kind}}}}}"


BOMBS: dict[str, str] = {
    "a tower of powers": "A: 9^9^9^9",
    "a tower in a box": r"\boxed{2^{2^{2^{64}}}}",
    "a tower of decimals": r"\boxed{1.5^{1.5^{99999}}}",
    "a root of a tower": r"\boxed{\sqrt[3]{2^{3^{4^{5}}}}}",
    "a factorial of a factorial": "A: ((9!)!)!",
    "a factorial of 10^9": r"\boxed{(10^9)!}",
    "six factorials": r"\boxed{9!!!!!!}",
    "a binomial of 10^9": r"\boxed{\binom{1000000000}{500000000}}",
    "a sum to 10^9": r"\boxed{\sum_{k=1}^{1000000000} \sin(k)}",
    "a product to 10^9": r"\boxed{\prod_{k=1}^{1000000000} (1+\frac{1}{k^2})}",
    "an integral without end": r"\boxed{\int_0^1 \frac{x^{99}\sin(x^3)\ln(x)}{\sqrt{1+x^7}} dx}",
    "sums in sums": r"\boxed{\sum_{i=1}^{10^5}\sum_{j=1}^{9^9}\sum_{k=1}^{10^5}\frac{1}{i+j^3+k}}",
    "fractions in fractions": _nested("\\frac{1}{1+", "2^{2^{2^{2^{2^{2}}}}}", "}", 20),
    "brackets in brackets": _nested("(", "1", ")", 900),
    "roots in roots": _nested("\\sqrt{1+", "x", "}", 200),
    "a determinant of 12 rows": _matrix(12, 12, "vmatrix"),
    "a matrix of 160,000 cells": _matrix(400, 400),
    "a megabyte in a box": "\\boxed{" + "1+" * (MEGABYTE // 2) + "1}",
    "a megabyte of boxes": "\\boxed{" * (MEGABYTE // 7),
    "a flood of digits of other scripts": "A: " + "٤²½∑" * (MEGABYTE // 9),
}
"""Name → response."""

assert len(BOMBS) == 20
