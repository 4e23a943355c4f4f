"""All that is told of data sets: those there are, what was added or prepared, what a check saw."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines.core.frozen import frozen
from engines.core.types import Names, Problem
from engines.data import dataset, rows
from studio.facts.subject import LIFTED, Subject


@frozen
class ListedData(Subject):
    """A data set one can name."""

    name: str
    n: int | None  # None: the file cannot be read, and `trouble` says why
    where: str  # "workspace", "bundled", or "hidden" behind one of the workspace
    path: str
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedData(Subject):
    """The result of adding a file."""

    name: str
    path: Path
    n: int
    without_answer: int
    new: bool  # False: it had been added before
    hides_bundled: bool
    contradictory: tuple[tuple[int, ...], ...]  # lines with one question and no answer in common
    unit: rows.Unit  # what they count
    with_tools: int = 0  # talks left out since they call tools


@frozen
class NumberedProblem(Subject):
    """A problem as practice would meet it."""

    line: int  # or row, from 1
    unit: rows.Unit
    problem: Problem = field(metadata=LIFTED)

    @property
    def accepted_answers(self) -> Names:
        return self.problem.accepted_answers

    @property
    def rewards(self) -> tuple[float | None, ...]:
        """Of recorded tries."""
        return tuple(dataset.recorded_rewards(self.problem) or ())


@frozen
class DataCheck(Subject):
    """The usual mistakes in a data set."""

    name: str
    path: str
    report: dataset.DataReport = field(metadata=LIFTED)

    @property
    def answered(self) -> int:
        return self.report.n - len(self.report.without_answer)

    @property
    def clean(self) -> bool:
        return self.report.is_clean and (bool(self.report.tries) or self.answered > 0)


@frozen
class PreparedPart(Subject):
    """One public source of a prepared data set."""

    name: str
    source: str
    read: int
    kept: int
    left_out: Mapping[str, int]  # why: how many


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedData(Subject):
    """A public data set that is, or would be, brought into the workspace."""

    name: str
    path: Path
    is_there: bool  # its file, before
    dry_run: bool
    n: int  # 0 of a dry run that reads no file
    new: bool
    digest: str
    seed: int
    parts: tuple[PreparedPart, ...]
    twins: Names  # other data sets of the workspace with the same rows
    hides_bundled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionImport(Subject):
    """Recorded sessions that became, or would become, a data set."""

    name: str
    format: str
    path: Path
    dry_run: bool
    written: bool  # False also where all of it is there already
    problems: int
    tries: int
    groups: int  # problems with several tries
    sessions: int
    subagents: int
    outcomes: Mapping[str, int]
    signals: Mapping[str, int]
    redacted: int
    private: int  # home folders and addresses
    dropped: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item(Subject):
    """One imported item as models would see it."""

    item: int  # its number, from 1
    of: int
    content: str  # hash of the content that a mark is for
    reviewed: bool  # marked by a person
    may_be_used: bool  # marked, or of data that needs no mark
    question: str
    answer: str
    tries: Sequence[Mapping[str, Any]]  # as recorded; `change` says whether the outcome fits

    @property
    def question_chars(self) -> int:
        return len(self.question)

    @property
    def sent_chars(self) -> int:
        """Of question and tries."""
        return self.question_chars + sum(len(str(one.get("response"))) for one in self.tries)
