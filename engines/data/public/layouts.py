"""Public data sets: where each lies, what its rows look like, and how they become ours.

Owns the layouts and the order of rows; `cleaning` makes them ours. Fetching and writing is
`studio.data.prepare`'s.

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
from engines.data.fields import field_text
from engines.data.public import cleaning
from engines.data.rows import Row
from engines.data.source import DataSource


@dataclass(frozen=True, slots=True)
class Layout:
    """A data set as its authors publish it."""

    hub: str  # its repository on the Hugging Face hub, and below it configuration and split
    columns: tuple[str, ...]  # what it consists of; inside objects: a.b, inside lists: a[0].b
    clean: Callable[[str, Mapping[str, Any]], list[dict[str, Any]] | str]
    config: str | None = None
    split: str = "train"
    further: tuple[str, ...] = ()  # columns beside the common ones
    source: str = ""  # what the column `source` holds; "": the name
    once: bool = False  # a question that is repeated counts once
    gated: bool = False

    @property
    def read(self) -> frozenset[str]:
        """The columns that are looked at, whoever wrote them; others may be of gigabytes."""
        outer = (re.split(r"[.\[]", name)[0] for name in self.columns)
        return frozenset((*outer, *cleaning.QUESTION, *cleaning.ANSWER, *cleaning.OTHER_NAMES))

    @property
    def folders(self) -> tuple[str, ...]:
        """Where a copy of the hub has it: with the owner's folder, or without."""
        below = f"/{self.config}" if self.config else ""
        return tuple(f"{hub}{below}" for hub in (self.hub, self.hub.partition("/")[2]))


_DEEPMATH = ("question", "final_answer")
LAYOUTS: Mapping[str, Layout] = {
    "aime24": Layout("Maxwell-Jia/AIME_2024", ("ID", "Problem", "Solution", "Answer"),
                     cleaning.clean_contest, further=("solution",)),
    "aime25": Layout("yentinglin/aime_2025", ("id", "problem", "solution", "answer"),
                     cleaning.clean_contest, further=("solution",)),
    "dapo-math-17k": Layout("BytedTsinghua-SIA/DAPO-Math-17k",
                            ("prompt[0].content", "reward_model.ground_truth"),
                            cleaning.clean_dapo, once=True),
    "deepmath-103k": Layout("zwhe99/DeepMath-103K", (*_DEEPMATH, "difficulty", "topic"),
                            cleaning.clean_plain, further=("difficulty", "topic"),
                            source="mathhard"),
    "deepmath-103k-solutions": Layout(
        "zwhe99/DeepMath-103K",
        (*_DEEPMATH, "difficulty", "topic", "r1_solution_1", "r1_solution_2", "r1_solution_3"),
        cleaning.clean_solutions, further=("difficulty", "topic", "solution"), source="mathhard"),
    "nq": Layout("RUC-NLPIR/FlashRAG_datasets", ("id", "question", "golden_answers"),
                 cleaning.clean_nq, config="nq"),
    "webwalkerqa": Layout("callanwu/WebWalkerQA",
                          ("question", "answer", "root_url", "info.difficulty_level"),
                          cleaning.clean_webwalker, split="main",
                          further=("level", "root_url", "lang", "type", "domain")),
    "afm-web-rl": Layout("PersonalAILab/AFM-WebAgent-RL-Dataset",
                         ("extra_info.question", "extra_info.answer"), cleaning.clean_afm),
    "gsm8k": Layout("openai/gsm8k", ("question", "answer"), cleaning.clean_gsm8k, config="main",
                    further=("solution",)),
    "math500": Layout("HuggingFaceH4/MATH-500",
                      ("problem", "solution", "answer", "subject", "level", "unique_id"),
                      cleaning.clean_contest, split="test",
                      further=("solution", "subject", "level")),
    "gpqa": Layout("Idavidrein/gpqa",
                   ("Question", "Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2",
                    "Incorrect Answer 3", "Subdomain"), cleaning.clean_gpqa, config="gpqa_diamond",
                   further=("options", "answer_index", "subject"), gated=True),
    "mmlu": Layout("cais/mmlu", ("question", "subject", "choices", "answer"),
                   cleaning.clean_choices, config="all", split="test",
                   further=("options", "answer_index", "subject")),
}  # fmt: skip


@dataclass(slots=True)
class Cleaned:
    """What became of the rows of one data set so far."""

    name: str
    source: DataSource | str  # where they come from; a text is the place on the hub
    read: int = 0
    kept: int = 0
    left_out: dict[str, int] = field(default_factory=dict)

    def leave_out(self, why: str, n: int = 1) -> None:
        self.left_out[why] = self.left_out.get(why, 0) + n

    def rows(self, given: Iterable[Row]) -> Iterator[dict[str, Any]]:
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
                self.leave_out(found)
                continue
            for one in found:
                question = field_text(place, "question", one.pop("question") or "")
                result = one.pop("result")
                if not (question and result):
                    self.leave_out(cleaning.NO_ANSWER if question else cleaning.NO_QUESTION)
                elif question in answers:
                    same = answers[question] == result
                    self.leave_out("repeats" if same else "repeats with another answer")
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
    rows: Iterable[dict[str, Any]], ratio: Mapping[str, int], seed: int, limit: int | None = None
) -> list[dict[str, Any]]:
    """As many whole rounds of rows, at most `limit`, as there are with levels in this ratio.

    So the ratio holds in what is returned, and in each number of rounds from its beginning;
    within a level their order is drawn.
    """
    levels: dict[str, list[dict[str, Any]]] = {level: [] for level in ratio}
    for row in rows:
        if row["level"] not in levels:
            cause = f'Its level "{row["level"]}" is none of {", ".join(ratio)}.'
            raise DataError(f"row {row['extra_info']['idx'] + 1}", cause, cleaning.PUBLISHED_FORM)
        levels[row["level"]].append(row)
    random, ordered = Random(seed), list[dict[str, Any]]()
    for found in levels.values():
        random.shuffle(found)
    rounds = min(len(levels[level]) // times for level, times in ratio.items() if times)
    if limit is not None:
        rounds = min(rounds, limit // sum(ratio.values()))
    if not rounds:
        there = ", ".join(f"{len(found)} {level}" for level, found in levels.items())
        cause = f"There is no whole round of {':'.join(map(str, ratio.values()))} in {there}"
        cause += f" and {limit} rows." if limit is not None else "."
        raise DataError("--levels", cause, "Give a smaller ratio, or a larger --limit.")
    for _ in range(rounds):
        for level, times in ratio.items():
            ordered += [levels[level].pop() for _ in range(times)]
    return ordered
