"""Rows with options: MMLU, ARC, GPQA and their like as a question with lettered options.

Whatever its labels were, an option gets a letter, and the answer is that letter.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

from engines.core.codec import digest
from engines.core.errors import DataError

LABELS = ("answerKey", "answer_index", "answer_idx")
"""Fields that hold the label of the answer, which no text of an option can be."""
_FIELDS = ("options", "choices", "Options", "Choices")
_RIGHT = ("Correct Answer", "correct_answer")
_WRONG = re.compile(r"(?:incorrect[ _]answer|distractor)[ _]?\d", re.IGNORECASE)
_OWN_LABEL = re.compile(r"\(?([A-Z])[).:]\s*")
_LETTER = re.compile(r"\(?([A-Za-z])[).:]{0,2}")


@dataclass(frozen=True, slots=True)
class Choices:
    options: Mapping[str, str]  # letter and text
    labels: tuple[str, ...]  # as the row has them; without any: ()
    fields: tuple[str, ...]  # of the row, that hold the options
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
        cause = f'"{field}" is {text[:40]!r}, which {which} the {len(letters)} options.'
        raise DataError(place, cause, "Write the letter of the right option, A for the first.")


def find_choices(place: str, row: Mapping[str, Any], question: str) -> Choices | None:
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
        cause = f'"{twin}" says what "{right}" says, so two options would be right.'
        raise DataError(place, cause, "Correct one of them, or take the row out.")
    order = sorted(written, key=lambda name: digest([question, str(row[name])], 16))
    options = _letter([row[name] for name in order])
    letter = ascii_uppercase[order.index(right)]
    return Choices(options, (), (right, *wrong), letter) if wrong else None


def _letter(texts: Sequence[Any]) -> dict[str, str]:
    return {letter: str(text).strip() for letter, text in zip(ascii_uppercase, texts, strict=False)}


def _read_listed(value: Any) -> tuple[list[str], tuple[str, ...]]:
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
