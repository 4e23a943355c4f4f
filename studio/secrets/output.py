"""The secrets that this process knows, taken out of all that it prints.

Owns one registry a process. What is written to files gets its mask handed in (`Mask`).
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TextIO

from engines.core.text.sanitize import escape_unsafe
from engines.secrets.mask import Mask

_known: set[str] = set()
_mask = Mask()


def remember(values: Iterable[str]) -> None:
    """Let nothing be printed any more that holds one of the values."""
    global _mask
    if new := set(values) - _known:
        _known.update(new)
        _mask = Mask(_known)


def forget() -> None:
    global _mask
    _known.clear()
    _mask = Mask()


def current_mask() -> Mask:
    """What is known by now, for a file that is written."""
    return _mask


def mask_text(text: str) -> str:
    return _mask(text)


class MaskedText(str):
    """Text whose secrets have been taken out already: JSON, which another pass could break."""

    __slots__ = ()


class MaskedStream:
    """A stream that masks each text written to it, whoever writes: the last line of defence.

    What is streamed in pieces is masked where it comes from, by a `StreamMask`.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(text if isinstance(text, MaskedText) else _mask(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


@contextmanager
def mask_output() -> Iterator[None]:
    """Mask what goes to standard output and standard error for as long as the context lasts."""
    before = sys.stdout, sys.stderr
    sys.stdout = MaskedStream(sys.stdout)
    sys.stderr = MaskedStream(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def mask_tracebacks() -> None:
    """Let tracebacks go out masked too: messages of errors quote what they were given."""
    sys.excepthook = _report_bug


def _report_bug(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    import traceback

    # In one piece: pieces of a key on several writes would pass.
    sys.stderr.write(
        escape_unsafe(mask_text("".join(traceback.format_exception(kind, error, trace))))
    )
