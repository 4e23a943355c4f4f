"""Where the rows of a public data set come from: a file or folder of the user's, or the hub.

Owns the search, the fetch, and what to say where either fails. `prepare` owns what is made of them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from engines.core.errors import ConfigError, DataError
from engines.core.extras import install_command
from engines.data.folder import USUAL, find_splits, stem_of
from engines.data.public_layouts import LAYOUTS, Cleaned
from engines.data.rows import Row, open_table, to_json_value
from engines.data.source import DataSource, locate, resolve_data

_BATCH_ROWS = 4096
_TIMEOUT_S = 10


def find_origin(
    part: str, from_path: str | None, together: Sequence[str]
) -> tuple[str, DataSource | str]:
    """Name of the layout, and where its rows come from: on the hub, where it is no `DataSource`.

    Sets that are wanted `together` have a folder together, each a file or folder with its name.

    Raises DataError, ConfigError: it is not there, or another split.
    """
    name, _, split = part.partition(":")
    layout = LAYOUTS[name]
    split = split or layout.split
    if from_path is None:
        return name, f"{layout.hub}{f'/{layout.config}' if layout.config else ''}:{split}"
    folder = Path(from_path).expanduser().absolute()
    if not folder.is_dir():
        if (found := _locate(from_path, Path.cwd())) is None:
            cause = "there is no such file or folder."
            move = "Correct the path, or leave --from out to fetch it."
            raise DataError(f"--from {from_path}", cause, move)
        if len(together) > 1:
            cause = f"It is one file, and {'+'.join(together)} wants a folder."
            raise ConfigError(f"--from {from_path}", cause, f"Give {_form(together)}.")
        return name, _check_split(name, split, found)
    for called in (f"{name}-{split}", name, *layout.folders):
        if (found := _locate(called, folder)) is not None:
            return name, _check_split(name, split, found)
    if len(together) > 1 or (
        len(splits := find_splits(folder)) > 1 and not {split, *USUAL}.intersection(splits)
    ):
        raise DataError(str(folder), f"{name} is missing here.", f"Give {_form(together)}.")
    return name, _check_split(name, split, DataSource(folder))


def _locate(name: str, root: Path) -> DataSource | None:
    try:
        return locate(name, (root,))
    except DataError as error:
        if "is not found" in error.cause:
            return None
        raise


def _check_split(name: str, split: str, found: DataSource) -> DataSource:
    """What was found, with the split that is meant; raises DataError where it has others."""
    if found.split is not None:
        return resolve_data(str(found), (Path.cwd(),))
    if not found.path.is_dir():
        _check_stem(name, split, found.path, stem_of(found.path))
        return found
    splits = find_splits(found.path)
    only = next(iter(splits)) if len(splits) == 1 else None
    if split in splits:
        return DataSource(found.path, split)
    if "" in splits or (only and only not in USUAL):
        _check_stem(name, split, found.path, only or "")
        return DataSource(found.path, only or None)
    cause = f"It has no split {split}; there are: {', '.join(splits)}."
    raise DataError(str(found.path), cause, f"Name one: {name}:{next(iter(splits))}.")


def _check_stem(name: str, split: str, path: Path, stem: str) -> None:
    """Raises DataError where a file is named after another split than the one that is meant."""
    words = re.findall("[a-z]+", stem.lower())
    said = {word[:3]: word for word in words if word in USUAL}
    meant = split in USUAL or split != LAYOUTS[name].split  # not `main`, which no file is called
    if said and meant and split[:3] not in said and split.lower() not in words:
        other = next(iter(said.values()))
        cause = f"By its name it is the split {other}, and {split} is wanted."
        raise DataError(str(path), cause, f"Prepare {name}:{other}, or rename the file.")


def _form(names: Sequence[str]) -> str:
    """What a folder of such sets looks like, as the next move."""
    first, *more = names
    either = f"{first}.jsonl, {first}.parquet, {first}/ or the hub's {LAYOUTS[first].folders[0]}/"
    others = f" and the same of {', '.join(more)}" if more else ""
    return f"--from FOLDER with {either} in it{others}"


def _elsewhere(names: Sequence[str]) -> str:
    """Where these sets can be had, and how they are given then."""
    page = "{}: https://huggingface.co/datasets/{} (columns {})"
    found = ((name, LAYOUTS[name]) for name in names)
    listed = [page.format(name, one.hub, ", ".join(one.columns)) for name, one in found]
    how = _form(names) if len(names) > 1 else "--from FILE"
    return f"{how} takes what was fetched elsewhere. {'; '.join(listed)}."


def source_rows(part: Cleaned, together: Sequence[str]) -> Iterator[Row]:
    if isinstance(part.source, str):
        return _hub_rows(part, part.source, together)
    return open_table(part.source, LAYOUTS[part.name].read).rows


def field_names(part: Cleaned) -> list[str]:
    """All fields of the first row of a file, also those that are not read."""
    if isinstance(part.source, str):
        return []
    first = next(iter(open_table(part.source).rows), None)
    return list(first[2]) if first and isinstance(first[2], dict) else []


def _hub_rows(part: Cleaned, source: str, together: Sequence[str]) -> Iterator[Row]:
    layout, move = LAYOUTS[part.name], _elsewhere(together)
    place, split = f"data set {part.name}", source.rpartition(":")[2]
    try:
        import datasets
    except ImportError as error:
        cause = "Fetching needs the library datasets, which is not installed."
        raise DataError(place, cause, f"Run: {install_command('datasets')}. {move}") from error
    reached = _reach_hub(layout.hub)
    try:
        if split != layout.split:
            splits = datasets.get_dataset_split_names(layout.hub, layout.config)
            if split not in splits:
                cause = f"It has no split {split}; there are: {', '.join(splits)}."
                raise DataError(place, cause, f"Name one: {part.name}:{splits[0]}.")
        found = datasets.load_dataset(layout.hub, layout.config, split=split)
        read = [name for name in found.column_names if name in layout.read]
        tables = found.select_columns(read or found.column_names).with_format("arrow")
        batches = (table.to_pylist() for table in tables.iter(batch_size=_BATCH_ROWS))
        rows = (row for batch in batches for row in batch)
        for number, row in enumerate(rows, start=1):
            yield number, f"{source}, row {number}", to_json_value(row)
    except DataError:
        raise
    except Exception as error:  # of a dozen libraries below it, each with errors of its own
        reason = (str(error).strip().split("\n")[0] or type(error).__name__).rstrip(".")
        if not reached:
            reason = "the network, or huggingface.co, cannot be reached"
        elif layout.gated and _is_refused(error):
            page = f"https://huggingface.co/datasets/{layout.hub}"
            move = f"Accept its terms on {page} and set HF_TOKEN. {move}"
        raise DataError(place, f"{source} cannot be fetched: {reason}.", move) from error


def _reach_hub(repository: str) -> bool:
    """Whether the hub answers; where not, its libraries use what they have fetched before.

    They would ask six times otherwise, for half a minute, and tell of each.
    """
    import datasets
    import huggingface_hub

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    logging.getLogger("datasets").setLevel(logging.ERROR)
    try:
        huggingface_hub.HfApi().dataset_info(repository, timeout=_TIMEOUT_S)
    except Exception as error:  # an answer that refuses is one
        if getattr(error, "response", None) is None:
            huggingface_hub.constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
            return False
    return True


def _is_refused(error: BaseException | None) -> bool:
    """Whether the hub said that one may not, in the error or what led to it."""
    while error is not None:
        response: Any = getattr(error, "response", None)
        if getattr(response, "status_code", None) in (401, 403) or "gated" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
