"""The kinds of problem that rehearsal can work on by head, and the skill of each.

Owns the right and the typical wrong solution of each (`solve` decides which is given), whether the
experiences of a prompt state a skill, and where the scripted reflector is careless on purpose, so
that a reviewer has something to find. An experience states a skill when it holds, within its one
line, words of the family's condition and words of its rule; so rewording by a person does no harm,
and another family's condition in front of the rule does no good.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

from engines.core.codec import seed_for

# How near two wordings of a lesson are, judged by their words alone: it plays the part of a model's
# judgement, so it shares no code with the check of the studio.
_EXPERIENCE_NAME = re.compile(r"^([^:]{1,80}):\s+(.*)$", re.S)
_SMALL_WORDS = """
a an the of to in into it its is are be one that this which what when if and or as at by
for from on so than then there with you your do does up
"""
_DENIALS = "never not no don't dont without avoid instead"
_PLAIN = frozenset(_SMALL_WORDS.split())
_NOT = frozenset(_DENIALS.split())


def split_experience(text: str) -> tuple[str, str]:
    """Name and sentence of an experience; the name is empty where there is none."""
    if match := _EXPERIENCE_NAME.match(text.strip()):
        return match[1].strip(), match[2].strip()
    return "", text.strip()


def content_words(text: str) -> frozenset[str]:
    """The words that carry meaning, with plain endings cut."""
    found = re.findall(r"[^\W_]+(?:'[^\W_]+)?", text.lower())
    return (
        frozenset(re.sub(r"(?:ing|ed|es|s)$", "", w) if len(w) > 3 else w for w in found) - _PLAIN
    )


def has_negation(text: str) -> bool:
    return any(w in _NOT for w in re.findall(r"[\w']+", text.lower()))


def word_similarity(one: str, other: str) -> float:
    """Shared words as a share of all words of both sentences, names left out; 0 to 1."""
    a, b = content_words(split_experience(one)[1]), content_words(split_experience(other)[1])
    return len(a & b) / len(a | b) if a | b else 1.0


def word_coverage(text: str, part: str) -> float:
    """How much of the part's words the text has; 0 to 1."""
    wanted = content_words(part)
    return len(wanted & content_words(text)) / len(wanted) if wanted else 1.0


def has_same_name(one: str, other: str) -> bool:
    a, b = split_experience(one)[0].casefold(), split_experience(other)[0].casefold()
    return bool(a) and a == b


ToolFamily = Literal["remainder", "inclusive", "whole", "printed"]  # tools.problems has them
LookupFamily = Literal["order", "premature", "empty", "ungrounded", "unchecked"]  # lookup has them
Family = Literal["addition", "subtraction", "story", "precedence"] | ToolFamily | LookupFamily


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a solution: a short label, what one does in general, and here."""

    label: str
    clause: str
    instance: str


@dataclass(frozen=True, slots=True)
class Task:
    """A recognised problem with both solutions.

    They share their first steps and part where the family's trap is. `traps` counts
    the places where the typical mistake can happen; 0 means both are the same.
    """

    family: Family
    right: tuple[Step, ...]
    wrong: tuple[Step, ...]
    answer: int
    wrong_answer: int
    traps: int


_SIGNS = str.maketrans("×·−–", "**--")
_SPOKEN = ((r"\bplus\b", "+"), (r"\bminus\b", "-"), (r"\btimes\b", "*"))
_EXPRESSION = re.compile(r"\d+(?:\s*[-+*]\s*\d+)+")
_ADD = re.compile(
    r"\b(?:add|sum of|total of|together)\b\D*(\d+)\s+(?:and|to|with)\s+(\d+)"
    r"|(\d+)\s+and\s+(\d+)\s+(?:added|together)",
    re.I,
)
_FROM = re.compile(
    r"\b(?:subtract|take|taken?)\s+(?:away\s+)?(\d+)\s+(?:away\s+)?from\s+(\d+)", re.I
)
_BETWEEN = re.compile(r"\bdifference (?:between|of)\s+(\d+)\s+and\s+(\d+)", re.I)
_ASKS = re.compile(r"\bhow (?:many|much)\b", re.I)
_EACH = re.compile(r"\b(?:each|every|per|apiece|a (?:day|week|month|piece))\b", re.I)
_GAINS = re.compile(
    r"\b(?:buys?|gets?|finds?|adds?|more|wins?|picks?|bakes?|arrives?|receives?|joins?|"
    r"collects?|earns?|brings?|come|comes|another|makes?)\b",
    re.I,
)
_LOSSES = re.compile(
    r"\b(?:gives?|eats?|loses?|sells?|uses?|leaves?|breaks?|spends?|away|drops?|lends?|"
    r"throws?|get off|gets off|fewer|less|pours?)\b",
    re.I,
)
_CLAUSES = re.compile(r"[.,;:!?]|\bthen\b|\band\b")


def recognise(question: str) -> Task | None:
    """Read a question; None when it belongs to no family."""
    text = question.translate(_SIGNS)
    for word, sign in _SPOKEN:
        text = re.sub(word, sign, text, flags=re.I)
    if found := _EXPRESSION.search(text):
        return _task_from_expression(found.group().replace(" ", ""))
    if found := _FROM.search(text):
        return _subtraction_task(int(found[2]), int(found[1]))
    if found := _BETWEEN.search(text):
        pair = (int(found[1]), int(found[2]))
        return _subtraction_task(max(pair), min(pair))
    if _ASKS.search(text) and (task := _story_task(text)):
        return task
    if found := _ADD.search(text):
        left, right = (g for g in found.groups() if g)
        return _addition_task(int(left), int(right))
    return None


def _task_from_expression(expression: str) -> Task | None:
    signs = re.findall(r"[-+*]", expression)
    numbers = [int(n) for n in re.findall(r"\d+", expression)]
    if signs == ["+"]:
        return _addition_task(*numbers)
    if signs == ["-"]:
        return _subtraction_task(*numbers)
    if "*" in signs and set(signs) != {"*"}:
        return _precedence_task(numbers, signs)
    return None


def _digit_columns(upper: int, lower: int) -> list[tuple[int, int]]:
    """The digits under each other, ones first, padded with zeros."""
    width = max(len(str(upper)), len(str(lower)))
    above, below = (reversed(str(number).zfill(width)) for number in (upper, lower))
    return [(int(a), int(b)) for a, b in zip(above, below, strict=True)]


_COLUMN_NAMES = ("ones", "tens", "hundreds", "thousands")
_ADD_DIGITS = "add the digits of the column"
_TAKE_DIGIT = "take the lower digit of the column from the upper one"


def _column_step(place: int, clause: str, shown: str, value: int) -> Step:
    label = _COLUMN_NAMES[place] if place < len(_COLUMN_NAMES) else f"column {place + 1}"
    return Step(label, clause, f"{shown} = {value}, write {value}")


def _addition_task(upper: int, lower: int) -> Task:
    start = Step(
        "columns",
        "when numbers are added, write them under each other and begin with the ones",
        f"{upper} + {lower}",
    )
    columns = _digit_columns(upper, lower)
    right, wrong, traps = [start], [start], 0
    carried, lost = 0, 0
    for place, (a, b) in enumerate(columns):
        last = place == len(columns) - 1
        total, plain = a + b + carried, a + b
        shown = f"{a} + {b} + 1" if carried else f"{a} + {b}"
        carried = 0
        if last:
            clause = "write the whole sum of the last column"
            right.append(Step("last column", clause, f"{shown} = {total}, write {total}"))
            wrong.append(Step("last column", clause, f"{a} + {b} = {plain}, write {plain}"))
            lost += plain * 10**place
            break
        if total >= 10:
            traps, carried = traps + 1, 1
            clause = "when a column adds up to ten or more, carry one into the next column"
            right.append(Step("carry", clause, f"{shown} = {total}, write {total % 10}, carry 1"))
        else:
            right.append(_column_step(place, _ADD_DIGITS, shown, total))
        if plain >= 10:
            clause = "write the last digit of the column and go on"
            wrong.append(Step("write", clause, f"{a} + {b} = {plain}, write {plain % 10}"))
        else:
            wrong.append(_column_step(place, _ADD_DIGITS, f"{a} + {b}", plain))
        lost += plain % 10 * 10**place
    return Task("addition", tuple(right), tuple(wrong), upper + lower, lost, traps)


def _subtraction_task(upper: int, lower: int) -> Task | None:
    if upper < lower:
        return None
    start = Step(
        "columns",
        "when one number is subtracted from another, write it below and begin with the ones",
        f"{upper} - {lower}",
    )
    right, wrong, traps = [start], [start], 0
    borrowed, flipped = 0, 0
    for place, (a, b) in enumerate(_digit_columns(upper, lower)):
        left = a - borrowed
        shown = f"{a} - 1" if borrowed else f"{a}"
        if left < b:
            traps, borrowed = traps + 1, 1
            clause = (
                "when the upper digit of a column is smaller than the lower one, "
                "borrow ten from the next column"
            )
            rest = left + 10 - b
            right.append(Step("borrow", clause, f"10 + {shown} - {b} = {rest}, write {rest}"))
        else:
            borrowed = 0
            right.append(_column_step(place, _TAKE_DIGIT, f"{shown} - {b}", left - b))
        if a < b:
            clause = "take the smaller digit of the column from the larger one"
            wrong.append(Step("turn", clause, f"{b} - {a} = {b - a}, write {b - a}"))
        else:
            wrong.append(_column_step(place, _TAKE_DIGIT, f"{a} - {b}", a - b))
        flipped += abs(a - b) * 10**place
    return Task("subtraction", tuple(right), tuple(wrong), upper - lower, flipped, traps)


def _story_task(text: str) -> Task | None:
    """Three numbers, each after the first in a clause that says what happens to the amount."""
    amounts = [
        (int(found), clause)
        for clause in _CLAUSES.split(text)
        for found in re.findall(r"\d+", clause)
    ]
    if len(amounts) != 3:
        return None
    (first, _), *changes = amounts
    signs = [_sign_of_clause(clause) for _, clause in changes]
    if None in signs:
        return None
    (sign1, sign2), (second, third) = signs, (n for n, _ in changes)
    half = _apply_sign(first, str(sign1), second)
    whole = _apply_sign(half, str(sign2), third)
    asked = re.split(r"[.;]\s*", text.strip())[-1].strip(" ?!") or text.strip()
    shared = (
        Step("question", "when a story tells of more than one change, see what it asks for", asked),
        Step(
            "first change",
            "work out the changes in the order in which they happen",
            f"{first} {sign1} {second} = {half}",
        ),
    )
    last = Step(
        "last change",
        "when a story tells of more than one change, answer only after the last one",
        f"{half} {sign2} {third} = {whole}",
    )
    early = Step("answer", "give the number that has been reached", f"it is {half}")
    return Task("story", (*shared, last), (*shared, early), whole, half, 1)


def _sign_of_clause(clause: str) -> str | None:
    if _EACH.search(clause):
        return "*"
    if _LOSSES.search(clause):
        return "-"
    return "+" if _GAINS.search(clause) else None


def _apply_sign(left: int, sign: str, right: int) -> int:
    return {"+": left + right, "-": left - right, "*": left * right}[sign]


def _precedence_task(numbers: list[int], signs: list[str]) -> Task:
    rest = (f"{sign} {number}" for sign, number in zip(signs, numbers[1:], strict=True))
    shown = " ".join([str(numbers[0]), *rest])
    start = Step("signs", "when an expression mixes several signs, look at all of them", shown)
    products: list[str] = []
    terms, rest_signs = [numbers[0]], []
    for sign, number in zip(signs, numbers[1:], strict=True):
        if sign == "*":
            products.append(f"{terms[-1]} * {number} = {terms[-1] * number}")
            terms[-1] *= number
        else:
            terms.append(number)
            rest_signs.append(sign)
    answer, chain = _work_left_to_right(terms, rest_signs)
    wrong_answer, wrong_chain = _work_left_to_right(numbers, signs)
    clause = "when an expression mixes multiplication with other operations, multiply before"
    right = (
        start,
        Step("multiply first", f"{clause} anything else", ", ".join(products)),
        Step("rest", "work out what is left in its order", chain),
    )
    order = Step("left to right", "work through the signs in the order they stand", wrong_chain)
    traps = 0 if answer == wrong_answer else 1
    return Task("precedence", right, (start, order), answer, wrong_answer, traps)


def _work_left_to_right(numbers: list[int], signs: list[str]) -> tuple[int, str]:
    """Work from left to right; returns the result and each calculation on the way."""
    value, shown = numbers[0], []
    for sign, number in zip(signs, numbers[1:], strict=True):
        after = _apply_sign(value, sign, number)
        shown.append(f"{value} {sign} {number} = {after}")
        value = after
    return value, ", ".join(shown)


_MARKED = re.compile(r"<<([^=<>]+)=([^<>]+)>>")
_WRITTEN = re.compile(
    r"(\$?\d[\d,.]*%?(?:\s*[-+*/x×÷]\s*\$?\d[\d,.]*%?)+)\s*=\s*\$?\s*(-?\d[\d,]*(?:\.\d+)?)"
)
_NUMBER = re.compile(r"\d+(?:\.\d+)?|\.\d+")
_NOUN = {"+": "addition", "-": "subtraction", "*": "multiplication", "/": "division"}
_USE = {
    "+": "add what belongs to one whole",
    "-": "subtract what is used up, given away or compared",
    "*": "multiply where the same amount comes again and again",
    "/": "divide where something is shared out in equal parts",
}


@dataclass(frozen=True, slots=True)
class Calculation:
    """One calculation of an attempt. Order counts only where it changes the result."""

    sign: str
    numbers: tuple[str, ...]
    result: str


@dataclass(frozen=True, slots=True)
class ArithmeticLesson:
    """A lesson: its name, its sentence, and in words where the attempts part."""

    name: str
    sentence: str
    seen: str


def parse_calculations(bodies: Sequence[str]) -> tuple[Calculation, ...]:
    found: list[Calculation] = []
    for body in bodies:
        for left, result in _MARKED.findall(body) or _WRITTEN.findall(body):
            plain = left.replace(",", "").replace("×", "*").replace("x", "*").replace("÷", "/")
            signs = re.findall(r"(?<=[\d.%)\s])[-+*/]", plain)
            numbers = _NUMBER.findall(plain)
            if not signs or not numbers:
                continue
            order = sorted(numbers) if set(signs) <= {"+"} or set(signs) <= {"*"} else numbers
            found.append(Calculation(signs[0], tuple(order), _strip_number(result)))
    return tuple(found)


def _strip_number(number: str) -> str:
    return re.sub(r"\.0+$", "", number.replace(",", "").replace("$", "").strip())


def shared_prefix_length(one: Sequence[object], other: Sequence[object]) -> int:
    """How many steps two chains have in common from their start."""
    for n, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return n
    return min(len(one), len(other))


def compare_chains(
    better: Sequence[Calculation], worse: Sequence[Calculation]
) -> ArithmeticLesson | None:
    """The lesson from the first calculation at which two chains part; None for equal ones."""
    n = shared_prefix_length(better, worse)
    if n == len(better) == len(worse):
        return None
    if n == len(worse):
        return ArithmeticLesson(
            "Go on to what is asked",
            "when a number has been found, compare it with what the problem asks for and go on "
            "while something is left to do",
            f"the better one goes on with {_with_article(better[n].sign)} where the other ends",
        )
    if n == len(better):
        return ArithmeticLesson(
            "Stop at what is asked",
            "when a number already is what the problem asks for, stop there and give it",
            f"the worse one goes on with {_with_article(worse[n].sign)} after the answer is found",
        )
    good, bad = better[n], worse[n]
    if (good.sign, good.numbers) == (bad.sign, bad.numbers):
        return ArithmeticLesson(
            "Check each result",
            "when a calculation is done, work it out a second time before you go on",
            f"both do the same {_NOUN[good.sign]} with different results",
        )
    if good.sign == bad.sign:
        return ArithmeticLesson(
            "Right amounts",
            "when a problem gives several amounts, say what each of them counts before you "
            "calculate with them",
            f"both do {_with_article(good.sign)} there, with different amounts",
        )
    # The same lesson whichever of the two was right: it tells how to choose.
    one, two = sorted((good.sign, bad.sign), key="+-*/".index)
    return ArithmeticLesson(
        f"{_NOUN[one].capitalize()} or {_NOUN[two]}",
        f"when a step could be {_with_article(one)} or {_with_article(two)}, look at what "
        f"happens to the amounts: {_USE[one]}, and {_USE[two]}",
        f"the better one does {_with_article(good.sign)} there, the other "
        f"{_with_article(bad.sign)}",
    )


def _with_article(sign: str) -> str:
    return f"{'an' if sign == '+' else 'a'} {_NOUN[sign]}"


Slip = Literal["copy", "opposite", "leak", "broken"]
"""Says again what the library says, says its opposite, gives the problem and its answer away,
or leaves the end of the reply away."""


WARM = 0.7
"""Temperature from which one reader is not like another."""


def chance_slips(seed: int, temperature: float) -> dict[str, Slip]:
    """What a warm reader does at any problem: one in three rewords, one turns a rule round."""
    draw = seed_for(seed, "slip") % 3
    return {"": ("copy", "opposite")[draw - 1]} if temperature >= WARM and draw else {}


def are_slips(value: Any) -> bool:
    """Whether it can stand as `slips` in a request."""
    return isinstance(value, Mapping) and all(slip in get_args(Slip) for slip in value.values())


def slip_at(problem: str, slips: Mapping[str, Slip]) -> Slip | None:
    return next((slip for words, slip in slips.items() if words in problem), None)


def reword_carelessly(lesson: str, slip: Slip, problem: str, truth: Sequence[str]) -> str:
    """A lesson as the slip has it."""
    name, sentence = split_experience(lesson.rstrip("."))
    condition, comma, rule = sentence.partition(", ")
    match slip:
        case "copy" if comma:
            return f"{name}: {rule} {condition}."
        case "opposite" if comma:
            return f"{name}: {condition}, never {rule}."
        case "leak":
            return f"{name}: {sentence}, as in “{problem}”, which gives {' or '.join(truth)}."
    return lesson


Stance = Literal["silent", "stated", "denied"]

_EXPERIENCE = re.compile(r"^\s*(?:[-*|]\s*)?\[[A-Za-z]*\d+\]\s*(\S.*)$", re.M)
_NAME = re.compile(r"^[^:.]{1,60}:\s+")


def _any_of(*alternatives: str) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{a})" for a in alternatives), re.I)


_CONDITIONS: dict[Family, re.Pattern[str]] = {
    "addition": _any_of(
        r"\badd(?:s|ed|ing|ition|itions|ends?)?\b",
        r"\bsum(?:s|med|ming)?\b",
        r"\b(?:10|ten) or (?:more|over|higher|above)\b",
        r"\b(?:over|above|exceeds?|more than|at least|reach(?:es)?) (?:9|nine|10|ten)\b",
    ),
    "subtraction": _any_of(
        r"\bsubtract\w*",
        r"\bminus\b",
        r"\bdifferences?\b",
        r"\btak(?:e|es|ing) away\b",
        r"\bdigit\b[^.;]*\b(?:too small|smaller|less|lower than)\b",
    ),
    "story": _any_of(
        r"\bstor(?:y|ies)\b",
        r"\b(?:word|text) problems?\b",
        r"\b(?:more than one|two|several|many|multiple)[ -](?:changes?|steps?|events?|things?)\b",
    ),
    "precedence": _any_of(
        r"\bmix\w*",
        r"\bexpressions?\b",
        r"\b(?:several|different|other|both|many) (?:operations?|operators?|signs?)\b",
    ),
    "remainder": _any_of(r"\bremainders?\b", r"\b(?:modulo|modulus|powers?|exponents?)\b"),
    "inclusive": _any_of(r"\branges?\b", r"\bcount(?:s|ed|ing)?\b", r"\b(?:loops?|bounds)\b"),
    "whole": _any_of(
        r"\bfactorials?\b|\bdigits? sums?\b",
        r"\bsums? of (?:\w+ ){0,3}digits\b",
        r"\b(?:large|big|huge|long) (?:whole )?(?:numbers?|integers?)\b",
    ),
    "printed": _any_of(r"\b(?:code|programs?|scripts?)\b", r"\b(?:interpreter|python)\b"),
    "order": _any_of(r"\bdescribes?\b", r"\bby way of\b", r"\b(?:chain|indirect)\w*\b"),
    "premature": _any_of(r"\bpage\b[^.;]*\b(?:names?|gives?|mentions?)\b", r"\bnext place\b"),
    "empty": _any_of(r"\b(?:nothing|empty|no results?|no hits?)\b"),
    "ungrounded": _any_of(r"\bfacts?\b", r"\bevidence\b"),
    "unchecked": _any_of(r"\bcheck\w*\b", r"\bverif\w*\b", r"\bmemory\b"),
}
_RULES: dict[Family, re.Pattern[str]] = {
    "addition": _any_of(
        r"\bcarr(?:y|ies|ied|ying)\b",
        r"\bbring\w* (?:\w+ ){0,3}over\b",
        r"\bregroup\w*",
        r"\b(?:move|pass|transfer)\w*\b[^.;]*\bto the (?:next|left)\b",
    ),
    "subtraction": _any_of(
        r"\bborrow\w*",
        r"\bregroup\w*",
        r"\b(?:trade|exchange|fetch|take)\w*\b[^.;,]{0,20}\b(?:10|ten|1|one)\b"
        r"[^.;,]*\b(?:next|left|neighbou?r\w*)\b",
    ),
    "story": _any_of(
        r"\bonly after\b",
        r"\b(?:last|second|final|every|all|both|remaining)\b[^.,;]{0,24}"
        r"\b(?:changes?|steps?|events?|parts?|one|operations?|calculations?)\b",
        r"\buntil\b",
        r"\bto the end\b",
        r"\b(?:not|never|n't) (?:stop|answer|finish)\w*",
    ),
    "precedence": _any_of(
        r"\b(?:multipl\w*|times|products?|divi\w*)\b[^.;,]{0,30}"
        r"\b(?:first|before|earlier|ahead)\b",
        r"\b(?:first|begin with|start with)\b[^.;,]{0,20}\b(?:multipl|times|product)",
        r"\border of operations\b",
        r"\bprecedence\b",
    ),
    "remainder": _any_of(
        r"\b(?:three|3|third|3rd)[- ]arguments?\b",
        r"\bpow ?\([^(),]+,[^(),]+,[^(),]+\)",
        r"\bmodular (?:power|pow|exponent)\w*",
    ),
    "inclusive": _any_of(
        r"\bone (?:above|past|beyond|after|more|higher|further)\b",
        r"\+ ?1\b",
        r"\binclud\w* (?:\w+ ){0,3}(?:last|end|upper|final)\b",
        r"\b(?:last|end|upper|final)(?: \w+){0,3} (?:included|inclusive|inside)\b",
    ),
    "whole": _any_of(
        r"//",
        r"\b(?:whole|floor|integer)(?:[- ]number)? division\b",
        r"\b(?:keep|stay|work|remain|calculate)\w*\b[^.;,]{0,24}\b(?:whole|integers?|exact)\b",
        r"\b(?:no|not|never|avoid|without|n't)\b[^.;,]{0,20}\b(?:floats?|floating|decimals?)\b",
    ),
    "printed": _any_of(
        r"\bprint\w*",
        r"\b(?:leave|put|write|show|output|end)\w*\b[^.;,]{0,40}\b(?:last|final) line\b",
    ),
    "order": _any_of(r"\b(?:first|begin|start)\b[^.;]*\bnam(?:es?|ed)\b", r"\bnamed\b.*\bfirst\b"),
    "premature": _any_of(r"\b(?:read|open|look up)\b[^.;]*\b(?:page of|own page|too|next|also)\b"),
    "empty": _any_of(r"\bagain\b", r"\bonce more\b", r"\b(?:other|another) (?:words?|names?)\b"),
    "ungrounded": _any_of(r"\b(?:pages?|results?|tools?|sources?)\b[^.;]*\bbefore\b"),
    "unchecked": _any_of(r"\bonly (?:where|when|once|if|after)\b", r"\bstated of\b"),
}
# "never forget to …" and "do not stop before …" are encouragement, not denial.
_ENCOURAGED = re.compile(
    r"\b(?:never|not|don't|dont)\s+(?:ever\s+)?"
    r"(?:forget|skip|ignore|omit|lose|drop|leave out|miss|stop|answer|finish)\w*",
    re.I,
)
_DENIAL = (
    r"\b(?:never|not|don't|dont|no|without|avoid|skip|ignore|forget|omit|instead of|rather than)\b"
    r"(?:\s+[\w'-]+){0,4}?\s+"
)
_DENIED = {
    family: re.compile(_DENIAL + f"(?:{rule.pattern})", re.I) for family, rule in _RULES.items()
}


@lru_cache(maxsize=256)  # the same library stands in front of every prompt of a batch
def stance(family: Family, instructions: str) -> Stance:
    """What the experiences in the instructions say of the family's skill.

    Those that state it and those that deny it cancel each other.
    """
    found: set[Stance] = set()
    for line in _EXPERIENCE.findall(instructions):
        if not _CONDITIONS[family].search(line):
            continue
        # The rule counts in the sentence only: a name may be left over from another wording.
        sentence = _NAME.sub("", line, count=1)
        if not _RULES[family].search(sentence):
            continue
        denied = _DENIED[family].search(_ENCOURAGED.sub("remember", sentence))
        found.add("denied" if denied else "stated")
    return found.pop() if len(found) == 1 else "silent"
