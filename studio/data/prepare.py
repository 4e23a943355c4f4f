"""Public data sets brought into the workspace as Parquet: fetched, cleaned, joined, shuffled.

`engines.data.public_layouts` knows their layouts. Rows come from a file or folder of the user's,
or from the hub. A file appears whole or not at all, and none is replaced.
"""

import filecmp
import hashlib
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from filelock import FileLock

from engines.core.codec import JsonObject
from engines.core.errors import ConfigError, DataError, RecordError, did_you_mean, install_command
from engines.core.frozen import frozen
from engines.data.public_layouts import LAYOUTS, Cleaned, by_level, shuffled
from engines.data.rows import Row, open_table, to_json_value
from engines.data.source import USUAL, DataSource, find_splits, locate, stem_of
from engines.record.appender import make_folder, sync_folder
from engines.record.derived.catalogue import write_dataset_row
from engines.record.run_dir import Workspace
from studio.data.catalogue import check_data_name, check_free, dataset_row, hides_bundled
from studio.facts.data_set import PreparedData, PreparedPart

PLANNER = "planner-182k"
JOINED = "nq+deepmath-103k"
"""The data and the order that AgentFlow's planner was trained on: what `PLANNER` stands for."""
VALIDATION = "aime24"
_BATCH_ROWS = 4096
_TIMEOUT_S = 10
_TYPES = {"difficulty": "float64", "answer_index": "int64"}


@frozen
class Wanted:
    """A data set to prepare, as the command line names it."""

    data: str
    from_path: str | None = None
    name: str | None = None
    limit: int | None = None
    seed: int = 42
    shuffle: bool = False
    levels: Mapping[str, int] | None = None


@dataclass(slots=True)
class _Preparation:
    """One data set of the workspace while it is made."""

    wanted: Wanted
    path: Path
    parts: tuple[Cleaned, ...]
    n: int = 0
    digest: str = ""
    new: bool = True
    twins: tuple[str, ...] = ()  # other data sets of the workspace with the same rows

    def rows(self) -> Iterator[JsonObject]:
        wanted = self.wanted
        rows = (row for part in self.parts for row in _clean(part))
        ordered: Iterable[JsonObject] = rows
        if wanted.levels:
            ordered = by_level(rows, wanted.levels, wanted.seed, wanted.limit)
            part = self.parts[0]
            if beyond := min(part.kept, wanted.limit or part.kept) - len(ordered):
                part.left_out["beyond the ratio of levels"] += beyond
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
        raise ConfigError(
            f"--levels {text}",
            "It is no ratio of three levels.",
            "Write EASY:MEDIUM:HARD, such as 4:7:6.",
        )
    return dict(zip(("easy", "medium", "hard"), map(int, shares), strict=True))


def prepare(workspace: Workspace, wanted: Wanted, *, dry_run: bool = False) -> list[PreparedData]:
    """Prepare what is wanted, and beside `PLANNER` its validation set.

    With `dry_run` files are read, counted and compared; nothing is fetched, and nothing written.

    Raises DataError: it cannot be fetched or read, or a row is of another layout. ConfigError: no
    such data set, or its name belongs to other content.
    """
    all_wanted = [wanted]
    if wanted.data == PLANNER:
        joined = replace(wanted, data=JOINED, name=wanted.name or PLANNER)
        all_wanted = [joined, Wanted(VALIDATION, wanted.from_path)]
    is_alone = len(all_wanted) == 1 and "+" not in wanted.data
    sets = [_plan(workspace, one, is_alone) for one in all_wanted]
    if not dry_run:
        make_folder(workspace.datasets)
        _make(workspace, sets, workspace.datasets, publish=True)
    elif wanted.from_path:
        with TemporaryDirectory() as folder:
            _make(workspace, sets, Path(folder), publish=False)
    else:
        for one in sets:
            check_free(one.path, same=one.path.exists())
    return [
        PreparedData(
            name=made.path.stem,
            path=made.path,
            is_there=made.path.exists(),
            dry_run=dry_run,
            n=made.n,
            new=made.new,
            digest=made.digest,
            seed=made.wanted.seed,
            parts=tuple(
                PreparedPart(part.name, str(part.source), part.read, part.kept, part.left_out)
                for part in made.parts
            ),
            twins=made.twins,
            hides_bundled=hides_bundled(made.path.stem),
        )
        for made in sets
    ]


def _plan(workspace: Workspace, wanted: Wanted, is_alone: bool) -> _Preparation:
    parts = wanted.data.split("+")
    for part in parts:
        if part.partition(":")[0] not in LAYOUTS:
            names = (PLANNER, *LAYOUTS)
            raise ConfigError(
                f"data set {part!r}",
                "No such public data set is known.",
                f"{did_you_mean(part, names)}There are: {', '.join(names)}.",
            )
    if wanted.levels and parts != ["webwalkerqa"]:
        raise ConfigError(
            "--levels", f"{wanted.data} has no column level to order it by.", "Leave it out."
        )
    name = wanted.name or wanted.data.replace("+", "-").replace(":", "-")
    path = workspace.datasets / f"{check_data_name(name)}.parquet"
    origins = [find_origin(part, wanted.from_path, is_alone) for part in parts]
    return _Preparation(wanted, path, tuple(Cleaned(*origin) for origin in origins))


def _make(workspace: Workspace, sets: list[_Preparation], folder: Path, *, publish: bool) -> None:
    """Write each to a file in the folder, and then, unless any is refused, move all in place."""
    files = [folder / f".{made.path.name}.tmp" for made in sets]
    # One at a time, since their unfinished files have one name.
    with FileLock(folder / ".prepare.lock", mode=0o600):
        try:
            for made, file in zip(sets, files, strict=True):
                _write_parquet(file, made)
                same = made.path.exists() and filecmp.cmp(made.path, file, shallow=False)
                check_free(made.path, same=same)
                made.new = not same
            for made, file in zip(sets, files, strict=True):
                if publish:
                    _publish(workspace, made, file)
        finally:
            for file in files:
                file.unlink(missing_ok=True)


def _write_parquet(file: Path, made: _Preparation) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        cause, move = "It needs pyarrow, which is not installed.", install_command("parquet")
        raise DataError(str(file), cause, f"Run: {move}") from error
    text, whole = pyarrow.string(), pyarrow.int64()
    about = pyarrow.struct([("ground_truth", text), ("idx", whole)])
    columns = {"id": whole, "question": text, "chain": text, "result": text, "source": text}
    columns["extra_info"] = about
    if len(made.parts) == 1:
        for name in LAYOUTS[made.parts[0].name].further:
            columns[name] = pyarrow.type_for_alias(_TYPES.get(name, "string"))
        if "options" in columns:
            columns["options"] = pyarrow.list_(text)
    schema, rows = pyarrow.schema(columns.items()), made.rows()
    place = f"data set {made.path.stem}"
    try:
        with file.open("wb") as raw:
            with parquet.ParquetWriter(raw, schema) as writer:
                while batch := list(islice(rows, _BATCH_ROWS)):
                    writer.write_batch(pyarrow.RecordBatch.from_pylist(batch, schema=schema))
            raw.flush()
            os.fsync(raw.fileno())
    except OSError as error:
        raise RecordError(
            str(file),
            f"cannot be written ({error.strerror or error}).",
            "Make room or choose another place.",
        ) from error
    except (pyarrow.ArrowException, TypeError, ValueError) as error:
        raise DataError(
            place,
            f"A column holds another kind than its authors': {str(error).splitlines()[0]}.",
            "Fetch it again.",
        ) from error
    if not made.n:
        raise DataError(place, "No row is left.", "Give other data.")
    with file.open("rb") as raw:
        digest = hashlib.file_digest(raw, lambda: hashlib.blake2b(digest_size=16))
    made.digest = digest.hexdigest()


def _publish(workspace: Workspace, made: _Preparation, file: Path) -> None:
    if made.new:
        file.chmod(0o600)
        file.replace(made.path)
        sync_folder(made.path.parent)
    # The file may be larger than the memory.
    row = dataset_row(made.path, b"", made.n)
    row |= {"bytes": made.path.stat().st_size, "digest": made.digest}
    same = write_dataset_row(workspace, row)
    made.twins = tuple(name for name in same if made.path.with_name(f"{name}.parquet").exists())


def find_origin(part: str, from_path: str | None, is_alone: bool) -> tuple[str, DataSource | str]:
    """Name of the layout, and where its rows come from: on the hub, where it is no `DataSource`.

    Sets that are not wanted alone have a folder together, each a file or folder with its name.

    Raises DataError: it is not there, or another split.
    """
    name, _, split = part.partition(":")
    layout = LAYOUTS[name]
    split = split or layout.split
    if from_path is None:
        return name, f"{layout.hub}{f'/{layout.config}' if layout.config else ''}:{split}"
    folder = Path(from_path).expanduser().absolute()
    if not folder.is_dir() and is_alone:
        return name, _check_split(name, split, locate(from_path, (Path.cwd(),)))
    for called in (f"{name}-{split}", name, *layout.folders):
        with suppress(DataError):
            source = locate(called, (folder,))
            break
    else:
        if not is_alone:
            either = f"{name}.jsonl, {name}.parquet, {name}/ or {layout.folders[0]}/"
            raise DataError(
                f"--from {from_path}",
                f"{name} is missing here.",
                f"Give --from FOLDER with {either} in it.",
            )
        source = DataSource(folder)
    return name, _check_split(name, split, source)


def _check_split(name: str, split: str, source: DataSource) -> DataSource:
    """The source, with the split that is meant; raises DataError where it has others alone."""
    stem = stem_of(source.path)
    if source.split is not None:
        return source
    if source.path.is_dir():
        splits = find_splits(source.path)
        if split in splits:
            return DataSource(source.path, split)
        stem, *others = splits or [""]
        if others or stem in USUAL:
            raise DataError(
                str(source.path),
                f"It has no split {split}; there are: {', '.join(splits)}.",
                f"Name one: {name}:{stem}.",
            )
        source = DataSource(source.path, stem or None)
    # A file that is named after another split would be practised on in silence.
    words = set(re.findall("[a-z]+", stem.lower())) & {*USUAL}
    if words and split not in words and split != "main":
        other = words.pop()
        raise DataError(
            str(source.path),
            f"By its name it is the split {other}, and {split} is wanted.",
            f"Prepare {name}:{other}, or rename the file.",
        )
    return source


def _clean(part: Cleaned) -> Iterator[JsonObject]:
    layout = LAYOUTS[part.name]
    columns = f"{part.name} has the columns {', '.join(layout.columns)}"
    page = f"https://huggingface.co/datasets/{layout.hub}"
    try:
        if isinstance(part.source, str):
            yield from part.rows(_hub_rows(part.name, part.source))
        else:
            yield from part.rows(open_table(part.source, layout.read).rows)
    except DataError as error:
        raise DataError(
            error.place,
            error.cause,
            f"{error.move} {columns}, see {page}; --from FILE takes what was fetched elsewhere.",
        ) from error


def _hub_rows(name: str, source: str) -> Iterator[Row]:
    layout, place, split = LAYOUTS[name], f"data set {name}", source.rpartition(":")[2]
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            place,
            "Fetching needs the library datasets, which is not installed.",
            f"Run: {install_command('datasets')}.",
        ) from error
    is_reached = _reach_hub(layout.hub)
    try:
        published = datasets.load_dataset(layout.hub, layout.config, split=split)
        read = [column for column in published.column_names if column in layout.read]
        tables = published.select_columns(read or published.column_names).with_format("arrow")
        batches = (table.to_pylist() for table in tables.iter(batch_size=_BATCH_ROWS))
        rows = (row for batch in batches for row in batch)
        for number, row in enumerate(rows, start=1):
            yield number, f"{source}, row {number}", to_json_value(row)
    except Exception as error:  # of a dozen libraries below it, each with errors of its own
        reason = "the network, or huggingface.co, cannot be reached"
        if is_reached:
            reason = (str(error).strip().split("\n")[0] or type(error).__name__).rstrip(".")
        move = "Its terms must be accepted on its page, and HF_TOKEN set." if layout.gated else ""
        raise DataError(place, f"{source} cannot be fetched: {reason}.", move) from error


def _reach_hub(repository: str) -> bool:
    """Tell if the hub answers; where not, its libraries use what they have fetched before.

    They would ask six times otherwise, for half a minute, and tell of each.
    """
    import datasets
    import huggingface_hub

    for library in ("huggingface_hub", "datasets"):
        logging.getLogger(library).setLevel(logging.ERROR)
    try:
        huggingface_hub.HfApi().dataset_info(repository, timeout=_TIMEOUT_S)
    except Exception as error:  # an answer that refuses is one
        if getattr(error, "response", None) is None:
            huggingface_hub.constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
            return False
    return True
