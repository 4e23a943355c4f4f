"""What a practice needs of the machine around it: room, versions, a terminal, locks.

Owns these checks. Reads; changes nothing.
"""

from __future__ import annotations

import importlib
import locale
import os
import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from engines.record.repair.trouble import Trouble

LEAST_FREE = 200_000_000
"""Bytes: a run of 10,000 rollouts writes about as much."""


def machine_facts(workspace: Path) -> dict[str, Any]:
    """Facts about the machine, as plain JSON values."""
    usage = shutil.disk_usage(_nearest_folder(workspace))
    return {
        "studio": version("practice-studio"),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": _package_versions(),
        "encoding": locale.getpreferredencoding(False),
        "terminal": os.environ.get("TERM", "") if sys.stdout.isatty() else None,
        "free_bytes": usage.free,
        "hidden_from_debuggers": _is_hardened(),
    }


def machine_troubles(workspace: Path, facts: dict[str, Any]) -> list[Trouble]:
    """What of these facts would get in the way."""
    found = []
    if facts["free_bytes"] < LEAST_FREE:
        found.append(
            Trouble(
                str(_nearest_folder(workspace)),
                f"only {facts['free_bytes'] / 1e6:.0f} MB are free.",
                "Make room: a run that cannot write stops, resumable.",
                damage=False,
            )
        )
    if not os.access(_nearest_folder(workspace), os.W_OK):
        found.append(
            Trouble(
                str(_nearest_folder(workspace)),
                "it cannot be written to.",
                "Mend its permissions or choose another --workspace.",
            )
        )
    if facts["encoding"].lower().replace("-", "") not in ("utf8", "utf8sig"):
        found.append(
            Trouble(
                "locale",
                f"its encoding is {facts['encoding']}, so that some characters cannot be shown.",
                "Set LC_ALL=C.UTF-8.",
                damage=False,
            )
        )
    missing = [name for name, found_version in facts["packages"].items() if found_version is None]
    if missing:
        found.append(
            Trouble(
                "packages",
                f"{', '.join(missing)} cannot be found.",
                "Install practice-studio again.",
            )
        )
    if facts["hidden_from_debuggers"] is False:
        found.append(
            Trouble(
                "process",
                "other processes of this user can read its memory, where keys are.",
                "Nothing need be done; the platform offers no way to prevent it here.",
                damage=False,
            )
        )
    return found


def _package_versions() -> dict[str, str | None]:
    """The versions of what practice-studio needs; None where one is missing."""
    found: dict[str, str | None] = {}
    for line in requires("practice-studio") or ():
        if "extra ==" in line:
            continue
        name = line.split(";")[0].split("[")[0]
        for sign in "<>=!~ (":
            name = name.split(sign)[0]
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def _is_hardened() -> bool | None:
    """Whether this process keeps others out of its memory; None where nobody can tell."""
    try:
        hardening = importlib.import_module("studio.process")
    except ImportError:
        return None
    return bool(hardening.is_hardened())


def _nearest_folder(path: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    path = path.absolute()
    while not path.is_dir():
        path = path.parent
    return path
