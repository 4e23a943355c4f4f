"""Parquet and Arrow files as rows, through pyarrow, which is an extra."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from engines.core.errors import DataError
from engines.core.extras import install_command

_BATCH_ROWS = 1024


def read_arrow_rows(
    path: Path, *, parquet: bool, columns: Collection[str] = ()
) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Number, place and fields of each row; of Parquet only these columns, where any are named."""
    kind = "Parquet" if parquet else "Arrow"
    try:
        import pyarrow
        from pyarrow import ipc
        from pyarrow import parquet as parquet_files
    except ImportError as error:
        cause = f"{kind} needs pyarrow, which is not installed."
        move = f"Run: {install_command('parquet')}"
        raise DataError(str(path), cause, move) from error
    number, place = 0, f"{path}, row "
    try:
        with pyarrow.OSFile(str(path)) as file:
            if parquet:
                whole = parquet_files.ParquetFile(file)
                read = [name for name in whole.schema_arrow.names if name in columns]
                batches = whole.iter_batches(batch_size=_BATCH_ROWS, columns=read or None)
            elif _is_arrow_file(file):
                reader = ipc.open_file(file)
                batches = (reader.get_batch(n) for n in range(reader.num_record_batches))
            else:
                batches = iter(ipc.open_stream(file))
            for batch in batches:
                others = [field.name for field in batch.schema if not _is_plain(field.type)]
                for row in batch.to_pylist():
                    number += 1
                    for name in others:
                        row[name] = to_json_value(row[name])
                    yield number, place + str(number), row
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(".")
        cause = f"It is no whole {kind} file: {reason}."
        raise DataError(str(path), cause, "Fetch or write it again.") from error


def _is_arrow_file(file: Any) -> bool:
    """Whether it has an index at its end; what save_to_disk writes is a stream without."""
    start = file.read(6)
    file.seek(0)
    return bool(start == b"ARROW1")


def _is_plain(kind: Any) -> bool:
    """Whether JSON has every value of a type as it is: looking at each took half of reading."""
    from pyarrow import types

    if types.is_struct(kind):
        return all(_is_plain(field.type) for field in kind)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_dictionary(kind):
        return _is_plain(kind.value_type)
    plain = types.is_string, types.is_large_string, types.is_integer, types.is_boolean
    return any(is_kind(kind) for is_kind in plain)


def to_json_value(value: Any) -> Any:
    """A value as JSON has it. NaN becomes null; bytes, such as images, only their length."""
    match value:
        case dict():
            return {str(key): to_json_value(item) for key, item in value.items()}
        case list() | tuple():
            return [to_json_value(item) for item in value]
        case float() if math.isnan(value):
            return None
        case float() if math.isinf(value):
            return str(value)
        case Decimal():
            return format(value, "f")
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return str(value)
        case bytes():
            return f"<{len(value)} bytes>"
        case _:
            return value
