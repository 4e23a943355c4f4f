"""What can be asked of all runs and libraries at once: `studio query`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tinydb import Query
from tinydb.queries import QueryInstance

from engines.core.errors import StudioError
from engines.record.derived import search_rows
from engines.record.derived.store import FOLDER, derive, journal_mark
from engines.record.run_dir import Workspace

NAME = f"{FOLDER}/rows.json"
Compare = Callable[[float], bool]


def condition(
    words: Sequence[str] = (),
    kind: str | None = None,
    id: str | None = None,
    problem: str | None = None,
    effect: Compare | None = None,
    since: float | None = None,
    until: float | None = None,
    **equals: str | None,
) -> QueryInstance:
    """The condition of a question; None asks for nothing.

    All words are meant, whatever their case; `until` is before that time, which a row without a
    time is not; `equals` are fields.
    """
    row = Query()
    match kind:
        case None:
            kinds: tuple[str, ...] = search_rows.KINDS
        case "operation":
            kinds = ("operation", "rejection")
        case _:
            kinds = (kind,)
    fits: QueryInstance = row.kind.one_of(kinds)
    asked = [word.casefold() for word in words]
    fits &= row.words.test(lambda text: all(word in text for word in asked))
    for name, value in equals.items():
        if value is not None:
            fits &= row[name] == value
    if id is not None:
        fits &= row.names.any([id])
    if problem is not None:
        fits &= row.problems.any([problem])
    if effect is not None:
        fits &= row.effect.test(lambda value: value is not None and effect(value))
    if since is not None:
        fits &= (row.at >= since) & (row.at > 0)
    if until is not None:
        fits &= (row.at < until) & (row.at > 0)
    return fits


def find_rows(workspace: Workspace, fits: QueryInstance) -> tuple[list[search_rows.Row], list[str]]:
    """Return the rows that fit, newest first, and why journals could not be asked."""
    hits: list[search_rows.Row] = []
    errors: list[str] = []
    runs = {run.run for run in workspace.runs()}
    libraries = (workspace.path / "libraries").glob("*/journal.jsonl")
    for journal in (*(run.journal for run in workspace.runs()), *libraries):
        try:
            rows = read_rows(journal)
        except (StudioError, ValueError, OSError) as error:
            errors.append(str(error))
            continue
        is_run = journal.parents[1] == workspace.runs_folder
        for row in rows:
            # A run that is here tells of its operations itself, and tells more.
            lasting = is_run or row["kind"] in ("experience", "version") or row["run"] not in runs
            if lasting and fits(row):
                hits.append(row)
    return sorted(hits, key=lambda row: (-row["at"], row["id"], row["library"])), sorted(errors)


def read_rows(journal: Path) -> list[search_rows.Row]:
    """Return all rows of a run or a library as its journal is now."""
    is_run = journal.parents[1].name == "runs"
    make = search_rows.run_rows if is_run else search_rows.library_rows
    rows: list[search_rows.Row] = derive(
        journal.parent / NAME, journal_mark(journal), lambda: make(journal)
    )
    return rows
