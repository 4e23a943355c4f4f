"""Where data lies: a name becomes a file, a split of a folder, or a set of Youtu's database.

`rows` reads it. Nothing is ever written to the database: its table `data` holds the problems of
every data set, `evaluation_data` the tries of every experiment; which of them is meant stands
behind a colon: `test.db:AIME24`.
"""

import json
import os.path
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import quote

from engines.core.errors import DataError, suggest_name
from engines.data.folder import SUFFIXES, Splits, find_splits, stem_of, suffix_of

PRACTISED = ("train",)
"""Splits that are meant where a folder is practised on and none is named, best first."""
HELD_OUT = ("test", "validation", "valid", "val", "dev")
"""The same where it is evaluated on."""


@dataclass(frozen=True, slots=True)
class DataSource:
    """A file, or a folder and the split of it that is meant."""

    path: Path
    split: str | None = None  # None: a file, or a folder that holds one set without a name

    @property
    def name(self) -> str:
        """Of the file, without its extension, or of the folder."""
        return self.path.name if self.path.is_dir() else stem_of(self.path)

    @property
    def stem(self) -> str:
        """What to call the set; a split after its folder."""
        return self.name if self.split is None else f"{self.name}-{self.split}"

    def __str__(self) -> str:
        return str(self.path) if self.split is None else f"{self.path}:{self.split}"

    def files(self) -> tuple[Path, ...]:
        """The files that hold its rows, in order; more than one where it is in shards."""
        if not self.path.is_dir():
            return (self.path,)
        splits = find_splits(self.path)
        if self.split is not None and self.split not in splits:
            raise _no_split_error(self.path, self.split, splits)
        return splits[self.split or next(iter(splits))]


def resolve_data(name: str, roots: Sequence[Path], prefer: Sequence[str] = ()) -> DataSource:
    """Find what a data name means: a path, a bare name or NAME:SPLIT.

    A bare name stands for NAME.jsonl, .json, .csv, .parquet or a folder; a root may also be a
    database of samples, whose sets it may name. Where no split is named, the first of `prefer` is
    taken that a folder has.

    Raises DataError: no root has it, or the split is not there or not clear.
    """
    found = locate(name, roots)
    if not found.path.is_dir():
        if found.split is not None and not _has_parts(found.path):
            cause = f"{found.path} is one file and has no split {found.split}."
            raise DataError(f'data set "{name}"', cause, f'Leave ":{found.split}" out.')
        return found
    return DataSource(found.path, choose_split(found, prefer))


def _has_parts(file: Path) -> bool:
    """Whether it is a file of several sets, or of sheets."""
    return is_database(file) or file.suffix.lower() == ".xlsx"


def choose_split(found: DataSource, prefer: Sequence[str] = ()) -> str | None:
    """The split of a folder that is meant; raises DataError where it is not there or not clear."""
    splits = find_splits(found.path)
    if found.split is not None:
        if found.split not in splits:
            raise _no_split_error(found.path, found.split, splits)
        return found.split
    # A folder with one split is that split; "" is a set that save_to_disk wrote on its own.
    name = next(iter(splits)) if len(splits) == 1 else next((s for s in prefer if s in splits), "")
    if not name and "" not in splits:
        cause = f"It has the splits {', '.join(splits)}, and none is named."
        move = f"Name one: {found.path.name}:{next(iter(splits))}."
        raise DataError(str(found.path), cause, move)
    return name or None


def locate(name: str, roots: Sequence[Path]) -> DataSource:
    """`resolve_data` without choosing a split: the one written in the name, if any."""
    whole, cut, split = name.rpartition(":")
    # A colon may also be part of the name of a file.
    readings: list[tuple[str, str | None]] = [(name, None)]
    if cut and whole and split and "/" not in split:
        readings.append((whole, split))
    empty: Path | None = None
    for text, part in readings:
        given = Path(text).expanduser()
        if not given.name and text not in (".", "..", "/"):
            continue  # no name at all would mean every root as a whole
        for root in roots:
            if is_database(root):
                if part is None and text in list_sets(root):
                    return DataSource(root, text)
                continue
            for candidate in _candidate_paths(root, given, folder=text.endswith(os.sep)):
                # os.path says no where Path raises: names too long, loops of links.
                is_folder = os.path.isdir(candidate)
                if os.path.isfile(candidate) or (is_folder and _has_data(candidate)):
                    return DataSource(candidate, part)
                if is_folder and empty is None:
                    empty = candidate
    if len(readings) > 1 and whole.strip(os.sep):
        # A folder's splits are copied into the workspace as files called NAME-SPLIT.
        for root in roots:
            copies = (root / f"{whole}-{split}{suffix}" for suffix in SUFFIXES)
            if copy := next(filter(os.path.isfile, copies), None):
                return DataSource(copy)
    if empty is not None:
        find_splits(empty)  # says what it lacks
    raise _not_found_error(name, roots)


def list_sources(folder: Path) -> Iterator[DataSource]:
    """Every data set of a folder of data sets, by name; a split as one of its own.

    Of two with one name, the first is what the name means.
    """
    found = [f for f in folder.glob("*") if suffix_of(f) in SUFFIXES and f.is_file()]
    found.sort(key=lambda path: SUFFIXES.index(suffix_of(path)))
    found += [
        path
        for path in folder.glob("*")
        if path.is_dir() and _has_data(path) and not (path / "config.json").is_file()  # a model
    ]
    for source in sorted(map(DataSource, found), key=lambda source: source.name):
        try:
            splits = find_splits(source.path) if source.path.is_dir() else {"": ()}
        except DataError:
            splits = {"": ()}  # told where it is read
        yield from (DataSource(source.path, split or None) for split in splits)


def _candidate_paths(root: Path, given: Path, folder: bool) -> Iterator[Path]:
    """What a name may mean in a root, best first; only a folder where it ends in a slash."""
    exact = root / given
    if not folder:
        if os.path.isfile(exact):
            yield exact
        yield from (root / f"{given}{suffix}" for suffix in SUFFIXES)
    yield exact


def _has_data(folder: Path) -> bool:
    """Whether a folder is meant as data: others may share its name by chance."""
    try:
        return bool(find_splits(folder))
    except DataError as error:
        # Damaged data is data: the reader will say what is wrong with it.
        return "holds no data" not in error.cause


def _no_split_error(path: Path, split: str, splits: Splits) -> DataError:
    named = [name for name in splits if name]
    move = f"It has: {', '.join(named)}." if named else f'Leave ":{split}" out.'
    if nearest := get_close_matches(split, named, n=1, cutoff=0.5):
        move = f"Did you mean {path.name}:{nearest[0]}?"
    return DataError(str(path), f'It has no split "{split}".', move)


def _not_found_error(name: str, roots: Sequence[Path]) -> DataError:
    nearby = (path for root in roots for path in root.glob("*") if suffix_of(path) in SUFFIXES)
    names = sorted({stem_of(path) for path in nearby if path.exists()})
    move = "Give the path of a file or of a data set's folder."
    if names:
        move = suggest_name(Path(name).stem, names)
    searched = ", ".join(str(root) for root in roots) or "no folder"
    return DataError(f'data set "{name}"', f"It is not found. Searched: {searched}.", move)


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
