"""The rows of public data sets, as their authors publish them, as questions and results.

A cleaning function takes place and row, and gives question, result and further columns of each
row that comes of it, or why none does. It raises DataError where a field is missing, or holds
something that is no text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from engines.core.errors import DataError
from engines.data.choices import find_choices
from engines.data.fields import field_text, get_field

Row = Mapping[str, Any]
QUESTION = ("question", "Question", "problem", "Problem", "extra_info.question")
ANSWER = ("final_answer", "answer", "Answer", "result")
OTHER_NAMES = ("extra_info", "solution", "Info", "Root_Url", "options", "Options", "choices")
_DAPO = re.compile(
    r"(?:Solve the following math problem step by step\.[^\n]*\n\n)?(.*?)"
    r'(?:\n\nRemember to put your answer on its own line after "Answer:"\.)?',
    re.DOTALL,
)
PUBLISHED_FORM = "Give the data set as its authors publish it."
NO_QUESTION, NO_ANSWER = "without a question", "without an answer"
_SOLUTION = re.compile(r"^#### ", re.MULTILINE)


class MissingField(DataError):
    """A row has none of the fields that may hold something: it may be of another data set."""

    def __init__(self, place: str, field: str, fields: Iterable[str]) -> None:
        self.field = field
        cause = f'"{field}" is missing; the fields are: {", ".join(fields) or "none"}.'
        super().__init__(place, cause, PUBLISHED_FORM)


def _field(place: str, row: Row, *names: str) -> Any:
    """The value of the first of these fields that a row has."""
    for name in names:
        if name in row or get_field(row, name) is not None:
            return get_field(row, name)
    raise MissingField(place, names[0], row)


def join_answers(place: str, value: Any) -> str:
    """One answer or several as one text, joined by "; "; None and NaN are none."""
    value = value.tolist() if hasattr(value, "tolist") else value  # an array of numpy
    values = value if isinstance(value, list | tuple) else [value]
    given = (field_text(place, "answer", one) for one in values if one is not None and one == one)
    return "; ".join(text for text in given if text)


def _problem(
    place: str, row: Row, *answers: str, questions: Sequence[str] = QUESTION
) -> dict[str, Any]:
    question = _field(place, row, *questions)
    answer = join_answers(place, _field(place, row, *(answers or ANSWER)))
    if _SOLUTION.search(answer):
        cause = 'The answer is a whole solution with a line "#### …", as GSM8K has them.'
        raise DataError(place, cause, PUBLISHED_FORM)
    kept: dict[str, Any] = {
        name: row[name] for name in ("difficulty", "topic", "subject") if name in row
    }
    kept |= {"level": str(row["level"])} if "level" in row else {}
    if solution := row.get("solution") or row.get("Solution"):
        kept["solution"] = solution
    return {"question": question, "result": answer, **kept}


def clean_plain(place: str, row: Row) -> list[dict[str, Any]]:
    return [_problem(place, row)]


def clean_contest(place: str, row: Row) -> list[dict[str, Any]]:
    return [_problem(place, row, "answer", "Answer", questions=("problem", "Problem"))]


def clean_solutions(place: str, row: Row) -> list[dict[str, Any]] | str:
    found = _problem(place, row)
    solutions = [row[name] for name in row if name.startswith("r1_solution_") and row[name]]
    return [found | {"solution": one} for one in solutions] or "without a solution"


def clean_nq(place: str, row: Row) -> list[dict[str, Any]]:
    # A single answer is some other set's.
    lists = (name for name in ANSWER if isinstance(row.get(name), list))
    found = _problem(place, row, "golden_answers", *lists)
    question = str(found["question"] or "").strip()
    return [found | {"question": question + "?" * (question[-1:] not in ("", "?"))}]


def clean_dapo(place: str, row: Row) -> list[dict[str, Any]]:
    prompt = _field(place, row, "prompt")
    if isinstance(prompt, list):
        prompt = next((one.get("content") for one in prompt if isinstance(one, dict)), None)
    wrapped = _DAPO.fullmatch(field_text(place, "prompt", prompt or ""))
    unwrapped = {**row, "question": wrapped[1] if wrapped else ""}
    return [_problem(place, unwrapped, "reward_model.ground_truth")]


def clean_afm(place: str, row: Row) -> list[dict[str, Any]] | str:
    answer = _field(place, row, "extra_info.answer")
    if isinstance(answer, list) and len(answer) > 1:
        return "with several answers"
    return [_problem(place, {**row, "answer": answer}, "answer")]


def clean_webwalker(place: str, row: Row) -> list[dict[str, Any]]:
    info = _field(place, row, "info", "Info")
    level = _field(
        place, info if isinstance(info, dict) else {}, "difficulty_level", "Difficulty_Level"
    )
    about = {"level": str(level).lower(), "root_url": _field(place, row, "root_url", "Root_Url")}
    about |= {name: info[name] for name in ("lang", "type", "domain") if info.get(name)}
    return [_problem(place, row) | about]


def clean_gsm8k(place: str, row: Row) -> list[dict[str, Any]]:
    text = field_text(place, "answer", _field(place, row, "answer"))
    solution, mark, answer = text.rpartition("####")
    if not mark:
        raise DataError(place, '"answer" has no line "#### …".', PUBLISHED_FORM)
    answer = answer.strip().replace(",", "")
    return [_problem(place, {**row, "answer": answer, "solution": solution.strip()})]


def clean_gpqa(place: str, row: Row) -> list[dict[str, Any]] | str:
    for name in ("Correct Answer", "Incorrect Answer 1"):
        _field(place, row, name)
    return clean_choices(place, row)


def clean_choices(place: str, row: Row) -> list[dict[str, Any]] | str:
    question = field_text(place, "question", _field(place, row, *QUESTION) or "")
    found = find_choices(place, row, question)
    if found is None:
        _field(place, row, "choices", "options", "Choices", "Options")
        return "without options"
    answer = None if found.right else _field(place, row, "answer")
    letter = found.right or found.find_letter(place, "answer", answer, is_label=True)
    options, subject = list(found.options.values()), row.get("subject") or row.get("Subdomain")
    place_of = list(found.options).index(letter) if letter else None
    return [{"question": question, "result": letter or "", "options": options,
             "answer_index": place_of, "subject": subject}]  # fmt: skip
