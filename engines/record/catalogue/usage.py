"""What the records of a run add up to, kept in `usage.json` beside them.

Files of finished steps never change, so that a resume reads those of the last few. May be thrown
away at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from engines.core.codec import dumps, from_dict, to_dict
from engines.core.errors import RecordError
from engines.core.types import NO_USAGE, Usage
from engines.record.appender import write_atomic
from engines.record.ledger import file_usage
from engines.record.seal import add_seal, read_sealed

NAME = "usage.json"
_Sums = dict[str, Any]
"""Of a file: "mark" tells it from another of that name, "sums" are rows of policy and usage."""


def usage_sums(records: Path) -> Iterator[tuple[str, Usage]]:
    """Policy and usage of every record below a folder, added up as far as a price tells no other.

    Raises DamagedError: a record cannot be read.
    """
    path = records.with_name(NAME)
    known, now = read_sealed(path) or {}, dict[str, _Sums]()
    for file in sorted(records.glob("*.jsonl")):
        found = file.stat()
        mark = [found.st_size, found.st_mtime_ns]
        one = known.get(file.name)
        now[file.name] = one if one and one["mark"] == mark else {"mark": mark, "sums": _add(file)}
    if now != known:
        with suppress(RecordError):  # where it cannot be written, the records are read each time
            write_atomic(path, add_seal(dumps(now)))
    for one in now.values():
        yield from ((policy, from_dict(Usage, usage)) for policy, usage in one["sums"])


def keep_usage(records: Path) -> None:
    """Add up what is new, while the run goes on; a damaged record is told of by a resume."""
    with suppress(RecordError):
        next(usage_sums(records), None)


def _add(file: Path) -> list[tuple[str, dict[str, Any]]]:
    sums: dict[tuple[str, bool], Usage] = {}
    for policy, usage in file_usage(file):
        key = policy, usage.cost_usd is None  # an unknown cost hides none that is known
        sums[key] = sums.get(key, NO_USAGE) + usage
    return [(policy, to_dict(usage)) for (policy, _), usage in sums.items()]
