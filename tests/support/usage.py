"""What was paid, by the records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from engines.core.types import Usage
from engines.record.ledger import file_usage


def read_usage(folder: Path) -> Iterator[tuple[str, Usage]]:
    """Policy and usage of every whole record below a folder, lost calls included."""
    for path in sorted(folder.glob("*.jsonl")):
        yield from file_usage(path)
