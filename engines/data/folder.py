"""A folder as data: splits as the Hugging Face tools leave them, and tasks in the Harbor layout.

There may be `train.jsonl` beside `test.jsonl`, shards such as `data/train-00000-of-00002.parquet`,
a folder for each split, and what `save_to_disk` writes (`dataset_dict.json`, `state.json`,
`.arrow` files). A task of Harbor is `task.toml`, `instruction.md` and `tests/test.sh`; one whose
agent works in an image of its own is refused: there is nothing here to run one in.

Source: "Structure your repository" and `Dataset.save_to_disk` in the documentation of
    Hugging Face datasets.
"""

import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engines.core.errors import DataError

_TEXTS, _PACKED = (".jsonl", ".json", ".csv"), (".gz", ".zst")
SUFFIXES = (*_TEXTS, ".parquet", ".xlsx", *(text + pack for text in _TEXTS for pack in _PACKED))
"""Of files that a bare name may mean, in the order in which they are tried."""
READABLE = (*SUFFIXES, ".tsv", ".ndjson", ".arrow")
Splits = dict[str, tuple[Path, ...]]
"""Name of a split → its files in order; the name is "" where the data has no splits."""

USUAL = ("train", "test", "validation", "valid", "val", "dev")
"""Names of splits that mark a folder as divided into them."""
_ABOUT = {
    *("dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json"),
    *("config.json", "croissant.json", "metadata.json", "package.json"),
    *("tokenizer_config.json", "generation_config.json", "adapter_config.json"),
}
"""Files that tell of the data, or of a model that lies beside it."""
_SHARD = re.compile(r"(?P<split>.+?)-(?P<number>\d{5})-of-(?P<of>\d{5})(-[0-9a-f]+)?")


def unpacked_name(path: Path) -> str:
    """The name of a file without the suffix that tells how it is packed."""
    return path.stem if path.suffix.lower() in _PACKED else path.name


def stem_of(path: Path) -> str:
    return Path(unpacked_name(path)).stem


def suffix_of(path: Path) -> str:
    """The suffix of a file, with the one before it where it is packed: .jsonl.gz."""
    return path.name.removeprefix(stem_of(path))


def find_splits(folder: Path) -> Splits:
    """The splits of a folder, by name; raises DataError where some is missing or not clear."""
    if tasks := find_tasks(folder):
        return {"": tasks}
    if (folder / "dataset_dict.json").is_file():
        return _saved_dict_splits(folder)
    if (folder / "state.json").is_file():
        return {"": _saved_files(folder)}
    found: dict[str, list[tuple[Path, ...]]] = {}
    by_file = _splits_by_file(folder), _splits_by_file(folder / "data")
    for splits in (*by_file, _splits_by_folder(folder)):
        for split, files in splits.items():
            found.setdefault(split, []).append(files)
    if twice := next((split for split, among in found.items() if len(among) > 1), None):
        listed = ", ".join(str(f.relative_to(folder)) for files in found[twice] for f in files)
        raise DataError(str(folder), f"Several files are the split {twice}: {listed}.", "Keep one.")
    if not found:
        raise _no_data_error(folder)
    return {split: files[0] for split, files in sorted(found.items())}


def _no_data_error(folder: Path) -> DataError:
    inside = [
        below for below in _subfolders(folder) if _splits_by_file(below) or _splits_by_folder(below)
    ]
    if not inside:
        move = f"Give one that has files such as train.jsonl ({', '.join(READABLE)})."
        return DataError(str(folder), "The folder holds no data.", move)
    names = ", ".join(below.name for below in inside)
    do = f"folders {names} do" if len(inside) > 1 else f"folder {names} does"
    move = f"Give {' or '.join(map(str, inside))}."
    return DataError(str(folder), f"The folder holds no data; its {do}.", move)


def _data_files(folder: Path) -> list[Path]:
    """Return the data files of a folder, by name."""
    found = []
    for path in sorted(folder.glob("*")):
        named = suffix_of(path) in READABLE and path.name not in _ABOUT
        if not named or path.name.startswith(".") or stem_of(path).lower() == "readme":
            continue
        if path.is_file():
            found.append(path)
    return found


def _subfolders(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob("[!.]*")) if path.is_dir()]


def _splits_by_file(folder: Path) -> Splits:
    """Files named after their split, whole or in shards."""
    shards: dict[str, list[tuple[int, int, Path]]] = {}
    for path in _data_files(folder):
        shard = _SHARD.fullmatch(stem_of(path))
        split = shard["split"] if shard else stem_of(path)
        number, of = (int(shard["number"]), int(shard["of"])) if shard else (0, 1)
        shards.setdefault(split, []).append((number, of, path))
    return {split: _complete_shards(split, found) for split, found in shards.items()}


def _complete_shards(split: str, found: Sequence[tuple[int, int, Path]]) -> tuple[Path, ...]:
    numbers = sorted(number for number, _, _ in found)
    folder, of = found[0][2].parent, found[0][1]
    if len(set(numbers)) < len(numbers) or len({of for _, of, _ in found}) > 1:
        files = ", ".join(path.name for _, _, path in found)
        cause = f"Several files are the split {split}: {files}."
        raise DataError(f"{folder}", cause, "Keep one of them.")
    if numbers != list(range(of)):
        missing = ", ".join(str(n) for n in range(of) if n not in numbers)
        cause = f"The split {split} has {len(numbers)} of its {of} shards; missing: {missing}."
        raise DataError(f"{folder}", cause, "Fetch the others.")
    return tuple(path for _, _, path in sorted(found))


def _splits_by_folder(folder: Path) -> Splits:
    """Folders that are splits, each with one file or with several.

    They are where one has a usual name, or files that are splits lie beside them.
    """
    below = {f.name: f for f in _subfolders(folder) if f.name != "data"}
    beside = _data_files(folder) or _data_files(folder / "data")
    if not beside and not any(name in USUAL and _split_files(f) for name, f in below.items()):
        return {}
    found = {name: files for name, f in below.items() if (files := _split_files(f))}
    for name, below_it in below.items():
        theirs = [f for f in found.get(name, ()) if name not in USUAL and _split_name(f) in USUAL]
        theirs += [f for f in (below_it / "dataset_dict.json",) if f.is_file()]
        if theirs:
            theirs_too = f"its folder {name} has splits of its own: {theirs[0].name}."
            move = f"Give {folder / name}, or one file; or take that folder out."
            raise DataError(str(folder), f"It has splits, and {theirs_too}", move)
    return found


def _split_files(folder: Path) -> tuple[Path, ...]:
    """The files of a folder that is one split; none where it is none."""
    return _saved_files(folder) if (folder / "state.json").is_file() else tuple(_data_files(folder))


def _split_name(path: Path) -> str:
    shard = _SHARD.fullmatch(stem_of(path))
    return shard["split"] if shard else stem_of(path)


def _saved_dict_splits(folder: Path) -> Splits:
    listing = folder / "dataset_dict.json"
    names = _read_metadata(listing, "splits")
    if not names:
        raise DataError(str(listing), "It lists no split.", "Save it again.")
    unlisted = [f.name for f in _subfolders(folder) if f.name not in names and _split_files(f)]
    if unlisted:
        cause = f"It does not list the folder {unlisted[0]}, which holds data."
        move = "Add it to the splits there, or take the folder out."
        raise DataError(str(listing), cause, move)
    return {str(name): _saved_files(folder / str(name)) for name in names}


def _saved_files(folder: Path) -> tuple[Path, ...]:
    listing = folder / "state.json"
    if not listing.is_file():
        raise DataError(str(listing), "There is no such file.", "Save the data set again.")
    entries = _read_metadata(listing, "_data_files")
    names = [entry.get("filename") for entry in entries if isinstance(entry, dict)]
    paths = tuple(folder / str(name) for name in names)
    if missing := [path for path in paths if not path.is_file()]:
        raise DataError(str(missing[0]), "state.json lists it, but it is missing.", "Save again.")
    if not paths:
        raise DataError(str(listing), "It lists no data file.", "Save again.")
    return paths


def _read_metadata(path: Path, key: str) -> list[Any]:
    try:
        metadata = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        cause = f"It cannot be read as JSON: {error}."
        raise DataError(str(path), cause, "Save the data set again.") from error
    value = metadata.get(key) if isinstance(metadata, dict) else None
    if not isinstance(value, list):
        raise DataError(str(path), f'It has no list "{key}".', "Save the data set again.")
    return value


TASK_FILE = "task.toml"


def find_tasks(folder: Path) -> tuple[Path, ...]:
    """The `task.toml` of a task folder, or of each inside a folder of them; () where is none."""
    if (folder / TASK_FILE).is_file():
        return (folder / TASK_FILE,)
    return tuple(sorted(folder.glob(f"*/{TASK_FILE}")))


def read_task(file: Path) -> dict[str, Any] | DataError:
    """A task as a row; an error where it needs an image, or a part of it is missing."""
    folder = file.parent.absolute()
    try:
        told = tomllib.loads(file.read_text("utf-8"))
        question = (folder / "instruction.md").read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        return DataError(str(file), f"The task cannot be read: {error}.", "Mend it.")
    environment = told.get("environment")
    named = isinstance(environment, dict) and environment.get("docker_image")
    if named or (folder / "environment" / "Dockerfile").exists():
        why = f"the image {named}" if named else "the image of environment/Dockerfile"
        move = "Move it elsewhere: only tasks that run without an image can be practised."
        return DataError(str(file), f"The task needs {why}.", move)
    if not (folder / "tests" / "test.sh").is_file():
        return DataError(str(file), "The task has no tests/test.sh.", "Add its grader.")
    return {"question": question, "task": str(folder), "name": folder.name}
