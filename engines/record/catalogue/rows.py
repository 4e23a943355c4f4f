"""Rows of runs, libraries, experiences and data sets in `catalogue.json`, for quick listing.

Rows tell which journal they were made from and are made again when it is another, so a lost or
stale catalogue costs a second, never a fact.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from tinydb import Query

from engines.core.codec import fields_of
from engines.core.errors import StudioError
from engines.core.library import Library
from engines.record.catalogue.storage import open_catalogue
from engines.record.run_dir import RunDir, Workspace
from engines.record.run_index import indexed_row, journal_mark, read_row
from engines.record.segments.files import journal_bytes

_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextmanager
def _unless_refused() -> Iterator[None]:
    """Another user may keep the catalogue of a workspace: rows are made again by who can."""
    try:
        yield
    except OSError as error:
        if error.errno not in _REFUSED:
            raise


def write_run_row(workspace: Workspace, run: RunDir) -> dict[str, Any]:
    """Write the row of a run from its journal, and return it."""
    made_from = journal_mark(run.journal)
    row = run_row(run)
    with _unless_refused(), open_catalogue(workspace) as database:
        database.table("runs").upsert({**row, "made_from": made_from}, Query().run == run.run)
    return row


def write_library_rows(workspace: Workspace, library: Library) -> None:
    """Write a library and its live experiences, one record each."""
    with _unless_refused(), open_catalogue(workspace) as database:
        database.table("libraries").upsert(
            {
                "library": library.name,
                "version": library.version,
                "experiences": len(library.experiences),
                "content_hash": library.content_hash,
            },
            Query().library == library.name,
        )
        table = database.table("experiences")
        table.remove(lambda row: row["library"] == library.name)  # a Query takes ten times as long
        table.insert_multiple(
            {
                "library": library.name,
                **fields_of(e, "id", "text", "born", "revised"),
                "run": e.history[-1].run if e.history else "",
                "operation": e.history[-1].operation_id if e.history else "",
                "reviewer": e.history[-1].reviewer if e.history else "",
                "evidence": list(e.history[-1].evidence) if e.history else [],
            }
            for e in library.experiences
        )


def write_dataset_row(workspace: Workspace, row: dict[str, Any]) -> list[str]:
    """Write it, and return the names of other data sets with the same content."""
    with open_catalogue(workspace) as database:
        table = database.table("datasets")
        table.upsert(row, Query().name == row["name"])
        digest = row.get("digest")
        same = [one["name"] for one in table if digest and one.get("digest") == digest]
    return [name for name in same if name != row["name"]]


MANY_JOURNALS = 20
"""So many are read in a few seconds; of more the user is told."""


def load_run_rows(
    workspace: Workspace, tell: Callable[[str], None] = lambda _: None
) -> list[dict[str, Any]]:
    """A row for every run, oldest first; rows of another journal or release are made again.

    Where nothing can be written, as in a copy to read from, every journal is read.
    """
    try:
        return _refresh_run_rows(workspace, tell)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        _tell_if_many(workspace.runs(), tell, "; this workspace cannot keep an index")
        return [run_row(run) for run in workspace.runs()]


def _tell_if_many(runs: Iterable[RunDir], tell: Callable[[str], None], kept: str) -> None:
    n = sum(indexed_row(run.journal) is None for run in runs)
    if n > MANY_JOURNALS:
        tell(f"reading {n} journals once{kept}")


def _refresh_run_rows(workspace: Workspace, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    with open_catalogue(workspace) as database:
        table = database.table("runs")
        runs = {run.run: (run, journal_mark(run.journal)) for run in workspace.runs()}
        rows = {row["run"]: dict(row) for row in table}
        known = {
            run for run, (_, mark) in runs.items() if rows.get(run, {}).get("made_from") == mark
        }
        stale = [run for run, _ in runs.values() if run.run not in known]
        _tell_if_many(stale, tell, "; an index is kept for next time")
        made = {run.run: {**run_row(run), "made_from": runs[run.run][1]} for run in stale}
        if changed := rows.keys() ^ known | made.keys():  # of removed runs, too
            table.remove(lambda row: row["run"] in changed)
            table.insert_multiple(made.values())
    return [told_row((rows | made)[run]) for run in runs]


def told_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A kept row as `run_row` makes it."""
    return {name: value for name, value in row.items() if name != "made_from"}


def rebuild(workspace: Workspace, datasets: Iterable[dict[str, Any]] = ()) -> None:
    """Make the catalogue anew from the journals and rows of the data sets.

    What is damaged is left out: it has no row until it is mended.
    """
    with open_catalogue(workspace) as database:
        database.drop_tables()
    for run in workspace.runs():
        with suppress(StudioError):
            write_run_row(workspace, run)
    for folder in workspace.libraries():
        with suppress(StudioError):
            write_library_rows(workspace, folder.head())
    for row in datasets:
        write_dataset_row(workspace, row)


def run_row(run: RunDir, *, anew: bool = False) -> dict[str, Any]:
    """What `runs list` shows of a run; `anew`: by its journal alone, and nothing is written."""
    size = journal_bytes(run.journal)
    row = read_row(run.journal, anew=anew)
    name = {"run": run.run, "exp_id": row["exp_id"] or run.run}  # its folder may be a copy
    return {**row, **name, "journal_bytes": size}
