"""How a person wants the screen: theme, keys, notification.

Owns the values. `studio.tui.settings.file` reads and writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ScreenSettings:
    theme: str | None = None  # None: chosen by the terminal
    ascii: bool | None = None  # None: by the locale
    mouse: bool = True
    low_bandwidth: bool = False  # five frames a second instead of ten
    bell: bool = True  # once, when something waits for a person
    desktop: bool = True  # a notification of the terminal, by OSC 9
    command: str = ""  # run when something waits; gets the text in $STUDIO_NOTE
    keys: Mapping[str, str] = field(default_factory=dict)  # key id → keys, see keymap
    place: str = "screen.yaml"  # the file they come from, for messages
