"""Where a report goes: a file in one step, or whatever stands at that place as it is."""

from __future__ import annotations

import re
from pathlib import Path

from engines.core.errors import RecordError
from engines.record.appender import write_atomic
from engines.record.run_dir import Workspace

_BEGINS = re.compile(rb"# Report of run |<!doctype html>.{0,999}<title>Report of run |$")
"""What may be overwritten: a report as `studio.run_report.sections` begins it, or nothing."""


def write_report(path: Path, data: bytes, workspace: Workspace) -> None:
    """Write a file whole; a pipe or a device is written to, and a link followed.

    Raises RecordError: it cannot be written. ConflictError: it holds something else.
    """
    move = "Choose another file, or remove it."
    workspace.check_overwrite(path, lambda old: _BEGINS.match(old) is not None, move)
    if not path.exists() or path.is_file():
        write_atomic(path.resolve(), data)
        return
    try:
        path.write_bytes(data)
    except OSError as error:
        cause = f"cannot be written ({error.strerror})."
        raise RecordError(str(path), cause, "Choose another place.") from error
