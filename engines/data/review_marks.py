"""The mark of a person who has looked at an item before a model may see any of it.

It holds for the content that was looked at: an item that is changed afterwards has none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from engines.core.errors import DataError
from engines.core.ids import digest_bytes

MARK, MARKED_CONTENT, ORIGIN = "reviewed", "reviewed_content", "imported"


def content_hash(row: Mapping[str, Any]) -> str:
    """Of all that an item holds but its mark."""
    content = {key: value for key, value in row.items() if key not in (MARK, MARKED_CONTENT)}
    return digest_bytes(json.dumps(content, sort_keys=True).encode(), 8)


def is_unreviewed(row: Mapping[str, Any]) -> bool:
    """Whether a row waits for a person: it was imported, or says so, and has no mark that fits.

    A column `reviewed` of a foreign data set stops nothing, unless it says that nobody has.
    """
    if ORIGIN in row or MARKED_CONTENT in row:
        return row.get(MARK) is not True or row.get(MARKED_CONTENT) != content_hash(row)
    return str(row.get(MARK, "")).lower() == "false"


def set_mark(row: Mapping[str, Any], reviewed: bool) -> dict[str, Any]:
    """The same row, marked as it is now or not at all."""
    kept = {key: value for key, value in row.items() if key not in (MARK, MARKED_CONTENT)}
    return {**kept, MARK: reviewed, **({MARKED_CONTENT: content_hash(kept)} if reviewed else {})}


def unreviewed_error(place: str, name: str, numbers: Sequence[int], unit: str) -> DataError:
    """What to say where data is to be used that holds unreviewed items."""
    first, *others = numbers
    more = f" (nor {len(others)} more)" if others else ""
    cause = f"The item of {unit} {first} is not reviewed{more}: it may not be sent to any model."
    return DataError(f"{place}:{first}", cause, f"Look at it first: studio data review {name}.")
