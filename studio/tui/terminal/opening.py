"""What stands on the terminal while the screen loads: one line, which goes when that is left.

Imports nothing that takes time: on a slow machine the screen itself takes seconds to import.
"""

import contextlib
import gc
import os
from collections.abc import Iterator


@contextlib.contextmanager
def opening_line() -> Iterator[None]:
    """Draw the line at once; the screen has a page of its own above it."""
    is_terminal = os.isatty(0) and os.isatty(2) and os.environ.get("TERM", "") not in ("", "dumb")
    gc.disable()  # what is imported stays: looking through it takes a tenth of the time
    try:
        if is_terminal:
            _write_now("\r studio: opening ...")
        yield
    finally:
        resume_collection()
        if is_terminal:
            _write_now("\r\x1b[K")


def resume_collection() -> None:
    """Collect garbage again; all that is there by now stays."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def _write_now(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, text.encode())  # where Textual draws, too
