"""The lesson in one group: where the better attempts part from the worse ones.

Owns the search for the first step at which they part and the wording of a lesson from
what the better attempts say there. It has no word of its own for labelled steps: a
renamed step gives a renamed lesson.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engines.policies.rehearsal import arithmetic
from engines.policies.rehearsal.prompt import Line, Shown

_CONDITION = re.compile(
    r"^(?:when(?:ever)?|if|as soon as|where|wenn|sobald|falls|quand|si)\b", re.I
)
_MARKER = re.compile(r"\b(?:when(?:ever)?|if|always|because|must|should)\b", re.I)
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Drawn:
    """A lesson with what supports it.

    `worse` is what the losers do where they part, empty where that is not known.
    """

    name: str
    sentence: str
    worse: str
    reason: str
    attempts: tuple[int, ...]

    @property
    def text(self) -> str:
        return f"{self.name}: {self.sentence}."


def draw(winners: Sequence[Shown], losers: Sequence[Shown], problem: str) -> list[Drawn]:
    """Lessons of different names, those with the most support first."""
    drawn: dict[str, Drawn] = {}
    for loser in losers:
        # The winner that goes along longest shows the parting most clearly.
        winner = max(winners, key=lambda w: (_shared(w, loser), -w.number))
        lesson = _from_pair(winner, loser, winners, losers, problem)
        if lesson:
            first = drawn.setdefault(lesson.name, lesson)
            together = tuple(sorted({*first.attempts, *lesson.attempts}))
            drawn[lesson.name] = replace(first, attempts=together)
    return sorted(drawn.values(), key=lambda d: -len(d.attempts))


def _labelled(shown: Shown) -> bool:
    return any(line.label for line in shown.lines)


def _chain(shown: Shown) -> tuple[arithmetic.Calculation, ...]:
    return arithmetic.calculations([line.body for line in shown.lines])


def _shared(one: Shown, other: Shown) -> int:
    if _labelled(one) and _labelled(other):
        return _shared_lines(one.lines, other.lines)
    return arithmetic.shared(_chain(one), _chain(other))


def _shared_lines(one: Sequence[Line], other: Sequence[Line]) -> int:
    for n, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return n
    return min(len(one), len(other))


def _from_pair(
    winner: Shown, loser: Shown, winners: Sequence[Shown], losers: Sequence[Shown], problem: str
) -> Drawn | None:
    if _labelled(winner) and _labelled(loser):
        return _from_labels(winner, loser, winners, losers, problem)
    finding = arithmetic.compare(_chain(winner), _chain(loser), problem)
    if finding is None:
        return _from_words(winner, loser, problem)
    numbers = (winner.number, loser.number)
    reason = f"Attempt {winner.number} against attempt {loser.number}: {finding.seen}."
    return Drawn(finding.name, finding.sentence, "", reason, numbers)


def _from_labels(
    winner: Shown, loser: Shown, winners: Sequence[Shown], losers: Sequence[Shown], problem: str
) -> Drawn | None:
    n = _shared_lines(winner.lines, loser.lines)
    if n == len(winner.lines):
        return None  # the loser only goes on longer: no step of the winners to learn from
    step = winner.lines[n]
    worse = general(loser.lines[n].body, problem) if n < len(loser.lines) else ""
    clause = general(step.body, problem)
    if not clause or clause == worse:
        return None  # the same thing done with another outcome: nothing general in it
    condition, rule = _split_condition(clause)
    if not condition:
        condition = _condition_before(winner.lines[:n], problem)
    name = step.label[:1].upper() + step.label[1:]
    better_numbers = [w.number for w in winners if step in w.lines]
    worse_numbers = [
        s.number for s in losers if s.lines[:n] == winner.lines[:n] and step not in s.lines[: n + 1]
    ]
    reason = (
        f"Where they part: “{clause}” in {_attempts(better_numbers)}; "
        f"{f'“{worse}”' if worse else 'nothing of the kind'} in {_attempts(worse_numbers)}."
    )
    return Drawn(
        name,
        f"{condition}, {rule}" if condition else rule,
        worse,
        reason,
        tuple(sorted([*better_numbers, *worse_numbers])),
    )


def _from_words(winner: Shown, loser: Shown, problem: str) -> Drawn | None:
    """Attempts without labels and calculations: only a general sentence can be a lesson."""
    seen = {line.body for line in loser.lines}
    for line in winner.lines:
        if line.body in seen or not (found := _MARKER.search(line.body)):
            continue
        clause = general(line.body[found.start() :], problem).rstrip(".")
        condition, rule = _split_condition(clause)
        sentence = clause if condition else f"at such a problem, {clause}"
        name = " ".join(re.findall(r"[^\W\d]+", rule)[:3]).capitalize()
        reason = f"Attempt {winner.number} says so and attempt {loser.number} does not."
        numbers = (winner.number, loser.number)
        return Drawn(name, sentence, "", reason, numbers) if name else None
    return None


def general(body: str, problem: str) -> str:
    """The general part of a step: what stands before its instance, without the problem's numbers.

    The instance is what follows the last colon and holds a number or ends the line.
    """
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


def _condition_before(lines: Sequence[Line], problem: str) -> str:
    """The nearest condition that the shared steps state, or the step one comes from."""
    for line in reversed(lines):
        if condition := _split_condition(general(line.body, problem))[0]:
            return condition
    return f"when “{lines[-1].label}” is done" if lines and lines[-1].label else ""


def _attempts(numbers: Sequence[int]) -> str:
    return f"attempt{'s' if len(numbers) > 1 else ''} {_and(numbers)}"


def _and(numbers: Sequence[int]) -> str:
    *most, last = (str(n) for n in numbers)
    return f"{', '.join(most)} and {last}" if most else last
