"""Youtu-Agent's SQLite database of samples, read as data; nothing is ever written to it.

Its table `data` holds the problems of every data set, `evaluation_data` the tries of every
experiment. Which of them is meant stands behind a colon: `test.db:AIME24`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from engines.core.errors import DataError, suggest_name

_HEAD = b"SQLite format 3\0"
_TABLES = {"data": "dataset", "evaluation_data": "exp_id"}
"""Table → the column that names the set, in the order in which a name is looked up."""
_UNUSED = {"id", "created_at", "updated_at", "exp_id"}
_OURS = {"raw_question": "question", "correct_answer": "answer"}


def is_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_HEAD)) == _HEAD
    except (OSError, ValueError):  # a folder, or a name that no file can have
        return False


def list_sets(path: Path) -> dict[str, str]:
    """Name → table of every set. Raises DataError: it cannot be read, or has no such table."""
    found: dict[str, str] = {}
    with closing(_connect(path)) as database:
        for table, column in _TABLES.items():
            if _columns(database, table):
                names = database.execute(f'SELECT DISTINCT "{column}" FROM "{table}" ORDER BY 1')
                for (name,) in names:
                    found.setdefault(str(name), table)
    if not found:
        cause = "It holds no samples: the tables data and evaluation_data are empty or missing."
        raise DataError(str(path), cause, "Give the database that UTU_DB_URL names.")
    return found


def read_samples(path: Path, name: str | None) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Number, place and fields of every row of a set, in its order; a row uploaded twice is one.

    Raises DataError: the set is not there, or there are several and none is named.
    """
    sets = list_sets(path)
    if name is None and len(sets) > 1:
        first = next(iter(sets))
        cause = f"It holds several data sets: {', '.join(sets)}."
        raise DataError(str(path), cause, f"Name one: {path.name}:{first}.")
    name = next(iter(sets)) if name is None else name
    if name not in sets:
        raise DataError(str(path), f'It holds no data set "{name}".', suggest_name(name, sets))
    table = sets[name]
    with closing(_connect(path)) as database:
        columns = [column for column in _columns(database, table) if column not in _UNUSED]
        chosen = ", ".join(f'"{column}"' for column in columns)
        order = "index" if table == "data" else "dataset_index"
        rows = database.execute(
            f'SELECT {chosen} FROM "{table}" WHERE "{_TABLES[table]}" = ? '
            f'GROUP BY {chosen if table == "data" else "id"} ORDER BY "{order}", MIN(id)',
            (name,),
        ).fetchall()
    for number, row in enumerate(rows, start=1):
        fields = {_OURS.get(c, c): v for c, v in zip(columns, row, strict=True)}
        if meta := fields.get("meta"):
            fields["meta"] = json.loads(meta)
        # Without what its defaults fill in.
        kept = {key: v for key, v in fields.items() if v not in (None, "") or key == "question"}
        yield number, f"{path}:{name}, row {number}", kept


def _columns(database: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]


def _connect(path: Path) -> sqlite3.Connection:
    # Without a log beside it no other process is writing, and then nothing need be locked, or
    # made beside the file: it may lie where we must not write.
    live = any(Path(f"{path}{log}").exists() for log in ("-wal", "-journal"))
    address = f"file:{quote(str(path.absolute()))}?mode=ro{'' if live else '&immutable=1'}"
    try:
        database = sqlite3.connect(address, uri=True)
        database.execute("SELECT name FROM sqlite_master LIMIT 1")
    except sqlite3.Error as error:
        raise DataError(
            str(path), f"It cannot be read as a SQLite database ({error}).", "Check the file."
        ) from error
    return database
