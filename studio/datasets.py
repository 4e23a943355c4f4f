"""The data sets of a workspace and those that are bundled, by name.

Owns where names are looked up on the command line, and adding a file. What a data set
may look like is `engines.data.dataset`'s.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from engines.core.errors import ConfigError, ConflictError, DataError
from engines.core.ids import digest_bytes
from engines.data.dataset import Numbered, read_numbered, resolve_data
from engines.record.appender import make_folder, write_whole
from engines.record.catalogue import note_dataset
from engines.record.libraries import check_name
from engines.record.run_dir import Workspace


@dataclass(frozen=True, slots=True)
class ListedData:
    """A data set one can name. `n` is None where the file cannot be read: `trouble` says why."""

    name: str
    n: int | None
    where: str  # "workspace", "bundled", or "hidden" behind one of the workspace
    path: str
    trouble: str = ""

    @property
    def data(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Added:
    """What adding a file came to; `new` is False where it had been added before."""

    name: str
    path: Path
    n: int
    without_answer: int
    new: bool
    hides_bundled: bool


def bundled() -> Path:
    return Path(str(files("sample_data")))


def field_names(question: str | None, answer: str | None) -> dict[str, str]:
    """The mapping that `engines.data.dataset` takes, from two options."""
    given = {"question": question, "answer": answer}
    return {field: name for field, name in given.items() if name is not None}


def find_data(name: str, workspace: Workspace) -> Path:
    """Find a data set as a run file would.

    Raises:
        DataError: it is nowhere.
    """
    own = (workspace.datasets, bundled())
    # What is typed as a path is meant from where it is typed; a bare name is a name first.
    typed = os.sep in name or "." in name
    return resolve_data(name, (Path.cwd(), *own) if typed else (*own, Path.cwd()))


def listed_data(workspace: Workspace) -> tuple[ListedData, ...]:
    """The workspace's data sets, then the bundled ones."""
    own = {path.stem for path in workspace.datasets.glob("*.jsonl")}
    return tuple(_listed(workspace.datasets, "workspace", set())) + tuple(
        _listed(bundled(), "bundled", own)
    )


def add_data(
    workspace: Workspace, file: Path, name: str | None, fields: Mapping[str, str]
) -> Added:
    """Check a file and copy it into the workspace.

    The copy is the file byte for byte; where `fields` names unusual fields, they are
    renamed in the copy, so that run files need not name them again.

    Raises:
        DataError: the file cannot be practised on.
        ConfigError: the name cannot be one, or belongs to other content.
        RecordError: the copy cannot be written.
    """
    numbered = read_numbered(file, fields=fields, needs_answer=False)
    called, data = _checked(name or file.stem), file.read_bytes()
    if fields:
        data = _renamed(data, numbered, fields)
    target = workspace.datasets / f"{called}.jsonl"
    new = not target.exists()
    if not new and target.read_bytes() != data:
        raise ConfigError(
            f"data set {called}",
            f"{target} exists with other content.",
            "Choose another name with --name NAME.",
        )
    if new:
        make_folder(workspace.datasets)
        write_whole(target, data)
    # Also for a file that was there: the catalogue may have been lost since.
    row = {"name": called, "path": f"{target.parent.name}/{target.name}", "n": len(numbered)}
    note_dataset(workspace, {**row, "bytes": len(data), "digest": digest_bytes(data)})
    return Added(
        called,
        target,
        len(numbered),
        sum(problem.answer is None for _, problem in numbered),
        new,
        (bundled() / target.name).is_file(),
    )


def _renamed(data: bytes, numbered: Sequence[Numbered], fields: Mapping[str, str]) -> bytes:
    """The same rows with `question` and `answer` under these names, first."""
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    rows = []
    for number, problem in numbered:
        row = json.loads(lines[number - 1])
        rest = {k: v for k, v in row.items() if k not in ("question", "answer", *fields.values())}
        answer = problem.meta.get("alternatives", problem.answer)
        rows.append({"question": problem.question, "answer": answer, **rest})
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _checked(name: str) -> str:
    try:
        check_name(name)
    except ConflictError as error:
        raise ConfigError(error.place, error.cause, "Choose one with --name NAME.") from error
    return name


def _listed(folder: Path, where: str, hidden_by: set[str]) -> Iterator[ListedData]:
    for path in sorted(folder.glob("*.jsonl"), key=lambda file: file.stem):
        shown = "hidden" if path.stem in hidden_by else where
        try:
            n = len(read_numbered(path, needs_answer=False))
        except DataError as error:
            yield ListedData(path.stem, None, shown, str(path), str(error))
        else:
            yield ListedData(path.stem, n, shown, str(path))
