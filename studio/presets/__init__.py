"""The run files people start from; each begins with a comment that says what it is."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def presets_folder() -> Path:
    # Hydra wants a real folder, so a zipped install is not supported.
    return Path(str(files(__name__)))


def preset_path(name: str) -> Path | None:
    path = presets_folder() / f"{name}.yaml"
    return path if path.is_file() and Path(name).name == name else None


def list_presets() -> tuple[tuple[str, str], ...]:
    """Name and first comment line of every preset, in the order of names."""
    return tuple(
        (path.stem, path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ").strip())
        for path in sorted(presets_folder().glob("*.yaml"))
    )
