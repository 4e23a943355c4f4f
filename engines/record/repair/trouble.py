"""One thing that is wrong with a workspace, with its mend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that is not as it should be. `mend` puts it right and says what it did."""

    place: str
    cause: str
    move: str
    mend: Callable[[], str] | None = None  # None: nobody but the user can
    damage: bool = True  # False: it harms nothing
    alone: bool = False  # once it is mended nothing else looks different
    mended: str = ""  # what was done about it; "" where nothing was
