"""Cutting a file, told of before and kept as it was."""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from engines.record import lines
from engines.record.appender import sync_folder, write_atomic
from engines.record.libraries import LibraryFolder
from engines.record.lock import write_lock
from engines.record.segments.files import closed_files, closed_number, first_line

_WORDS = {
    "OperationDecided": "decision",
    "OperationsDecided": "joint decision",
    "LessonCommitted": "commit",
    "LibraryCommitted": "version",
    "LibraryCurated": "remembered rejection",
    "LibraryCredited": "use count",
    "LibraryMeasured": "measurement",
    "LibraryLabelled": "label",
    "LessonProposed": "lesson",
    "LessonsCompared": "choice of a lesson",
    "ReplyMended": "reply correction",
    "OperationProposed": "hand-made operation",
    "EvaluationFinished": "evaluation",
    "GroupReflected": "reflection",
    "RolloutJudged": "verdict",
    "RolloutFinished": "rollout",
}
_KIND = re.compile(rb'"kind":"(\w+)"')
_CURATES = re.compile(rb'"curates":"([^"\\]*)')


def cut_with_backup(path: Path, end: int) -> tuple[str, str]:
    """Cut a file and keep it as it was in `NAME.damaged-N`; returns that name and what was cut.

    A closed part of a journal becomes the growing one again, since all behind it goes with the cut.
    """
    data, behind = path.read_bytes(), _parts_behind(path)
    lost = _describe(path, data[end:], behind)
    target = behind[-1] if behind else path
    backup = free_name(target)
    write_atomic(backup, target.read_bytes())  # where it cannot be kept, nothing is cut
    if behind:
        write_atomic(target, data[:end])
        for part in (path, *behind[:-1]):
            move_aside(part)
        return f"{backup.name} and journal-*.damaged-*", lost
    os.truncate(path, end)
    sync_folder(path.parent)
    return backup.name, lost


def _parts_behind(path: Path) -> list[Path]:
    """What follows a closed part of a journal; nothing behind any other file."""
    if not (number := closed_number(path)):
        return []
    closed = [part for part in closed_files(path.parent) if closed_number(part) > number]
    return [*closed, path.with_name("journal.jsonl")]


def cut_move(path: Path, end: int) -> str:
    """What a repair would do: nothing is cut that was not told of before."""
    data = path.read_bytes()
    lost = _describe(path, data[end:], _parts_behind(path))
    after = "a resume makes what it can again from the recorded replies."
    if not _is_journal(path):
        after = "a resume asks again for those that it still needs."
    elif curates := _CURATES.search(first_line(path)):
        after = f"no resume makes it again: repeat the {curates[1].decode('utf-8', 'replace')}."
    elif survivors := LibraryFolder(path.parent).describe_survivors():
        after = f"before that, {survivors}"
    return (
        f"Restore it from a copy, or run {lines.REPAIR}: it keeps a copy and cuts here, "
        f"which takes away {lost}; {after}"
    )


def mend_by_cut(folder: Path, path: Path, end: int) -> Callable[[], str]:
    def mend() -> str:
        with write_lock(folder):
            backup, lost = cut_with_backup(path, end)
        rest = "; nothing is left of it" if not end and path.name == "journal.jsonl" else ""
        return f"cut; {backup} is the file as it was; cut: {lost}{rest}"

    return mend


def free_name(path: Path) -> Path:
    names = (path.with_name(f"{path.name}.damaged-{number}") for number in itertools.count(1))
    return next(name for name in names if not os.path.lexists(name))


def move_aside(path: Path) -> str:
    """Make room for a file, whatever stands there: also a folder, or a link to nowhere."""
    return f"moved to {path.rename(free_name(path)).name}"


def remove(path: Path) -> str:
    """Whatever stands there; of a link the link alone."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    return "removed"


def _is_journal(path: Path) -> bool:
    return path.name == "journal.jsonl" or closed_number(path) > 0


def _describe(path: Path, rest: bytes, behind: Iterable[Path]) -> str:
    """What a piece of a journal or of a record file amounts to, with the parts behind it."""
    rest = b"".join((rest, *(part.read_bytes() for part in behind)))
    if not _is_journal(path):
        replies = max(1, rest.count(b"\n"))
        return "1 reply" if replies == 1 else f"{replies} replies"
    kinds = Counter(_WORDS.get(kind.decode()) for kind in _KIND.findall(rest))
    counts = [(kinds[word], word) for word in _WORDS.values() if kinds[word]]
    counted = ", ".join(f"{n} {word}" if n == 1 else f"{n} {word}s" for n, word in counts)
    return counted or f"{len(rest)} bytes that hold nothing of weight"
