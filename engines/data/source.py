"""Where data lies: a name becomes a file, a split of a folder, or a set of Youtu's database.

`rows` reads it. A folder has splits as the Hugging Face tools leave them: `train.jsonl` beside
`test.jsonl`, shards such as `data/train-00000-of-00002.parquet`, a folder for each split, and what
`save_to_disk` writes; or it holds tasks in the Harbor layout. A task whose agent works in an image
of its own is refused: there is nothing here to run one in.

Nothing is ever written to the database: its table `data` holds the problems of every data set,
`evaluation_data` the tries of every experiment; which of them is meant stands behind a colon:
`test.db:AIME24`.

Source: "Structure your repository" and `Dataset.save_to_disk` in the documentation of
    Hugging Face datasets.
"""

import json
import os
import re
import sqlite3
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from engines.core.errors import DataError, suggest_name
from engines.core.frozen import frozen

PRACTISED = ("train",)
"""Splits that are meant where a folder is practised on and none is named, best first."""
HELD_OUT = ("test", "validation", "valid", "val", "dev")
"""The same where it is evaluated on."""
USUAL = (*PRACTISED, *HELD_OUT)
"""Names of splits that mark a folder as divided into them."""

_TEXTS, _PACKED = (".jsonl", ".json", ".csv"), (".gz", ".zst")
SUFFIXES = (*_TEXTS, ".parquet", ".xlsx", *(text + pack for text in _TEXTS for pack in _PACKED))
"""Of files that a bare name may mean, in the order in which they are tried."""
READABLE = (*SUFFIXES, ".tsv", ".ndjson", ".arrow")
Splits = dict[str, tuple[Path, ...]]
"""Name of a split → its files in order; the name is "" where the data has no splits."""
_ABOUT = {
    *("dataset_dict", "dataset_info", "dataset_infos", "state", "config", "croissant"),
    *("metadata", "package", "tokenizer_config", "generation_config", "adapter_config", "readme"),
}
"""Stems of files that tell of the data, or of a model that lies beside it."""
_SHARD = re.compile(r"(?P<split>.+?)-(?P<number>\d{5})-of-(?P<of>\d{5})(-[0-9a-f]+)?")
TASK_FILE = "task.toml"


@frozen
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
        """The name of the set; a split after its folder."""
        return self.name if self.split is None else f"{self.name}-{self.split}"

    def __str__(self) -> str:
        return str(self.path) if self.split is None else f"{self.path}:{self.split}"

    def files(self) -> tuple[Path, ...]:
        """The files that hold its rows, in order; more than one where it is in shards."""
        if not self.path.is_dir():
            return (self.path,)
        return find_splits(self.path)[choose_split(self) or ""]


def resolve_data(name: str, roots: Sequence[Path], prefer: Sequence[str] = ()) -> DataSource:
    """Find what a data name means: a path, a bare name or NAME:SPLIT.

    A bare name stands for NAME.jsonl, .json, .csv, .parquet or a folder; a root may also be a
    database of samples, whose sets it may name. Where no split is named, the first of `prefer` is
    taken that a folder has.

    Raises DataError: no root has it, or the split is not there or not clear.
    """
    source = locate(name, roots)
    if source.path.is_dir():
        return DataSource(source.path, choose_split(source, prefer))
    has_parts = is_database(source.path) or source.path.suffix.lower() == ".xlsx"
    if source.split is not None and not has_parts:
        raise DataError(
            f'data set "{name}"',
            f"{source.path} is one file and has no split {source.split}.",
            f'Leave ":{source.split}" out.',
        )
    return source


def choose_split(source: DataSource, prefer: Sequence[str] = ()) -> str | None:
    """The split of a folder that is meant; raises DataError where it is not there or not clear."""
    splits, place = find_splits(source.path), str(source.path)
    if not splits:
        raise DataError(
            place,
            "The folder holds no data.",
            f"Give one that has files such as train.jsonl ({', '.join(READABLE)}).",
        )
    if source.split is not None:
        if source.split not in splits:
            raise DataError(
                place,
                f'It has no split "{source.split}".',
                suggest_name(source.split, [name for name in splits if name]),
            )
        return source.split
    # A folder with one split is that split; "" is a set that save_to_disk wrote on its own.
    name = next((split for split in prefer if split in splits), next(iter(splits)))
    if len(splits) > 1 and name not in prefer:
        raise DataError(
            place,
            f"It has the splits {', '.join(splits)}, and none is named.",
            f"Name one: {source.path.name}:{name}.",
        )
    return name or None


def locate(name: str, roots: Sequence[Path]) -> DataSource:
    """`resolve_data` without choosing a split: the one written in the name, if any."""
    # A colon may also be part of the name of a file.
    readings: list[tuple[str, str | None]] = [(name, None)]
    whole, _, split = name.rpartition(":")
    if whole.strip("/") and split and "/" not in split:
        # A folder's splits are copied into the workspace as files called NAME-SPLIT.
        readings += [(whole, split), (f"{whole}-{split}", None)]
    for text, part in readings:
        given = Path(text).expanduser()
        if not given.name and text not in (".", "..", "/"):
            continue  # no name at all would mean every root as a whole
        for root in roots:
            if is_database(root):
                if part is None and text in list_sets(root):
                    return DataSource(root, text)
                continue
            exact = root / given
            files = [exact, *(root / f"{given}{suffix}" for suffix in SUFFIXES)]
            # os.path says no where Path raises: names too long, loops of links.
            file = next(filter(os.path.isfile, files), None)
            if file is not None and not text.endswith("/"):
                return DataSource(file, part)
            if os.path.isdir(exact) and ("/" in text or _has_data(exact)):
                return DataSource(exact, part)
    nearby = (path for root in roots for path in root.glob("*") if suffix_of(path) in SUFFIXES)
    names = sorted({stem_of(path) for path in nearby if path.exists()})
    move = "Give the path of a file or of a data set's folder."
    if names:
        move = suggest_name(Path(name).stem, names)
    searched = ", ".join(map(str, roots)) or "no folder"
    raise DataError(f'data set "{name}"', f"It is not found. Searched: {searched}.", move)


def list_sources(folder: Path) -> Iterator[DataSource]:
    """Every data set of a folder of data sets, by name; a split as one of its own.

    Of two with one name, the first is what the name means.
    """
    files = [f for f in folder.glob("*") if suffix_of(f) in SUFFIXES and f.is_file()]
    files.sort(key=lambda path: SUFFIXES.index(suffix_of(path)))
    folders = [
        path
        for path in folder.glob("*")
        if path.is_dir() and _has_data(path) and not (path / "config.json").is_file()  # a model
    ]
    for source in sorted(map(DataSource, [*files, *folders]), key=lambda source: source.name):
        splits: Splits = {}
        if source.path.is_dir():
            with suppress(DataError):  # told where it is read
                splits = find_splits(source.path)
        yield from (DataSource(source.path, split or None) for split in splits or ("",))


def _has_data(folder: Path) -> bool:
    """Tell if a folder is meant as data: others may share its name by chance."""
    try:
        return bool(find_splits(folder))
    except DataError:
        return True  # damaged data is data: the reader will say what is wrong with it


def unpacked_name(path: Path) -> str:
    """The name of a file without the suffix that tells how it is packed."""
    return path.stem if path.suffix.lower() in _PACKED else path.name


def stem_of(path: Path) -> str:
    return Path(unpacked_name(path)).stem


def suffix_of(path: Path) -> str:
    """The suffix of a file, with the one before it where it is packed: .jsonl.gz."""
    return path.name.removeprefix(stem_of(path))


def find_splits(folder: Path) -> Splits:
    """The splits of a folder, by name; none where it holds no data.

    Raises DataError: one is not whole, or has several files.
    """
    if tasks := find_tasks(folder):
        return {"": tasks}
    if (folder / "state.json").is_file():
        return {"": _check_shards(folder, "", _data_files(folder))}
    by_split: dict[str, list[Path]] = {}
    for path in (*_data_files(folder), *_data_files(folder / "data")):
        shard = _SHARD.fullmatch(stem_of(path))
        by_split.setdefault(shard["split"] if shard else stem_of(path), []).append(path)
    folders = [path for path in folder.glob("[!.]*") if path.is_dir() and path.name != "data"]
    below = {path.name: files for path in folders if (files := _data_files(path))}
    # Folders are splits where one has a usual name, or files that are splits lie beside them.
    is_divided = by_split or (folder / "dataset_dict.json").is_file()
    if not is_divided and below.keys().isdisjoint(USUAL):
        return {}
    splits = {name: _check_shards(folder, name, files) for name, files in by_split.items()}
    for name, files in below.items():
        if name in splits:
            raise DataError(
                str(folder), f"Several files are the split {name}.", "Keep one of them."
            )
        is_sharded = _SHARD.fullmatch(stem_of(files[0]))
        splits[name] = _check_shards(folder, name, files) if is_sharded else tuple(files)
    return dict(sorted(splits.items()))


def _data_files(folder: Path) -> list[Path]:
    """Return the data files of a folder, by name."""
    return [
        path
        for path in sorted(folder.glob("[!.]*"))
        if suffix_of(path) in READABLE
        and stem_of(path).lower() not in _ABOUT
        and not path.name.startswith("cache-")  # of `Dataset.map`
        and path.is_file()
    ]


def _check_shards(folder: Path, split: str, files: Sequence[Path]) -> tuple[Path, ...]:
    shards = [_SHARD.fullmatch(stem_of(path)) for path in files]
    numbers = [int(shard["number"]) if shard else 0 for shard in shards]
    of = max((int(shard["of"]) for shard in shards if shard), default=1)
    if numbers != list(range(of)):
        names = ", ".join(path.name for path in files) or "none"
        raise DataError(
            str(folder),
            f"Its split {split} should have {of} files, and has: {names}.",
            "Keep one of them, or fetch the missing ones.",
        )
    return tuple(files)


def find_tasks(folder: Path) -> tuple[Path, ...]:
    """The `task.toml` of a task folder, or of each inside a folder of them; () where is none."""
    if (folder / TASK_FILE).is_file():
        return (folder / TASK_FILE,)
    return tuple(sorted(folder.glob(f"*/{TASK_FILE}")))


def read_task(file: Path) -> dict[str, Any] | DataError:
    """A task as a row; an error where it needs an image, or a part of it is missing."""
    folder = file.parent.absolute()
    try:
        task = tomllib.loads(file.read_text("utf-8"))
        question = (folder / "instruction.md").read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        return DataError(str(file), f"The task cannot be read: {error}.", "Mend it.")
    environment = task.get("environment")
    image = isinstance(environment, dict) and environment.get("docker_image")
    if image or (folder / "environment" / "Dockerfile").exists():
        return DataError(
            str(file),
            f"The task needs the image {image or 'of environment/Dockerfile'}.",
            "Move it elsewhere: only tasks that run without an image can be practised.",
        )
    if not (folder / "tests" / "test.sh").is_file():
        return DataError(str(file), "The task has no tests/test.sh.", "Add its grader.")
    return {"question": question, "task": str(folder), "name": folder.name}


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
    sets: dict[str, str] = {}
    with closing(_connect(path)) as database:
        for table, column in _TABLES.items():
            if _columns(database, table):
                names = database.execute(f'SELECT DISTINCT "{column}" FROM "{table}" ORDER BY 1')
                for (name,) in names:
                    sets.setdefault(str(name), table)
    if not sets:
        raise DataError(
            str(path),
            "It holds no samples: the tables data and evaluation_data are empty or missing.",
            "Give the database that UTU_DB_URL names.",
        )
    return sets


def read_samples(path: Path, name: str | None) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Number, place and fields of every row of a set, in its order; a row uploaded twice is one.

    Raises DataError: the set is not there, or there are several and none is named.
    """
    sets = list_sets(path)
    if name is None:
        name, *others = sets
        if others:
            raise DataError(
                str(path),
                f"It holds several data sets: {', '.join(sets)}.",
                f"Name one: {path.name}:{name}.",
            )
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
