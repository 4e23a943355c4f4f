"""Where the old workspaces lie, and how they are packed and put back."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

from tests.old_workspaces.commands import RULES

DATA = Path(__file__).parent / "data"
PACKED = ("finished", "unparsed", "trained")
"""The others lie there as they are, so that a difference can be read."""
_LEFT_BEHIND = (".lock", ".*.lock", ".holder", "*.sock", "monitor")
"""What belongs to a process or a machine."""


def keep(name: str, workspace: Path) -> None:
    """Put a workspace among the data, in place of the one of that name."""
    folder = DATA / name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(workspace, folder, ignore=shutil.ignore_patterns(*_LEFT_BEHIND))
    if name in PACKED:
        with tarfile.open(DATA / f"{name}.tar.gz", "w:gz") as archive:
            archive.add(folder, arcname=name, filter=_of_nobody)
        shutil.rmtree(folder)


def put_back(name: str, folder: Path) -> Path:
    """A copy of a workspace, closed to others as it was made, beside the rules it was made with."""
    workspace = folder / "practice"
    if (DATA / name).is_dir():
        shutil.copytree(DATA / name, workspace)
    else:
        with tarfile.open(DATA / f"{name}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
        (folder / name).rename(workspace)
    for path in (workspace, *workspace.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    (folder / "rules.yaml").write_text(RULES)
    return workspace


def _of_nobody(file: tarfile.TarInfo) -> tarfile.TarInfo:
    file.uid = file.gid = 0
    file.uname = file.gname = ""
    return file
