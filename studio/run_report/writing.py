"""Where a report goes: a file in one step, or whatever stands at that place as it is."""

from __future__ import annotations

from pathlib import Path

from engines.core.errors import RecordError
from engines.record.appender import write_atomic


def write_report(path: Path, data: bytes) -> None:
    """Write a file whole; a pipe or a device is written to, and a link followed.

    Raises RecordError: it cannot be written.
    """
    if not path.exists() or path.is_file():
        write_atomic(path.resolve(), data)
        return
    try:
        path.write_bytes(data)
    except OSError as error:
        cause = f"cannot be written ({error.strerror})."
        raise RecordError(str(path), cause, "Choose another place.") from error
