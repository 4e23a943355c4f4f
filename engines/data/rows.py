"""Files as rows: JSONL, a JSON array, CSV, spreadsheets, and Parquet and Arrow through pyarrow.

Numbers of JSON keep what is written, and no field stands twice. A row that cannot be used is handed
on as its error, so that one reading can name every bad row of a file. What unpacks to far more than
any text does is refused before it fills the memory.
"""

import csv
import gzip
import io
import json
import math
import sys
import zlib
from collections.abc import Collection, Iterable, Iterator
from datetime import date, datetime, time
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile, ZipFile

from engines.core.codec import JsonObject
from engines.core.errors import DataError, install_command
from engines.core.frozen import frozen
from engines.data.source import (
    TASK_FILE,
    DataSource,
    choose_split,
    is_database,
    read_samples,
    read_task,
    unpacked_name,
)

Unit = Literal["line", "row"]
Row = tuple[int, str, JsonObject | DataError]
"""Number (line or row, from 1), place for messages, and the fields or what is wrong."""

MOST_BYTES = 2 << 30
FREE_BYTES = 64 << 20
"""So much any file may unpack to."""
MOST_RATIO = 100
"""Texts shrink to a fifth; even rows that repeat each other seldom to a hundredth."""
_GZIP, _ZSTD, _ZIP = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04"
_BATCH_ROWS = 1024
_PLAIN = ("string", "large_string", "bool", "int64", "int32")
"""Types of Arrow whose values are JSON's: looking at each value took half of reading."""


@frozen
class Table:
    """The rows of a source and what their numbers count."""

    unit: Unit
    rows: Iterator[Row]
    verbatim: bool = False  # True: one JSONL file, which the workspace keeps as it is

    def good_rows(self) -> Iterator[tuple[int, str, JsonObject]]:
        """The rows, of which none is an error; raises the first that is."""
        for number, place, row in self.rows:
            if isinstance(row, DataError):
                raise row
            yield number, place, row


def open_table(source: DataSource | Path, columns: Collection[str] = ()) -> Table:
    """Recognise a source and begin to read it; of Parquet only `columns`, where any are named.

    Raises DataError: the file is not there, is of no known format, or is damaged as a whole; the
    last also while rows are taken.
    """
    if isinstance(source, Path):
        source = DataSource(source)
    if source.split is None and source.path.is_dir():
        source = DataSource(source.path, choose_split(source))
    files = source.files()
    if is_database(files[0]):
        return Table("row", iter(read_samples(files[0], source.split)))
    if len(files) == 1:
        return _open_file(files[0], columns, source.split)
    # Shards are counted through; places name the shard and its own number.
    shards = (row for file in files for row in _open_file(file, columns).rows)
    return Table("row", ((n, place, row) for n, (_, place, row) in enumerate(shards, start=1)))


def _open_file(path: Path, columns: Collection[str], sheet: str | None = None) -> Table:
    if path.name == TASK_FILE:
        return Table("row", iter([(1, str(path), read_task(path))]))
    head = _read_bytes(path, len(b"ARROW1"))
    if head.startswith(_ZIP):
        return Table("row", _rows_of_cells(path, enumerate(read_sheet(path, sheet), start=1)))
    if path.suffix.lower() in (".parquet", ".arrow") or head.startswith((b"PAR1", b"ARROW1")):
        return Table("row", _arrow_rows(path, head, columns))
    whole = _read_bytes(path)
    data = unpack(path, whole).removeprefix(b"\xef\xbb\xbf")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise DataError(
            f"{path}:{line}",
            f"The file is not UTF-8 (byte {error.start + 1}).",
            "Save the file as UTF-8.",
        ) from error
    if Path(unpacked_name(path)).suffix.lower() in (".csv", ".tsv"):
        return Table("line", _rows_of_cells(path, _csv_cells(path, text)))
    if text.lstrip()[:1] == "[":
        return Table("row", _array_rows(path, text))
    return Table("line", _jsonl_rows(path, text), verbatim=whole.endswith(data))


def _read_bytes(path: Path, most: int = -1) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(most)
    except OSError as error:
        raise DataError(
            str(path),
            f"It cannot be read ({error.strerror or error}).",
            "Check the path and its permissions.",
        ) from error


def _jsonl_rows(path: Path, text: str) -> Iterator[Row]:
    # Split on \n only: str.splitlines would also break at U+2028 inside a JSON string.
    for number, line in enumerate(text.split("\n"), start=1):
        if line and not line.isspace():
            place = f"{path}:{number}"
            try:
                yield number, place, _check_row(place, _parse_json(place, line))
            except DataError as error:
                yield number, place, error


def _array_rows(path: Path, text: str) -> Iterator[Row]:
    for number, row in enumerate(_parse_json(str(path), text), start=1):
        place = f"{path}, row {number}"
        yield number, place, _check_row(place, row)


def _parse_json(place: str, text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise DataError(
            place,
            f"It is not JSON: {error}.",
            "Mend it: a data set holds one JSON object a line, or one array of objects.",
        ) from error


def _check_row(place: str, row: Any) -> JsonObject | DataError:
    if isinstance(row, dict):
        return row
    return DataError(
        place,
        f"The row holds {json_kind(row)}, not an object.",
        'Write {"question": …, "answer": …} for each.',
    )


def _csv_cells(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """Number of the first line and cells of each row."""
    # The limit is the module's, not the reader's; logged replies pass its 128 KB.
    csv.field_size_limit(2**31 - 1)
    header = text.partition("\n")[0]
    delimiter = next((mark for mark in ("\t", ",", ";") if mark in header), ",")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    line = 0
    try:
        for cells in reader:
            yield line + 1, cells
            line = reader.line_num
    except csv.Error as error:
        raise DataError(
            f"{path}:{line + 1}",
            f"The row that begins here is not CSV: {error}.",
            'Put cells with commas, quotes or line breaks in quotes, and write " as "".',
        ) from error


def _rows_of_cells(path: Path, lines: Iterable[tuple[int, list[Any]]]) -> Iterator[Row]:
    """Rows of a table whose first line names the columns; one without a name is left out."""
    names: list[str] = []
    for number, cells in lines:
        place = f"{path}:{number}"
        if all(cell == "" for cell in cells):
            continue
        if not names:
            names = [str(cell).strip() for cell in cells]
            if twice := next((name for name in names if name and names.count(name) > 1), None):
                raise DataError(place, f'Two columns are called "{twice}".', "Rename one.")
        elif len(cells) != len(names):
            yield (
                number,
                place,
                DataError(
                    place,
                    f"The row has {len(cells)} cells, but there are {len(names)} columns.",
                    "Put a cell that holds a comma in quotes, or add the missing cells.",
                ),
            )
        else:
            # A table has no null: an empty cell is one.
            values = (None if cell == "" else to_json_value(cell) for cell in cells)
            row = {name: value for name, value in zip(names, values, strict=True) if name}
            yield number, place, row


def json_kind(value: Any) -> str:
    """The kind of a JSON value, in words."""
    kinds = {type(None): "null", dict: "an object", list: "a list", str: "a text"}
    return kinds.get(type(value), "a single value")


def _parse_number(text: str) -> float | str:
    """A double where it holds what is written; else the text, with its digits."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:40]} is too large; write it as a text, in quotes")
    # A decimal of 15 digits always survives a double (IEEE 754: DBL_DIG).
    if (len(text) <= 15 and "e" not in text.lower()) or Decimal(text) == Decimal(repr(value)):
        return value
    return text


def _parse_constant(name: str) -> None:
    if name != "NaN":  # which Python's json and pandas write for a value that is missing
        raise ValueError(f"{name} is no JSON value")


def _parse_object(pairs: list[tuple[str, Any]]) -> JsonObject:
    # Costs 8 % of reading 10,000 rows into problems.
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f'the field "{twice}" stands twice in one object')
    return row


_DECODER = json.JSONDecoder(
    parse_float=_parse_number, parse_constant=_parse_constant, object_pairs_hook=_parse_object
)
"""Made once: `json.loads` would make one for every line. The standard parser, because it
keeps whole numbers of any size exact."""


def _arrow_rows(path: Path, head: bytes, columns: Collection[str]) -> Iterator[Row]:
    """Rows of Parquet or Arrow; of Parquet only these columns, where any are named."""
    try:
        import pyarrow
        from pyarrow import ipc, parquet
    except ImportError as error:
        cause, move = "It needs pyarrow, which is not installed.", install_command("parquet")
        raise DataError(str(path), cause, f"Run: {move}") from error
    number = 0
    try:
        with pyarrow.OSFile(str(path)) as file:
            if head.startswith(b"ARROW1"):
                reader = ipc.open_file(file)
                batches = (reader.get_batch(n) for n in range(reader.num_record_batches))
            elif path.suffix.lower() == ".arrow":  # as save_to_disk writes it
                batches = iter(ipc.open_stream(file))
            else:
                whole = parquet.ParquetFile(file)
                read = [name for name in whole.schema_arrow.names if name in columns]
                batches = whole.iter_batches(batch_size=_BATCH_ROWS, columns=read or None)
            for batch in batches:
                others = [field.name for field in batch.schema if str(field.type) not in _PLAIN]
                for row in batch.to_pylist():
                    number += 1
                    for name in others:
                        row[name] = to_json_value(row[name])
                    yield number, f"{path}, row {number}", row
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise DataError(
            str(path),
            f"It is no whole Parquet or Arrow file: {reason}.",
            "Fetch or write it again.",
        ) from error


def to_json_value(value: Any) -> Any:
    """A value as JSON has it. NaN becomes null; bytes, such as images, only their length."""
    match value:
        case str() | int():
            return value
        case dict():
            return {str(key): to_json_value(item) for key, item in value.items()}
        case list() | tuple():
            return [to_json_value(item) for item in value]
        case float() if math.isfinite(value):
            return value
        case float():
            return None if math.isnan(value) else str(value)
        case Decimal():
            return format(value, "f")
        case datetime() | date() | time():
            return value.isoformat()
        case bytes():
            return f"<{len(value)} bytes>"
        case _:
            return None if value is None else str(value)


def unpack(path: Path, data: bytes) -> bytes:
    """The text in a file, as UTF-8 where it is marked as UTF-16.

    Raises DataError: it is damaged, or far too large.
    """
    if data.startswith((_GZIP, _ZSTD)):
        is_gzip = data.startswith(_GZIP)
        opened, damage = (gzip.open, zlib.error) if is_gzip else import_zstd(path)
        most = _most_bytes(len(data))
        try:
            with opened(io.BytesIO(data)) as file:
                data = file.read(most + 1)
        except (OSError, EOFError, damage) as error:
            raise DataError(
                str(path),
                f"It is packed with {'gzip' if is_gzip else 'zstd'}, and damaged: {error}.",
                "Unpack it elsewhere, or fetch it again.",
            ) from error
        _check_size(path, len(data), most)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        try:
            return data.decode("utf-16").encode()
        except UnicodeError as error:
            raise DataError(
                str(path), f"It is no whole UTF-16: {error}.", "Save the file as UTF-8."
            ) from error
    return data


def _most_bytes(packed: int) -> int:
    return min(MOST_BYTES, max(FREE_BYTES, MOST_RATIO * packed))


def _check_size(path: Path, size: int, most: int) -> None:
    if size > most:
        raise DataError(
            str(path),
            f"It unpacks to more than {most >> 20} MB.",
            "Unpack it yourself, if you trust it, or split it.",
        )


def import_zstd(path: Path) -> tuple[Any, type[Exception]]:
    """The function that opens such a file, and the error that it raises for a damaged one."""
    try:
        # The standard library has it from Python 3.14 on.
        new = sys.version_info >= (3, 14)
        zstd = import_module("compression.zstd" if new else "backports.zstd")
    except ImportError as error:
        raise DataError(
            str(path),
            "It is packed with zstd, and backports.zstd is not installed.",
            f"Run: {install_command('inspect')}, or unpack it first.",
        ) from error
    return zstd.open, zstd.ZstdError


def read_sheet(path: Path, name: str | None = None) -> list[list[Any]]:
    """The cells of a sheet, else of a spreadsheet's one sheet with something in it, header first.

    Raises DataError: it is no spreadsheet, far too large, has several such sheets, or not that one.
    """
    try:
        from python_calamine import CalamineError, load_workbook
    except ImportError as error:
        raise DataError(
            str(path),
            "It is a spreadsheet, and python-calamine is not installed.",
            f"Run: {install_command('xlsx')}, or save it as CSV.",
        ) from error
    try:
        with ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        _check_size(path, size, _most_bytes(path.stat().st_size))
        book = load_workbook(path)
        sheets = {name: book.get_sheet_by_name(name).to_python() for name in book.sheet_names}
    except (BadZipFile, OSError, CalamineError) as error:
        raise DataError(
            str(path),
            f"It is an archive and no spreadsheet that can be read: {error}.",
            "Unpack it, or save it as CSV.",
        ) from error
    if name is None:
        filled = [name for name, cells in sheets.items() if cells]
        if len(filled) > 1:
            raise DataError(
                str(path),
                f"Several of its sheets hold something: {', '.join(filled)}.",
                f"Name one: {path.name}:{filled[0]}.",
            )
        return sheets[filled[0]] if filled else []
    if name not in sheets:
        raise DataError(str(path), f"It has no sheet {name}.", f"There are: {', '.join(sheets)}.")
    return sheets[name]
