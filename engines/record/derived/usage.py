"""What the records of a run add up to.

Files of finished steps never change, so that a resume reads those of the last few.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from engines.core.codec import from_dict, to_dict
from engines.core.errors import RecordError
from engines.core.types import NO_USAGE, Usage
from engines.record.derived.store import FOLDER, keep_derived, read_derived
from engines.record.ledger import file_usage

NAME = f"{FOLDER}/usage.json"
_Sums = dict[str, Any]
"""Of a file: "mark" tells it from another of that name, "sums" are rows of policy and usage."""


def usage_sums(records: Path) -> Iterator[tuple[str, Usage]]:
    """Policy and usage of every record below a folder, added up as far as a price tells no other.

    Raises DamagedError: a record cannot be read.
    """
    path = records.parent / NAME
    before = read_derived(path) or {}
    now: dict[str, _Sums] = {}
    for file in sorted(records.glob("*.jsonl")):
        status = file.stat()
        mark = [status.st_size, status.st_mtime_ns]
        sums = before.get(file.name)
        if sums is None or sums["mark"] != mark:
            sums = {"mark": mark, "sums": _add(file)}
        now[file.name] = sums
    if now != before:
        keep_derived(path, now)
    for sums in now.values():
        for policy, usage in sums["sums"]:
            yield policy, from_dict(Usage, usage)


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
