"""Rehearsal's rollouts by head: problems, their right and typical wrong solutions, and its judge.

Owns the skill of every kind of problem, with tools or without, and whether the experiences of a
prompt state it. An experience states a skill when it holds, within its one line, words of the
family's condition and words of its rule; so rewording by a person does no harm, and another
family's condition in front of the rule does no good.

The draw follows from seed and question alone, so that two prompts which differ only in their
experiences are compared with the same luck.
"""

import operator
import re
from functools import lru_cache
from typing import Literal

import orjson

from engines.core.codec import seed_for
from engines.core.frozen import frozen
from engines.policies.rehearsal import prompt

Stance = Literal["silent", "stated", "denied"]
UNKNOWN = (
    "Rehearsal is a scripted stand-in for a model. It knows four kinds of problem only: "
    "addition, subtraction, stories of two steps and mixed expressions. This is none of them.\n"
    "#### unknown"
)
# How likely the right solution is at one trap, and how much less for each further one.
_CHANCES: dict[Stance, tuple[float, float]] = {
    "silent": (0.34, 0.06),
    "stated": (0.93, 0.03),
    "denied": (0.06, 0.01),
}
_EXPERIENCE = re.compile(r"^\s*(?:[-*|]\s*)?\[[A-Za-z]*\d+\]\s*(\S.*)$", re.M)
_NAME = re.compile(r"^[^:.]{1,60}:\s+")
# Words of the condition and of the rule of each family's skill.
_SKILLS = {
    "addition": (
        r"\badd(?:s|ed|ing|ition|itions|ends?)?\b|\bsum(?:s|med|ming)?\b"
        r"|\b(?:10|ten) or (?:more|over|higher|above)\b"
        r"|\b(?:over|above|exceeds?|more than|at least|reach(?:es)?) (?:9|nine|10|ten)\b",
        r"\bcarr(?:y|ies|ied|ying)\b|\bbring\w* (?:\w+ ){0,3}over\b|\bregroup\w*"
        r"|\b(?:move|pass|transfer)\w*\b[^.;]*\bto the (?:next|left)\b",
    ),
    "subtraction": (
        r"\bsubtract\w*|\bminus\b|\bdifferences?\b|\btak(?:e|es|ing) away\b"
        r"|\bdigit\b[^.;]*\b(?:too small|smaller|less|lower than)\b",
        r"\bborrow\w*|\bregroup\w*"
        r"|\b(?:trade|exchange|fetch|take)\w*\b[^.;,]{0,20}\b(?:10|ten|1|one)\b"
        r"[^.;,]*\b(?:next|left|neighbou?r\w*)\b",
    ),
    "story": (
        r"\bstor(?:y|ies)\b|\b(?:word|text) problems?\b"
        r"|\b(?:more than one|two|several|many|multiple)[ -](?:changes?|steps?|events?|things?)\b",
        r"\bonly after\b|\b(?:last|second|final|every|all|both|remaining)\b[^.,;]{0,24}"
        r"\b(?:changes?|steps?|events?|parts?|one|operations?|calculations?)\b"
        r"|\buntil\b|\bto the end\b|\b(?:not|never|n't) (?:stop|answer|finish)\w*",
    ),
    "precedence": (
        r"\bmix\w*|\bexpressions?\b"
        r"|\b(?:several|different|other|both|many) (?:operations?|operators?|signs?)\b",
        r"\b(?:multipl\w*|times|products?|divi\w*)\b[^.;,]{0,30}\b(?:first|before|earlier|ahead)\b"
        r"|\b(?:first|begin with|start with)\b[^.;,]{0,20}\b(?:multipl|times|product)"
        r"|\border of operations\b|\bprecedence\b",
    ),
    "remainder": (
        r"\bremainders?\b|\b(?:modulo|modulus|powers?|exponents?)\b",
        r"\b(?:three|3|third|3rd)[- ]arguments?\b|\bpow ?\([^(),]+,[^(),]+,[^(),]+\)"
        r"|\bmodular (?:power|pow|exponent)\w*",
    ),
    "inclusive": (
        r"\branges?\b|\bcount(?:s|ed|ing)?\b|\b(?:loops?|bounds)\b",
        r"\bone (?:above|past|beyond|after|more|higher|further)\b|\+ ?1\b"
        r"|\binclud\w* (?:\w+ ){0,3}(?:last|end|upper|final)\b"
        r"|\b(?:last|end|upper|final)(?: \w+){0,3} (?:included|inclusive|inside)\b",
    ),
    "whole": (
        r"\bfactorials?\b|\bdigits? sums?\b|\bsums? of (?:\w+ ){0,3}digits\b"
        r"|\b(?:large|big|huge|long) (?:whole )?(?:numbers?|integers?)\b",
        r"//|\b(?:whole|floor|integer)(?:[- ]number)? division\b"
        r"|\b(?:keep|stay|work|remain|calculate)\w*\b[^.;,]{0,24}\b(?:whole|integers?|exact)\b"
        r"|\b(?:no|not|never|avoid|without|n't)\b[^.;,]{0,20}\b(?:floats?|floating|decimals?)\b",
    ),
    "printed": (
        r"\b(?:code|programs?|scripts?)\b|\b(?:interpreter|python)\b",
        r"\bprint\w*|\b(?:leave|put|write|show|output|end)\w*\b[^.;,]{0,40}\b(?:last|final) line\b",
    ),
    "order": (
        r"\bdescribes?\b|\bby way of\b|\b(?:chain|indirect)\w*\b",
        r"\b(?:first|begin|start)\b[^.;]*\bnam(?:es?|ed)\b|\bnamed\b.*\bfirst\b",
    ),
    "premature": (
        r"\bpage\b[^.;]*\b(?:names?|gives?|mentions?)\b|\bnext place\b",
        r"\b(?:read|open|look up)\b[^.;]*\b(?:page of|own page|too|next|also)\b",
    ),
    "empty": (
        r"\b(?:nothing|empty|no results?|no hits?)\b",
        r"\bagain\b|\bonce more\b|\b(?:other|another) (?:words?|names?)\b",
    ),
    "ungrounded": (
        r"\bfacts?\b|\bevidence\b",
        r"\b(?:pages?|results?|tools?|sources?)\b[^.;]*\bbefore\b",
    ),
    "unchecked": (
        r"\bcheck\w*\b|\bverif\w*\b|\bmemory\b",
        r"\bonly (?:where|when|once|if|after)\b|\bstated of\b",
    ),
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


@lru_cache(maxsize=256)  # the same library stands in front of every prompt of a batch
def stance(family: str, instructions: str) -> Stance:
    """Return what the experiences in the instructions say of the family's skill.

    Those that state it and those that deny it cancel each other.
    """
    condition, rule = _SKILLS[family]
    stances: set[Stance] = set()
    for line in _EXPERIENCE.findall(instructions):
        # The rule counts in the sentence only: a name may be left over from another wording.
        sentence = _NAME.sub("", line, count=1)
        if re.search(condition, line, re.I) and re.search(rule, sentence, re.I):
            plain = _ENCOURAGED.sub("remember", sentence)
            denied = re.search(f"{_DENIAL}(?:{rule})", plain, re.I)
            stances.add("denied" if denied else "stated")
    return stances.pop() if len(stances) == 1 else "silent"


@frozen
class Draw:
    """What decides between the right and the wrong way, besides the question.

    At temperature 0 the likelier way is taken, whatever the seed.
    """

    instructions: str
    seed: int
    temperature: float

    def takes_right(self, family: str, question: str, traps: int = 1) -> bool:
        start, less = _CHANCES[stance(family, self.instructions)]
        luck = 0.5
        if self.temperature:
            luck = seed_for(self.seed, "rehearsal", question) / 2**31
        return luck < start - less * min(max(traps - 1, 0), 2)


@frozen
class Step:
    """One line of a solution: a short label, what one does in general, and here."""

    label: str
    clause: str
    instance: str

    def __str__(self) -> str:
        return f"({self.label}): {self.clause}: {self.instance.rstrip('.')}."


@frozen
class Task:
    """A recognised problem with both solutions.

    They share their first steps and part where the family's trap is. `traps` counts
    the places where the typical mistake can happen; 0 means both are the same.
    """

    family: str
    right: tuple[Step, ...]
    wrong: tuple[Step, ...]
    answer: int
    wrong_answer: int
    traps: int


_SIGNS = str.maketrans("×·−–", "**--")
_SPOKEN = {
    r"\b(?:subtract|take)\s+(?:away\s+)?(\d+)\s+(?:away\s+)?from\s+(\d+)": r"\2-\1",
    r"\bdifference (?:between|of)\s+(\d+)\s+and\s+(\d+)": r"\1-\2",
    r"\s*\bplus\b\s*": "+",
    r"\s*\bminus\b\s*": "-",
    r"\s*\btimes\b\s*": "*",
}
_ADD = re.compile(
    r"\b(?:add|sum of|total of|together)\b\D*(\d+)\s+(?:and|to|with)\s+(\d+)"
    r"|(\d+)\s+and\s+(\d+)\s+(?:added|together)",
    re.I,
)
_EXPRESSION = re.compile(r"\d+(?:\s*[-+*]\s*\d+)+")
_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_ASKS = re.compile(r"\bhow (?:many|much)\b", re.I)
# What a clause of a story says of the amount, the first that fits.
_CHANGES = {
    "*": r"\b(?:each|every|per|apiece|a (?:day|week|month|piece))\b",
    "-": r"\b(?:gives?|eats?|loses?|sells?|uses?|leaves?|breaks?|spends?|away|drops?|lends?|"
    r"throws?|get off|gets off|fewer|less|pours?)\b",
    "+": r"\b(?:buys?|gets?|finds?|adds?|more|wins?|picks?|bakes?|arrives?|receives?|joins?|"
    r"collects?|earns?|brings?|come|comes|another|makes?)\b",
}


def recognise(question: str) -> Task | None:
    """Read a question; None when it belongs to no family."""
    text = question.translate(_SIGNS)
    for spoken, written in _SPOKEN.items():
        text = re.sub(spoken, written, text, flags=re.I)
    if match := _EXPRESSION.search(text):
        expression = match[0].replace(" ", "")
        first, *others = map(int, re.findall(r"\d+", expression))
        signs = set(re.findall(r"[-+*]", expression))
        if len(others) == 1 and signs == {"+"}:
            return _addition_task(first, *others)
        if len(others) == 1 and signs == {"-"}:
            return _subtraction_task(first, *others)
        return _precedence_task(expression) if "*" in signs and len(signs) > 1 else None
    if _ASKS.search(text) and (task := _story_task(text)):
        return task
    if match := _ADD.search(text):
        left, right = (number for number in match.groups() if number)
        return _addition_task(int(left), int(right))
    return None


def _digit_columns(upper: int, lower: int) -> list[tuple[str, int, int]]:
    """Return name and digits of each column, ones first, padded with zeros."""
    width = max(len(str(upper)), len(str(lower)))
    names = ["ones", "tens", "hundreds", "thousands", *(f"column {n + 1}" for n in range(4, width))]
    above, below = (reversed(str(number).zfill(width)) for number in (upper, lower))
    return [(name, int(a), int(b)) for name, a, b in zip(names, above, below, strict=False)]


def _addition_task(upper: int, lower: int) -> Task:
    def add_columns(carries: bool) -> tuple[Step, ...]:
        clause = "when numbers are added, write them under each other and begin with the ones"
        steps = [Step("columns", clause, f"{upper} + {lower}")]
        carried = False
        for place, (label, a, b) in enumerate(columns, 1):
            shown = f"{a} + {b} + 1" if carried else f"{a} + {b}"
            total = a + b + carried
            carried = False
            clause, written = "add the digits of the column", str(total)
            if place == len(columns):
                label, clause = "last column", "write the whole sum of the last column"
            elif total >= 10 and carries:
                carried, label, written = True, "carry", f"{total % 10}, carry 1"
                clause = "when a column adds up to ten or more, carry one into the next column"
            elif total >= 10:
                label, written = "write", str(total % 10)
                clause = "write the last digit of the column and go on"
            steps.append(Step(label, clause, f"{shown} = {total}, write {written}"))
        return tuple(steps)

    columns = _digit_columns(upper, lower)
    right, wrong = add_columns(carries=True), add_columns(carries=False)
    traps = sum(step.label == "carry" for step in right)
    return Task("addition", right, wrong, upper + lower, _written_number(wrong), traps)


def _subtraction_task(upper: int, lower: int) -> Task | None:
    if upper < lower:
        return None

    def subtract_columns(borrows: bool) -> tuple[Step, ...]:
        clause = (
            "when one number is subtracted from another, write it below and begin with the ones"
        )
        steps = [Step("columns", clause, f"{upper} - {lower}")]
        borrowed = False
        for label, a, b in _digit_columns(upper, lower):
            shown = f"{a} - 1 - {b}" if borrowed else f"{a} - {b}"
            left = a - borrowed - b
            borrowed = False
            clause = "take the lower digit of the column from the upper one"
            if left < 0 and borrows:
                borrowed, label, shown, left = True, "borrow", f"10 + {shown}", left + 10
                clause = (
                    "when the upper digit of a column is smaller than the lower one, "
                    "borrow ten from the next column"
                )
            elif left < 0:
                label, shown, left = "turn", f"{b} - {a}", -left
                clause = "take the smaller digit of the column from the larger one"
            steps.append(Step(label, clause, f"{shown} = {left}, write {left}"))
        return tuple(steps)

    right, wrong = subtract_columns(borrows=True), subtract_columns(borrows=False)
    traps = sum(step.label == "borrow" for step in right)
    return Task("subtraction", right, wrong, upper - lower, _written_number(wrong), traps)


def _written_number(steps: tuple[Step, ...]) -> int:
    """Return the number whose digits the columns write, ones first."""
    return int("".join(step.instance.rpartition(" ")[2] for step in reversed(steps[1:])))


def _work_left_to_right(expression: str) -> tuple[int, str]:
    """Return the result, and each calculation on the way."""
    first, *changes = re.findall(r"[-+*]?\d+", expression)
    value, calculations = int(first), []
    for change in changes:
        sign, number = change[0], change[1:]
        after = _OPERATIONS[sign](value, int(number))
        calculations.append(f"{value} {sign} {number} = {after}")
        value = after
    return value, ", ".join(calculations)


def _story_task(text: str) -> Task | None:
    """Three numbers, each after the first in a clause that says what happens to the amount."""
    clauses = re.split(r"[.,;:!?]|\bthen\b|\band\b", text)
    amounts = [(n, clause) for clause in clauses for n in re.findall(r"\d+", clause)]
    if len(amounts) != 3:
        return None
    changes = []
    for number, clause in amounts[1:]:
        signs = [sign for sign, words in _CHANGES.items() if re.search(words, clause, re.I)]
        if not signs:
            return None
        changes.append(signs[0] + number)
    half, first_change = _work_left_to_right(amounts[0][0] + changes[0])
    whole, last_change = _work_left_to_right(f"{half}{changes[1]}")
    question = re.split(r"[.;]\s*", text.strip())[-1].strip(" ?!")
    clause = "when a story tells of more than one change,"
    shared = (
        Step("question", f"{clause} see what it asks for", question),
        Step(
            "first change",
            "work out the changes in the order in which they happen",
            first_change,
        ),
    )
    last = Step("last change", f"{clause} answer only after the last one", last_change)
    early = Step("answer", "give the number that has been reached", f"it is {half}")
    return Task("story", (*shared, last), (*shared, early), whole, half, 1)


def _precedence_task(expression: str) -> Task:
    products = [_work_left_to_right(term) for term in re.findall(r"\d+(?:\*\d+)+", expression)]
    values = iter(products)
    multiplied = re.sub(r"\d+(?:\*\d+)+", lambda _: str(next(values)[0]), expression)
    answer, rest = _work_left_to_right(multiplied)
    wrong_answer, wrong_chain = _work_left_to_right(expression)
    shown = " ".join(re.findall(r"\d+|[-+*]", expression))
    start = Step("signs", "when an expression mixes several signs, look at all of them", shown)
    clause = "when an expression mixes multiplication with other operations, multiply before"
    right = (
        start,
        Step("multiply first", f"{clause} anything else", ", ".join(text for _, text in products)),
        Step("rest", "work out what is left in its order", rest),
    )
    order = Step("left to right", "work through the signs in the order they stand", wrong_chain)
    traps = int(answer != wrong_answer)
    return Task("precedence", right, (start, order), answer, wrong_answer, traps)


def solve(question: str, draw: Draw) -> str:
    """Answer a question in front of which the draw's instructions stand."""
    task = recognise(question)
    if task is None:
        return UNKNOWN
    if draw.takes_right(task.family, question, task.traps):
        return format_steps(task.right, task.answer)
    return format_steps(task.wrong, task.wrong_answer)


def format_steps(steps: tuple[Step, ...], answer: object = None, *, start: int = 1) -> str:
    """Number the steps; below them stands the answer, if there is one."""
    lines = [f"Step {n} {step}" for n, step in enumerate(steps, start)]
    if answer is not None:
        lines.append(f"#### {answer}")
    return "\n".join(lines)


def judge_reply(text: str, fenced: bool) -> str:
    """Reply to a judge's prompt; `fenced` puts the JSON between fences.

    The stated answer is compared with the expected one. Where none is expected the problem is
    worked out, if it is of a kind that is known; on others there is no verdict.
    """
    sections = prompt.parse_sections(text)
    answers = prompt.unquote_lines(sections["Expected answer"])
    expected = [prompt.normalise_answer(line) for line in answers]
    if not expected and (task := recognise(prompt.quoted_text(sections, "Problem"))):
        expected = [str(task.answer)]
    if not expected:
        return "This is a rehearsal: no answer is expected, and the problem is of no known kind."
    lines, final = prompt.parse_attempt(prompt.unquote_lines(sections["Response"]))
    words = {word.strip("()[]:;!?") for line in lines for word in line.body.split()}
    if final in expected:
        score, why = 1.0, f"the stated answer {final} is the expected one."
    else:
        reached = any(prompt.normalise_answer(word) in expected for word in words)
        score = 0.5 if reached else 0.0  # the expected answer was reached and then not stated
        stated = f"it states {final or 'no answer'}, expected is {' or '.join(expected)}"
        why = f"{stated}, which stands in a step of it." if reached else f"{stated}."
    graded = any('"score"' in line for line in sections["Reply"])
    verdict = {"score": score} if graded else {"correct": score == 1.0}
    reply = {"reasoning": f"rehearsal (scripted): {why}", **verdict}
    return prompt.fence(orjson.dumps(reply).decode(), fenced)
