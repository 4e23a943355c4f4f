"""Rows as problems: which field is the question, which the answer, and what they mean."""

import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from engines.core.codec import digest
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
    (`rollout_log.drop_replies`); here they are fields like any other.

    Raises:
        BlankQuestion: the question is empty or null.
        DataError: a field is missing, or holds something that is no text.
    """
    question_fields, question = parse_question(place, row, names)
    if question_fields == ("messages",) and isinstance(row["messages"], list):
        row = {"answer": _only_reply(place, row["messages"]), **row}  # a demonstration
    answers = names.answer
    choices = find_choices(place, row, question)
    if choices and answers is ANSWER_FIELDS:
        answers = (*LABELS, *ANSWER_FIELDS, "correct", "correct_option")
    if question_fields[0] == _ALPACA and answers is ANSWER_FIELDS:
        answers = (*ANSWER_FIELDS, "output")
    # A field that is there but null must not hide another that has the answer.
    answer_field = _first_held(row, answers)
    alternatives: list[str] = []
    answer = None
    if choices and (choices.right or answer_field):
        held = get_field(row, answer_field) if answer_field else None
        answer = choices.right or choices.find_letter(place, answer_field or "", held)
    elif answer_field is not None:
        value = get_field(row, answer_field)
        # Several answers to Natural Questions may stand joined in one text.
        joined = "nq" in (row.get("source"), row.get("data_source"))
        if joined and isinstance(value, str) and "; " in value:
            value = value.split("; ")
        if isinstance(value, list):
            texts = [field_text(place, answer_field, v) for v in value if v is not None]
            alternatives = list(dict.fromkeys(text for text in texts if text))
            answer = alternatives[0] if alternatives else None
        else:
            answer = field_text(place, answer_field, value) or None
    if answer is None and needs_answer:
        raise _no_answer_error(place, row, answers, answer_field)
    own = row.get("source")
    used = {*question_fields, answer_field, "source"}
    meta = {key: value for key, value in row.items() if key not in used}
    if alternatives:
        meta["alternatives"] = alternatives
    if choices:
        question = choices.extend_question(question)
        meta = {key: value for key, value in meta.items() if key not in choices.fields}
        meta["lettered_options"] = dict(choices.options)
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
    said = [turn.get("content") for turn in turns if turn.get("role") == "assistant"]
    return said[-1] if said else None


def parse_question(
    place: str, row: Mapping[str, Any], names: FieldNames
) -> tuple[tuple[str, ...], str]:
    """The fields the question stands in, and its text; raises what `parse_problem` does."""
    name = _first_held(row, names.question)
    alpaca = _ALPACA in row and name in (None, "input") and names.question is QUESTION_FIELDS
    fields: tuple[str, ...]
    if alpaca:
        parts = [field_text(place, n, row[n]) for n in (_ALPACA, "input") if row.get(n) is not None]
        fields, text = (_ALPACA, "input"), "\n\n".join(part for part in parts if part)
    elif name is not None:
        fields, text = (name,), field_text(place, name, _last_user_turn(get_field(row, name)))
    else:
        present = next((n for n in names.question if n in row), None)
        if present is None:
            listed = ", ".join(row) or "none"
            cause = f'"{names.question[0]}" is missing; the fields are: {listed}.'
            move = f"Rename one, or name it: {_MAPPED.format('question')}."
            if "conversations" in row:
                move = AS_CHAT
            if ".csv:" in place or ".tsv:" in place:
                move += " The first line of a table names its fields."
            raise DataError(place, cause, move)
        fields, text = (present,), ""
    if not text:
        move = "Write the question, or take the row out."
        raise BlankQuestion(place, f'"{fields[0]}" is empty.', move)
    return fields, text


def _first_held(row: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    """The first of the names under which a row has something."""
    if row.get(names[0]) is not None:
        return names[0]
    for name in _present(names, tuple(row)):
        if get_field(row, name) is not None:
            return name
    return None


@lru_cache(maxsize=256)
def _present(names: tuple[str, ...], fields: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the names that such a row may have: nearly all of a file have the same fields."""
    return tuple(name for name in names if name in fields or name.partition(".")[0] in fields)


def get_field(row: Mapping[str, Any], name: str) -> Any:
    """The value of a field, also inside objects (`a.b`); None where it is absent."""
    if name in row:
        return row[name]
    if "." not in name:
        return None
    value: Any = row
    for part in name.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value


def field_text(place: str, name: str, value: Any) -> str:
    """A text, number or truth value as text, without surrounding white space."""
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
            move = "Write it as a text or a number, or name a field inside it in data.fields."
            raise DataError(place, f'"{name}" holds {json_kind(value)}, not a text.', move)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            cause = f'"{name}" holds half of a surrogate pair.'
            raise DataError(place, cause, "Remove that character.") from error
    return text


def _no_answer_error(
    place: str, row: Mapping[str, Any], answers: tuple[str, ...], field: str | None
) -> DataError:
    name = field or next((n for n in answers if n in row), answers[0])
    there = field is not None or name in row
    cause = "empty." if there else f"missing; the fields are: {', '.join(row)}."
    move = "Add it, or set practice.given_ground_truth=false."
    if "outcomes" in row:
        move = "Set verifier=recorded: it takes the reward that each try was imported with."
    elif not there:
        move = f"{move} Where it has another name: {_MAPPED.format('answer')}."
    return DataError(place, f'"{name}" is {cause}', move)


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
    if not (named := problem.meta.get("images") or problem.meta.get("image")):
        return problem
    listed = named if isinstance(named, list) else [named]
    images = [image for image in listed if isinstance(image, str) and _is_image(image)]
    if not images:
        return problem
    for number, image in enumerate(images):
        if not image.startswith(_IMAGE_ADDRESSES):
            path = folder / image
            if not path.is_file():
                cause = f'"images" names {image}, and there is no such file in {folder}.'
                raise DataError(place, cause, "Put it there, or write its address.")
            images[number] = str(path.resolve())
    return replace(problem, meta={**problem.meta, "shown_images": images})


def _is_image(text: str) -> bool:
    kind = "" if text.startswith(_IMAGE_ADDRESSES) else mimetypes.guess_type(text)[0] or "text"
    return not kind or kind.startswith("image/")
