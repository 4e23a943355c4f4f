"""Data sets: JSONL files read into problems.

Owns the tolerant field names, what a value means as text, the content ids and the
errors that name a line. Does not decide the order of problems (`sampler`) and never
writes. A name is looked up in the roots the caller gives; nothing is ambient.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from statistics import median
from typing import Any

from engines.core.errors import DataError
from engines.core.ids import digest
from engines.core.types import Problem

QUESTION_FIELDS = ("question", "Question", "Problem", "problem", "query", "prompt", "input")
ANSWER_FIELDS = (
    "answer",
    "Answer",
    "final_answer",
    "result",
    "golden_answers",
    "ground_truth",
    "extra_info.ground_truth",
    "reward_model.ground_truth",
)
ID_BYTES = 5

Numbered = tuple[int, Problem]
"""A problem with the line of its file, counted from 1."""
SHOWN_LINES = 12
"""Of the bad lines of a file, beside the first."""


def read_problems(
    path: Path,
    *,
    fields: Mapping[str, str] | None = None,
    needs_answer: bool = True,
    limit: int | None = None,
) -> tuple[Problem, ...]:
    """Read a data set.

    Args:
        path: a UTF-8 file with one JSON object a line; empty lines are skipped.
        fields: {"question": NAME, "answer": NAME} where the file has other names; a
            dot looks inside an object ("extra_info.ground_truth").
        needs_answer: False lets problems without a truth pass, with answer None.
        limit: read only the first so many problems.

    Returns:
        Problems in the order of the file. Texts lose surrounding white space. A number
        becomes its shortest decimal text, and a whole float loses its ".0" (18.0 → "18":
        the same number, as spreadsheets write it); true becomes "true". A list of
        answers gives its first as answer and all of them as meta["alternatives"].

    Raises:
        DataError: with file and line; also for a file without any problem.
    """
    numbered = read_numbered(path, fields=fields, needs_answer=needs_answer, limit=limit)
    return tuple(problem for _, problem in numbered)


def read_numbered(
    path: Path,
    *,
    fields: Mapping[str, str] | None = None,
    needs_answer: bool = True,
    limit: int | None = None,
) -> tuple[Numbered, ...]:
    """`read_problems`, each problem with its line."""
    names = _names(path, fields or {})
    found: list[Numbered] = []
    seen: dict[str, int] = {}
    bad: list[tuple[int, DataError]] = []
    for number, line in _lines(path):
        if limit is not None and len(found) >= limit:
            break
        try:
            problem = _problem(f"{path}:{number}", line, names, needs_answer, path.stem)
        except DataError as error:
            bad.append((number, error))
            continue
        seen[problem.id] = seen.get(problem.id, 0) + 1
        if (nth := seen[problem.id]) > 1:
            problem = replace(problem, id=f"{problem.id}#{nth}")
        found.append((number, problem))
    if bad:
        raise _all_told(bad)
    if not found and limit != 0:
        raise DataError(str(path), "The file holds no problem.", "Add one JSON object a line.")
    return tuple(found)


def _all_told(bad: Sequence[tuple[int, DataError]]) -> DataError:
    """The first bad line in full and the numbers of the others, so that one round mends all."""
    (_, first), *others = bad
    if not others:
        return first
    shown = ", ".join(str(number) for number, _ in others[:SHOWN_LINES])
    more = ", …" if len(others) > SHOWN_LINES else ""
    cause = f"{first.cause} ({len(others)} more cannot be used: line {shown}{more}.)"
    return DataError(first.place, cause, first.move)


@dataclass(frozen=True, slots=True)
class DataReport:
    """What `check` saw. Lines count from 1; lengths are in characters."""

    n: int
    without_answer: tuple[int, ...]  # lines
    duplicates: tuple[tuple[int, ...], ...]  # lines with equal question and answer
    contradictory: tuple[tuple[int, ...], ...]  # lines with equal question, unlike answers
    question_chars: tuple[int, float, int]  # shortest, median, longest
    answer_chars: tuple[int, float, int]  # of those that have one; zeros where none has

    @property
    def clean(self) -> bool:
        return not (self.duplicates or self.contradictory)


def check(numbered: Sequence[Numbered]) -> DataReport:
    """Look for what usually is a mistake in a data set."""
    by_question: dict[str, list[Numbered]] = {}
    by_content: dict[tuple[str, str | None], list[int]] = {}
    for line, problem in numbered:
        by_question.setdefault(problem.question, []).append((line, problem))
        by_content.setdefault((problem.question, problem.answer), []).append(line)
    return DataReport(
        n=len(numbered),
        without_answer=tuple(line for line, p in numbered if p.answer is None),
        duplicates=tuple(tuple(lines) for lines in by_content.values() if len(lines) > 1),
        contradictory=tuple(
            tuple(line for line, _ in same)
            for same in by_question.values()
            if len({p.answer for _, p in same if p.answer is not None}) > 1
        ),
        question_chars=_spread([len(p.question) for _, p in numbered]),
        answer_chars=_spread([len(p.answer) for _, p in numbered if p.answer is not None]),
    )


def resolve_data(name: str, roots: Sequence[Path]) -> Path:
    """Find the file a data name means: a path or a bare name, with or without `.jsonl`.

    Raises:
        DataError: no root has it; names the nearest and the roots searched.
    """
    given = Path(name).expanduser()
    for root in roots:
        for candidate in (root / given, root / f"{given}.jsonl"):
            if candidate.is_file():
                return candidate
    names = sorted({file.stem for root in roots for file in root.glob("*.jsonl")})
    nearest = get_close_matches(given.stem, names, n=1, cutoff=0.5)
    if nearest:
        move = f'Did you mean "{nearest[0]}"?'
    elif names:
        move = f"There are: {', '.join(names[:8])}."
    else:
        move = "Give the path of a JSONL file."
    searched = ", ".join(str(root) for root in roots) or "no folder"
    raise DataError(f'data set "{name}"', f"It is not found. Searched: {searched}.", move)


def _names(path: Path, fields: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    if unknown := sorted(set(fields) - {"question", "answer"}):
        raise DataError(
            f"fields of {path}",
            f'"{unknown[0]}" cannot be mapped.',
            'Map "question" or "answer"; every other field of a row is kept as it is.',
        )
    return {
        "question": (fields["question"],) if "question" in fields else QUESTION_FIELDS,
        "answer": (fields["answer"],) if "answer" in fields else ANSWER_FIELDS,
    }


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        data = path.read_bytes()
    except (FileNotFoundError, IsADirectoryError) as error:
        beside = [f.name for f in path.parent.glob("*.jsonl")] if path.parent.is_dir() else []
        nearest = get_close_matches(path.name, beside, n=1, cutoff=0.5)
        move = f"Did you mean {path.parent / nearest[0]}?" if nearest else "Check the path."
        raise DataError(str(path), "There is no such file.", move) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(
            str(path), f"It cannot be read: {reason}.", "Check its permissions."
        ) from error
    # Split on \n only: str.splitlines would also break at U+2028 inside a JSON string.
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        try:
            line = raw.decode()
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}:{number}",
                f"The line is not UTF-8 (byte {error.start + 1}).",
                "Save the file as UTF-8.",
            ) from error
        if line.strip():
            yield number, line


def _problem(
    place: str, line: str, names: Mapping[str, tuple[str, ...]], needs_answer: bool, stem: str
) -> Problem:
    row = _row(place, line)
    question_field = next((n for n in names["question"] if _look(row, n) is not None), None)
    if question_field is None:
        raise DataError(
            place,
            f'"{names["question"][0]}" is missing; the fields are: {", ".join(row) or "none"}.',
            "Rename one, or name it in the run file: data.fields.question=NAME.",
        )
    question = _text(place, question_field, _last_user_turn(_look(row, question_field)))
    if not question:
        raise DataError(place, f'"{question_field}" is empty.', "Write the question, or cut it.")
    # A field that is there but null must not hide another that has the answer.
    answer_field = next((n for n in names["answer"] if _look(row, n) is not None), None)
    value = None if answer_field is None else _look(row, answer_field)
    alternatives: list[str] = []
    if isinstance(value, list):
        alternatives = [_text(place, str(answer_field), item) for item in value]
        value = alternatives[0] if alternatives else None
    answer = None if value is None else _text(place, str(answer_field), value) or None
    if answer is None and needs_answer:
        name = answer_field or next((n for n in names["answer"] if n in row), names["answer"][0])
        raise DataError(
            place,
            f'"{name}" is {"empty" if name in row else "missing"}.',
            "Add it, or set practice.given_ground_truth=false.",
        )
    source = row.get("source")
    # The replies of a logged run are not facts of the problem, and they are long.
    used = {question_field, answer_field, "source", "rollouts"}
    meta = {key: value for key, value in row.items() if key not in used}
    if alternatives:
        meta["alternatives"] = alternatives
    return Problem(
        id=digest([question, answer], ID_BYTES),
        question=question,
        answer=answer,
        source=source if isinstance(source, str) else stem,
        meta=meta,
    )


def _row(place: str, line: str) -> dict[str, Any]:
    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    try:
        # The standard parser, because it keeps whole numbers of any size exact.
        row = json.loads(line, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise DataError(
            place,
            f"The line is not JSON: {error.msg} at column {error.colno}.",
            "A data set holds one JSON object a line.",
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataError(place, f"The line is not JSON: {error}.", "Mend the line.") from error
    if not isinstance(row, dict):
        raise DataError(
            place,
            f"The line holds {_kind(row)}, not an object.",
            'Write {"question": …, "answer": …}, one object a line.',
        )
    return row


def _look(row: Mapping[str, Any], name: str) -> Any:
    """The value of a field, also inside objects (`a.b`); None where it is absent."""
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value


def _last_user_turn(value: Any) -> Any:
    """The text of the last user message where a question is stored as chat messages."""
    if isinstance(value, list):
        turns = [m for m in value if isinstance(m, dict) and m.get("role") == "user"]
        return turns[-1].get("content", value) if turns else value
    return value


def _text(place: str, name: str, value: Any) -> str:
    match value:
        case str():
            text = value.strip()
        case bool():
            text = "true" if value else "false"
        case float() if value.is_integer() and abs(value) < 2**53:
            text = str(int(value))
        case int() | float():
            text = str(value)
        case _:
            raise DataError(
                place,
                f'"{name}" holds {_kind(value)}, not a text.',
                "Write it as a text or a number, or name a field inside it in data.fields.",
            )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            place, f'"{name}" holds half of a surrogate pair.', "Remove that character."
        ) from error
    return text


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case dict():
            return "an object"
        case list():
            return "a list"
        case str():
            return "a text"
        case _:
            return "a single value"


def _spread(lengths: Sequence[int]) -> tuple[int, float, int]:
    return (min(lengths), float(median(lengths)), max(lengths)) if lengths else (0, 0.0, 0)
