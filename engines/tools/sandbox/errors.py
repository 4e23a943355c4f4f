"""The one error of the sandbox. Everything that code or a program does is a result instead."""

from __future__ import annotations

from engines.core.errors import StudioError


class SandboxError(StudioError):
    """There is no sandbox here, or it cannot be started."""
