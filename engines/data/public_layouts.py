"""Public data sets as their authors publish them: layouts, and rows as questions and results.

A cleaning function takes place and row, and gives question, result and further columns of each
row that comes of it, or why none does. It raises DataError where a field is missing, or holds
something that is no text. Fetching and writing is `studio.data.prepare`'s.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from engines.core.codec import JsonObject
from engines.core.errors import DataError
from engines.core.frozen import frozen
from engines.core.types import Names
from engines.data.fields import field_text, find_choices, get_field
from engines.data.rows import Row
from engines.data.source import DataSource

Published = JsonObject
QUESTION = ("question", "Question", "problem", "Problem", "extra_info.question")
ANSWER = ("final_answer", "answer", "Answer", "result")
OTHER_NAMES = ("extra_info", "solution", "Info", "Root_Url", "options", "Options", "choices")
_DAPO = re.compile(
    r"(?:Solve the following math problem step by step\.[^\n]*\n\n)?(.*?)"
    r'(?:\n\nRemember to put your answer on its own line after "Answer:"\.)?',
    re.DOTALL,
)
PUBLISHED_FORM = "Give the data set as its authors publish it."


def _field(place: str, row: Published, *names: str) -> Any:
    """The value of the first of these fields that a row has."""
    for name in names:
        if name in row or get_field(row, name) is not None:
            return get_field(row, name)
    raise DataError(
        place,
        f'"{names[0]}" is missing; the fields are: {", ".join(row) or "none"}.',
        PUBLISHED_FORM,
    )


def join_answers(place: str, value: Any) -> str:
    """One answer or several as one text, joined by "; "; None and NaN are none."""
    value = value.tolist() if hasattr(value, "tolist") else value  # an array of numpy
    values = value if isinstance(value, list | tuple) else [value]
    answers = [field_text(place, "answer", v) for v in values if v is not None and v == v]
    return "; ".join(filter(None, answers))


def _problem(place: str, row: Published, *answers: str) -> JsonObject:
    question = _field(place, row, *QUESTION)
    answer = join_answers(place, _field(place, row, *(answers or ANSWER)))
    if "\n#### " in answer:
        raise DataError(
            place,
            'The answer is a whole solution with a line "#### …", as GSM8K has them.',
            PUBLISHED_FORM,
        )
    names = ("difficulty", "topic", "subject", "level")
    about = {name: row[name] for name in names if name in row}
    if "level" in about:
        about["level"] = str(about["level"])
    if solution := row.get("solution") or row.get("Solution"):
        about["solution"] = solution
    return {"question": question, "result": answer, **about}


def clean_plain(place: str, row: Published) -> list[JsonObject]:
    return [_problem(place, row)]


def clean_solutions(place: str, row: Published) -> list[JsonObject] | str:
    solutions = [row[name] for name in row if name.startswith("r1_solution_") and row[name]]
    problem = _problem(place, row)
    return [problem | {"solution": text} for text in solutions] or "without a solution"


def clean_nq(place: str, row: Published) -> list[JsonObject]:
    problem = _problem(place, row, "golden_answers", "answer")
    question = str(problem["question"] or "").strip()
    return [problem | {"question": question + "?" * (question[-1:] not in ("", "?"))}]


def clean_dapo(place: str, row: Published) -> list[JsonObject]:
    prompt = _field(place, row, "prompt")
    if isinstance(prompt, list):
        prompt = next((turn.get("content") for turn in prompt if isinstance(turn, dict)), None)
    wrapped = _DAPO.fullmatch(field_text(place, "prompt", prompt or ""))
    unwrapped = {**row, "question": wrapped[1] if wrapped else ""}
    return [_problem(place, unwrapped, "reward_model.ground_truth")]


def clean_afm(place: str, row: Published) -> list[JsonObject] | str:
    answer = _field(place, row, "extra_info.answer")
    if isinstance(answer, list) and len(answer) > 1:
        return "with several answers"
    return [_problem(place, row, "extra_info.answer")]


def clean_webwalker(place: str, row: Published) -> list[JsonObject]:
    info = _field(place, row, "info", "Info")
    level = _field(place, info or {}, "difficulty_level", "Difficulty_Level")
    about = {"level": str(level).lower(), "root_url": _field(place, row, "root_url", "Root_Url")}
    about |= {name: info[name] for name in ("lang", "type", "domain") if info.get(name)}
    return [_problem(place, row) | about]


def clean_gsm8k(place: str, row: Published) -> list[JsonObject]:
    text = field_text(place, "answer", _field(place, row, "answer"))
    solution, mark, answer = text.rpartition("####")
    if not mark:
        raise DataError(place, '"answer" has no line "#### …".', PUBLISHED_FORM)
    answer = answer.strip().replace(",", "")
    return [_problem(place, {**row, "answer": answer, "solution": solution.strip()})]


def clean_choices(place: str, row: Published) -> list[JsonObject] | str:
    question = field_text(place, "question", _field(place, row, *QUESTION) or "")
    choices = find_choices(place, row, question)
    if choices is None:
        return "without options"
    answer = None if choices.right else _field(place, row, "answer")
    letter = choices.right or choices.find_letter(place, "answer", answer, is_label=True)
    problem = {
        "question": question,
        "result": letter or "",
        "options": list(choices.options.values()),
        "answer_index": list(choices.options).index(letter) if letter else None,
        "subject": row.get("subject") or row.get("Subdomain"),
    }
    return [problem]


@frozen
class Layout:
    """A data set as its authors publish it."""

    hub: str  # its repository on the Hugging Face hub, and below it configuration and split
    columns: Names  # what it consists of; inside objects: a.b, inside lists: a[0].b
    clean: Callable[[str, JsonObject], list[JsonObject] | str]
    config: str | None = None
    split: str = "train"
    further: Names = ()  # columns beside the common ones
    source: str = ""  # what the column `source` holds; "": the name
    once: bool = False  # a question that is repeated counts once
    gated: bool = False  # its terms have to be accepted

    @property
    def read(self) -> frozenset[str]:
        """The columns that are looked at, whoever wrote them; others may be of gigabytes."""
        outer = (re.split(r"[.\[]", name)[0] for name in self.columns)
        return frozenset((*outer, *QUESTION, *ANSWER, *OTHER_NAMES))

    @property
    def folders(self) -> Names:
        """Where a copy of the hub has it: with the owner's folder, or without."""
        below = f"/{self.config}" if self.config else ""
        return tuple(f"{hub}{below}" for hub in (self.hub, self.hub.partition("/")[2]))


_DEEPMATH = ("question", "final_answer")
LAYOUTS: Mapping[str, Layout] = {
    "aime24": Layout("Maxwell-Jia/AIME_2024", ("ID", "Problem", "Solution", "Answer"),
                     clean_plain, further=("solution",)),
    "aime25": Layout("yentinglin/aime_2025", ("id", "problem", "solution", "answer"),
                     clean_plain, further=("solution",)),
    "dapo-math-17k": Layout("BytedTsinghua-SIA/DAPO-Math-17k",
                            ("prompt[0].content", "reward_model.ground_truth"),
                            clean_dapo, once=True),
    "deepmath-103k": Layout("zwhe99/DeepMath-103K", (*_DEEPMATH, "difficulty", "topic"),
                            clean_plain, further=("difficulty", "topic"),
                            source="mathhard"),
    "deepmath-103k-solutions": Layout(
        "zwhe99/DeepMath-103K",
        (*_DEEPMATH, "difficulty", "topic", "r1_solution_1", "r1_solution_2", "r1_solution_3"),
        clean_solutions, further=("difficulty", "topic", "solution"), source="mathhard"),
    "nq": Layout("RUC-NLPIR/FlashRAG_datasets", ("id", "question", "golden_answers"),
                 clean_nq, config="nq"),
    "webwalkerqa": Layout("callanwu/WebWalkerQA",
                          ("question", "answer", "root_url", "info.difficulty_level"),
                          clean_webwalker, split="main",
                          further=("level", "root_url", "lang", "type", "domain")),
    "afm-web-rl": Layout("PersonalAILab/AFM-WebAgent-RL-Dataset",
                         ("extra_info.question", "extra_info.answer"), clean_afm),
    "gsm8k": Layout("openai/gsm8k", ("question", "answer"), clean_gsm8k, config="main",
                    further=("solution",)),
    "math500": Layout("HuggingFaceH4/MATH-500",
                      ("problem", "solution", "answer", "subject", "level", "unique_id"),
                      clean_plain, split="test",
                      further=("solution", "subject", "level")),
    "gpqa": Layout("Idavidrein/gpqa",
                   ("Question", "Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2",
                    "Incorrect Answer 3", "Subdomain"), clean_choices, config="gpqa_diamond",
                   further=("options", "answer_index", "subject"), gated=True),
    "mmlu": Layout("cais/mmlu", ("question", "subject", "choices", "answer"),
                   clean_choices, config="all", split="test",
                   further=("options", "answer_index", "subject")),
}  # fmt: skip


@dataclass(slots=True)
class Cleaned:
    """The part of a prepared data set that comes of one public one."""

    name: str
    source: DataSource | str  # where its rows come from; a text is the place on the hub
    read: int = 0
    kept: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def rows(self, published: Iterable[Row]) -> Iterator[JsonObject]:
        """The rows in the common schema, without `id`; `idx` counts those of the source from 0.

        Raises DataError: a row is of another layout.
        """
        layout = LAYOUTS[self.name]
        answers: dict[str, str] = {}  # of the questions so far, where each counts once
        for index, (_, place, row) in enumerate(published):
            self.read += 1
            if isinstance(row, DataError):
                raise row
            cleaned = layout.clean(place, row)
            if isinstance(cleaned, str):
                self.left_out[cleaned] += 1
                continue
            for problem in cleaned:
                question = field_text(place, "question", problem.pop("question") or "")
                result = problem.pop("result")
                if not (question and result):
                    self.left_out["without an answer" if question else "without a question"] += 1
                elif question in answers:
                    same = answers[question] == result
                    self.left_out["repeats" if same else "repeats with another answer"] += 1
                else:
                    self.kept += 1
                    if layout.once:
                        answers[question] = result
                    yield {
                        "question": question,
                        "chain": "",
                        "result": result,
                        "source": layout.source or self.name,
                        "extra_info": {"ground_truth": result, "idx": index},
                        **problem,
                    }


def shuffled(rows: Sequence[JsonObject], seed: int) -> list[JsonObject]:
    """The order in which the `datasets` library shuffles so many rows by a seed."""
    from numpy.random import default_rng

    return [rows[at] for at in default_rng(seed).permutation(len(rows)).tolist()]


def by_level(
    rows: Iterable[JsonObject], ratio: Mapping[str, int], seed: int, limit: int | None = None
) -> list[JsonObject]:
    """As many whole rounds of rows, at most `limit`, as there are with levels in this ratio.

    So the ratio holds in what is returned, and in each number of rounds from its beginning;
    within a level their order is drawn.
    """
    levels: dict[str, list[JsonObject]] = {level: [] for level in ratio}
    for row in rows:
        if row["level"] not in levels:
            raise DataError(
                f"row {row['extra_info']['idx'] + 1}",
                f'Its level "{row["level"]}" is none of {", ".join(ratio)}.',
                PUBLISHED_FORM,
            )
        levels[row["level"]].append(row)
    random, ordered = Random(seed), list[JsonObject]()
    for of_level in levels.values():
        random.shuffle(of_level)
    rounds = min(len(levels[level]) // times for level, times in ratio.items() if times)
    if limit is not None:
        rounds = min(rounds, limit // sum(ratio.values()))
    if not rounds:
        there = ", ".join(f"{len(of_level)} {level}" for level, of_level in levels.items())
        raise DataError(
            "--levels",
            f"There is no whole round of {':'.join(map(str, ratio.values()))} in {there}.",
            "Give a smaller ratio, or a larger --limit.",
        )
    for _ in range(rounds):
        for level, times in ratio.items():
            ordered += [levels[level].pop() for _ in range(times)]
    return ordered
