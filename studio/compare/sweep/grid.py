"""A grid of runs: what a command line asks for, and the file that remembers it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any

import orjson

from engines.core.errors import ConfigError, ConflictError
from engines.core.ids import digest
from engines.record.appender import make_folder, write_atomic
from engines.record.run_dir import Workspace
from engines.record.seal import add_seal, refuse_altered
from studio.config.settings.base import NAME_LENGTH

MOST_CELLS = 1_000
_MOST_READ = 10 * MOST_CELLS  # values of a key
_READABLE = 40  # characters of a cell's name where it cannot tell all
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of the grid: its name, and the swept keys with its values as they were written."""

    name: str
    settings: Mapping[str, str]

    @property
    def overrides(self) -> list[str]:
        return [f"{key}={value}" for key, value in self.settings.items()]

    @property
    def shown(self) -> dict[str, str]:
        """The settings as people read them: without what the parser of overrides escapes."""
        return {key: re.sub(r"\\(.)", r"\1", value) for key, value in self.settings.items()}


@dataclass(frozen=True, slots=True)
class Grid:
    """`fixed` are the overrides that all cells share."""

    name: str
    runfile: str
    fixed: tuple[str, ...]
    keys: Mapping[str, tuple[str, ...]]
    own_library: bool = False  # the run file names a library, which the runs must not share

    @property
    def cells(self) -> list[Cell]:
        rows = [dict(zip(self.keys, row, strict=True)) for row in product(*self.keys.values())]
        last = [key.rpartition(".")[2] for key in self.keys]
        short = {k: e if last.count(e) == 1 else k for k, e in zip(self.keys, last, strict=True)}
        return [Cell(f"{self.name}-{self._cell_name(row, short)}", row) for row in rows]

    def _cell_name(self, row: Mapping[str, str], short: Mapping[str, str]) -> str:
        """By its own settings alone: another order of values, or more of them, changes no name."""
        name = ".".join(f"{short[key]}_{_UNSAFE.sub('_', value)}" for key, value in row.items())
        is_whole = len(self.name) + len(name) < NAME_LENGTH
        if is_whole and not any(map(_UNSAFE.search, row.values())):
            return name
        return f"{name[:_READABLE]}.{digest(row, 6)}"

    def words(self, cell: Cell) -> list[str]:
        """The overrides of a cell's run, but for its name."""
        library = [f"library.name={cell.name}"] if self.own_library else []
        return [*self.fixed, *cell.overrides, *library]


def parse_grid(
    runfile: str, words: Sequence[str]
) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """The overrides that all cells share, and the values of each key that is swept.

    A value with commas outside of quotes and brackets is several, as Hydra's own sweeps read it;
    so are `range(1,4)` and `choice(a,b)`.

    Raises ConfigError: a word cannot be read, no key has several values, or there are too many.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser, fixed, keys = OverridesParser.create(), list[str](), dict[str, tuple[str, ...]]()
    seen = set[str]()
    for word in words:
        try:
            found = parser.parse_override(word)
            is_swept = found.is_sweep_override()
            # A range may have more values than anybody waits for.
            every = map(str, found.sweep_string_iterator()) if is_swept else ()
            values = tuple(islice(every, _MOST_READ))
        except HydraException as error:
            cause = f"it cannot be read ({str(error).splitlines()[0][:120]})."
            move = "Write KEY=A,B; a value with a comma in quotes."
            raise ConfigError(word, cause, move) from error
        if (key := found.key_or_group) in seen:
            raise ConfigError(word, f"{key} is there already.", "Give all its values in one word.")
        seen.add(key)
        if not is_swept:
            fixed.append(word)
            continue
        if not values:
            raise ConfigError(word, "it gives no value.", "Write KEY=A,B.")
        if len(set(values)) < len(values):
            raise ConfigError(word, "a value is there twice.", "Give each once.")
        keys[word.partition("=")[0]] = values
    if not keys:
        move = f"Give several values: `studio sweep {runfile} seed=1,2,3`."
        raise ConfigError("studio sweep", "no key has several values.", move)
    count = 1
    for values in keys.values():
        count *= len(values)
    if count > MOST_CELLS:
        more = " or more" * any(len(values) == _MOST_READ for values in keys.values())
        cause = f"the grid has {count:,}{more} runs, and at most {MOST_CELLS:,} are possible."
        raise ConfigError("studio sweep", cause, "Sweep fewer values at a time.")
    return tuple(fixed), keys


def remember_grid(grid: Grid, workspace: Workspace) -> None:
    """Write the grid to the workspace, or go on with the one of its name, which may have grown.

    Raises ConflictError: that one is of other runs.
    """
    path = workspace.path / "sweeps" / f"{grid.name}.json"
    data: dict[str, Any] = {
        "sweep": grid.name,
        "runfile": grid.runfile,
        "overrides": list(grid.fixed),
        "keys": {key: list(values) for key, values in grid.keys.items()},
        "runs": {cell.name: dict(cell.settings) for cell in grid.cells},
    }
    if path.exists():
        refuse_altered(path)
        try:
            known = orjson.loads(path.read_bytes())
        except ValueError as error:
            raise ConflictError(str(path), "it is no file of a sweep.", "Move it away.") from error
        alike = all(known.get(part) == data[part] for part in ("runfile", "overrides"))
        if not alike or data["runs"] | known["runs"] != data["runs"]:
            cause = "there is another one of this name, with other settings."
            raise ConflictError(f"sweep {grid.name}", cause, "Name this one: --name NAME.")
    make_folder(path.parent)
    write_atomic(path, add_seal(orjson.dumps(data)))


def runfile_words(runfile: str) -> str:
    """The run file as every cell finds it, wherever it is begun."""
    path = Path(runfile).expanduser()
    return str(path.resolve()) if path.is_file() else runfile
