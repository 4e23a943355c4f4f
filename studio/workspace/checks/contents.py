"""Files that others may read, and data sets that cannot be read."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from engines.record.repair.trouble import Trouble
from engines.record.run_dir import RunDir, Workspace
from studio.data.catalogue import listed_data

_PRIVATE = (
    *("journal*.json*", "run.yaml", "agent*.yaml", "studio.log", "records/*", "evals/*"),
    "usage.json",
)


def permission_troubles(workspace: Workspace, runs: Iterable[RunDir]) -> Iterator[Trouble]:
    places = [workspace.catalogue, *workspace.evaluations.glob("*/*")]
    for run in runs:
        places += [path for pattern in _PRIVATE for path in run.path.glob(pattern)]
    for path in sorted(places):
        if not path.is_file():
            continue
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            cause = f"others may read it (mode {mode:04o}), and it could hold secrets."
            mend = partial(_restrict, path)
            yield Trouble(str(path), cause, f"chmod 600 {path}", mend, damage=False, alone=True)


def _restrict(path: Path) -> str:
    path.chmod(0o600)
    return "now 0600"


def data_troubles(workspace: Workspace) -> Iterator[Trouble]:
    for data in listed_data(workspace, bundled=False):
        if data.where == "workspace" and data.n is None:
            place, _, cause = data.trouble.partition(": ")
            yield Trouble(place, cause or data.trouble, f"studio data check {data.path}")
