"""A folder as the Hugging Face tools leave it: which splits it has and their files.

Owns the layouts: `train.jsonl` beside `test.jsonl`, shards such as
`data/train-00000-of-00002.parquet`, a folder for each split, and what `save_to_disk`
writes (`dataset_dict.json`, `state.json`, `.arrow` files). Opens no data file.

Source: "Structure your repository" and `Dataset.save_to_disk` in the documentation of
    Hugging Face datasets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engines.core.errors import DataError

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
"""Of files that a bare name may mean, in the order in which they are tried."""
READABLE = (*SUFFIXES, ".tsv", ".ndjson", ".arrow")
Splits = dict[str, tuple[Path, ...]]
"""Name of a split → its files in order; the name is "" where the data has no splits."""

_ABOUT = {"dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json"}
_SHARD = re.compile(r"(?P<split>.+?)-(?P<number>\d{5})-of-(?P<of>\d{5})(-[0-9a-f]+)?")


def splits_of(folder: Path) -> Splits:
    """The splits of a folder, in the order in which its files sort.

    Raises:
        DataError: it holds no data, some of its data is missing, or what it holds is
            not clear.
    """
    if (folder / "dataset_dict.json").is_file():
        return _saved_dict(folder)
    if (folder / "state.json").is_file():
        return {"": _saved(folder)}
    found = _by_file(folder) or _by_file(folder / "data") or _by_folder(folder)
    if not found:
        inside = [f.name for f in sorted(folder.glob("*/")) if _by_file(f) or _by_folder(f)]
        raise DataError(
            str(folder),
            "The folder holds no data" + (f"; its folder {inside[0]} does." if inside else "."),
            f"Give {folder / inside[0]}."
            if inside
            else f"Give one that has files such as train.jsonl ({', '.join(READABLE)}).",
        )
    return found


def _by_file(folder: Path) -> Splits:
    """Files named after their split, whole or in shards."""
    shards: dict[str, list[tuple[int, int, Path]]] = {}
    for path in sorted(folder.glob("*")):
        if path.suffix not in READABLE or path.name in _ABOUT or not path.is_file():
            continue
        shard = _SHARD.fullmatch(path.stem)
        split = shard["split"] if shard else path.stem
        number, of = (int(shard["number"]), int(shard["of"])) if shard else (0, 1)
        shards.setdefault(split, []).append((number, of, path))
    return {split: _whole(split, found) for split, found in shards.items()}


def _whole(split: str, found: Sequence[tuple[int, int, Path]]) -> tuple[Path, ...]:
    numbers = sorted(number for number, _, _ in found)
    folder, of = found[0][2].parent, found[0][1]
    if len(set(numbers)) < len(numbers) or len({of for _, of, _ in found}) > 1:
        files = ", ".join(path.name for _, _, path in found)
        raise DataError(
            f"{folder}", f"Several files are the split {split}: {files}.", "Keep one of them."
        )
    if numbers != list(range(of)):
        missing = ", ".join(str(n) for n in range(of) if n not in numbers)
        raise DataError(
            f"{folder}",
            f"The split {split} has {len(numbers)} of its {of} shards; missing: {missing}.",
            "Fetch the others.",
        )
    return tuple(path for _, _, path in sorted(found))


def _by_folder(folder: Path) -> Splits:
    """Folders named after the usual splits, each with one file or with numbered ones."""
    found: Splits = {}
    for below in sorted(folder.glob("*/")):
        files = sorted(f for f in below.glob("*") if f.suffix in READABLE and f.name not in _ABOUT)
        if below.name in ("train", "test", "validation", "valid", "val", "dev") and files:
            found[below.name] = tuple(files)
    return found


def _saved_dict(folder: Path) -> Splits:
    names = _about(folder / "dataset_dict.json", "splits")
    if not names:
        raise DataError(str(folder / "dataset_dict.json"), "It lists no split.", "Save it again.")
    return {str(name): _saved(folder / str(name)) for name in names}


def _saved(folder: Path) -> tuple[Path, ...]:
    if not (folder / "state.json").is_file():
        raise DataError(
            str(folder / "state.json"), "There is no such file.", "Save the data set again."
        )
    listed = _about(folder / "state.json", "_data_files")
    names = [entry.get("filename") for entry in listed if isinstance(entry, dict)]
    paths = tuple(folder / str(name) for name in names)
    if missing := [path for path in paths if not path.is_file()]:
        raise DataError(str(missing[0]), "state.json lists it, but it is missing.", "Save again.")
    if not paths:
        raise DataError(str(folder / "state.json"), "It lists no data file.", "Save again.")
    return paths


def _about(path: Path, key: str) -> list[Any]:
    try:
        told = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            str(path), f"It cannot be read as JSON: {error}.", "Save the data set again."
        ) from error
    value = told.get(key) if isinstance(told, dict) else None
    if not isinstance(value, list):
        raise DataError(str(path), f'It has no list "{key}".', "Save the data set again.")
    return value
