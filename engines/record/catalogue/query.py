"""Questions to the catalogue: a TinyDB beside each journal, made from it when somebody asks.

Each holds the rows of `found` and says which journal they are of: where that has changed they are
made again. A journal that cannot be read has no rows; it is named beside what was found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from tinydb import Query, TinyDB
from tinydb.middlewares import CachingMiddleware
from tinydb.queries import QueryInstance
from tinydb.storages import MemoryStorage

from engines.core.codec import dumps
from engines.core.errors import StudioError
from engines.record.catalogue import found
from engines.record.catalogue.storage import AtomicStorage
from engines.record.run_dir import Workspace
from engines.record.run_index import journal_mark

NAME = "catalogue.json"
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
    row, asked = Query(), [word.casefold() for word in words]
    kinds = {None: found.KINDS, "operation": ("operation", "rejection")}.get(kind, (kind,))
    fits: QueryInstance = row.kind.one_of(kinds)
    fits &= row.words.test(lambda said: all(map(said.__contains__, asked)))
    for name, value in equals.items():
        fits = fits if value is None else fits & (row[name] == value)
    for name, value in (("names", id), ("problems", problem)):
        fits = fits if value is None else fits & row[name].any([value])
    if effect is not None:
        fits &= row.effect.test(lambda value: value is not None and effect(value))
    for time, is_in in ((since, row.at >= since), (until, row.at < until)):
        fits = fits if time is None else fits & is_in & (row.at > 0)
    return fits


def find_rows(workspace: Workspace, fits: QueryInstance) -> tuple[list[found.Row], list[str]]:
    """What is found, newest first, and why journals could not be asked."""
    hits, errors = list[found.Row](), list[str]()
    runs = {path.parent.name: path for path in workspace.runs_folder.glob("*/journal.jsonl")}
    for journal in (*runs.values(), *(workspace.path / "libraries").glob("*/journal.jsonl")):
        try:
            rows = _search(journal, fits)
        except (StudioError, ValueError, OSError) as error:
            errors.append(str(error))
            continue
        # A run that is here tells of its operations itself, and tells more.
        lasting = ("experience", "version")
        is_run = journal in runs.values()
        hits += (r for r in rows if is_run or r["kind"] in lasting or r["run"] not in runs)
    return sorted(hits, key=lambda row: (-row["at"], row["id"], row["library"])), sorted(errors)


def _search(journal: Path, fits: QueryInstance) -> list[found.Row]:
    """The rows of a journal as it is now, of which those are returned that fit.

    No lock is needed: what is written is the whole, and the same whoever writes it.
    """
    made_from, path = journal_mark(journal), journal.with_name(NAME)
    with suppress(OSError, AttributeError, KeyError, TypeError, ValueError):  # it is damaged
        database = TinyDB(path, storage=CachingMiddleware(AtomicStorage))  # type: ignore[no-untyped-call]
        if database.table("made_from").all() == [made_from]:
            return [dict(row) for row in database.table("rows").search(fits)]
    database = TinyDB(storage=MemoryStorage)
    database.table("made_from").insert(made_from)
    database.table("rows").insert_multiple(_make_rows(journal))
    with suppress(StudioError, OSError):  # where it cannot be written, it is made each time
        AtomicStorage(path).write(database.storage.read() or {})
    return [dict(row) for row in database.table("rows").search(fits)]


def is_wrong(journal: Path) -> bool:
    """Whether the rows beside a journal are damaged, or would be believed and are others."""
    data = AtomicStorage(journal.with_name(NAME)).read()
    if data is not None and data.get("made_from") != {"1": journal_mark(journal)}:
        return False  # nobody believes them
    return data is None or dumps([*data.get("rows", {}).values()]) != dumps(_make_rows(journal))


def _make_rows(journal: Path) -> list[found.Row]:
    is_run = journal.parents[1].name == "runs"
    return found.run_rows(journal) if is_run else found.library_rows(journal)
