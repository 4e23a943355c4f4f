"""Public data sets brought into the workspace as Parquet: fetched, cleaned, joined, shuffled.

`engines.data.public` knows their layouts. A file appears whole or not at all, and none is replaced.
"""

from __future__ import annotations

import filecmp
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from filelock import FileLock

from engines.core.errors import ConfigError, DataError, RecordError, did_you_mean
from engines.core.extras import install_command
from engines.data.public_layouts import LAYOUTS, Cleaned, MissingField, by_level, shuffled
from engines.record.appender import make_folder, sync_folder
from engines.record.derived.catalogue import write_dataset_row
from engines.record.run_dir import Workspace
from studio.data.catalogue import check_data_name, check_free
from studio.data.public_sources import field_names, find_origin, source_rows

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
class Prepared:
    """One data set of the workspace, and what it is made from."""

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


def prepare(workspace: Workspace, wanted: Wanted, *, dry_run: bool = False) -> list[Prepared]:
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
    return found


def _make(workspace: Workspace, found: list[Prepared], folder: Path, *, publish: bool) -> None:
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


def _plan(workspace: Workspace, wanted: Wanted) -> Prepared:
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
    return Prepared(
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


def _write_parquet(file: Path, one: Prepared) -> None:
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


def _is_new(one: Prepared, file: Path) -> bool:
    """False where the very same is there already; raises ConfigError where something else is."""
    same = one.path.exists() and filecmp.cmp(one.path, file, shallow=False)
    check_free(one.path, same=same)
    return not same


def _publish(workspace: Workspace, one: Prepared, file: Path) -> None:
    if one.new:
        file.chmod(0o600)
        file.replace(one.path)
        sync_folder(one.path.parent)
    row = {"name": one.name, "path": f"{one.path.parent.name}/{one.path.name}", "n": one.n}
    size = one.path.stat().st_size
    same = write_dataset_row(workspace, {**row, "bytes": size, "digest": one.digest})
    one.twins = tuple(name for name in same if (one.path.parent / f"{name}.parquet").exists())
