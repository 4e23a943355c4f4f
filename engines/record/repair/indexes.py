"""What is made from a journal beside it, and is wrong although a reader would believe it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from engines.core.errors import StudioError
from engines.record import lines
from engines.record.catalogue.query import rows_path, rows_trouble
from engines.record.repair.trouble import Trouble
from engines.record.run_dir import Workspace
from engines.record.run_index import index_path, index_trouble


def index_troubles(workspace: Workspace) -> Iterator[Trouble]:
    """Indexes of runs, and rows to be asked of runs and libraries; a missing one is no trouble."""
    runs = [run.journal for run in workspace.runs()]
    for journal in (*runs, *(folder.journal_path for folder in workspace.libraries())):
        is_run = journal in runs
        with suppress(StudioError, ValueError):  # of the journal, where it was found before
            yield from _troubles(rows_path(journal), rows_trouble(journal, is_run=is_run))
            if is_run:
                yield from _troubles(index_path(journal), index_trouble(journal))


def _troubles(path: Path, cause: str) -> Iterator[Trouble]:
    if cause:
        move = f"{lines.REPAIR} removes it: it is made anew when it is needed."
        mend = partial(_remove, path)
        yield Trouble(str(path), cause, move, mend, damage=False, alone=True)


def _remove(path: Path) -> str:
    path.unlink(missing_ok=True)
    return "removed; it is made anew when it is needed"
