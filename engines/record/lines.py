r"""One line of a journal or record file: JSON that carries its own length and checksum.

    {"n":<bytes of e>,"h":"<checksum>","e":<the entry>}\n

A torn end is cut and told, damage is refused with its number. In a chained file each checksum
covers the one before, so that no line can be dropped, swapped or altered unseen.
"""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from engines.core.codec import digest_bytes
from engines.core.errors import DamagedError, RecordError
from engines.core.frozen import frozen
from engines.record.appender import unwritable_error

HEAD = re.compile(rb'\{"n":(\d{1,12}),"h":"([0-9a-f]{16})","e":')
TAIL = b"}\n"

REPAIR = "`studio doctor --repair`"
"""What mends a damaged file, in the words of whoever is told of one."""

RESTORE = "Restore it from a copy; `studio doctor` says whether the run goes on without it."
"""The move where a reply is gone: nothing but a copy brings it back."""


@frozen
class StoredLine:
    """One whole line; `offset` and `length` in bytes, the newline included."""

    number: int
    offset: int
    length: int
    digest: str
    body: bytes


@frozen
class Contents:
    """What a file holds. `end` is where its whole lines end; `torn` what follows them."""

    lines: tuple[StoredLine, ...]
    end: int
    torn: bytes = b""
    newline_missing: bool = False  # the last line is whole but for its newline


def encode(body: bytes, chain: str = "") -> tuple[bytes, str]:
    """Make the line of a body; `chain` is the checksum of the line before, or ""."""
    checksum = digest_bytes(chain.encode() + body, 8)
    return b'{"n":%d,"h":"%s","e":%s}\n' % (len(body), checksum.encode(), body), checksum


def read(
    path: Path,
    *,
    chained: bool,
    visit: Callable[[StoredLine], None] | None = None,
    after: StoredLine | None = None,
) -> Contents:
    """Read and check a file; a missing one is empty.

    In a `chained` file checksums cover their predecessors. `visit` is called with each line
    instead of collecting them; reading begins behind line `after`, which still `is_unchanged`.

    Raises DamagedError: a complete line fails its check. RecordError: it cannot be opened.
    """
    lines: list[StoredLine] = []
    take = visit or lines.append
    offset, chain, number = 0, "", 0
    if after is not None:
        offset, chain, number = after.offset + after.length, after.digest, after.number
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return Contents((), 0)
    except OSError as error:
        raise unreadable_error(path, error) from error
    with file:
        file.seek(offset)
        for raw in _raw_lines(file, path):
            number += 1
            chain = chain if chained else ""
            body, checksum = _verify(raw, chain)
            newline_missing = body is None and not raw.endswith(b"\n")
            if newline_missing:
                # A last line that lacks nothing but its newline was paid for: keep it.
                whole = _complete_newline(raw)
                body, checksum = _verify(whole, chain)
                if body is None and _verify(trim_to_length(raw), chain)[0] is None:
                    return Contents(tuple(lines), offset, raw)
                raw = whole
            if body is None:
                raise _damaged_error(path, number)  # also a whole line that lost its newline
            take(StoredLine(number, offset, len(raw), checksum, body))
            offset += len(raw)
            chain = checksum
            if newline_missing:
                return Contents(tuple(lines), offset, b"", True)
    return Contents(tuple(lines), offset)


def _raw_lines(file: BinaryIO, path: Path) -> Iterator[bytes]:
    try:
        yield from file
    except OSError as error:
        raise unreadable_error(path, error) from error


def unreadable_error(path: Path, error: OSError) -> RecordError:
    """What a user is told of a file that cannot be read."""
    if isinstance(error, IsADirectoryError) or os.path.isdir(path):
        return RecordError(
            str(path),
            "cannot be read: it is a folder.",
            "Move it away, or put the file back from a copy.",
        )
    move = "Mend its permissions." if isinstance(error, PermissionError) else "Mend the disk."
    return RecordError(
        str(path), f"cannot be read ({error.strerror}).", f"{move[:-1]}, or restore it from a copy."
    )


def repair_end(path: Path, contents: Contents) -> None:
    """Make a file end with a whole line: cut what is torn, put back a lost newline."""
    if not contents.torn and not contents.newline_missing:
        return
    try:
        os.truncate(path, contents.end - contents.newline_missing)
        if contents.newline_missing:
            with path.open("ab") as file:
                file.write(b"\n")
                os.fsync(file.fileno())
    except OSError as error:
        raise unwritable_error(path, error) from error


def is_unchanged(path: Path, line: StoredLine) -> bool:
    """Whether a line still is where it was read, and with it, where it is chained, all before."""
    try:
        with path.open("rb", buffering=0) as file:  # a buffer would read more than the line
            file.seek(line.offset)
            raw = file.read(line.length)
    except OSError:
        return False
    head = HEAD.match(raw)
    return head is not None and raw[head.end() :] == line.body + TAIL


def has_first_line(path: Path) -> bool:
    """Whether a file holds a first line: one that was torn does not count, a damaged one does."""
    try:
        with path.open("rb") as file:
            raw = file.readline()
    except OSError:
        return False
    return raw.endswith(b"\n") or _verify(_complete_newline(raw), "")[0] is not None


def read_at(path: Path, offset: int, length: int, digest: str = "") -> bytes:
    """The body of one unchained line; offset and length are in bytes, "" is any digest."""
    with path.open("rb") as file:
        file.seek(offset)
        body, found = _verify(file.read(length), "")
    if body is None or digest not in ("", found):
        raise DamagedError(
            f"{path} at byte {offset}",
            "this record fails its checksum or is another than the journal names.",
            RESTORE,
        )
    return body


def decode(raw: bytes, chain: str = "") -> bytes | None:
    """The body of one line with its newline; None where it is not whole."""
    return _verify(raw, chain)[0]


def trim_to_length(raw: bytes) -> bytes:
    """As much of the bytes as their head announces, with its newline."""
    head = HEAD.match(raw)
    return raw if head is None else raw[: head.end() + int(head[1]) + 1] + b"\n"


def _complete_newline(raw: bytes) -> bytes:
    """The line with its newline, where that is all it lacks."""
    announced = trim_to_length(raw)
    return announced if len(raw) in (len(announced) - 1, len(announced)) else raw


def _verify(raw: bytes, chain: str) -> tuple[bytes | None, str]:
    """The body of a line, None where it is not whole, and its checksum."""
    head = HEAD.match(raw)
    if head is None or not raw.endswith(TAIL):
        return None, ""
    body = raw[head.end() : -len(TAIL)]
    checksum = head[2].decode()
    if len(body) != int(head[1]) or digest_bytes(chain.encode() + body, 8) != checksum:
        return None, ""
    return body, checksum


def _damaged_error(path: Path, number: int) -> DamagedError:
    return DamagedError(
        f"{path}:{number}",
        "this line fails its checksum: the file was changed or the disk lost it.",
        f"Restore it from a copy. `studio doctor` says what a repair would do, {REPAIR} does it.",
    )
