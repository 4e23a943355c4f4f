"""Files as bytes of UTF-8: unpacked, and recoded; spreadsheets as rows of cells.

What unpacks to far more than any text does is refused before it fills the memory.
"""

import gzip
import sys
import zlib
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from engines.core.errors import DataError, install_command

MOST_BYTES = 2 << 30
FREE_BYTES = 64 << 20
"""So much any file may unpack to."""
MOST_RATIO = 100
"""Texts shrink to a fifth; even rows that repeat each other seldom to a hundredth."""
_CHUNK = 1 << 20
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_OTHERS = {b"BZh": "bzip2", b"\xfd7zXZ": "xz"}
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
ARCHIVE = b"PK\x03\x04"


def unpack(path: Path, data: bytes) -> bytes:
    """The text in a file, as UTF-8 where it is marked as UTF-16.

    Raises DataError: it is packed in a way that cannot be read, damaged, or far too large.
    """
    if data.startswith((_GZIP, _ZSTD)):
        opened, damage = (gzip.open, zlib.error) if data[:1] == _GZIP[:1] else import_zstd(path)
        found = bytearray()
        try:
            with opened(BytesIO(data)) as file:
                while chunk := file.read(_CHUNK):
                    found += chunk
                    _check_size(path, len(found), len(data))
        except (OSError, EOFError, damage) as error:
            kind = "gzip" if damage is zlib.error else "zstd"
            cause = f"It is packed with {kind}, and damaged: {error}."
            raise DataError(str(path), cause, "Unpack it elsewhere, or fetch it again.") from error
        data = bytes(found)
        if data.startswith((_GZIP, _ZSTD)):
            raise DataError(str(path), "It is packed twice.", "Unpack it once.")
    for magic, kind in _OTHERS.items():
        if data.startswith(magic):
            raise DataError(str(path), f"It is packed with {kind}.", "Unpack it first.")
    if data.startswith(_UTF16):
        try:
            return data.decode("utf-16").encode()
        except UnicodeError as error:
            cause = f"It is no whole UTF-16: {error}."
            raise DataError(str(path), cause, "Save the file as UTF-8.") from error
    return data


def _check_size(path: Path, size: int, packed: int) -> None:
    most = min(MOST_BYTES, max(FREE_BYTES, MOST_RATIO * packed))
    if size > most:
        cause = f"It unpacks to more than {most >> 20} MB from {packed} bytes."
        raise DataError(str(path), cause, "Unpack it yourself, if you trust it, or split it.")


def import_zstd(path: Path) -> tuple[Any, type[Exception]]:
    """What opens such a file, and what it raises where that is damaged."""
    try:
        # The standard library has it from Python 3.14 on.
        new = sys.version_info >= (3, 14)
        zstd = import_module("compression.zstd" if new else "backports.zstd")
    except ImportError as error:
        cause = "It is packed with zstd, and backports.zstd is not installed."
        move = f"Run: {install_command('inspect')}, or unpack it first."
        raise DataError(str(path), cause, move) from error
    return zstd.open, zstd.ZstdError


def read_sheet(path: Path, name: str | None = None) -> list[list[Any]]:
    """The cells of a sheet, else of a spreadsheet's one sheet with something in it, header first.

    Raises DataError: it is no spreadsheet, far too large, has several such sheets, or not that one.
    """
    try:
        with ZipFile(path) as archive:
            _check_size(path, sum(i.file_size for i in archive.infolist()), path.stat().st_size)
    except (BadZipFile, OSError) as error:
        cause = f"It is a ZIP archive or a spreadsheet, and damaged: {error}."
        raise DataError(str(path), cause, "Save it again, or as CSV.") from error
    try:
        from python_calamine import CalamineError, load_workbook
    except ImportError as error:
        cause = "It is a spreadsheet, and python-calamine is not installed."
        move = f"Run: {install_command('xlsx')}, or save it as CSV."
        raise DataError(str(path), cause, move) from error
    try:
        book = load_workbook(path)
        sheets = {name: book.get_sheet_by_name(name).to_python() for name in book.sheet_names}
    except CalamineError as error:
        cause = f"It is an archive and no spreadsheet that can be read: {error}."
        raise DataError(str(path), cause, "Unpack it, or save it as CSV.") from error
    if name is not None and name not in sheets:
        move = f"There are: {', '.join(sheets)}."
        raise DataError(str(path), f"It has no sheet {name}.", move)
    filled = {name: cells for name, cells in sheets.items() if cells}
    if name is not None:
        return sheets[name]
    if len(filled) > 1:
        cause = f"Several of its sheets hold something: {', '.join(filled)}."
        raise DataError(str(path), cause, f"Name one: {path.name}:{next(iter(filled))}.")
    return next(iter(filled.values()), [])
