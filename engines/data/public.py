"""Public data sets: where each lies, what its rows look like, and how they become ours.

Owns the layouts and their cleaning. Fetching and writing is `studio.data.prepare`'s.

Source: the rows of NQ and DeepMath are joined as AgentFlow's data script does it
    (arXiv:2510.05592), WebWalkerQA is ordered by level as Youtu-Agent's does (arXiv:2510.08191).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from engines.core.errors import DataError
from engines.data.choices import find_choices
from engines.data.fields import field_text, get_field
from engines.data.rows import Row as NumberedRow

Row = Mapping[str, Any]
Clean = Callable[[str, Row], list[dict[str, Any]] | str]
"""Place and row → question, result and further columns of each row it gives, or why it gives
none. Raises DataError: a field is missing, or holds something that is no text."""

_QUESTION = ("question", "Question", "problem", "Problem", "extra_info.question")
_ANSWER = ("final_answer", "answer", "Answer", "result")
_KEPT = ("difficulty", "topic", "subject")
_OTHER_NAMES = ("extra_info", "solution", "Info", "Root_Url", "options", "Options", "Choices")
_DAPO = re.compile(
    r"(?:Solve the following math problem step by step\.[^\n]*\n\n)?(.*?)"
    r'(?:\n\nRemember to put your answer on its own line after "Answer:"\.)?',
    re.DOTALL,
)
_AGAIN = "Give the data set as its authors publish it."
NO_QUESTION, NO_ANSWER = "without a question", "without an answer"


def _field(place: str, row: Row, *names: str) -> Any:
    """The value of the first of these fields that a row has."""
    for name in names:
        if name in row or get_field(row, name) is not None:
            return get_field(row, name)
    cause = f'"{names[0]}" is missing; the fields are: {", ".join(row) or "none"}.'
    raise DataError(place, cause, _AGAIN)


def join_answers(place: str, value: Any) -> str:
    """One answer or several as one text, joined by "; "; None and NaN are none."""
    value = value.tolist() if hasattr(value, "tolist") else value  # an array of numpy
    values = value if isinstance(value, list | tuple) else [value]
    given = (field_text(place, "answer", one) for one in values if one is not None and one == one)
    return "; ".join(text for text in given if text)


def _problem(place: str, row: Row, *answers: str) -> dict[str, Any]:
    answer = join_answers(place, _field(place, row, *(answers or _ANSWER)))
    kept: dict[str, Any] = {
        name: row[name] for name in ("difficulty", "topic", "subject") if name in row
    }
    kept |= {"level": str(row["level"])} if "level" in row else {}
    if solution := row.get("solution") or row.get("Solution"):
        kept["solution"] = solution
    return {"question": _field(place, row, *_QUESTION), "result": answer, **kept}


def _plain(place: str, row: Row) -> list[dict[str, Any]]:
    return [_problem(place, row)]


def _solutions(place: str, row: Row) -> list[dict[str, Any]] | str:
    found = _problem(place, row)
    solutions = [row[name] for name in row if name.startswith("r1_solution_") and row[name]]
    return [found | {"solution": one} for one in solutions] or "without a solution"


def _nq(place: str, row: Row) -> list[dict[str, Any]]:
    found = _problem(place, row, "golden_answers", *_ANSWER)
    question = str(found["question"] or "").strip()
    return [found | {"question": question + "?" * (question[-1:] not in ("", "?"))}]


def _dapo(place: str, row: Row) -> list[dict[str, Any]]:
    prompt = _field(place, row, "prompt")
    if isinstance(prompt, list):
        prompt = next((one.get("content") for one in prompt if isinstance(one, dict)), None)
    wrapped = _DAPO.fullmatch(field_text(place, "prompt", prompt or ""))
    unwrapped = {**row, "question": wrapped[1] if wrapped else ""}
    return [_problem(place, unwrapped, "reward_model.ground_truth")]


def _afm(place: str, row: Row) -> list[dict[str, Any]] | str:
    answer = _field(place, row, "extra_info.answer", *_ANSWER)
    if isinstance(answer, list) and len(answer) > 1:
        return "with several answers"
    return [_problem(place, {**row, "answer": answer}, "answer")]


def _webwalker(place: str, row: Row) -> list[dict[str, Any]]:
    info = _field(place, row, "info", "Info")
    level = _field(
        place, info if isinstance(info, dict) else {}, "difficulty_level", "Difficulty_Level"
    )
    about = {"level": str(level).lower(), "root_url": _field(place, row, "root_url", "Root_Url")}
    about |= {name: info[name] for name in ("lang", "type", "domain") if info.get(name)}
    return [_problem(place, row) | about]


def _gsm8k(place: str, row: Row) -> list[dict[str, Any]]:
    text = field_text(place, "answer", _field(place, row, "answer"))
    solution, mark, answer = text.rpartition("####")
    if not mark:
        raise DataError(place, '"answer" has no line "#### …".', _AGAIN)
    answer = answer.strip().replace(",", "")
    return [_problem(place, {**row, "answer": answer, "solution": solution.strip()})]


def _choices(place: str, row: Row) -> list[dict[str, Any]] | str:
    question = field_text(place, "question", _field(place, row, *_QUESTION) or "")
    found = find_choices(place, row, question)
    if found is None:
        _field(place, row, "choices", "Correct Answer")
        return "without options"
    letter = found.right or found.find_letter(place, "answer_index", _field(place, row, "answer"))
    options, subject = list(found.options.values()), row.get("subject") or row.get("Subdomain")
    place_of = list(found.options).index(letter) if letter else None
    return [{"question": question, "result": letter or "", "options": options,
             "answer_index": place_of, "subject": subject}]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layout:
    """A data set as its authors publish it."""

    hub: str  # its repository on the Hugging Face hub, and below it configuration and split
    rows: int  # there, as published
    columns: tuple[str, ...]  # what it consists of
    clean: Clean
    config: str | None = None
    split: str = "train"
    further: tuple[str, ...] = ()  # columns beside the common ones
    source: str = ""  # what the column `source` holds; "": the name
    once: bool = False  # a question that is repeated counts once
    gated: bool = False

    @property
    def read(self) -> frozenset[str]:
        """The columns that are looked at, whoever wrote them; others may be of gigabytes."""
        return frozenset((*self.columns, *_QUESTION, *_ANSWER, *_OTHER_NAMES))


_DEEPMATH = ("question", "Problem", "final_answer", "Answer")
LAYOUTS: Mapping[str, Layout] = {
    "aime24": Layout("Maxwell-Jia/AIME_2024", 30, ("ID", "Problem", "Solution", "Answer"), _plain,
                     further=("solution",)),
    "aime25": Layout("yentinglin/aime_2025", 30, ("id", "problem", "solution", "answer"), _plain,
                     further=("solution",)),
    "dapo-math-17k": Layout("BytedTsinghua-SIA/DAPO-Math-17k", 1_791_700,
                            ("prompt", "reward_model"), _dapo, once=True),
    "deepmath-103k": Layout("zwhe99/DeepMath-103K", 103_022, (*_DEEPMATH, "difficulty", "topic"),
                            _plain, further=("difficulty", "topic"), source="mathhard"),
    "deepmath-103k-solutions": Layout(
        "zwhe99/DeepMath-103K", 103_022,
        (*_DEEPMATH, "difficulty", "topic", "r1_solution_1", "r1_solution_2", "r1_solution_3"),
        _solutions, further=("difficulty", "topic", "solution"), source="mathhard"),
    "nq": Layout("RUC-NLPIR/FlashRAG_datasets", 79_168, ("id", "question", "golden_answers"), _nq,
                 config="nq"),
    "webwalkerqa": Layout("callanwu/WebWalkerQA", 680, ("question", "answer", "root_url", "info"),
                          _webwalker, split="main",
                          further=("level", "root_url", "lang", "type", "domain")),
    "afm-web-rl": Layout("PersonalAILab/AFM-WebAgent-RL-Dataset", 0, ("extra_info",), _afm),
    "gsm8k": Layout("openai/gsm8k", 7_473, ("question", "answer"), _gsm8k, config="main",
                    further=("solution",)),
    "math500": Layout("HuggingFaceH4/MATH-500", 500,
                      ("problem", "solution", "answer", "subject", "level", "unique_id"), _plain,
                      split="test", further=("solution", "subject", "level")),
    "gpqa": Layout("Idavidrein/gpqa", 198,
                   ("Question", "Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2",
                    "Incorrect Answer 3", "Subdomain"), _choices, config="gpqa_diamond",
                   further=("options", "answer_index", "subject"), gated=True),
    "mmlu": Layout("cais/mmlu", 14_042, ("question", "subject", "choices", "answer"), _choices,
                   config="all", split="test", further=("options", "answer_index", "subject")),
}  # fmt: skip


@dataclass(slots=True)
class Cleaned:
    """What became of the rows of one data set so far."""

    name: str
    source: str  # where they come from
    read: int = 0
    kept: int = 0
    left_out: dict[str, int] = field(default_factory=dict)

    def _leave_out(self, why: str) -> None:
        self.left_out[why] = self.left_out.get(why, 0) + 1

    def rows(self, given: Iterable[NumberedRow]) -> Iterator[dict[str, Any]]:
        """The rows in the common schema, without `id`; `idx` counts those of the source from 0.

        Raises DataError: a row is of another layout.
        """
        layout = LAYOUTS[self.name]
        answers: dict[str, str] = {}  # of the questions so far, where each counts once
        for index, (_, place, row) in enumerate(given):
            self.read += 1
            if isinstance(row, DataError):
                raise row
            found = layout.clean(place, row)
            if isinstance(found, str):
                self._leave_out(found)
                continue
            for one in found:
                question = field_text(place, "question", one.pop("question") or "")
                result = one.pop("result")
                if not (question and result):
                    self._leave_out(NO_ANSWER if question else NO_QUESTION)
                elif question in answers:
                    same = answers[question] == result
                    self._leave_out("repeats" if same else "repeats with another answer")
                else:
                    self.kept += 1
                    if layout.once:
                        answers[question] = result
                    about = {"ground_truth": result, "idx": index}
                    yield {"question": question, "chain": "", "result": result,
                           "source": layout.source or self.name, "extra_info": about,
                           **one}  # fmt: skip


def shuffled(rows: Sequence[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """The order in which the `datasets` library shuffles so many rows by a seed."""
    from numpy.random import default_rng

    return [rows[at] for at in default_rng(seed).permutation(len(rows)).tolist()]


def by_level(
    rows: Iterable[dict[str, Any]], ratio: Mapping[str, int], seed: int
) -> list[dict[str, Any]]:
    """Rows so that their levels come in this ratio as long as there are some of each.

    So each beginning of them has the ratio, too; within a level their order is drawn.
    """
    levels: dict[str, list[dict[str, Any]]] = {level: [] for level in ratio}
    for row in rows:
        if row["level"] not in levels:
            cause = f'Its level "{row["level"]}" is none of {", ".join(ratio)}.'
            raise DataError(f"row {row['extra_info']['idx'] + 1}", cause, _AGAIN)
        levels[row["level"]].append(row)
    random, ordered = Random(seed), list[dict[str, Any]]()
    for found in levels.values():
        random.shuffle(found)
    while any(found and ratio[level] for level, found in levels.items()):
        for level, times in ratio.items():
            ordered += [levels[level].pop() for _ in range(min(times, len(levels[level])))]
    return ordered
