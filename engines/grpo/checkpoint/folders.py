"""Checkpoints as folders: written whole or not at all, sealed with a digest, and found again.

Needs nothing but the standard library. What lies in the files is `contents`'s.
"""

import glob
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.core.errors import DamagedError, RecordError

SEAL = "digest.json"
STATE = "state.json"
ADAPTER = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
FORMAT = 1  # of the folder; a reader refuses what it does not know
_STEP = re.compile(r"global_step_(\d+)")
_NEXT = "Resume from an earlier checkpoint of the run, or train it anew."


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """A finished checkpoint of a run: `step` counts steps over the whole run."""

    step: int
    folder: Path


def find_checkpoints(run_folder: Path) -> tuple[FoundCheckpoint, ...]:
    """All of a run, by step; of one step that was saved by several processes, the newest last."""
    folders = (path.parent for path in (run_folder / "checkpoints").glob(f"**/{SEAL}"))
    found = [
        (int(match[1]), folder.stat().st_mtime_ns, str(folder), folder)
        for folder in folders
        if (match := _STEP.fullmatch(folder.name))
        and not any(part.startswith(".") for part in folder.relative_to(run_folder).parts)
    ]
    return tuple(FoundCheckpoint(step, folder) for step, _, _, folder in sorted(found))


@contextmanager
def atomic_folder(
    folder: Path, *, what: str = "checkpoint", replace: bool = True
) -> Iterator[Path]:
    """Yield an empty folder to write into, which takes `folder`'s place once it is complete.

    Until then whatever stands there stays as it is, also when the process is killed: what is
    left behind has a hidden name and is swept up at the next writing. With `replace` an older
    `folder` gives way; otherwise only an empty one does.

    Raises RecordError: the disk is full or refuses.
    """
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    mode = 0o700 if replace else 0o777
    try:
        folder.parent.mkdir(mode=mode, parents=True, exist_ok=True)
        if replace:
            restore_replaced(folder)
        _remove_leftovers(folder)
        partial.mkdir(mode=mode)
        yield partial
        for path in (*sorted(partial.rglob("*")), partial):
            _sync_to_disk(path)
        if replace and folder.exists():
            _swap_folders(partial, folder)
        else:
            os.replace(partial, folder)
        _sync_to_disk(folder.parent)
    except OSError as error:
        raise RecordError(
            str(folder),
            f"the {what} cannot be written ({error.strerror or error}).",
            "Make room or mend the permissions, then give the same command again: nothing "
            "that was there is touched.",
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def restore_replaced(folder: Path) -> None:
    """Put back what a process that was killed while replacing `folder` had set aside."""
    for aside in sorted(folder.parent.glob(f".{folder.name}.*.replaced")):
        if folder.exists():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            aside.rename(folder)


def seal(folder: Path) -> str:
    """Write the digest of every file below `folder` beside them; returns that of the whole."""
    files = {
        path.relative_to(folder).as_posix(): _file_digest(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != SEAL
    }
    whole = _combined_digest(files)
    (folder / SEAL).write_text(
        json.dumps({"format": FORMAT, "digest": whole, "files": files}, indent=2, sort_keys=True)
    )
    return whole


def check_seal(folder: Path) -> str:
    """Check every sealed file; returns the digest. Files added since do no harm.

    Raises:
        RecordError: there is no checkpoint, or one of a newer format.
        DamagedError: a file is missing or not as it was written.
    """
    if not folder.is_dir():
        raise RecordError(str(folder), "there is no checkpoint.", _NEXT)
    try:
        sealed = json.loads((folder / SEAL).read_bytes())
        written, files, whole = sealed["format"], dict(sealed["files"]), str(sealed["digest"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged_error(folder / SEAL, error) from error
    if written != FORMAT:
        cause = f"the checkpoint has format {written}, and this version reads {FORMAT}."
        raise RecordError(str(folder), cause, "Use the version of practice studio that wrote it.")
    for name, expected in files.items():
        try:
            actual = _file_digest(folder / name)
        except OSError as error:
            raise damaged_error(folder / name, error) from error
        if actual != expected:
            cause = f"{name} is not as it was written: its digest differs."
            raise DamagedError(str(folder), cause, _NEXT)
    if _combined_digest(files) != whole:
        raise DamagedError(str(folder), f"{SEAL} contradicts itself.", _NEXT)
    return whole


def read_facts(folder: Path) -> dict[str, Any]:
    """A checkpoint's `state.json`: base model, versions and the engine's own plain values.

    Raises DamagedError: it is not there or no JSON object.
    """
    try:
        return dict(json.loads((folder / STATE).read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise damaged_error(folder / STATE, error) from error


def damaged_error(path: Path, error: Exception) -> RecordError:
    """A file that cannot be read: damaged, unless the system refuses it."""
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
        cause = f"cannot be read ({error.strerror or error})."
        return RecordError(str(path), cause, "Mend its permissions.")
    cause = "it is missing." if isinstance(error, OSError) else f"it cannot be read ({error})."
    return DamagedError(str(path), cause, _NEXT)


def _swap_folders(partial: Path, folder: Path) -> None:
    # A folder with files cannot be replaced in one move; `restore_replaced` undoes the first.
    aside = folder.with_name(f".{folder.name}.{os.getpid()}.replaced")
    os.replace(folder, aside)
    os.replace(partial, folder)
    _sync_to_disk(folder.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _remove_leftovers(folder: Path) -> None:
    """Remove what killed writers left: of other steps too, since one process writes at a time."""
    named = "global_step_*" if _STEP.fullmatch(folder.name) else glob.escape(folder.name)
    for path in folder.parent.glob(f".{named}.*.partial"):
        shutil.rmtree(path, ignore_errors=True)


def _sync_to_disk(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _combined_digest(files: dict[str, str]) -> str:
    listed = "".join(f"{name}\0{digest}\n" for name, digest in sorted(files.items()))
    return hashlib.sha256(listed.encode()).hexdigest()[:32]
