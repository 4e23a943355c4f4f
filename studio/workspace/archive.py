"""Runs packed into one compressed file each, and brought back from it.

A file is verified, member by member, before anything is removed. What was removed stays in the
lists by a note in `archives/`, which says where the file is.
"""

import hashlib
import os
import re
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, Any

import orjson

from engines.core import codec, events
from engines.core.errors import ConflictError, RecordError, StudioError
from engines.core.frozen import frozen
from engines.record import appender, libraries, lock, seal
from engines.record.derived import catalogue, run_state
from engines.record.run_dir import RunDir, Workspace
from studio.session.control_socket import is_alive

_MANIFEST = "manifest.json"
_LEFT_OUT = re.compile(rf"(?:.*/)?\..*|control\.sock|{run_state.FOLDER}/.*")
"""Locks and half-written files, and what is made anew from the journal."""
_BLOCK = 1 << 20
_UNREADABLE = (OSError, EOFError, tarfile.TarError, zlib.error)
_COPY = "Restore the file from a copy."
_Files = dict[str, tuple[int, str]]
"""Size and hash by name."""


@frozen
class Archived:
    """A run in its file."""

    run: str
    file: str
    digest: str  # its sha256
    bytes: int
    files: int
    unpacked_bytes: int
    row: dict[str, Any]  # as `runs list` showed it


def archive_run(
    run: RunDir, workspace: Workspace, to: Path | None = None, *, remove: bool
) -> Archived:
    """Pack a run that no process works on, verify that, and `remove` the run if asked.

    Raises ConflictError: it is alive, or is to be removed and something needs it; the file exists.
    """
    if is_alive(run):
        raise ConflictError(
            f"run {run.run}", "its process is alive.", f"Stop it first: studio ctl stop {run.run}"
        )
    if remove:
        check_removable(run, workspace)
        _check_unneeded(run, workspace)
    file = (to or workspace.archives / f"{run.run}.tar.gz").absolute()
    row = catalogue.run_row(run)  # of a damaged one there is none
    appender.make_folder(file.parent)
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    # Who may only read can pack as well: what is written meanwhile fails the verification.
    locks = os.access(run.path, os.W_OK)
    with lock.write_lock(run.path) if locks else nullcontext():
        packed = _packed_files(run)
        if os.path.lexists(file):
            _check_same(file, run, packed)
        else:
            try:
                _pack(run, temporary, packed)
                if _read(temporary, lambda _: None) != packed:
                    raise RecordError(str(file), "it is not what was packed.", "Try another disk.")
                temporary.rename(file)
            finally:
                temporary.unlink(missing_ok=True)
            appender.sync_folder(file.parent)
        made = Archived(
            run=run.run,
            file=str(file),
            digest=_hash(file),
            bytes=file.stat().st_size,
            files=len(packed),
            unpacked_bytes=sum(size for size, _ in packed.values()),
            row=row,
        )
        if remove:  # before it goes: a kill in between leaves the run, and nothing else counts
            appender.make_folder(workspace.archives)
            appender.write_atomic(_note(workspace, run.run), seal.add_seal(codec.dumps(made)))
    if remove:
        remove_run(run, workspace)
    return made


def archived_runs(workspace: Workspace) -> Iterator[Archived]:
    """Runs that are in their files alone, by name."""
    for path in sorted(workspace.archives.glob("*.json")):
        found = _read_note(path)
        if found is not None and not os.path.lexists(workspace.runs_folder / found.run):
            yield found


def find_archived(run: str, workspace: Workspace) -> Archived | None:
    """The run of this name that is in its file alone; None: there is none."""
    return next((one for one in archived_runs(workspace) if one.run == run), None)


def remove_archive(archived: Archived, workspace: Workspace) -> bool:
    """Remove the note of a run for good, and its file; False: that had gone, wherever it is."""
    was_there = os.path.lexists(archived.file)
    Path(archived.file).unlink(missing_ok=True)
    _note(workspace, archived.run).unlink(missing_ok=True)
    return was_there


def restore_run(what: str, workspace: Workspace) -> RunDir:
    """Bring a run back by its name, or from a file; the file stays.

    Raises ConflictError: there is no such archive, or there is a run of that name. RecordError: the
    file is damaged, or no archive of a run.
    """
    note = None if "/" in what else _read_note(_note(workspace, what))
    file = Path(note.file if note else what).expanduser()
    if not file.is_file():
        if note:
            raise ConflictError(
                str(file),
                "the file of this run is not there.",
                "Put it back, or give the path where it is now.",
            )
        raise ConflictError(
            f"archive {what}",
            "there is none.",
            "`studio runs list` shows what is archived; or give the path of a file.",
        )
    if note and _hash(file) != note.digest:
        raise RecordError(str(file), "it is not the file that was written.", _COPY)
    name, packed = _read_manifest(file)
    run = RunDir(workspace.runs_folder / name)
    if os.path.lexists(run.path):
        raise ConflictError(
            f"run {name}",
            "a run of that name is in the workspace.",
            "Remove or archive that one first.",
        )
    appender.make_folder(workspace.runs_folder)
    aside = workspace.path / f".{name}.{os.getpid()}.tmp"
    try:
        if _read(file, lambda member: aside / member) != packed:
            raise RecordError(str(file), "a file in it is not as it was packed.", _COPY)
        aside.rename(run.path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    appender.sync_folder(workspace.runs_folder)
    catalogue.refresh_catalogue(workspace)
    return run


def _check_unneeded(run: RunDir, workspace: Workspace) -> None:
    """Refuse to remove a run whose library or whose followers still need it."""
    state, again = run.state(), "or archive it without --remove."
    if state.started is not None and (state.open_operations or state.reviewed_operations):
        raise ConflictError(
            f"run {run.run}",
            f"library {state.started.library} waits for its decisions.",
            f"Decide them: studio review {run.run}, {again}",
        )
    named = re.compile(rf"\brun:{re.escape(run.run)}(?![\w.-])".encode())
    files = [other.run_file for other in workspace.runs() if other.run != run.run]
    for path in (*files, *workspace.configs.rglob("*.yaml")):
        if path.is_file() and named.search(path.read_bytes()):
            raise ConflictError(
                f"run {run.run}",
                f"{path} names its weights, run:{run.run}.",
                f"Export them first, {again}",
            )


def _packed_files(run: RunDir) -> _Files:
    every = sorted(path for path in run.path.rglob("*") if path.is_file())
    names = {str(path.relative_to(run.path)): path for path in every}
    kept = {name: path for name, path in names.items() if not _LEFT_OUT.fullmatch(name)}
    return {name: (path.stat().st_size, _hash(path)) for name, path in kept.items()}


def _check_same(file: Path, run: RunDir, packed: _Files) -> None:
    """Refuse a file that is there already, unless it is the archive of this run as it is now."""
    with suppress(RecordError):
        if _read_manifest(file) == (run.run, packed) and _read(file, lambda _: None) == packed:
            return
    raise ConflictError(str(file), "it exists already.", "Choose another file with --to FILE.")


def _pack(run: RunDir, target: Path, packed: _Files) -> None:
    """Write the archive, its manifest first."""
    manifest = codec.dumps({"run": run.run, "files": packed})
    entry = tarfile.TarInfo(_MANIFEST)
    entry.size = len(manifest)
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as raw:
        with tarfile.open(fileobj=raw, mode="w:gz", compresslevel=6, dereference=True) as tar:
            tar.addfile(entry, BytesIO(manifest))
            for name in packed:
                tar.add(run.path / name, f"{run.run}/{name}", recursive=False)
        raw.flush()
        os.fsync(raw.fileno())


def _read_manifest(file: Path) -> tuple[str, _Files]:
    """The run of an archive, and what was packed. Raises RecordError: it is none."""
    try:
        with tarfile.open(file, "r:gz") as tar:
            first = tar.next()
            source = tar.extractfile(first) if first and first.name == _MANIFEST else None
            data = orjson.loads(source.read()) if source else {}
        libraries.check_name(data["run"])
        files = {name: (size, digest) for name, (size, digest) in data["files"].items()}
        if "journal.jsonl" not in files or not all(map(_is_inside, files)):
            raise ValueError("these are not the files of a run")
        return data["run"], files
    except (*_UNREADABLE, ValueError, KeyError, TypeError, StudioError) as error:
        raise RecordError(str(file), "it is no archive of a run, or damaged.", _COPY) from error


def _is_inside(name: str) -> bool:
    """Whether a file of this name is in the folder that it is taken to be in, and nowhere else."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and str(path) == name != "."


def _read(file: Path, place: Callable[[str], Path | None]) -> _Files:
    """Size and hash of each file in an archive, which is written where `place` says."""
    run, packed = _read_manifest(file)
    found: _Files = {}
    try:
        with tarfile.open(file, "r:gz") as tar:
            for member in tar:
                name = member.name.removeprefix(f"{run}/")
                if name not in packed or not member.isfile():
                    continue  # the manifest; anything else is missing from what was packed
                source = tar.extractfile(member)
                assert source is not None
                found[name] = (member.size, _write(source, place(name), member.mtime))
    except _UNREADABLE as error:
        raise RecordError(str(file), f"it cannot be read ({error}).", _COPY) from error
    return found


def _write(source: IO[bytes], target: Path | None, modified: float) -> str:
    """Write a file of a restored run, where one is wanted; the hash of its content."""
    digest = hashlib.sha256()
    if target is not None:
        appender.make_private_folder(target.parent)
    anew = os.O_CREAT | os.O_EXCL if target else 0
    fd = os.open(target or os.devnull, os.O_WRONLY | anew, 0o600)
    with os.fdopen(fd, "wb") as file:
        while block := source.read(_BLOCK):
            digest.update(block)
            file.write(block)
        file.flush()
        if target is not None:
            os.fsync(fd)
            os.utime(target, (modified, modified))
    return digest.hexdigest()


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_note(path: Path) -> Archived | None:
    with suppress(ValueError):  # of another release
        return codec.from_dict(Archived, found) if (found := seal.read_sealed(path)) else None
    return None


def _note(workspace: Workspace, run: str) -> Path:
    return workspace.archives / f"{run}.json"


_ASIDE = ".removed-"


def check_removable(run: RunDir, workspace: Workspace) -> None:
    """Refuse to remove a run whose process is alive, or from which another was forked."""
    if is_alive(run):
        raise ConflictError(
            f"run {run.run}", "its process is alive.", f"Stop it first: studio ctl stop {run.run}"
        )
    if forks := _forks(run, workspace):
        raise ConflictError(
            f"run {run.run}",
            f"its first steps are also those of run {', '.join(forks)}.",
            "Remove what was forked from it first.",
        )


def remove_run(run: RunDir, workspace: Workspace) -> None:
    """Remove the folder and the catalogue's row of a run. Raises ConflictError or LockedError."""
    check_removable(run, workspace)
    aside = workspace.path / f"{_ASIDE}{run.run}-{os.getpid()}"
    with lock.write_lock(run.path.resolve()):  # where it is a link, its note goes from there
        run.path.rename(aside)
    for left in workspace.path.glob(f"{_ASIDE}*"):
        if left.is_symlink():
            left.unlink()  # what it leads to is not the workspace's to remove
        else:
            shutil.rmtree(left)
    catalogue.refresh_catalogue(workspace)  # drops rows whose run is gone


def library_of(run: RunDir) -> str | None:
    """The library a run commits to; None where its journal does not say."""
    started = _read_start(run)
    return started.library if started else None


def _forks(run: RunDir, workspace: Workspace) -> list[str]:
    starts = {other.run: _read_start(other) for other in workspace.runs() if other.run != run.run}
    return [name for name, started in starts.items() if started and started.forked_from == run.run]


def _read_start(run: RunDir) -> events.RunStarted | None:
    try:
        return run.state().started
    except StudioError:
        return None  # a damaged run does not say it, and may be removed as well
