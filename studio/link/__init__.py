"""The line between a run's process and whoever attaches to it: `control.sock`.

What is here is the light half, for one question at a time. `studio.link.server` answers,
`studio.link.attached` is a screen's line.
"""

from __future__ import annotations

from studio.link.client import ask, driven_elsewhere, is_alive, status_of, watch
from studio.link.protocol import MAX_LINE, without_envelope

__all__ = [
    "MAX_LINE",
    "ask",
    "driven_elsewhere",
    "is_alive",
    "status_of",
    "watch",
    "without_envelope",
]
