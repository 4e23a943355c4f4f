"""Questions to the catalogue: a TinyDB beside each journal, made from it when somebody asks.

Each holds the rows of `found` and says which journal they are of: where that has changed they are
made again. A journal that cannot be read has no rows; it is named beside what was found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tinydb import Query, TinyDB
from tinydb.middlewares import CachingMiddleware
from tinydb.queries import QueryInstance
from tinydb.storages import MemoryStorage

from engines.core.codec import dumps
from engines.core.errors import StudioError
from engines.core.ids import digest_bytes
from engines.record.catalogue import found
from engines.record.catalogue.storage import AtomicStorage
from engines.record.run_dir import Workspace
from engines.record.run_index import code_digest

Compare = Callable[[float], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is asked for; what is left as it is asks for nothing."""

    words: Sequence[str] = ()  # all of them, whatever their case
    kind: str | None = None
    id: str | None = None
    reviewer: str | None = None
    problem: str | None = None
    run: str | None = None
    library: str | None = None
    verdict: str | None = None
    effect: Compare | None = None
    since: float | None = None
    until: float | None = None  # before this

    def condition(self) -> QueryInstance:
        row = Query()
        kinds = {None: found.KINDS, "operation": ("operation", "rejection")}
        conditions: list[QueryInstance] = [row.kind.one_of(kinds.get(self.kind, (self.kind,)))]
        for name in ("reviewer", "run", "library", "verdict"):
            if (value := getattr(self, name)) is not None:
                conditions.append(row[name] == value)
        if self.id is not None:
            conditions.append(row.names.any([self.id]))
        if self.problem is not None:
            conditions.append(row.problems.any([self.problem]))
        if (effect := self.effect) is not None:
            conditions.append(row.effect.test(lambda value: value is not None and effect(value)))
        if self.since is not None:
            conditions.append(row.at >= self.since)
        if self.until is not None:
            conditions.append(row.at < self.until)
        if asked := [word.casefold() for word in self.words]:
            conditions.append(row.words.test(lambda said: all(word in said for word in asked)))
        whole = conditions[0]
        for one in conditions[1:]:
            whole &= one
        return whole


def find_rows(workspace: Workspace, wanted: Wanted) -> tuple[list[found.Row], list[str]]:
    """What is found, newest first, and why journals could not be asked."""
    hits, errors = list[found.Row](), list[str]()
    runs = sorted(workspace.runs_folder.glob("*/journal.jsonl"))
    libraries = sorted((workspace.path / "libraries").glob("*/journal.jsonl"))
    # A run that is here tells of its operations itself, and tells more.
    told = {path.parent.name for path in runs}
    for path in (*runs, *libraries):
        is_run, name = path.parents[1] == workspace.runs_folder, path.parent.name
        if (wanted.run if is_run else wanted.library) not in (None, name):
            continue
        try:
            rows = _search(path, found.run_rows if is_run else found.library_rows, wanted)
        except (StudioError, ValueError, OSError) as error:
            errors.append(str(error))
            continue
        lasting = ("experience", "version")
        hits += (r for r in rows if is_run or r["kind"] in lasting or r["run"] not in told)
    hits.sort(key=lambda row: row["at"], reverse=True)
    return hits, errors


def _search(
    journal: Path, make_rows: Callable[[Path], list[found.Row]], wanted: Wanted
) -> list[found.Row]:
    """The rows of a journal as it is now, of which those are returned that fit.

    No lock is needed: what is written is the whole, and the same whoever writes it.
    """
    made_from, path, condition = _made_from(journal), rows_path(journal), wanted.condition()
    with suppress(OSError, AttributeError, KeyError, TypeError, ValueError):  # it is damaged
        database = TinyDB(path, storage=CachingMiddleware(AtomicStorage))  # type: ignore[no-untyped-call]
        if database.table("made_from").all() == [made_from]:
            return [dict(row) for row in database.table("rows").search(condition)]
    database = TinyDB(storage=MemoryStorage)
    database.table("made_from").insert(made_from)
    database.table("rows").insert_multiple(make_rows(journal))
    with suppress(StudioError, OSError):  # where it cannot be written, it is made each time
        AtomicStorage(path).write(database.storage.read() or {})
    return [dict(row) for row in database.table("rows").search(condition)]


def rows_path(journal: Path) -> Path:
    return journal.with_name("catalogue.json")


def rows_trouble(journal: Path, *, is_run: bool) -> str:
    """What is wrong with the rows of a journal that whoever asks would believe, or ""."""
    if not rows_path(journal).exists():
        return ""
    if (data := AtomicStorage(rows_path(journal)).read()) is None:
        return "it is damaged."
    if data.get("made_from") != {"1": _made_from(journal)}:
        return ""  # nobody believes it
    make_rows = found.run_rows if is_run else found.library_rows
    is_right = dumps([*data.get("rows", {}).values()]) == dumps(make_rows(journal))
    return "" if is_right else "it does not say what the journal does."


def _made_from(journal: Path) -> dict[str, Any]:
    at = journal.stat()
    return {"bytes": at.st_size, "changed_ns": at.st_ctime_ns, "code": _code()}


@cache
def _code() -> str:
    return digest_bytes(Path(found.__file__).read_bytes() + code_digest().encode())
