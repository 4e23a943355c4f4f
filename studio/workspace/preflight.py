"""Whether this machine can run a practice: disk space, encoding, closed memory.

Reads; changes nothing.
"""

from __future__ import annotations

import locale
import os
import platform
import shutil
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from engines.record.repair import Finding
from studio.process import is_hardened

LEAST_FREE = 200_000_000
"""Bytes: a run of 10,000 rollouts writes about as much."""


def machine_facts(workspace: Path) -> dict[str, Any]:
    """Facts about the machine, as plain JSON values."""
    usage = shutil.disk_usage(_nearest_folder(workspace))
    return {
        "studio": version("practice-studio"),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "encoding": locale.getpreferredencoding(False),
        "terminal": os.environ.get("TERM", "") if sys.stdout.isatty() else None,
        "free_bytes": usage.free,
        "hidden_from_debuggers": is_hardened(),
    }


def basic_findings(workspace: Path, facts: dict[str, Any]) -> list[Finding]:
    """Problems that follow from these facts, each with its place, cause and next move."""
    found = []
    folder = str(_nearest_folder(workspace))
    if facts["free_bytes"] < LEAST_FREE:
        cause = f"only {facts['free_bytes'] / 1e6:.0f} MB are free."
        move = "Make room: a run that cannot write stops, resumable."
        found.append(Finding("note", folder, cause, move))
    if not os.access(folder, os.W_OK):
        move = "Mend its permissions or choose another --workspace."
        found.append(Finding("fix", folder, "it cannot be written to.", move))
    if facts["encoding"].lower().replace("-", "") not in ("utf8", "utf8sig"):
        cause = f"its encoding is {facts['encoding']}, so that some characters cannot be shown."
        found.append(Finding("note", "locale", cause, "Set LC_ALL=C.UTF-8."))
    if facts["hidden_from_debuggers"] is False:
        cause = "other processes of this user can read its memory, where keys are."
        move = "Nothing need be done; the platform offers no way to prevent it here."
        found.append(Finding("note", "process", cause, move))
    return found


def _nearest_folder(path: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    path = path.absolute()
    while not path.is_dir():
        path = path.parent
    return path
