"""`studio doctor`: is this workspace whole, and can this machine run a practice.

Owns the list of what is looked at and in which order it is mended: libraries before the
runs that stand on them, and the catalogue, which follows from all, last. Without `repair`
nothing is written. What is wrong inside a file is `engines.record.repair`'s.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.core.errors import LockedError, StudioError
from engines.core.ids import digest_bytes
from engines.record import lines
from engines.record.catalogue import rebuild, run_row
from engines.record.lock import is_held
from engines.record.repair import Trouble, library_troubles, run_troubles
from engines.record.run_dir import RunDir, Workspace
from studio.datasets import listed_data
from studio.link import is_alive

_MOST_MENDS = 100
"""Of one object; each mend can lay bare the next trouble, but not without end."""
_LEFT_BY = re.compile(r"^\..+\.(\d+)\.tmp$|^\.removed-.+-(\d+)$")
_PRIVATE = ("journal.jsonl", "run.yaml", "agent*.yaml", "studio.log", "records/*", "evals/*")


@dataclass(frozen=True, slots=True)
class Finding:
    """One trouble as it is told. `mended` says what was done; "" where nothing was."""

    place: str
    cause: str
    move: str
    damage: bool
    mended: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was looked at, in numbers, and what was found."""

    looked_at: dict[str, int]
    findings: tuple[Finding, ...]

    @property
    def well(self) -> bool:
        """Nothing is damaged, or what was is mended."""
        return not any(found.damage and not found.mended for found in self.findings)


def diagnose(workspace: Workspace, *, repair: bool) -> Diagnosis:
    """Look at everything in a workspace, and mend it where asked.

    Raises:
        LockedError: something is to be mended where a living process writes.
        RecordError: a mend cannot be written; what was mended before stays mended.
    """
    if not workspace.path.is_dir():
        return Diagnosis({}, ())
    runs = workspace.runs()
    folders = sorted((workspace.path / "libraries").glob("*/journal.jsonl"))
    libraries = [workspace.library(path.parent.name) for path in folders]
    found: list[Finding] = []
    if repair:
        _refuse_living([*(run.path for run in runs), *(folder.path for folder in libraries)])
    for folder in libraries:
        found += _cured(lambda folder=folder: library_troubles(folder), repair)  # type: ignore[misc]
    for run in runs:
        found += _cured(lambda run=run: run_troubles(run, workspace), repair)  # type: ignore[misc]
        found += _cured(lambda run=run: _left_behind(run), repair)  # type: ignore[misc]
    for path in sorted(workspace.evaluations.glob("*/scores.jsonl")):
        found += _cured(lambda path=path: _score_troubles(path), repair)  # type: ignore[misc]
    found += _cured(lambda: _stale(workspace), repair)
    found += _cured(lambda: _readable_by_others(workspace, runs), repair)
    found += [_told(trouble) for trouble in _data_troubles(workspace)]
    found += _cured(lambda: _catalogue_troubles(workspace), repair)
    looked_at = {
        "runs": len(runs),
        "libraries": len(libraries),
        "data sets": sum(data.where == "workspace" for data in listed_data(workspace)),
    }
    return Diagnosis(looked_at, tuple(found))


def _cured(look: Callable[[], Iterable[Trouble]], repair: bool) -> list[Finding]:
    """The troubles of one object, each mended as it comes where asked."""
    found: dict[tuple[str, str], Finding] = {}
    for _ in range(_MOST_MENDS):
        mended = False
        for trouble in _readable(look()):
            key = (trouble.place, trouble.cause)
            if key in found and (found[key].mended or not repair):
                continue
            done = trouble.mend() if repair and trouble.mend is not None else ""
            found[key] = _told(trouble, done)
            if done:  # what follows may look different now
                mended = True
                break
        if not mended:
            break
    return list(found.values())


def _readable(troubles: Iterable[Trouble]) -> Iterator[Trouble]:
    """Troubles as they come; what cannot even be read is one of them."""
    try:
        yield from troubles
    except StudioError as error:
        yield Trouble(error.place, error.cause, error.move)
    except OSError as error:
        place = str(error.filename or "")
        yield Trouble(place, f"it cannot be read ({error.strerror}).", "Mend its permissions.")


def _told(trouble: Trouble, mended: str = "") -> Finding:
    return Finding(trouble.place, trouble.cause, trouble.move, trouble.damage, mended)


def _refuse_living(folders: Iterable[Path]) -> None:
    for folder in folders:
        if is_held(folder):
            raise LockedError(
                str(folder),
                f"a living process{_pid(folder)} is writing here.",
                "Wait until it is done or stop it with `studio ctl stop`, then repair.",
            )


def _pid(folder: Path) -> str:
    try:
        return f" (pid {int((folder / '.holder').read_text())})"
    except (OSError, ValueError):
        return ""


def _left_behind(run: RunDir) -> Iterator[Trouble]:
    """A socket or a holder's note of a process that is gone."""
    if is_held(run.path):
        return
    holder = run.path / ".holder"
    if (run.socket.is_symlink() or run.socket.exists()) and not is_alive(run):
        yield _removable(run.socket, "the process that made this socket is gone.")
    if holder.exists():
        yield _removable(holder, f"the process that wrote here{_pid(run.path)} is gone.")


def _stale(workspace: Workspace) -> Iterator[Trouble]:
    """Files that a killed process was about to rename, and runs it was about to remove."""
    for path in sorted(workspace.path.rglob(".*")):
        match = _LEFT_BY.match(path.name)
        if match and not _lives(int(match[1] or match[2])):
            yield _removable(path, "a process that is gone left this half done.")
    for folder in workspace.libraries():
        holder = folder.path / ".holder"
        if holder.exists() and not is_held(folder.path):
            yield _removable(holder, f"the process that wrote here{_pid(folder.path)} is gone.")


def _removable(path: Path, cause: str) -> Trouble:
    def mend() -> str:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        return "removed"

    move = f"It is in nobody's way; {lines.REPAIR} removes it."
    return Trouble(str(path), cause, move, mend, damage=False)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _score_troubles(path: Path) -> Iterator[Trouble]:
    """Damaged lines of a book of scores; readers skip them, so they cost one call each."""
    damaged = [(at, len(raw)) for at, raw in _raw_lines(path) if lines.whole(raw) is None]
    if not damaged:
        return

    def mend() -> str:
        # Written over in place, never moved: other processes append to this file meanwhile.
        with path.open("r+b") as file:
            for at, length in damaged:
                file.seek(at)
                if length >= lines.SHORTEST_FILLER:
                    file.write(lines.filler(length))
            file.flush()
            os.fsync(file.fileno())
        return f"wrote fillers over {len(damaged)} of its lines"

    mendable = all(length >= lines.SHORTEST_FILLER for _, length in damaged)
    yield Trouble(
        str(path),
        f"{len(damaged)} of its lines cannot be read.",
        "Nothing need be done: they are skipped, and what they told is measured again.",
        mend if mendable else None,
        damage=False,
    )


def _raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    at = 0
    with path.open("rb") as file:
        for raw in file:
            if raw.endswith(b"\n"):  # else somebody is writing it, or was
                yield at, raw
            at += len(raw)


def _readable_by_others(workspace: Workspace, runs: Iterable[RunDir]) -> Iterator[Trouble]:
    places = [workspace.catalogue, *workspace.evaluations.glob("*/*")]
    for run in runs:
        places += [path for pattern in _PRIVATE for path in run.path.glob(pattern)]
    for path in sorted(places):
        if not path.is_file():
            continue
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            cause = f"others may read it (mode {mode:04o}), and it could hold secrets."
            yield Trouble(str(path), cause, f"chmod 600 {path}", _closing(path), damage=False)


def _closing(path: Path) -> Callable[[], str]:
    def mend() -> str:
        path.chmod(0o600)
        return "now 0600"

    return mend


def _data_troubles(workspace: Workspace) -> Iterator[Trouble]:
    for data in listed_data(workspace):
        if data.where == "workspace" and data.n is None:
            cause, move = data.trouble, f"studio data check {data.path}"
            place, _, rest = cause.partition(": ")
            yield Trouble(place, rest or cause, move)


def _catalogue_troubles(workspace: Workspace) -> Iterator[Trouble]:
    """The catalogue against what it follows from. Rows that only are missing are no damage."""
    if not workspace.catalogue.exists():
        return
    move = f"{lines.REPAIR} makes it anew; nothing is lost by that."

    def mend() -> str:
        rebuild(workspace, _dataset_rows(workspace))
        return "made anew from the journals"

    try:
        tables = json.loads(workspace.catalogue.read_bytes())
        runs = {row["run"]: row for row in tables.get("runs", {}).values()}
        libraries = {row["library"]: row for row in tables.get("libraries", {}).values()}
    except (ValueError, AttributeError, TypeError, KeyError):
        yield Trouble(str(workspace.catalogue), "it cannot be read.", move, mend)
        return
    wrong = []
    for run in workspace.runs():
        try:
            if run.run in runs and runs[run.run] != json.loads(json.dumps(run_row(run))):
                wrong.append(f"run {run.run}")
        except StudioError:
            continue  # told of above
    for folder in workspace.libraries():
        row = libraries.get(folder.name)
        try:
            head = folder.head()
        except StudioError:
            continue
        if row is not None and (row["version"], row["content_hash"]) != (
            head.version,
            head.content_hash,
        ):
            wrong.append(f"library {folder.name}")
    if wrong:
        cause = f"it does not say what the journals do of {', '.join(wrong)}."
        yield Trouble(str(workspace.catalogue), cause, move, mend, damage=False)


def _dataset_rows(workspace: Workspace) -> Iterator[dict[str, Any]]:
    for data in listed_data(workspace):
        path = Path(data.path)
        if data.where != "workspace" or data.n is None or not path.is_file():
            continue
        content = path.read_bytes()
        yield {
            "name": data.name,
            "path": f"{path.parent.name}/{path.name}",
            "n": data.n,
            "bytes": len(content),
            "digest": digest_bytes(content),
        }
