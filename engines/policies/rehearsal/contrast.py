"""The lesson in one group: where the better attempts part from the worse ones.

It has no word of its own for labelled steps: a renamed step gives a renamed lesson.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engines.policies.rehearsal import arithmetic
from engines.policies.rehearsal.prompt import AttemptLine, ShownAttempt

_CONDITION = re.compile(
    r"^(?:when(?:ever)?|if|as soon as|where|wenn|sobald|falls|quand|si)\b", re.I
)
_MARKER = re.compile(r"\b(?:when(?:ever)?|if|always|because|must|should)\b", re.I)
_REASON = re.compile(r"^.*?\bbecause (?=(?:when(?:ever)?|if|where)\b)", re.I)
_RULE = re.compile(r"(?<!\ba )\b[^\W\d]{2,}")
"""A word besides those that stand for the problem's numbers."""
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class ContrastLesson:
    """A lesson with what supports it."""

    name: str
    sentence: str
    worse: str  # what the losers do where they part; empty where that is not known
    reason: str
    attempts: tuple[int, ...]

    @property
    def text(self) -> str:
        return f"{self.name}: {self.sentence}."


def find_lessons(
    winners: Sequence[ShownAttempt], losers: Sequence[ShownAttempt], problem: str
) -> list[ContrastLesson]:
    """Lessons of different names, those with the most support first."""
    drawn: dict[str, ContrastLesson] = {}
    for loser in losers:
        # The winner that goes along longest shows the parting most clearly.
        winner = max(winners, key=lambda w: (_shared_step_count(w, loser), -w.number))
        if _has_labels(winner) and _has_labels(loser):
            lesson = _lesson_from_labels(winner, loser, winners, losers, problem)
        else:
            lesson = _lesson_from_chains(winner, loser, problem)
        if lesson:
            first = drawn.setdefault(lesson.name, lesson)
            together = tuple(sorted({*first.attempts, *lesson.attempts}))
            drawn[lesson.name] = replace(first, attempts=together)
    return sorted(drawn.values(), key=lambda d: -len(d.attempts))


def find_asked(shown: Sequence[ShownAttempt], problem: str) -> list[ContrastLesson]:
    """Lessons from what the verifier says of every attempt, where it names a rule."""
    drawn: dict[str, ContrastLesson] = {}
    numbers = tuple(s.number for s in shown)
    for line in shown[0].critique if shown else ():
        rule = _REASON.sub("", line, count=1)
        if all(line in s.critique for s in shown) and (found := _lesson_in(rule, problem)):
            name, sentence = found
            reason = f"The verifier says so of {_attempts_text(numbers)}."
            drawn.setdefault(name, ContrastLesson(name, sentence, "", reason, numbers))
    return list(drawn.values())


def _has_labels(shown: ShownAttempt) -> bool:
    return any(line.label for line in shown.lines)


def _calculations(shown: ShownAttempt) -> tuple[arithmetic.Calculation, ...]:
    return arithmetic.parse_calculations([line.body for line in shown.lines])


def _shared_step_count(one: ShownAttempt, other: ShownAttempt) -> int:
    if _has_labels(one) and _has_labels(other):
        return arithmetic.shared_prefix_length(one.lines, other.lines)
    return arithmetic.shared_prefix_length(_calculations(one), _calculations(other))


def _lesson_from_chains(
    winner: ShownAttempt, loser: ShownAttempt, problem: str
) -> ContrastLesson | None:
    finding = arithmetic.compare_chains(_calculations(winner), _calculations(loser))
    if finding is None:
        return _lesson_from_words(winner, loser, problem)
    numbers = (winner.number, loser.number)
    reason = f"Attempt {winner.number} against attempt {loser.number}: {finding.seen}."
    return ContrastLesson(finding.name, finding.sentence, "", reason, numbers)


def _lesson_from_labels(
    winner: ShownAttempt,
    loser: ShownAttempt,
    winners: Sequence[ShownAttempt],
    losers: Sequence[ShownAttempt],
    problem: str,
) -> ContrastLesson | None:
    n = arithmetic.shared_prefix_length(winner.lines, loser.lines)
    if n == len(winner.lines):
        return None  # the loser only goes on longer: no step of the winners to learn from
    step = winner.lines[n]
    worse = generalise_step(loser.lines[n].body, problem) if n < len(loser.lines) else ""
    clause = generalise_step(step.body, problem)
    if clause == worse or not _RULE.search(clause) or "=" in clause:
        return None  # a calculation, or the same thing with another outcome: nothing general in it
    condition, rule = _split_condition(clause)
    condition = condition or _condition_before(winner.lines[:n], problem)
    name = step.label[:1].upper() + step.label[1:]
    better_numbers = [w.number for w in winners if step in w.lines]
    worse_numbers = [
        s.number
        for s in losers
        if s.lines[:n] == winner.lines[:n] and s.lines[n : n + 1] != (step,)
    ]
    reason = (
        f"Where they part: “{clause}” in {_attempts_text(better_numbers)}; "
        f"{f'“{worse}”' if worse else 'nothing of the kind'} in {_attempts_text(worse_numbers)}."
    )
    return ContrastLesson(
        name,
        f"{condition}, {rule}" if condition else rule,
        worse,
        reason,
        tuple(sorted([*better_numbers, *worse_numbers])),
    )


def _lesson_from_words(
    winner: ShownAttempt, loser: ShownAttempt, problem: str
) -> ContrastLesson | None:
    """Attempts without labels and calculations: only a general sentence can be a lesson."""
    seen = {line.body for line in loser.lines}
    for line in winner.lines:
        if line.body in seen or not _MARKER.search(line.body):
            continue
        reason = f"Attempt {winner.number} says so and attempt {loser.number} does not."
        lesson = _lesson_in(line.body, problem)
        return (
            ContrastLesson(*lesson, "", reason, (winner.number, loser.number)) if lesson else None
        )
    return None


def _lesson_in(line: str, problem: str) -> tuple[str, str] | None:
    """Name and sentence of the rule that a line states from its marker on; None where none."""
    if not (found := _MARKER.search(line)):
        return None
    clause = generalise_step(line[found.start() :], problem).rstrip(".")
    condition, rule = _split_condition(clause)
    sentence = clause if condition else f"at such a problem, {clause}"
    name = " ".join(re.findall(r"[^\W\d]+", rule)[:3]).capitalize()
    return (name, sentence) if name else None


def generalise_step(body: str, problem: str) -> str:
    """A step up to its last colon, where its instance begins, without the problem's numbers."""
    clause, colon, _ = body.rpartition(": ")
    text = (clause if colon else body).strip().rstrip(".:")
    own = set(_NUMBER.findall(problem))
    if not colon:
        return _NUMBER.sub("a number", text)
    return _NUMBER.sub(lambda m: "a number" if m.group() in own else m.group(), text)


def _split_condition(clause: str) -> tuple[str, str]:
    """Condition and rule; the condition is empty where the clause begins with none."""
    before, comma, after = clause.partition(", ")
    if comma and _CONDITION.match(clause):
        return before.strip(), after.strip()
    return "", clause


def _condition_before(lines: Sequence[AttemptLine], problem: str) -> str:
    """The nearest condition that the shared steps state, or the step one comes from."""
    for line in reversed(lines):
        if condition := _split_condition(generalise_step(line.body, problem))[0]:
            return condition
    return f"when “{lines[-1].label}” is done" if lines and lines[-1].label else ""


def _attempts_text(numbers: Sequence[int]) -> str:
    *most, last = (str(n) for n in numbers)
    return f"attempts {', '.join(most)} and {last}" if most else f"attempt {last}"
