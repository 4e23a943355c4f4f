"""Values made from journals and records, kept in `derived/` beside them: one store, one rule.

A file there that is damaged, old or missing is made again from the journals by whoever needs it. So
the folder may be thrown away at any time, no repair knows it, and where it cannot be written
nothing is lost but time.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from engines.core.codec import digest_bytes, dumps
from engines.core.errors import StudioError
from engines.core.state import fold
from engines.record import lines
from engines.record.appender import write_atomic
from engines.record.seal import add_seal, read_sealed

FOLDER = "derived"


def derive(path: Path, made_from: Any, make: Callable[[], Any]) -> Any:
    """Return the value that is kept in a file if it was made from the same, else make it again."""
    kept = read_derived(path)
    if kept is not None and kept["made_from"] == made_from:
        return kept["value"]
    value = make()
    keep_derived(path, {"made_from": made_from, "value": value})
    return value


def read_derived(path: Path) -> Any:
    """Return what is kept in a file; None where it is damaged, gone or of other code."""
    kept = read_sealed(path)
    if kept is None or kept["code"] != code_digest():
        return None
    return kept["kept"]


def keep_derived(path: Path, value: object) -> None:
    """Write a value down; it does not matter where that fails."""
    # A full disk, a folder of somebody else's, or a number too large for JSON.
    with suppress(OSError, StudioError, TypeError):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_atomic(path, add_seal(dumps({"code": code_digest(), "kept": value})))


def journal_mark(journal: Path) -> dict[str, Any]:
    """Return what tells a journal as it is now from another, or from the same at another time.

    Raises RecordError: it cannot be read.
    """
    try:
        now = journal.stat()
    except PermissionError as error:
        raise lines.unreadable_error(journal, error) from error
    return {"bytes": now.st_size, "changed_ns": now.st_ctime_ns, "code": code_digest()}


@cache
def code_digest() -> str:
    """Return the hash of all code that makes something of events: other code may mean other."""
    core = Path(fold.__file__).parents[1]
    sources = (*core.glob("*.py"), *core.glob("state/*.py"), *Path(__file__).parent.glob("*.py"))
    return digest_bytes(b"".join(path.read_bytes() for path in sorted(sources)))
