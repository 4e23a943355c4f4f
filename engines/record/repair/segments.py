"""What is wrong with the parts of a run's journal: each by itself, and with one another."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from engines.record import lines
from engines.record.repair.cut import cut_move, mend_by_cut, move_aside, remove
from engines.record.repair.files import file_troubles
from engines.record.repair.trouble import Trouble
from engines.record.segments.files import closed_files, closed_number, closed_path, read_head
from engines.record.segments.reading import read_undamaged


def journal_troubles(journal: Path, folder: Path) -> Iterator[Trouble]:
    """Where its damage begins, how it ends, and files that are called as its parts and are none.

    `folder` is the one whose lock its writers hold.
    """
    left = [path for path in closed_files(folder) if closed_number(path) >= _number(journal)]
    for path in left:
        same = _begins_with(journal, path)
        cause = "it is no part of this journal."
        mend, move = partial(move_aside, path), f"{lines.REPAIR} moves it aside."
        if same:
            cause = "a kill cut the closing of this part: the journal itself still holds it."
            mend, move = partial(remove, path), f"Nothing need be done; {lines.REPAIR} removes it."
        yield Trouble(str(path), cause, move, mend, damage=False, alone=True)
    if read_head(journal).segment == 1:
        closed = closed_files(folder)
        if not closed or left:
            yield from file_troubles(journal, chained=True, folder=folder)
            return
        place, cause = f"{journal}:1", "the line that this part begins with fails its check."
        path, end = closed[-1], closed[-1].stat().st_size
    else:
        at, error = read_undamaged(journal, lambda *_: None)
        if error is None or at is None:
            yield from file_troubles(journal, chained=True, folder=folder)
            return
        place, cause = error.place, error.cause
        is_growing = at.segment == read_head(journal).segment
        path = journal if is_growing else closed_path(journal, at.segment)
        end = at.line.offset + at.line.length
    yield Trouble(place, cause, cut_move(path, end), mend_by_cut(folder, path, end))


def _number(journal: Path) -> int:
    """The number of the growing part, also where the line that tells it is damaged."""
    head, closed = read_head(journal).segment, closed_files(journal.parent)
    if head > 1 or not closed or _begins_with(journal, closed[-1]):
        return head
    return closed_number(closed[-1]) + 1


def _begins_with(journal: Path, path: Path) -> bool:
    with path.open("rb") as part, journal.open("rb") as whole:
        return part.read() == whole.read(path.stat().st_size)
