"""Answers that a lesson gives away in any dress, and numbers that give nothing away."""

from __future__ import annotations

import pytest

from engines.core.types import Problem
from engines.training_free.lint import AnswerIndex, plain_numbers

BLATANT = [
    ("3/8", "Shares: add the parts, so the answer is $\\frac{3}{8}$."),
    ("\\frac{3}{8}", "Shares: the answer was 3/8."),
    ("3/8", "Shares: reduce, and answer $\\dfrac38$."),
    ("\\frac{17}{36}", "Dice: count the pairs to get 17/36."),
    ("1234", "Seats: the result is 1 234."),
    ("1,234", "Seats: multiply, giving 1234."),
    ("1234", "Seats: there are $1{,}234$ of them."),
    ("12\u202f345", "Seats: there are 12,345 of them."),
    ("42", "Jars: here this makes forty-two jars."),
    ("forty-two", "Jars: the answer is 42."),
    ("3000", "Raises: the correct answer was three thousand dollars."),
    ("0.25", "Reductions: which should come out as 25 %."),
    ("25%", "Reductions: the result is 0.25 of the price."),
    ("25 percent", "Reductions: the answer is $25\\%$."),
    ("$18", "Tickets: answer 18 dollars."),
    ("18 dollars", "Tickets: the final answer is \\$18."),
    ("18", "Sacks: the answer is 18 kg."),
    ("18 kg", "Sacks: the solution: \\boxed{18}."),
    ("75^\\circ", "Angles: the final answer is \\boxed{75^{\\circ}}."),
    ("75", "Winkel: Die Antwort ist 75°."),
    ("16", "加法：答案是16。"),
    ("24\\sqrt{3}", "Hexagons: the area there is 24\\sqrt3."),
]

GOOD = """
Time: an hour has 60 minutes, and a day has 24 hours.
Angles: a right angle has 90 degrees, and a full turn 360.
Angles: a straight line measures 180 degrees.
Circles: take pi as 3.14 only where the question says so.
Money: round the result to 2 decimal places.
Carry: when a column adds up to 10 or more, carry 1 into the next column.
Percent: divide by 100 before you multiply.
Percent: 25 % of a number is a quarter of it.
Percent: 50 percent and 1/2 are the same share.
Steps: in step 1 list what is given, in step 2 what is asked.
Triangles: sides of 3, 4 and 5 make a right angle.
Dozens: a dozen is 12, a gross is 12 dozen.
Leap years: February has 29 days in every fourth year.
Weeks: a week has 7 days; do not count the first day twice.
Dice: a die has 6 faces, two of them 36 outcomes.
Cards: a deck has 52 cards in 4 suits.
Primes: test divisors up to the square root, and skip even ones after 2.
Vieta: the roots of x^2 - 5x + 6 add up to 5.
Averages: divide the sum by the number of values, not by 2.
Speed: 60 km/h are 1 km a minute.
Temperature: water boils at 100 degrees Celsius.
Scores: a grade is a whole number from 0 to 10.
Lines: keep a line below 100 characters.
Names: an identifier has at most 30 characters.
Retries: try a call at most 3 times, 5 seconds apart.
HTTP: a status from 200 to 299 is a success.
Probability: it lies between 0 and 1.
Fractions: 1/2 plus 1/3 is not 2/5; use a common denominator.
Interest: after 2 years the factor is applied twice.
Units: 1 kg has 1,000 g, and 1 m has 100 cm.
Digits: a two-digit number is 10a + b.
Answer line: the answer is one number without a unit.
Ages: add the same number of years to both ages.
百分比：先除以100，再乘。
Zeit: Eine Stunde hat 60 Minuten.
""".strip().splitlines()

NUMBERS = "1 2 3 4 5 6 7 10 12 24 25 30 36 50 52 60 90 100 180 360 1000 1/2 1/3 0.5 25% 50%"
TYPICAL = NUMBERS.split()


def given_away(answer: str, text: str) -> float:
    index = AnswerIndex([Problem("p", "What comes out?", answer)])
    found = index.find_leak(text, ["p"])
    return found[1] if found else 0.0


@pytest.mark.parametrize(("answer", "text"), BLATANT)
def test_an_answer_is_found_in_any_dress(answer: str, text: str) -> None:
    assert given_away(answer, text) >= 0.5
    assert not given_away("739", text)


@pytest.mark.parametrize("text", GOOD)
def test_a_good_lesson_with_numbers_gives_no_typical_answer_away(text: str) -> None:
    assert [answer for answer in TYPICAL if given_away(answer, text)] == []


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("one hundred and five", "105"),
        ("Twenty-one, two million", "21, 2000000"),
        ("1.234.567 and 3,5", "1.234.567 and 3.5"),
        ("points (3, 128) and 80, 95", "points (3, 128) and 80, 95"),
        ("everyone, someone", "everyone, someone"),
        ("24√3", "24 sqrt 3"),
        ("5 over 13", "5/13"),
        ("over 13 of them", "over 13 of them"),
    ],
)
def test_numbers_are_written_plainly_and_nothing_else_is_touched(text: str, plain: str) -> None:
    assert plain_numbers(text) == plain
