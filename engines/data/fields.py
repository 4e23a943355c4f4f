"""Rows as problems: which field is the question, which the answer, and what they mean."""

import mimetypes
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from engines.core.codec import JsonMapping, JsonObject, digest, fix_surrogates
from engines.core.errors import DataError
from engines.core.frozen import frozen
from engines.core.types import Names, Problem, turns_of
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


@frozen
class FieldNames:
    """The fields that may hold question and answer, best first, and those of replies."""

    question: Names = QUESTION_FIELDS
    answer: Names = ANSWER_FIELDS
    replies: frozenset[str] = frozenset((*LISTED_REPLIES, *SINGLE_REPLIES))


USUAL = FieldNames()


def field_names(where: str, fields: Mapping[str, str]) -> FieldNames:
    """The names to look for, from a map {"question": NAME, "answer": NAME}."""
    if unknown := sorted(set(fields) - {"question", "answer"}):
        raise DataError(
            f"fields of {where}",
            f'"{unknown[0]}" cannot be mapped.',
            'Map "question" or "answer"; every other field of a row is kept as it is.',
        )
    return FieldNames(
        (fields["question"],) if "question" in fields else QUESTION_FIELDS,
        (fields["answer"],) if "answer" in fields else ANSWER_FIELDS,
        USUAL.replies.difference(fields.values()),
    )


def parse_problem(
    place: str, row: JsonObject, names: FieldNames, needs_answer: bool, source: str
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
        raise DataError(
            place, '"messages" holds a talk, whose earlier turns would not be shown.', AS_CHAT
        )
    replies = [turn.get("content") for turn in turns if turn.get("role") == "assistant"]
    return replies[-1] if replies else None


def parse_question(place: str, row: JsonMapping, names: FieldNames) -> tuple[Names, str]:
    """The fields the question stands in, and its text; raises what `parse_problem` does."""
    name = _first_held(row, names.question)
    if _ALPACA in row and name in (None, "input") and names.question is QUESTION_FIELDS:
        fields: Names = (_ALPACA, "input")
        parts = [field_text(place, n, row[n]) for n in fields if row.get(n) is not None]
        text = "\n\n".join(part for part in parts if part)
    elif name is not None:
        fields, text = (name,), field_text(place, name, _last_user_turn(get_field(row, name)))
    elif present := [n for n in names.question if n in row]:
        fields, text = (present[0],), ""
    else:
        raise DataError(
            place,
            f'"{names.question[0]}" is missing; the fields are: {", ".join(row) or "none"}.',
            AS_CHAT
            if "conversations" in row
            else f"Rename one, or name it: {_MAPPED.format('question')}.",
        )
    if not text:
        raise BlankQuestion(
            place, f'"{fields[0]}" is empty.', "Write the question, or take the row out."
        )
    return fields, text


def _first_held(row: JsonMapping, names: Names) -> str | None:
    """The first of the names under which a row has something: null does not hide another."""
    return next((name for name in names if get_field(row, name) is not None), None)


def get_field(row: JsonMapping, name: str) -> Any:
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
    raise DataError(
        place,
        f'"{name}" holds {json_kind(value)}, not a text.',
        "Write it as a text or a number, or name a field inside it in data.fields.",
    )


def _no_answer_error(place: str, row: JsonObject, answers: Names, field: str | None) -> DataError:
    move = (
        f"Add it or name it ({_MAPPED.format('answer')}), or set practice.given_ground_truth=false."
    )
    if "outcomes" in row:
        move = "Set verifier=recorded: it takes the reward that each try was imported with."
    name = field or next((n for n in answers if n in row), None)
    if name:
        return DataError(place, f'"{name}" is empty.', move)
    return DataError(place, f'"{answers[0]}" is missing; the fields are: {", ".join(row)}.', move)


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
                raise DataError(
                    place,
                    f'"images" names {image}, and there is no such file in {folder}.',
                    "Put it there, or write its address.",
                )
            images.append(str(path.resolve()))
    return replace(problem, meta={**problem.meta, "shown_images": images}) if images else problem


LABELS = ("answerKey", "answer_index", "answer_idx")
"""Fields that hold the label of the answer, which no text of an option can be."""
_FIELDS = ("options", "choices", "Options", "Choices")
_RIGHT = ("Correct Answer", "correct_answer")
_WRONG = re.compile(r"(?:incorrect[ _]answer|distractor)[ _]?\d", re.IGNORECASE)
_OWN_LABEL = re.compile(r"\(?([A-Z])[).:]\s*")
_LETTER = re.compile(r"\(?([A-Za-z])[).:]{0,2}")


@frozen
class Choices:
    options: Mapping[str, str]  # letter and text
    labels: Names  # as the row has them; without any: ()
    fields: Names  # of the row, that hold the options
    right: str | None = None  # the letter, where the fields tell it

    def extend_question(self, question: str) -> str:
        """The question with its options below, once."""
        block = "\n".join(f"{letter}. {text}" for letter, text in self.options.items())
        return question if question.endswith(block) else f"{question}\n\n{block}"

    def find_letter(self, place: str, field: str, value: Any, is_label: bool = False) -> str | None:
        """The letter of the answer; None where the row has none.

        A whole number counts from 0, as MMLU's do. Raises DataError: it is none of the options,
        or may be two of them.
        """
        letters = list(self.options)
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
        text = "" if value is None else str(value).strip()
        if not text:
            return None
        if text in self.labels:
            return letters[self.labels.index(text)]
        fitting = set()
        if (label := _LETTER.fullmatch(text)) and label[1].upper() in letters:
            fitting.add(label[1].upper())
        elif re.fullmatch(r"\d\d?(?:\.0)?", text) and int(float(text)) < len(letters):
            fitting.add(letters[int(float(text))])
        if isinstance(value, str) and not (fitting and (is_label or field in LABELS)):
            texts = {_key(text), _key(_OWN_LABEL.sub("", text, count=1))}
            fitting |= {letter for letter, option in self.options.items() if _key(option) in texts}
        if len(fitting) == 1:
            return fitting.pop()
        which = "may mean two of" if fitting else "is none of"
        raise DataError(
            place,
            f'"{field}" is {text[:40]!r}, which {which} the {len(letters)} options.',
            "Write the letter of the right option, A for the first.",
        )


def find_choices(place: str, row: JsonObject, question: str) -> Choices | None:
    """The options of a row; None where it has none.

    Where the right answer has a field of its own, the order follows from the texts: it is the
    same whenever the row is read, and tells nothing.

    Raises DataError: a wrong option says what the right one does.
    """
    for name in _FIELDS:
        texts, labels = _read_listed(row.get(name))
        if 2 <= len(texts) <= len(ascii_uppercase) and len(labels) in (0, len(texts)):
            return Choices(_letter(texts), labels, (name,))
    if row.get("A") is not None and row.get("B") is not None:
        columns = tuple(letter for letter in ascii_uppercase if row.get(letter) is not None)
        if "".join(columns) == ascii_uppercase[: len(columns)]:
            return Choices(_letter([row[name] for name in columns]), columns, columns)
    right = next((name for name in _RIGHT if row.get(name) is not None), None)
    if right is None:
        return None
    wrong = [name for name in row if _WRONG.fullmatch(name) and row[name] is not None]
    written = {name: " ".join(str(row[name]).split()) for name in (right, *wrong)}  # case counts
    if twin := next((name for name in wrong if written[name] == written[right]), None):
        raise DataError(
            place,
            f'"{twin}" says what "{right}" says, so two options would be right.',
            "Correct one of them, or take the row out.",
        )
    order = sorted(written, key=lambda name: digest([question, str(row[name])], 16))
    options = _letter([row[name] for name in order])
    letter = ascii_uppercase[order.index(right)]
    return Choices(options, (), (right, *wrong), letter) if wrong else None


def _letter(texts: Sequence[Any]) -> dict[str, str]:
    return {letter: str(text).strip() for letter, text in zip(ascii_uppercase, texts, strict=False)}


def _read_listed(value: Any) -> tuple[list[str], Names]:
    """Texts and labels of a field with options; nothing where it holds something else."""
    labels: list[Any] = []
    if isinstance(value, list) and all(isinstance(v, dict) and "label" in v for v in value):
        value, labels = [v.get("text") for v in value], [v["label"] for v in value]
    elif isinstance(value, dict) and {"text", "label"} <= set(value):
        value, labels = value["text"], value["label"]
    elif isinstance(value, dict) and all(re.fullmatch("[A-Za-z]", str(key)) for key in value):
        labels = [key for key in value if value[key] is not None]
        value = [value[key] for key in labels]
    if not isinstance(value, list) or not all(isinstance(v, str | int | float) for v in value):
        return [], ()
    texts = [str(text).strip() for text in value]
    own = [match and match[1] for match in map(_OWN_LABEL.match, texts)]
    if own == list(ascii_uppercase[: len(texts)]):
        texts = [_OWN_LABEL.sub("", text, count=1) for text in texts]
    return texts, tuple(str(label).strip() for label in labels)


def _key(text: str) -> str:
    return " ".join(text.split()).casefold()
