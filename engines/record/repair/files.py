"""One chained or unchained file by itself: where its damage begins, and how it ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engines.core.errors import DamagedError, StudioError
from engines.record import lines
from engines.record.journal import Entry, parse_entry
from engines.record.lines import Contents, StoredLine
from engines.record.lock import is_held, write_lock
from engines.record.repair.cut import cut_move, mend_by_cut
from engines.record.repair.trouble import Trouble


@dataclass(frozen=True, slots=True)
class FileCheck:
    """A chained or unchained file as far as it can be trusted."""

    lines: tuple[StoredLine, ...]
    contents: Contents | None  # None where a complete line is damaged
    error: DamagedError | None = None

    @property
    def end(self) -> int:
        """Bytes up to the end of the last whole line before any damage."""
        return self.lines[-1].offset + self.lines[-1].length if self.lines else 0


def examine(path: Path, *, chained: bool) -> FileCheck:
    """Read a file up to its first damaged line."""
    found: list[StoredLine] = []
    try:
        contents = lines.read(path, chained=chained, visit=found.append)
    except DamagedError as error:
        return FileCheck(tuple(found), None, error)
    return FileCheck(tuple(found), contents)


def file_troubles(path: Path, *, chained: bool, folder: Path) -> Iterator[Trouble]:
    """Damage and torn ends of one file; `folder` is the one whose lock its writers hold."""
    found = examine(path, chained=chained)
    if found.error is not None:
        mend = mend_by_cut(folder, path, found.end)
        yield Trouble(found.error.place, found.error.cause, cut_move(path, found.end), mend)
        return
    contents = found.contents
    assert contents is not None
    if (contents.torn or contents.newline_missing) and not is_held(folder):
        cause = f"its last {len(contents.torn)} bytes are a line that was never finished."
        done = "cut"
        if contents.newline_missing:
            cause, done = "its last line lacks its newline.", "its last line is whole again"

        def mend_end() -> str:
            with write_lock(folder):
                lines.repair_end(path, lines.read(path, chained=chained))
            return done

        move = "Nothing need be done: whoever writes there next mends it."
        yield Trouble(str(path), cause, move, mend_end, damage=False)


def read_written(path: Path) -> tuple[bytes, str]:
    """What a file holds, and why it cannot be read: it hides no other from whoever looks."""
    try:
        if not path.is_file():  # a pipe would never end
            return b"", "it is no file." if os.path.lexists(path) else "it is not there."
        return path.read_bytes(), ""
    except OSError as error:
        return b"", lines.unreadable_error(path, error).cause


def read_entry(path: Path, line: StoredLine) -> Entry | Trouble:
    try:
        return parse_entry(path, line)
    except StudioError as error:
        return Trouble(error.place, error.cause, error.move)
