r"""One line of a journal or record file: JSON that carries its own length and checksum.

    {"n":<bytes of e>,"h":"<checksum>","e":<the entry>}\n

Owns the difference between a torn end (cut and told) and damage (refused with its
number). In a chained file each checksum covers the one before, so that no line can be
dropped, swapped or altered unseen.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engines.core.errors import DamagedError
from engines.core.ids import digest_bytes

_HEAD = re.compile(rb'\{"n":(\d{1,12}),"h":"([0-9a-f]{16})","e":')
_TAIL = b"}\n"


@dataclass(frozen=True, slots=True)
class Line:
    """One whole line; `offset` and `length` in bytes, the newline included."""

    number: int
    offset: int
    length: int
    digest: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Contents:
    """What a file holds. `end` is where its whole lines end; `torn` what follows them."""

    lines: tuple[Line, ...]
    end: int
    torn: bytes = b""
    newline_missing: bool = False  # the last line is whole but for its newline


def encode(body: bytes, chain: str = "") -> tuple[bytes, str]:
    """Make the line of a body; `chain` is the checksum of the line before, or ""."""
    checksum = digest_bytes(chain.encode() + body, 8)
    return b'{"n":%d,"h":"%s","e":%s}\n' % (len(body), checksum.encode(), body), checksum


def read(path: Path, *, chained: bool, visit: Callable[[Line], None] | None = None) -> Contents:
    """Read and check a file; a missing one is empty.

    Args:
        path: the file.
        chained: checksums cover their predecessors.
        visit: called with each line instead of collecting them.

    Raises:
        DamagedError: a complete line fails its check.
    """
    lines: list[Line] = []
    take = visit or lines.append
    offset, chain, number = 0, "", 0
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return Contents((), 0)
    with file:
        for raw in file:
            number += 1
            body, checksum = _checked(raw, chain if chained else "")
            if body is None or checksum is None:
                if raw.endswith(b"\n"):
                    raise _damaged(path, number)
                # A last line that lacks nothing but its newline was paid for: keep it.
                body, checksum = _checked(_completed(raw), chain if chained else "")
                if body is None or checksum is None:
                    if _checked(_first(raw), chain if chained else "")[0] is not None:
                        raise _damaged(path, number)  # a whole line that lost its newline
                    return Contents(tuple(lines), offset, raw)
                take(Line(number, offset, len(_completed(raw)), checksum, body))
                return Contents(tuple(lines), offset + len(_completed(raw)), b"", True)
            take(Line(number, offset, len(raw), checksum, body))
            offset += len(raw)
            chain = checksum
    return Contents(tuple(lines), offset)


def read_at(path: Path, offset: int, length: int) -> bytes:
    """The body of one unchained line.

    Raises:
        DamagedError: it is not whole.
    """
    with path.open("rb") as file:
        file.seek(offset)
        body, _ = _checked(file.read(length), "")
    if body is None:
        raise DamagedError(
            f"{path} at byte {offset}",
            "this record fails its checksum.",
            "Run `studio doctor` or restore the file from a copy.",
        )
    return body


def whole(raw: bytes) -> bytes | None:
    """The body of one unchained line with its newline; None where it is not whole."""
    return _checked(raw, "")[0]


def _first(raw: bytes) -> bytes:
    """As much of the bytes as their head announces, with its newline."""
    head = _HEAD.match(raw)
    return raw if head is None else raw[: head.end() + int(head[1]) + 1] + b"\n"


def _completed(raw: bytes) -> bytes:
    """The line with its newline, where that is all it lacks."""
    first = _first(raw)
    return first if len(raw) in (len(first) - 1, len(first)) else raw


def _checked(raw: bytes, chain: str) -> tuple[bytes | None, str | None]:
    head = _HEAD.match(raw)
    if head is None or not raw.endswith(_TAIL):
        return None, None
    body = raw[head.end() : -len(_TAIL)]
    checksum = head[2].decode()
    if len(body) != int(head[1]) or digest_bytes(chain.encode() + body, 8) != checksum:
        return None, None
    return body, checksum


def _damaged(path: Path, number: int) -> DamagedError:
    return DamagedError(
        f"{path}:{number}",
        "this line fails its checksum: the file was changed or the disk lost it.",
        "Restore it from a copy, or start afresh with --restart-step 0.",
    )
