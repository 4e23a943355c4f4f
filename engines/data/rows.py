"""Files as rows: JSONL, a JSON array, CSV, and Parquet and Arrow through pyarrow, an extra.

Numbers of JSON keep what is written, and no field stands twice.
A row that cannot be used is handed on as its error, so that one reading can name every bad row
of a file.
"""

import csv
import io
import json
import math
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from engines.core.errors import DataError, install_command
from engines.data.folder import (
    SUFFIXES,
    TASK_FILE,
    read_task,
    suffix_of,
    unpacked_name,
)
from engines.data.source import DataSource, choose_split, is_database, read_samples
from engines.data.unpack import ARCHIVE, read_sheet, unpack

Unit = Literal["line", "row"]
Row = tuple[int, str, dict[str, Any] | DataError]
"""Number (line or row, from 1), place for messages, and the fields or what is wrong."""

_HEAD_BYTES = 64
_LONGEST_CELL = 2**31 - 1
_FIRST_BYTES = 4096
_ROW_OF_JSON = re.compile(rb'\s*\{\s*"')
_ARRAY_OF_ROWS = re.compile(rb"\s*\[\s*\{")
_COLUMN = re.compile(r"\s*[^\W\d][\w .-]{0,60}")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of a source and what their numbers count."""

    unit: Unit
    rows: Iterator[Row]
    verbatim: bool = False  # True: one JSONL file, which the workspace keeps as it is


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
    head = _read_bytes(path, _HEAD_BYTES)
    suffix = Path(unpacked_name(path)).suffix.lower()
    if head.startswith(ARCHIVE):
        return Table("row", _sheet_rows(path, read_sheet(path, sheet)))
    if path.suffix.lower() in (".parquet", ".arrow") or head.startswith((b"PAR1", b"ARROW1")):
        parquet = path.suffix.lower() != ".arrow" and head[:1] != b"A"
        return Table("row", read_arrow_rows(path, parquet=parquet, columns=columns))
    whole = _read_bytes(path)
    data = unpack(path, whole).removeprefix(_BOM)
    if b"\0" in data[:_FIRST_BYTES]:
        raise DataError(str(path), "It is no text.", "Give JSONL, a JSON array, CSV or Parquet.")
    _refuse_misnamed(path, suffix, data)
    if suffix in (".csv", ".tsv"):
        return Table("line", _csv_rows(path, data, "\t" if suffix == ".tsv" else ","))
    start = data[:_HEAD_BYTES].lstrip()[:1]
    if start == b"[":
        return Table("row", _array_rows(path, data))
    if suffix == ".json" and start == b"{" and b"\n" in data.strip():
        _refuse_one_object(path, data)
    return Table("line", _jsonl_rows(path, data), verbatim=whole.endswith(data))


def _refuse_misnamed(path: Path, suffix: str, data: bytes) -> None:
    """Say so where JSON is called a table, or a table something else."""
    looks = right = ""
    if suffix in (".csv", ".tsv"):
        if _ROW_OF_JSON.match(data):
            looks, right = "JSONL", ".jsonl"
        elif _ARRAY_OF_ROWS.match(data):
            looks, right = "a JSON array", ".json"
    elif _is_table(data[:_FIRST_BYTES]):
        looks, right = "CSV", ".csv"
    if looks:
        called = f"is called {suffix}" if suffix else "has no extension"
        move = f"Rename it to {Path(unpacked_name(path)).with_suffix(right).name}."
        raise DataError(str(path), f"It looks like {looks}, but {called}.", move)


def _is_table(start: bytes) -> bool:
    """Whether names of columns stand first, and then a row with as many cells."""
    text = start.decode(errors="replace")
    for delimiter in (",", ";", "\t"):
        cells = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        try:
            header, row = next(cells), next(cells)
        except (csv.Error, StopIteration):
            continue
        if len(header) == len(row) > 1 and all(map(_COLUMN.fullmatch, header)):
            return True
    return False


def _read_bytes(path: Path, most: int = -1) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(most)
    except OSError as error:
        raise _unreadable_error(path, error) from error


def _unreadable_error(path: Path, error: OSError) -> DataError:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        reason = error.strerror or str(error)
        return DataError(str(path), f"It cannot be read: {reason}.", "Check its permissions.")
    folder = path.parent if path.parent.is_dir() else None
    beside = [f.name for f in folder.glob("*") if suffix_of(f) in SUFFIXES] if folder else []
    nearest = get_close_matches(path.name, beside, n=1, cutoff=0.5)
    move = f"Did you mean {path.parent / nearest[0]}?" if nearest else "Check the path."
    return DataError(str(path), "There is no such file.", move)


def _jsonl_rows(path: Path, data: bytes) -> Iterator[Row]:
    # Split on \n only: str.splitlines would also break at U+2028 inside a JSON string.
    for number, raw in enumerate(data.split(b"\n"), start=1):
        if not raw or raw.isspace():
            continue
        place = f"{path}:{number}"
        try:
            yield number, place, parse_json_object(raw.decode())
        except DataError as error:
            yield number, place, DataError(place, error.cause, error.move)
        except UnicodeDecodeError as error:
            cause = f"The line is not UTF-8 (byte {error.start + 1})."
            yield number, place, DataError(place, cause, "Save the file as UTF-8.")


def _decode_whole(path: Path, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        cause = f"The file is not UTF-8 (byte {error.start + 1})."
        raise DataError(f"{path}:{line}", cause, "Save the file as UTF-8.") from error


def parse_json_object(line: str) -> dict[str, Any]:
    """One line of JSONL. NaN counts as null. Raises DataError without a place."""
    try:
        row = DECODER.decode(line)
    except json.JSONDecodeError as error:
        cause = f"The line is not JSON: {error.msg} at column {error.colno}."
        raise DataError("", cause, "A data set holds one JSON object a line.") from error
    except (ValueError, RecursionError) as error:
        raise DataError("", f"The line is not JSON: {error}.", "Mend the line.") from error
    if not isinstance(row, dict):
        move = 'Write {"question": …, "answer": …}, one object a line.'
        raise DataError("", f"The line holds {json_kind(row)}, not an object.", move)
    return row


def _array_rows(path: Path, data: bytes) -> Iterator[Row]:
    for number, row in enumerate(_parse_array(path, data), start=1):
        place = f"{path}, row {number}"
        if not isinstance(row, dict):
            move = 'Write {"question": …, "answer": …} for each row.'
            row = DataError(place, f"The row holds {json_kind(row)}, not an object.", move)
        yield number, place, row


def _parse_array(path: Path, data: bytes) -> list[Any]:
    text = _decode_whole(path, data)
    try:
        rows = DECODER.decode(text)
    except BadToken as error:
        # The parser does not say where it is; the file mostly has such a token only once.
        once = text.count(error.token) == 1
        before = text.partition(error.token)[0]
        place = f"{path}:{before.count(chr(10)) + 1}" if once else str(path)
        raise DataError(place, error.cause, error.move) from error
    except json.JSONDecodeError as error:
        cause = f"The file is not a JSON array: {error.msg} at column {error.colno}."
        move = "Mend it there, or write one JSON object a line without the brackets."
        raise DataError(f"{path}:{error.lineno}", cause, move) from error
    except (ValueError, RecursionError) as error:
        raise DataError(str(path), f"The file is not a JSON array: {error}.", "Mend it.") from error
    assert isinstance(rows, list)  # it begins with a bracket
    return rows


def _refuse_one_object(path: Path, data: bytes) -> None:
    """Say so where a whole .json file is one object; anything else is told line by line."""
    try:
        whole = parse_json_object(data.decode())
    except (DataError, UnicodeDecodeError):
        return
    lists = [name for name, value in whole.items() if isinstance(value, list)]
    hint = f'its field "{lists[0]}" may hold them' if lists else "perhaps of columns"
    cause = f"The file holds one object, not a list of rows; {hint}."
    raise DataError(str(path), cause, "Write the rows alone: [{…}, {…}], or one object a line.")


def _csv_rows(path: Path, data: bytes, delimiter: str) -> Iterator[Row]:
    text = _decode_whole(path, data)
    # The limit is the module's, not the reader's; logged replies pass its 128 KB.
    csv.field_size_limit(_LONGEST_CELL)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] = []
    number = line = 0
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            cause = f"The row that begins here is not CSV: {error}."
            move = 'Put cells with commas, quotes or line breaks in quotes, and write " as "".'
            raise DataError(f"{path}:{line + 1}", cause, move) from error
        first, line = line + 1, reader.line_num
        if not cells:
            continue
        if not header:
            header = _parse_header(f"{path}:{first}", cells)
            others = [mark for mark in (";", "\t") if mark in header[0]]
            if delimiter == "," and len(header) == 1 and others:
                yield from _csv_rows(path, data, others[0])
                return
            continue
        number += 1
        place = f"{path}:{first} (row {number})"
        yield first, place, _parse_cells(place, header, cells)


def _sheet_rows(path: Path, sheet: list[list[Any]]) -> Iterator[Row]:
    header: list[str] = []
    for number, cells in enumerate(sheet):
        if not header:
            header = _parse_header(f"{path}, row 1", [str(cell) for cell in cells])
        elif any(cell != "" for cell in cells):
            values = (None if cell == "" else to_json_value(cell) for cell in cells)
            row = {name: value for name, value in zip(header, values, strict=True) if name}
            yield number, f"{path}, row {number + 1}", row


def _parse_header(place: str, cells: list[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    if twice := next((n for n in names if n and names.count(n) > 1), None):
        raise DataError(place, f'Two columns are called "{twice}".', "Rename one.")
    if len([n for n in names if not n]) > 1 or not any(names):
        raise DataError(place, "A column has no name.", "The first line names the columns.")
    return names


def _parse_cells(place: str, header: list[str], cells: list[str]) -> dict[str, Any] | DataError:
    if len(cells) != len(header):
        cause = f"The row has {len(cells)} cells, but there are {len(header)} columns."
        move = "Put a cell that holds a comma in quotes, or add the missing cells."
        return DataError(place, cause, move)
    # CSV has no null: an empty cell is one. A column without a name is pandas' index.
    return {name: cell or None for name, cell in zip(header, cells, strict=True) if name}


def json_kind(value: Any) -> str:
    """What a JSON value is, in words."""
    match value:
        case None:
            return "null"
        case dict():
            return "an object"
        case list():
            return "a list"
    return "a text" if isinstance(value, str) else "a single value"


_SAFE_CHARS = 15
"""A decimal of so many digits always survives a double (IEEE 754: DBL_DIG)."""


class BadToken(DataError):
    """Something JSON's grammar allows, or Python's does, but a row cannot mean.

    `token` is as it is written, for finding its place. The place is left empty.
    """

    def __init__(self, token: str, cause: str, move: str) -> None:
        self.token = token
        super().__init__("", cause, move)


def _parse_number(text: str) -> float | str:
    """A double where it holds what is written; else the text, with its digits.

    Writers print doubles with 17 digits or more; such a text is the double. One that is
    no rounding of the double, such as 12345678901234567890.5, was more exact than that.
    """
    value = float(text)
    size = abs(value)
    if (len(text) <= _SAFE_CHARS and 1e-300 < size < 1e300) or repr(value) == text:
        return value
    written = Decimal(text)
    if size == float("inf"):
        shown = text if len(text) <= 40 else f"{text[:40]}…"
        raise BadToken(text, f"The number {shown} is too large.", "Write it as a text, in quotes.")
    if written == Decimal(repr(value)):
        return value
    exact = Decimal(value)
    # Rounded to as many digits as were written.
    rounded = f"{exact:.{len(written.as_tuple().digits) - 1}e}"
    if value != 0 and Decimal(rounded) == written:
        return value
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text.lower() else text


def _parse_constant(name: str) -> None:
    if name != "NaN":  # which Python's json and pandas write for a value that is missing
        raise BadToken(name, f"{name} is not JSON.", "Mend it, or write it as a text, in quotes.")


def _parse_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Costs 8 % of reading 10,000 rows into problems.
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        token = json.dumps(twice, ensure_ascii=False)
        cause = f"The field {token} stands twice in one object."
        raise BadToken(token, cause, "Keep one, or rename one.")
    return found


DECODER = json.JSONDecoder(
    parse_float=_parse_number, parse_constant=_parse_constant, object_pairs_hook=_parse_object
)
"""Made once: `json.loads` would make one for every line. The standard parser, because it
keeps whole numbers of any size exact."""


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
