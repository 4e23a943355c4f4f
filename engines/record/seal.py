"""The seal of a file: a first line, or first member of JSON, that is the hash of all behind it.

Standing first it also tells of a file that was cut. A file without one is somebody's own:
whoever changes a sealed one makes it their own by taking the seal away.
"""

import hashlib
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from engines.core.errors import DamagedError

ALTERED = "it was altered after the studio wrote it: its seal is gone or does not fit."
_LINE = b"# sha256 of all below: %s\n"
_MEMBER = b'{"sha256":"%s"'
_SEAL = re.compile(
    rb'^# sha256 of all below:([^\n]*)(?:\n|\Z)|\A\s*\{\s*"sha256"\s*:\s*"[^"]*"', re.MULTILINE
)


def add_seal(data: bytes) -> bytes:
    """The file of a YAML text that begins with a key or comment, or of a JSON object."""
    if not data.startswith(b"{"):
        return _LINE % _hash(data) + data
    rest = data[1:] if data == b"{}" else b"," + data[1:]
    return _MEMBER % _hash(rest) + rest


def seal_fits(data: bytes) -> bool | None:
    """Whether a file is as it was sealed, byte for byte; None: it has no seal."""
    found = _SEAL.search(data)
    if found is None:
        return None
    rest = data[found.end() :]
    return data[: found.end()] == (_MEMBER if found[1] is None else _LINE) % _hash(rest)


def read_sealed(path: Path) -> dict[str, Any] | None:
    """What JSON holds that is as it was sealed; None where there is no such file."""
    with suppress(OSError, ValueError):
        data = path.read_bytes()
        if seal_fits(data):
            found: dict[str, Any] = orjson.loads(data)
            del found["sha256"]
            return found
    return None


def refuse_altered(path: Path, data: bytes | None = None) -> None:
    """Raise DamagedError where a seal does not fit; what cannot be read is left to its reader.

    `data` is what the file holds; None: it is read.
    """
    try:
        data = path.read_bytes() if data is None else data
    except OSError:
        return
    if seal_fits(data) is False:
        move = (
            'Delete its seal (the line `# sha256 …` or the member "sha256", and content_hash if it '
            "is there) to use it as your own file; or restore it from a copy, or, in a workspace, "
            "run `studio doctor --repair`."
        )
        if path.name == "run.yaml" and path.with_name("journal.jsonl").exists():
            move = own_run_file_move(path)  # of a run; no repair knows what stood there
        raise DamagedError(str(path), ALTERED, move)


def own_run_file_move(path: Path) -> str:
    return (
        "Restore it from a copy, or delete its line `# sha256 …` to keep it so, or resume with a "
        f"run file of your own: `studio headless FILE --name {path.parent.name}`."
    )


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()
