"""What is made from a journal beside it, and is wrong although a reader would believe it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from engines.core.errors import StudioError
from engines.record import lines, run_index
from engines.record.catalogue import query
from engines.record.repair.cut import move_aside, remove
from engines.record.repair.trouble import Trouble


def index_troubles(folder: Path) -> Iterator[Trouble]:
    """The index of a run, and rows to be asked of a run or library; a missing file is none."""
    move = f"{lines.REPAIR} removes it: it is made anew when it is needed."
    kept = run_index.STATE_NAME
    for name, is_wrong in (
        (query.NAME, query.is_wrong),
        (run_index.NAME, run_index.is_wrong),
        (kept, partial(run_index.is_wrong, name=kept)),
    ):
        path = folder / name
        with suppress(StudioError, ValueError, OSError):  # of the journal: that is told of it
            if path.exists() and is_wrong(folder / "journal.jsonl"):
                cause = "it is damaged, or does not say what the journal does."
                mend = partial(move_aside if path.is_dir() else remove, path)
                yield Trouble(str(path), cause, move, mend, damage=False, alone=True)
