"""What usually is a mistake in a data set (repeats, contradictions, gaps), and the mark of review.

Pure. A person's mark holds for the content that was looked at: an item that is changed afterwards
has none.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from engines.core.codec import digest_bytes
from engines.core.errors import DataError
from engines.core.types import Problem
from engines.data.rows import Unit

Numbered = tuple[int, Problem]
"""A problem with its line or row, counted from 1."""


@dataclass(frozen=True, slots=True)
class DataReport:
    """What `check_rows` saw. Lines or rows count from 1; lengths are in characters."""

    n: int  # problems; rows without a question are none
    unit: Unit  # what the numbers below count
    empty: tuple[int, ...]  # with a question in which nothing stands
    without_answer: tuple[int, ...]
    duplicates: tuple[tuple[int, ...], ...]  # with equal question and answers
    contradictory: tuple[tuple[int, ...], ...]  # equal question, no answer right for all
    question_chars: tuple[int, float, int]  # shortest, median, longest
    answer_chars: tuple[int, float, int]  # of those that have one; zeros where none has
    logged_rows: int = 0  # replies, where the file is a log; zeros where it is none
    logged_questions: int = 0  # which those reply to; each is one problem
    tries: dict[str, int] = field(default_factory=dict)  # recorded ones, by how they went

    @property
    def rows_without_answer(self) -> tuple[int, ...]:
        """Without an answer, though others have one; a set may well have none at all."""
        return self.without_answer if len(self.without_answer) < self.n else ()

    @property
    def is_clean(self) -> bool:
        return not (self.duplicates or self.contradictory or self.empty or self.rows_without_answer)


def check_rows(
    numbered: Sequence[Numbered],
    *,
    empty: Sequence[int] = (),
    unit: Unit = "line",
    logged: tuple[int, int] = (0, 0),
) -> DataReport:
    """Look for what usually is a mistake in a data set.

    `empty` are lines or rows whose question is blank, `logged` the number of rows that are replies
    and of the questions they reply to.
    """
    questions = [" ".join(problem.question.split()) for _, problem in numbered]
    times = Counter(questions)
    by_question: dict[str, list[Numbered]] = {}
    by_content: dict[tuple[str, frozenset[str]], list[int]] = {}
    for question, (line, problem) in zip(questions, numbered, strict=True):
        if times[question] > 1:
            by_question.setdefault(question, []).append((line, problem))
            by_content.setdefault((problem.question, answer_set(problem)), []).append(line)
    return DataReport(
        n=len(numbered),
        unit=unit,
        empty=tuple(empty),
        without_answer=tuple(line for line, p in numbered if p.answer is None),
        duplicates=tuple(tuple(lines) for lines in by_content.values() if len(lines) > 1),
        contradictory=tuple(
            tuple(line for line, _ in same)
            for same in by_question.values()
            if _has_contradiction([answer_set(p) for _, p in same])
        ),
        question_chars=_length_spread([len(p.question) for _, p in numbered]),
        answer_chars=_length_spread([len(p.answer) for _, p in numbered if p.answer is not None]),
        logged_rows=logged[0],
        logged_questions=logged[1],
        tries=dict(Counter(outcome_word(r) for _, p in numbered for r in recorded_rewards(p))),
    )


def recorded_rewards(problem: Problem) -> list[float | None]:
    """Of the tries that a problem was imported with; None: nothing tells how one went."""
    told = problem.meta.get("outcomes")
    rows = told if isinstance(told, list) else []
    return [one.get("reward") for one in rows if isinstance(one, dict)]


def outcome_word(reward: float | None) -> str:
    return "unknown" if reward is None else {1.0: "right", 0.0: "wrong"}.get(reward, "partly right")


def doubts_line(report: DataReport) -> str | None:
    """What is doubtful in one line, for the start of a run; None where nothing is."""
    found = (
        ("without a question", len(report.empty)),
        ("without an answer", len(report.rows_without_answer)),
        ("repeating another", sum(len(same) - 1 for same in report.duplicates)),
        ("contradicting each other", sum(len(same) for same in report.contradictory)),
    )
    doubts = [f"{n} {report.unit}{'s' if n > 1 else ''} {what}" for what, n in found if n]
    return ", ".join(doubts) or None


def answer_set(problem: Problem) -> frozenset[str]:
    """Every answer that counts as right; empty where none is known."""
    return frozenset(problem.accepted_answers)


def _has_contradiction(sets: Sequence[frozenset[str]]) -> bool:
    """True when no single answer would be right in every row that has one."""
    known = [accepted for accepted in sets if accepted]
    return len(known) > 1 and not frozenset.intersection(*known)


def _length_spread(lengths: Sequence[int]) -> tuple[int, float, int]:
    return (min(lengths), float(median(lengths)), max(lengths)) if lengths else (0, 0.0, 0)


MARK, MARKED_CONTENT, ORIGIN = "reviewed", "reviewed_content", "imported"


def content_hash(row: Mapping[str, Any]) -> str:
    """Of all that an item holds but its mark."""
    content = {key: value for key, value in row.items() if key not in (MARK, MARKED_CONTENT)}
    return digest_bytes(json.dumps(content, sort_keys=True).encode(), 8)


def is_unreviewed(row: Mapping[str, Any]) -> bool:
    """Whether a row waits for a person: it was imported, or says so, and has no mark that fits.

    A column `reviewed` of a foreign data set stops nothing, unless it says that nobody has.
    """
    if ORIGIN in row or MARKED_CONTENT in row:
        return row.get(MARK) is not True or row.get(MARKED_CONTENT) != content_hash(row)
    return str(row.get(MARK, "")).lower() == "false"


def set_mark(row: Mapping[str, Any], reviewed: bool) -> dict[str, Any]:
    """The same row, marked as it is now or not at all."""
    kept = {key: value for key, value in row.items() if key not in (MARK, MARKED_CONTENT)}
    return {**kept, MARK: reviewed, **({MARKED_CONTENT: content_hash(kept)} if reviewed else {})}


def unreviewed_error(place: str, name: str, numbers: Sequence[int], unit: str) -> DataError:
    """What to say where data is to be used that holds unreviewed items."""
    first, *others = numbers
    more = f" (nor {len(others)} more)" if others else ""
    cause = f"The item of {unit} {first} is not reviewed{more}: it may not be sent to any model."
    return DataError(f"{place}:{first}", cause, f"Look at it first: studio data review {name}.")
