"""Public data sets brought into the workspace as Parquet: fetched, cleaned, joined, shuffled.

`engines.data.public_layouts` knows their layouts. Rows come from a file or folder of the user's,
or from the hub. A file appears whole or not at all, and none is replaced.
"""

import filecmp
import hashlib
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from filelock import FileLock

from engines.core.errors import ConfigError, DataError, RecordError, did_you_mean, install_command
from engines.data.folder import USUAL, find_splits, stem_of
from engines.data.public_layouts import LAYOUTS, Cleaned, MissingField, by_level, shuffled
from engines.data.rows import Row, open_table, to_json_value
from engines.data.source import DataSource, locate, resolve_data
from engines.record.appender import make_folder, sync_folder
from engines.record.derived.catalogue import write_dataset_row
from engines.record.run_dir import Workspace
from studio.data.catalogue import check_data_name, check_free, hides_bundled
from studio.facts.data_set import PreparedData, PreparedPart

PLANNER = "planner-182k"
JOINED = "nq+deepmath-103k"
"""What it stands for: the data and the order that AgentFlow's planner was trained on."""
VALIDATION = "aime24"
_BATCH_ROWS = 4096
_TYPES = {"difficulty": "float64", "answer_index": "int64"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be prepared, as the command line names it."""

    data: str
    from_path: str | None = None
    name: str | None = None
    limit: int | None = None
    seed: int = 42
    shuffle: bool = False
    levels: Mapping[str, int] | None = None
    together: tuple[str, ...] = ()  # layouts that the folder `from_path` must hold


@dataclass(slots=True)
class _Preparation:
    """One data set of the workspace while it is made."""

    wanted: Wanted
    name: str
    path: Path
    parts: tuple[Cleaned, ...]
    further: tuple[str, ...]  # columns beside the common ones
    n: int = 0
    digest: str = ""
    new: bool = True
    twins: tuple[str, ...] = ()  # other data sets of the workspace with the same rows

    def rows(self) -> Iterator[dict[str, Any]]:
        wanted = self.wanted
        rows = (row for part in self.parts for row in _clean(wanted, part))
        ordered: Iterable[dict[str, Any]] = rows
        if wanted.levels:
            ordered = by_level(rows, wanted.levels, wanted.seed, wanted.limit)
            part = self.parts[0]
            if beyond := min(part.kept, wanted.limit or part.kept) - len(ordered):
                part.leave_out("beyond the ratio of levels", beyond)
        elif wanted.shuffle or len(self.parts) > 1:
            ordered = shuffled(list(rows), wanted.seed)
        for number, row in enumerate(islice(ordered, wanted.limit)):
            self.n += 1
            yield {"id": number, **row}


def parse_levels(text: str) -> dict[str, int]:
    """Shares of easy, medium and hard rows, from `4:7:6`."""
    shares = text.split(":")
    good = all(share.isdecimal() and len(share) < 5 for share in shares)
    if len(shares) != 3 or not good or not any(map(int, shares)):
        cause, move = "It is no ratio of three levels.", "Write EASY:MEDIUM:HARD, such as 4:7:6."
        raise ConfigError(f"--levels {text}", cause, move)
    return dict(zip(("easy", "medium", "hard"), map(int, shares), strict=True))


def prepare(workspace: Workspace, wanted: Wanted, *, dry_run: bool = False) -> list[PreparedData]:
    """Prepare what is wanted, and beside `PLANNER` its validation set.

    With `dry_run` files are read, counted and compared; nothing is fetched, and nothing written.

    Raises DataError: it cannot be fetched or read, or a row is of another layout. ConfigError: no
    such data set, or its name belongs to other content.
    """
    all_wanted = [wanted]
    if wanted.data == PLANNER:
        wanted = replace(wanted, together=(*JOINED.split("+"), VALIDATION))
        joined = replace(wanted, data=JOINED, name=wanted.name or PLANNER)
        validation = Wanted(VALIDATION, wanted.from_path, together=wanted.together)
        all_wanted = [joined, validation]
    found = [_plan(workspace, one) for one in all_wanted]
    if not dry_run:
        make_folder(workspace.datasets)
        _make(workspace, found, workspace.datasets, publish=True)
    elif wanted.from_path:
        with TemporaryDirectory() as folder:
            _make(workspace, found, Path(folder), publish=False)
    else:
        for one in found:
            check_free(one.path, same=one.path.exists())
    return [_prepared_data(one, dry_run=dry_run) for one in found]


def _prepared_data(made: _Preparation, *, dry_run: bool) -> PreparedData:
    parts = [
        PreparedPart(part.name, str(part.source), part.read, part.kept, part.left_out)
        for part in made.parts
    ]
    return PreparedData(
        name=made.name,
        path=made.path,
        is_there=made.path.exists(),
        dry_run=dry_run,
        n=made.n,
        new=made.new,
        digest=made.digest,
        seed=made.wanted.seed,
        parts=tuple(parts),
        twins=made.twins,
        hides_bundled=hides_bundled(made.name),
    )


def _make(workspace: Workspace, found: list[_Preparation], folder: Path, *, publish: bool) -> None:
    """Write each to a file in the folder, and then, unless any is refused, move all in place."""
    files = [folder / f".{one.path.name}.tmp" for one in found]
    # One at a time, since their unfinished files have one name.
    with FileLock(folder / ".prepare.lock", mode=0o600):
        try:
            for one, file in zip(found, files, strict=True):
                _write_parquet(file, one)
                one.new = _is_new(one, file)
            for one, file in zip(found, files, strict=True):
                if publish:
                    _publish(workspace, one, file)
        finally:
            for file in files:
                file.unlink(missing_ok=True)


def _plan(workspace: Workspace, wanted: Wanted) -> _Preparation:
    parts = wanted.data.split("+")
    for part in parts:
        if part.partition(":")[0] not in LAYOUTS:
            cause = "No such public data set is known." if part else "A name is missing beside a +."
            names = (PLANNER, *LAYOUTS)
            move = f"{did_you_mean(part, names)}There are: {', '.join(names)}."
            raise ConfigError(f"data set {part or wanted.data}", cause, move)
    together = tuple(part.partition(":")[0] for part in parts)
    wanted = replace(wanted, together=wanted.together or together)
    layout = LAYOUTS[parts[0].partition(":")[0]]
    further = layout.further if len(parts) == 1 else ()
    if wanted.levels and "level" not in further:
        cause = f"{wanted.data} has no column level to order it by."
        raise ConfigError("--levels", cause, "Leave it out.")
    name = wanted.name or wanted.data.replace("+", "-").replace(":", "-")
    return _Preparation(
        wanted,
        name,
        workspace.datasets / f"{check_data_name(name)}.parquet",
        tuple(Cleaned(*find_origin(part, wanted.from_path, wanted.together)) for part in parts),
        further,
    )


def _clean(wanted: Wanted, part: Cleaned) -> Iterator[dict[str, Any]]:
    try:
        yield from part.rows(source_rows(part, wanted.together))
    except MissingField as error:
        # Of Parquet only some columns were read.
        if (fields := field_names(part)) and error.field not in fields:
            error = MissingField(error.place, error.field, fields)
        move = f"{part.name} has the columns: {', '.join(LAYOUTS[part.name].columns)}."
        raise DataError(error.place, error.cause, move) from error


def _write_parquet(file: Path, one: _Preparation) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        move = f"Run: {install_command('parquet')}"
        cause = "Parquet needs pyarrow, which is not installed."
        raise DataError(str(file), cause, move) from error
    text, whole = pyarrow.string(), pyarrow.int64()
    about = pyarrow.struct([("ground_truth", text), ("idx", whole)])
    common = {"question": text, "chain": text, "result": text, "source": text, "extra_info": about}
    further = {name: pyarrow.type_for_alias(_TYPES.get(name, "string")) for name in one.further}
    if "options" in further:
        further["options"] = pyarrow.list_(text)
    schema = pyarrow.schema({"id": whole, **common, **further}.items())
    rows = one.rows()
    try:
        with file.open("wb") as raw:
            with parquet.ParquetWriter(raw, schema) as writer:
                while batch := list(islice(rows, _BATCH_ROWS)):
                    writer.write_batch(pyarrow.RecordBatch.from_pylist(batch, schema=schema))
            raw.flush()
            os.fsync(raw.fileno())
    except OSError as error:
        cause = f"cannot be written ({error.strerror or error})."
        raise RecordError(str(file), cause, "Make room or choose another place.") from error
    except (pyarrow.ArrowException, TypeError, ValueError) as error:
        cause = f"A column holds another kind than its authors': {str(error).splitlines()[0]}."
        raise DataError(f"data set {one.name}", cause, "Fetch it again.") from error
    if not one.n:
        raise DataError(f"data set {one.name}", "No row is left.", "Give other data.")
    with file.open("rb") as raw:
        one.digest = hashlib.file_digest(raw, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _is_new(one: _Preparation, file: Path) -> bool:
    """False where the very same is there already; raises ConfigError where something else is."""
    same = one.path.exists() and filecmp.cmp(one.path, file, shallow=False)
    check_free(one.path, same=same)
    return not same


def _publish(workspace: Workspace, one: _Preparation, file: Path) -> None:
    if one.new:
        file.chmod(0o600)
        file.replace(one.path)
        sync_folder(one.path.parent)
    row = {"name": one.name, "path": f"{one.path.parent.name}/{one.path.name}", "n": one.n}
    size = one.path.stat().st_size
    same = write_dataset_row(workspace, {**row, "bytes": size, "digest": one.digest})
    one.twins = tuple(name for name in same if (one.path.parent / f"{name}.parquet").exists())


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
