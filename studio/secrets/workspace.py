"""Secrets of a workspace: what earlier runs had, recognised later without knowing it.

Owns `known-secrets.json` (a random salt, and of each secret its length and 32 bits of a keyed hash,
which is enough to find one again and far too little to find out what it is), and which secrets a
command can know that writes from outside any run.
"""

import json
import re
import secrets as random_bytes
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from engines.record.appender import write_atomic
from engines.record.run_dir import Workspace
from engines.secrets.mask import Mask
from studio.secrets import output, run_files


def masking_workspace(folder: Path) -> Workspace:
    """A workspace into which no secret is written that its runs had or ask the environment for."""
    for run_file in folder.glob("runs/*/run.yaml"):
        output.remember(run_files.run_file_secrets(run_file))
    return Workspace(folder, Mask(output.current_mask().values, secret_finder(folder)))


FILE = "known-secrets.json"
SHORTEST = 12
"""Characters: of a shorter secret even 32 bits would tell too much."""
MOST = 1_000
"""That are kept, the newest."""
_BEGINS = re.compile(r"(?:^|(?<=[\s\"'`=:/@,;(\[{<>&?|\\]))(?=\S)")
"""Where a secret can begin in a text."""

Find = Callable[[str], Iterator[tuple[int, int]]]


def remember_secrets(workspace: Path, values: Iterable[str]) -> None:
    """Let later commands of the workspace recognise these, whatever the environment holds then."""
    wanted = sorted(value for value in values if len(value) >= SHORTEST)
    salt, known = _read(workspace)
    salt = salt or random_bytes.token_bytes(16)
    new = [mark for value in wanted if (mark := _mark(salt, value)) not in known]
    if new:
        known = dict.fromkeys([*known, *new])
        kept = {"salt": salt.hex(), "known": list(known)[-MOST:]}
        write_atomic(workspace / FILE, json.dumps(kept).encode())


def secret_finder(workspace: Path) -> Find | None:
    """Finds what was remembered; None: nothing was."""
    salt, known = _read(workspace)
    if not known:
        return None
    lengths = sorted({length for length, _ in known}, reverse=True)

    def find(text: str) -> Iterator[tuple[int, int]]:
        end = 0
        for begin in _BEGINS.finditer(text):
            for length in lengths:
                at = begin.start()
                piece = text[at : at + length]
                if at >= end and len(piece) == length and _mark(salt, piece) in known:
                    end = at + length
                    yield at, end
                    break

    return find


def _mark(salt: bytes, value: str) -> tuple[int, str]:
    data = value.encode("utf-8", "replace")
    return len(value), blake2b(data, digest_size=4, key=salt).hexdigest()


def _read(workspace: Path) -> tuple[bytes, dict[tuple[int, str], None]]:
    """Salt and marks; nothing of a file that is not there or cannot be read."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads((workspace / FILE).read_bytes())
        marks = ((int(length), str(mark)) for length, mark in found["known"])
        return bytes.fromhex(found["salt"]), dict.fromkeys(marks)
    return b"", {}
