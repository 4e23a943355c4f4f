"""Rows as problems: which field is the question, which the answer, and what they mean."""

import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engines.core.codec import digest, fix_surrogates
from engines.core.errors import DataError
from engines.core.types import Problem, turns_of
from engines.data.choices import LABELS, find_choices
from engines.data.rows import json_kind

QUESTION_FIELDS = (
    *("question", "Question", "Problem", "problem", "query", "raw_question", "question_stem"),
    # Where there is also a prompt, that is this with some framework's instructions around it.
    *("extra_info.question", "prompt", "input", "messages"),
)
ANSWER_FIELDS = (
    *("answer", "Answer", "final_answer", "result", "golden_answers", "ground_truth"),
    *("correct_answer", "extra_info.ground_truth", "reward_model.ground_truth.target"),
    *("reward_model.ground_truth", "extra_info.answer"),
)
LISTED_REPLIES = ("rollouts", "responses", "completions")
"""Fields of a log that hold several replies to the row's question."""
SINGLE_REPLIES = ("response", "completion", "output", "prediction", "generation", "model_output")
"""Fields of a log that hold one."""
ID_BYTES = 5
_IMAGE_ADDRESSES = ("http://", "https://", "data:image/")
_ALPACA = "instruction"
_MAPPED = "data.fields.{0}=NAME for a run file, --{0} NAME for `studio data`"
AS_CHAT = "Add it with its talks as problems: studio data add FILE --as-chat."


class BlankQuestion(DataError):
    """The question is there, but nothing stands in it."""


@dataclass(frozen=True, slots=True)
class FieldNames:
    """The fields that may hold question and answer, best first, and those of replies."""

    question: tuple[str, ...] = QUESTION_FIELDS
    answer: tuple[str, ...] = ANSWER_FIELDS
    replies: frozenset[str] = frozenset((*LISTED_REPLIES, *SINGLE_REPLIES))


USUAL = FieldNames()


def field_names(where: str, fields: Mapping[str, str]) -> FieldNames:
    """The names to look for, from a map {"question": NAME, "answer": NAME}."""
    if unknown := sorted(set(fields) - {"question", "answer"}):
        move = 'Map "question" or "answer"; every other field of a row is kept as it is.'
        raise DataError(f"fields of {where}", f'"{unknown[0]}" cannot be mapped.', move)
    return FieldNames(
        (fields["question"],) if "question" in fields else QUESTION_FIELDS,
        (fields["answer"],) if "answer" in fields else ANSWER_FIELDS,
        USUAL.replies.difference(fields.values()),
    )


def parse_problem(
    place: str, row: Mapping[str, Any], names: FieldNames, needs_answer: bool, source: str
) -> Problem:
    """The problem a row holds; `source` where the row has none of its own.

    Whether fields named as replies are facts of the problem, its file as a whole tells
    (`dataset.drop_replies`); here they are fields like any other.

    Raises:
        BlankQuestion: the question is empty or null.
        DataError: a field is missing, or holds something that is no text.
    """
    question_fields, question = parse_question(place, row, names)
    if question_fields == ("messages",) and isinstance(row["messages"], list):
        row = {"answer": _only_reply(place, row["messages"]), **row}  # a demonstration
    choices = find_choices(place, row, question)
    answers = names.answer
    if answers is ANSWER_FIELDS and choices:
        answers = (*LABELS, *ANSWER_FIELDS, "correct", "correct_option")
    elif answers is ANSWER_FIELDS and question_fields[0] == _ALPACA:
        answers = (*ANSWER_FIELDS, "output")
    answer_field = _first_held(row, answers)
    held = get_field(row, answer_field) if answer_field else None
    texts: list[str] = []
    if choices:
        letter = choices.right or choices.find_letter(place, answer_field or "", held)
        texts = [letter] if letter else []
    elif answer_field is not None:
        # Several answers to Natural Questions may stand joined in one text.
        if "nq" in (row.get("source"), row.get("data_source")) and isinstance(held, str):
            held = held.split("; ") if "; " in held else held
        values = held if isinstance(held, list) else [held]
        texts = [field_text(place, answer_field, value) for value in values if value is not None]
        texts = list(dict.fromkeys(text for text in texts if text))
    if not texts and needs_answer:
        raise _no_answer_error(place, row, answers, answer_field)
    used = {*question_fields, answer_field, "source"}
    meta = {key: value for key, value in row.items() if key not in used}
    if isinstance(held, list) and texts and not choices:
        meta["alternatives"] = texts
    if choices:
        question = choices.extend_question(question)
        meta = {key: value for key, value in meta.items() if key not in choices.fields}
        meta["lettered_options"] = dict(choices.options)
    own, answer = row.get("source"), texts[0] if texts else None
    # One question may end several talks.
    talk = [meta["history"]] if turns_of(meta.get("history")) else []
    return Problem(
        id=digest([question, answer, *talk], ID_BYTES),
        question=question,
        answer=answer,
        source=own if isinstance(own, str) else source,
        meta=meta,
    )


def _only_reply(place: str, messages: list[Any]) -> Any:
    turns = [turn for turn in messages if isinstance(turn, dict)]
    if sum(turn.get("role") == "user" for turn in turns) > 1:
        cause = '"messages" holds a talk, whose earlier turns would not be shown.'
        raise DataError(place, cause, AS_CHAT)
    replies = [turn.get("content") for turn in turns if turn.get("role") == "assistant"]
    return replies[-1] if replies else None


def parse_question(
    place: str, row: Mapping[str, Any], names: FieldNames
) -> tuple[tuple[str, ...], str]:
    """The fields the question stands in, and its text; raises what `parse_problem` does."""
    name = _first_held(row, names.question)
    if _ALPACA in row and name in (None, "input") and names.question is QUESTION_FIELDS:
        fields: tuple[str, ...] = (_ALPACA, "input")
        parts = [field_text(place, n, row[n]) for n in fields if row.get(n) is not None]
        text = "\n\n".join(part for part in parts if part)
    elif name is not None:
        fields, text = (name,), field_text(place, name, _last_user_turn(get_field(row, name)))
    elif present := [n for n in names.question if n in row]:
        fields, text = (present[0],), ""
    else:
        cause = f'"{names.question[0]}" is missing; the fields are: {", ".join(row) or "none"}.'
        move = f"Rename one, or name it: {_MAPPED.format('question')}."
        raise DataError(place, cause, AS_CHAT if "conversations" in row else move)
    if not text:
        move = "Write the question, or take the row out."
        raise BlankQuestion(place, f'"{fields[0]}" is empty.', move)
    return fields, text


def _first_held(row: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    """The first of the names under which a row has something: null does not hide another."""
    return next((name for name in names if get_field(row, name) is not None), None)


def get_field(row: Mapping[str, Any], name: str) -> Any:
    """The value of a field, also inside objects (`a.b`); None where it is absent."""
    if name in row:
        return row[name]
    first, dot, inner = name.partition(".")
    outer = row.get(first) if dot else None
    return get_field(outer, inner) if isinstance(outer, dict) else None


def field_text(place: str, name: str, value: Any) -> str:
    """A text, number or truth value as text, without surrounding white space."""
    match value:
        case str():
            return value.strip() if value.isascii() else fix_surrogates(value).strip()
        case bool():
            return str(value).lower()
        case float() if value.is_integer() and abs(value) < 2**53:
            return str(int(value))
        case int() | float():
            return str(value)
    move = "Write it as a text or a number, or name a field inside it in data.fields."
    raise DataError(place, f'"{name}" holds {json_kind(value)}, not a text.', move)


def _no_answer_error(
    place: str, row: Mapping[str, Any], answers: tuple[str, ...], field: str | None
) -> DataError:
    move = (
        f"Add it or name it ({_MAPPED.format('answer')}), or set practice.given_ground_truth=false."
    )
    if "outcomes" in row:
        move = "Set verifier=recorded: it takes the reward that each try was imported with."
    name = field or next((n for n in answers if n in row), None)
    if name:
        return DataError(place, f'"{name}" is empty.', move)
    cause = f'"{answers[0]}" is missing; the fields are: {", ".join(row)}.'
    return DataError(place, cause, move)


def _last_user_turn(value: Any) -> Any:
    """The text of the last user message where a question is stored as chat messages."""
    if isinstance(value, list):
        turns = [m for m in value if isinstance(m, dict) and m.get("role") == "user"]
        return turns[-1].get("content", value) if turns else value
    return value


def find_images(place: str, problem: Problem, folder: Path) -> Problem:
    """The problem with what its field "images" (or "image") names found in a folder.

    What is neither an address nor named as an image is a field like any other.

    Raises DataError: there is no such file.
    """
    named = problem.meta.get("images") or problem.meta.get("image")
    images = []
    for image in named if isinstance(named, list) else [named]:
        if not isinstance(image, str):
            continue
        if image.startswith(_IMAGE_ADDRESSES):
            images.append(image)
        elif (mimetypes.guess_type(image)[0] or "").startswith("image/"):
            path = folder / image
            if not path.is_file():
                cause = f'"images" names {image}, and there is no such file in {folder}.'
                raise DataError(place, cause, "Put it there, or write its address.")
            images.append(str(path.resolve()))
    return replace(problem, meta={**problem.meta, "shown_images": images}) if images else problem
