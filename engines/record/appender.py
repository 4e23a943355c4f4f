"""A file that is only appended to, with one fsync for all writes that wait together."""

import asyncio
import contextlib
import os
from pathlib import Path

from engines.core.errors import RecordError


class Appender:
    """Appends bytes. Used from one event loop, or synchronously by one thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        new = not path.exists()
        self._fd = _open(path)
        self._end = self._next = os.fstat(self._fd).st_size
        self._waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        self._flusher: asyncio.Task[None] | None = None
        self._broken: OSError | RecordError | None = None
        if new:
            sync_folder(path.parent)

    @property
    def size(self) -> int:
        """Bytes of the file, those that wait included."""
        return self._next

    async def append(self, data: bytes) -> None:
        """Return once the data is on disk; appends keep the order of their calls.

        Raises RecordError: it could not be written; nothing of it is left in the file.
        """
        await asyncio.shield(self.queue(data)[1])

    def queue(self, data: bytes) -> tuple[int, asyncio.Future[None]]:
        """Append without waiting, at which offset; the future ends as `append` does."""
        offset, self._next = self._next, self._next + len(data)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((data, done))
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.create_task(self._flush())
        return offset, done

    def append_now(self, data: bytes) -> None:
        """As `append`, without an event loop."""
        self._next += len(data)
        self._write(data)

    def close(self) -> None:
        """Close the file, once what waits is written."""
        if self._flusher is not None and not self._flusher.done():
            self._flusher.add_done_callback(lambda _: os.close(self._fd))
        else:
            os.close(self._fd)

    async def wait_idle(self) -> None:
        """Wait until nothing is being written."""
        if self._flusher is not None:
            await asyncio.shield(self._flusher)

    async def _flush(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            data = b"".join(entry for entry, _ in batch)
            try:
                await asyncio.to_thread(self._write, data)
            except RecordError as error:
                for _, done in batch:
                    if not done.done():
                        done.set_exception(error)
                        done.exception()  # told, also where its waiter was cancelled meanwhile
            else:
                for _, done in batch:
                    if not done.done():
                        done.set_result(None)

    def _write(self, data: bytes) -> None:
        if isinstance(self._broken, RecordError):
            raise self._broken
        if self._broken is not None:
            raise unwritable_error(self.path, self._broken)
        if (told := self._displaced_error(data)) is not None:
            self._broken = told
            raise told
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]
            os.fsync(self._fd)
        except OSError as error:
            # Half an entry must not stand before the next whole one.
            self._broken = error
            with contextlib.suppress(OSError):  # else it is a torn end, cut at the next opening
                os.ftruncate(self._fd, self._end)
            raise unwritable_error(self.path, error) from error
        self._end += len(data)

    def _displaced_error(self, data: bytes) -> RecordError | None:
        """What a user is told where the file is no longer what was written; None: it is.

        What would be lost with a file that is gone, the `data` to be written included, is kept.
        """
        own, place = os.fstat(self._fd), str(self.path)
        try:
            here = os.stat(self.path)
        except OSError:
            if not self.path.parent.is_dir():
                return RecordError(
                    place,
                    "its folder was removed or moved meanwhile.",
                    "Put the folder back where it was, then give the same command again.",
                )
            write_atomic(self.path, os.pread(self._fd, own.st_size, 0) + data)
            return RecordError(
                place,
                "it was removed while it was being written.",
                "It was put back whole: give the same command again.",
            )
        if (here.st_dev, here.st_ino) != (own.st_dev, own.st_ino):
            kept = self.path.with_name(f"{self.path.name}.kept-{os.getpid()}")
            write_atomic(kept, os.pread(self._fd, own.st_size, 0) + data)
            return RecordError(
                place,
                "another file was put in its place meanwhile.",
                f"What was written is in {kept.name}: put it back, or go on with the other file.",
            )
        if own.st_size != self._end:
            verb = "cut" if own.st_size < self._end else "written to by something else"
            return RecordError(
                place,
                f"it was {verb} meanwhile: {own.st_size:,} bytes instead of {self._end:,}.",
                "Restore it from a copy, or see `studio doctor`. Replies that were paid for are in "
                "the records: a resume takes them from there.",
            )
        return None


def unwritable_error(path: Path, error: OSError) -> RecordError:
    """What a user is told of a file or folder that cannot be written."""
    return RecordError(
        str(path),
        f"cannot be written ({error.strerror}).",
        "Make room, mend its permissions or name another place (--workspace), then give the same "
        "command again: what was recorded until then is kept.",
    )


def sync_folder(folder: Path) -> None:
    """Make a new or renamed entry of a folder survive a power cut."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(path: Path) -> None:
    """Create a folder and those above it, for its owner alone whatever the umask says.

    All that we write may hold a secret that nobody could know; folders that are there already
    keep the mode they have.
    """
    try:
        make_private_folder(path)
    except OSError as error:
        raise unwritable_error(path, error) from error


def make_private_folder(path: Path) -> None:
    """The same, with the plain `OSError` where it cannot be done."""
    for folder in reversed((path, *path.parents)):
        if not folder.is_dir():
            folder.mkdir(mode=0o700, exist_ok=True)


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file's content in one step: readers see the old or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise unwritable_error(path, error) from error
    sync_folder(path.parent)


def _open(path: Path) -> int:
    try:
        make_private_folder(path.parent)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise unwritable_error(path, error) from error
