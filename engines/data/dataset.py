"""Data sets: files and folders read into problems, every bad row told at once."""

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from engines.core.errors import DataError, suggest_name
from engines.core.types import Problem
from engines.data.checks import DataReport, Numbered, check_rows, is_unreviewed, unreviewed_error
from engines.data.fields import BlankQuestion, field_names, find_images, get_field, parse_problem
from engines.data.rollout_log import LogCounts, drop_replies
from engines.data.rows import Unit, open_table
from engines.data.source import DataSource

SHOWN_LINES = 12
"""Of the bad rows of a file, beside the first."""


def read_problems(
    source: DataSource | Path,
    *,
    fields: Mapping[str, str] | None = None,
    needs_answer: bool = True,
    limit: int | None = None,
) -> tuple[Problem, ...]:
    """Read a data set, in the order of the file.

    `fields` is {"question": NAME, "answer": NAME} where the data has other names; a dot looks
    inside an object ("extra_info.ground_truth"). With `needs_answer` False problems without a
    truth pass, with answer None.

    Texts lose surrounding white space. A number becomes its shortest decimal text, and a whole
    float loses its ".0" (18.0 → "18": the same number, as spreadsheets write it); true becomes
    "true". A list of answers, or answers of source `nq` joined by "; ", give their first as
    answer and all of them as meta["alternatives"]. A log with several rows for a question gives
    it once, without the replies (`rollout_log` says when a file is one).

    Raises DataError: with file and line or row; also for a file without any problem, and for an
    imported item that nobody has reviewed, since what is read here may be sent to a model.
    """
    read = _read(source, fields, needs_answer, limit)
    if read.unreviewed:
        path = source.path if isinstance(source, DataSource) else source
        raise unreviewed_error(str(path), path.stem, read.unreviewed, read.unit)
    return tuple(problem for _, problem in read.all_or_raise(source, limit))


def read_numbered_problems(
    source: DataSource | Path,
    *,
    fields: Mapping[str, str] | None = None,
    needs_answer: bool = True,
    limit: int | None = None,
) -> tuple[Numbered, ...]:
    """`read_problems`, each problem with its line, or its row where there are no lines.

    It is for looking at: what nobody has reviewed is read too.
    """
    return _read(source, fields, needs_answer, limit).all_or_raise(source, limit)


def check_dataset(
    source: DataSource | Path, *, fields: Mapping[str, str] | None = None
) -> DataReport:
    """Look for what usually is a mistake; raises DataError where a row cannot be read at all."""
    read = _read(source, fields, False, None)
    numbered = replace(read, blank=()).all_or_raise(source, None)
    empty = [number for number, _ in read.blank]
    return check_rows(numbered, empty=empty, unit=read.unit, logged=read.logged)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Rows make no circles; looking for some among 182,190 took a third of the reading."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@dataclass(frozen=True, slots=True)
class _ReadResult:
    unit: Unit
    found: tuple[Numbered, ...]
    bad: tuple[tuple[int, DataError], ...]
    blank: tuple[tuple[int, DataError], ...]  # rows with a question in which nothing stands
    logged: LogCounts
    unreviewed: tuple[int, ...]

    def all_or_raise(self, source: DataSource | Path, limit: int | None) -> tuple[Numbered, ...]:
        """The problems, if every row is one."""
        if self.bad or self.blank:
            raise combine_errors(sorted((*self.bad, *self.blank), key=lambda b: b[0]), self.unit)
        if not self.found and limit != 0:
            cause, move = "The file holds no problem.", "Add one problem a line or row."
            raise DataError(str(source), cause, move)
        return self.found


@_without_collector()
def _read(
    source: DataSource | Path,
    fields: Mapping[str, str] | None,
    needs_answer: bool,
    limit: int | None,
) -> _ReadResult:
    named = source if isinstance(source, DataSource) else DataSource(source)
    names = field_names(str(source), fields or {})
    table = open_table(named)
    found: list[Numbered] = []
    bad: list[tuple[int, DataError]] = []
    blank: list[tuple[int, DataError]] = []
    unreviewed: list[int] = []
    replied = False
    columns: dict[str, None] = {}
    unseen = dict(fields or {})
    name, folder = named.name, named.path.parent
    for number, place, row in table.rows:
        past = limit is not None and len(found) >= limit
        if past and not replied and not unseen:
            break  # else all rows are looked at, since together they tell whether it is a log
        if unseen and isinstance(row, dict):
            columns |= dict.fromkeys(row)
            for of, meant in tuple(unseen.items()):
                if meant in row or get_field(row, meant) is not None:
                    del unseen[of]
        try:
            if isinstance(row, DataError):
                raise row
            if is_unreviewed(row):
                unreviewed.append(number)
            problem = parse_problem(place, row, names, needs_answer, name)
            problem = find_images(place, problem, folder)
        except DataError as error:
            if not past:
                (blank if isinstance(error, BlankQuestion) else bad).append((number, error))
            continue
        found.append((number, problem))
        replied = replied or not names.replies.isdisjoint(problem.meta)
    if unseen and columns:
        of, meant = next(iter(unseen.items()))
        cause = f'No row has a field "{meant}", which is named as the {of}.'
        raise DataError(str(named), cause, suggest_name(meant, columns))
    problems, logged = drop_replies(found, names)
    numbered = _number_repeats(problems[:limit])
    marks = tuple(unreviewed)
    return _ReadResult(table.unit, numbered, tuple(bad), tuple(blank), logged, marks)


def _number_repeats(problems: Sequence[Numbered]) -> tuple[Numbered, ...]:
    """The same with the nth repeat of a content numbered in its id."""
    if len({problem.id for _, problem in problems}) == len(problems):
        return tuple(problems)
    seen: dict[str, int] = {}
    numbered = []
    for number, problem in problems:
        nth = seen[problem.id] = seen.get(problem.id, 0) + 1
        if nth > 1:
            problem = replace(problem, id=f"{problem.id}#{nth}")
        numbered.append((number, problem))
    return tuple(numbered)


def combine_errors(bad: Sequence[tuple[int, DataError]], unit: Unit) -> DataError:
    """The first bad row in full and the numbers of the others, so that one round mends all."""
    (_, first), *others = bad
    if not others:
        return first
    shown = ", ".join(str(number) for number, _ in others[:SHOWN_LINES])
    more = ", …" if len(others) > SHOWN_LINES else ""
    cause = f"{first.cause} ({len(others)} more cannot be used: {unit} {shown}{more}.)"
    return DataError(first.place, cause, first.move)
