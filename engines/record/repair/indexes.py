"""What is made from a journal beside it, and is wrong although a reader would believe it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from engines.core.errors import StudioError
from engines.record import lines, run_index
from engines.record.catalogue import query
from engines.record.repair.trouble import Trouble
from engines.record.run_dir import Workspace


def index_troubles(workspace: Workspace) -> Iterator[Trouble]:
    """Indexes of runs, and rows to be asked; a missing file is no trouble."""
    move = f"{lines.REPAIR} removes it: it is made anew when it is needed."
    for made in (query, run_index):
        for path in sorted(workspace.path.glob(f"*/*/{made.NAME}")):
            with suppress(StudioError, ValueError, OSError):  # of the journal: that is told of it
                if made.is_wrong(path.with_name("journal.jsonl")):
                    cause = "it is damaged, or does not say what the journal does."
                    mend = partial(_remove, path)
                    yield Trouble(str(path), cause, move, mend, damage=False, alone=True)


def _remove(path: Path) -> str:
    path.unlink(missing_ok=True)
    return "removed"
