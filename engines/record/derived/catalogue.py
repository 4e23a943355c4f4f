"""`catalogue.json`: a TinyDB of runs, libraries, live experiences and data sets, to be queried.

Each row of a run or library tells which journal it was made from and is made again when it is
another. So a lost, damaged or old catalogue costs a second, never a fact.
"""

import errno
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock
from tinydb import Query, TinyDB
from tinydb.middlewares import CachingMiddleware
from tinydb.storages import Storage

from engines.core.codec import dumps, fields_of
from engines.core.errors import RecordError, StudioError
from engines.core.library import Library
from engines.record.appender import make_folder, write_atomic
from engines.record.derived.run_state import read_run
from engines.record.derived.store import journal_mark
from engines.record.run_dir import RunDir, Workspace
from engines.record.seal import add_seal, read_sealed
from engines.record.segments import journal_bytes

_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
MANY_JOURNALS = 20
"""So many are read in a few seconds; of more the user is told."""


class AtomicStorage(Storage):
    """TinyDB storage that replaces its file whole: TinyDB's own writes in place and tears."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, dict[str, Any]] | None:
        return read_sealed(self._path)

    def write(self, data: dict[str, dict[str, Any]]) -> None:
        write_atomic(self._path, add_seal(dumps(data)))


@contextmanager
def open_catalogue(workspace: Workspace) -> Iterator[TinyDB]:
    """The open catalogue, under a lock that keeps two writers apart."""
    make_folder(workspace.path)
    with FileLock(workspace.path / ".catalogue.lock", mode=0o600):
        for stale in workspace.path.glob(".catalogue.json.*.tmp"):
            stale.unlink(missing_ok=True)
        # Read once and written once, however much is changed in between.
        database = TinyDB(workspace.catalogue, storage=CachingMiddleware(AtomicStorage))  # type: ignore[no-untyped-call]
        try:
            yield database
        finally:
            database.close()


def _put_library(database: TinyDB, workspace: Workspace, library: Library) -> None:
    database.table("libraries").upsert(
        {
            "library": library.name,
            "version": library.version,
            "experiences": len(library.experiences),
            "content_hash": library.content_hash,
            "made_from": journal_mark(workspace.library(library.name).journal_path),
        },
        Query().library == library.name,
    )
    table = database.table("experiences")
    table.remove(lambda row: row["library"] == library.name)  # a Query takes ten times as long
    for experience in library.experiences:
        row = {"library": library.name, **fields_of(experience, "id", "text", "born", "revised")}
        row |= {"run": "", "operation": "", "reviewer": "", "evidence": []}
        if experience.history:
            last = experience.history[-1]
            row |= {"run": last.run, "operation": last.operation_id}
            row |= {"reviewer": last.reviewer, "evidence": list(last.evidence)}
        table.insert(row)


def write_dataset_row(workspace: Workspace, row: dict[str, Any]) -> list[str]:
    """Write it, and return the names of other data sets with the same content."""
    with open_catalogue(workspace) as database:
        table = database.table("datasets")
        table.upsert(row, Query().name == row["name"])
        digest = row.get("digest")
        same = [other["name"] for other in table if digest and other.get("digest") == digest]
    return [name for name in same if name != row["name"]]


def refresh_catalogue(
    workspace: Workspace, tell: Callable[[str], None] = lambda _: None
) -> list[dict[str, Any]]:
    """Make the catalogue say what the journals do; returns a row for every run, oldest first.

    The row of a run whose journal is damaged has an "error". Where the catalogue cannot be written,
    as that of another user, every journal is read.
    """
    runs = workspace.runs()
    try:
        return _refresh(workspace, runs, tell)
    except RecordError:
        return [_row_or_error(run) for run in runs]
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        return [_row_or_error(run) for run in runs]


def _refresh(
    workspace: Workspace, runs: Iterable[RunDir], tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    with open_catalogue(workspace) as database:
        table = database.table("runs")
        before = {row["run"]: dict(row) for row in table}
        rows: dict[str, dict[str, Any]] = {}
        stale: list[tuple[RunDir, dict[str, Any]]] = []
        for run in runs:
            rows[run.run] = before.get(run.run, {})
            try:
                mark = journal_mark(run.journal)
            except StudioError as error:
                rows[run.run] = _damaged_row(run, error)
                continue
            if rows[run.run].get("made_from") != mark:
                stale.append((run, mark))
        if len(stale) > MANY_JOURNALS:
            tell(f"reading {len(stale)} journals once; an index is kept for next time")
        for run, mark in stale:
            rows[run.run] = {**_row_or_error(run), "made_from": mark}
        whole = {name: row for name, row in rows.items() if "error" not in row}
        if whole != before:  # of removed runs, too
            table.truncate()
            table.insert_multiple(whole.values())
        _refresh_libraries(database, workspace)
    for row in rows.values():
        row.pop("made_from", None)
    return [*rows.values()]


def _refresh_libraries(database: TinyDB, workspace: Workspace) -> None:
    marks = {row["library"]: row["made_from"] for row in database.table("libraries")}
    folders = {folder.name: folder for folder in workspace.libraries()}
    for gone in marks.keys() - folders.keys():
        for table in ("libraries", "experiences"):
            database.table(table).remove(Query().library == gone)
    for name, folder in folders.items():
        with suppress(StudioError):  # a damaged one has no row until it is repaired
            if marks.get(name) != journal_mark(folder.journal_path):
                _put_library(database, workspace, folder.head())


def run_row(run: RunDir, *, anew: bool = False) -> dict[str, Any]:
    """What `runs list` shows of a run; `anew`: by its journal alone, and nothing is written."""
    row = read_run(run.journal, anew=anew).row
    name = {"run": run.run, "exp_id": row["exp_id"] or run.run}  # its folder may be a copy
    return {**row, **name, "journal_bytes": journal_bytes(run.journal)}


def _row_or_error(run: RunDir) -> dict[str, Any]:
    try:
        return run_row(run)
    except StudioError as error:
        return _damaged_row(run, error)


def _damaged_row(run: RunDir, error: StudioError) -> dict[str, Any]:
    counts = ("epoch", "epochs", "steps", "version", "open", "tokens", "losses")
    return {
        **dict.fromkeys(counts, 0),
        "run": run.run,
        "exp_id": run.run,
        "status": "damaged",
        "library": "",
        "rewards": {},
        "curve": {"of": "reward", "points": []},
        "rehearsal": False,
        "error": str(error),
    }
