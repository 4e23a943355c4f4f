"""This process as the operating system has it: its streams, its user, what others may read of it.

Without the dumpable flag no core file is left, and no other process of the same user can attach
or read memory or environment. It hides nothing from the administrator, and children that run
other programs begin with the flag set again.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from io import TextIOWrapper
from typing import TextIO

_PR_GET_DUMPABLE = 3
_PR_SET_DUMPABLE = 4


def harden() -> None:
    """Clear the dumpable flag where the platform has one; nothing happens elsewhere."""
    _prctl(_PR_SET_DUMPABLE)


def is_hardened() -> bool | None:
    """Whether the flag is cleared; None where the platform has none."""
    found = _prctl(_PR_GET_DUMPABLE)
    return None if found is None else found == 0


def _prctl(option: int) -> int | None:
    if sys.platform != "linux":
        return None
    try:
        import ctypes

        # The C library that is loaded already: looking for it by name starts a compiler.
        found: int = ctypes.CDLL(None).prctl(option, 0, 0, 0, 0)
    except (ImportError, OSError, AttributeError):  # an interpreter without ctypes
        return None
    return found if found >= 0 else None


def login_name() -> str:
    """The login name of the process's user; no environment variable is asked."""
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError):  # no such database, or a user without a name
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else "person"


def open_streams() -> None:
    """Connect streams that were closed at the start to nothing, and let all text be printed.

    Else a journal could be opened under their number, and a print would end in it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # an ASCII locale must not end in a traceback
            stream.reconfigure(errors="backslashreplace")


def silence_stream(stream: TextIO) -> None:
    """Send what a stream still holds to nothing, once its reader has left."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def on_stop_signal(stop: Callable[[str], object]) -> Iterator[None]:
    """Have Ctrl-C and SIGTERM call `stop` with their name, as long as the context lasts."""
    import asyncio
    import signal

    loop, names = asyncio.get_running_loop(), {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
    for number, name in names.items():
        loop.add_signal_handler(number, stop, name)
    try:
        yield
    finally:
        for number in names:
            loop.remove_signal_handler(number)


async def serve_until_signal(
    server: AbstractAsyncContextManager[str], on_ready: Callable[[str], None]
) -> None:
    """Serve until Ctrl-C or SIGTERM; `on_ready` gets the address that the server yields."""
    import asyncio

    async with server as address:
        stop = asyncio.Event()
        with on_stop_signal(lambda _: stop.set()):
            on_ready(address)
            await stop.wait()
