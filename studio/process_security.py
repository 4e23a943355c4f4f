"""What the operating system lets others see of a process that holds keys.

Owns one switch: a process that is not dumpable leaves no core file, and another process
of the same user can neither attach to it nor read its memory or environment. It does not
hide anything from the administrator, and children that run other programs begin anew.
"""

from __future__ import annotations

import sys

_PR_GET_DUMPABLE = 3
_PR_SET_DUMPABLE = 4


def harden() -> None:
    """Clear the dumpable flag where the platform has one; nothing happens elsewhere."""
    _prctl(_PR_SET_DUMPABLE, 0)


def is_hardened() -> bool | None:
    """Whether the flag is cleared; None where the platform has none."""
    found = _prctl(_PR_GET_DUMPABLE, 0)
    return None if found is None else found == 0


def _prctl(option: int, argument: int) -> int | None:
    if sys.platform != "linux":
        return None
    try:
        import ctypes

        # The C library that is loaded already: looking for it by name starts a compiler.
        found: int = ctypes.CDLL(None).prctl(option, argument, 0, 0, 0)
    except (ImportError, OSError, AttributeError):  # an interpreter without ctypes
        return None
    return found if found >= 0 else None
