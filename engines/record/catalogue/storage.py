"""`catalogue.json`: a TinyDB over the workspace, made from the journals and thrown away at will."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from filelock import FileLock
from tinydb import TinyDB
from tinydb.middlewares import CachingMiddleware
from tinydb.storages import Storage

from engines.core.codec import dumps
from engines.record.appender import make_folder, write_atomic
from engines.record.run_dir import Workspace
from engines.record.seal import add_seal, seal_fits


class AtomicStorage(Storage):
    """TinyDB storage that replaces its file whole: TinyDB's own writes in place and tears."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, dict[str, Any]] | None:
        try:
            raw = self._path.read_bytes()
            data = orjson.loads(raw)
        except (FileNotFoundError, ValueError):
            return None  # rebuilt from the journals by whoever asks
        if (fits := seal_fits(raw)) is False or not isinstance(data, dict):
            return None
        data.pop("sha256" if fits else "", None)
        # Without a seal an older studio's are taken, and none whose seal was altered.
        return data if all(isinstance(table, dict) for table in data.values()) else None

    def write(self, data: dict[str, dict[str, Any]]) -> None:
        write_atomic(self._path, add_seal(dumps(data)))


@contextmanager
def open_catalogue(workspace: Workspace) -> Iterator[TinyDB]:
    """The open catalogue, under a lock that keeps two writers apart."""
    make_folder(workspace.path)
    with FileLock(workspace.path / ".catalogue.lock", mode=0o600):
        for stale in workspace.path.glob(".catalogue.json.*.tmp"):
            stale.unlink(missing_ok=True)
        # Read once and written once, however much is changed in between.
        database = TinyDB(workspace.catalogue, storage=CachingMiddleware(AtomicStorage))  # type: ignore[no-untyped-call]
        try:
            yield database
        finally:
            database.close()
