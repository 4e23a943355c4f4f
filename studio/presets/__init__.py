"""The run files people start from; each begins with a comment that says what it is.

A new preset is one more `NAME.yaml` in this folder: the folder is the table.
"""

import re
from importlib.resources import files
from pathlib import Path

from engines.core.errors import ConfigError, suggest_name

GROUPS = ("agents", "eval", "practice")
"""Folders of parts that run files mount, and that are run files themselves."""
_EXP_ID = re.compile(r"^exp_id:.*$", re.MULTILINE)


def presets_folder() -> Path:
    # Hydra wants a real folder, so a zipped install is not supported.
    return Path(str(files(__name__)))


def preset_path(name: str) -> Path | None:
    """The file of a preset, or of a part of one: `practice/arithmetic`."""
    path, parts = presets_folder() / f"{name}.yaml", Path(name).parts
    named = len(parts) == 1 or (parts[:1] and parts[0] in GROUPS and ".." not in parts)
    return path if named and path.is_file() else None


def list_presets() -> tuple[tuple[str, str], ...]:
    """Name and first comment line of every preset, in the order of names."""
    return tuple(
        (path.stem, path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ").strip())
        for path in sorted(presets_folder().glob("*.yaml"))
    )


def write_run_file(preset: str, to: Path | None) -> Path:
    """Write a preset, comments and all, named after its new file; returns the file.

    The run's name follows the file's: two files of one name would resume each other's runs.
    """
    source = preset_path(preset)
    if source is None:
        raise ConfigError(
            f'preset "{preset}"',
            "There is no preset of that name.",
            suggest_name(preset, (name for name, _ in list_presets())),
        )
    target = to or Path(f"{preset}.yaml")
    text = source.read_text(encoding="utf-8")
    named = re.sub(r"[^A-Za-z0-9._-]", "-", target.stem).lstrip("._-") or preset
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(_EXP_ID.sub(f"exp_id: {_quote_name(named)}", text, count=1))
    except OSError as error:
        cause = f"it cannot be written ({error.strerror})."
        if isinstance(error, FileExistsError):
            cause = "it exists already and is never overwritten."
        raise ConfigError(str(target), cause, "Choose another file with --to FILE.") from error
    return target


def _quote_name(name: str) -> str:
    """YAML would read `2024` or `on` as something else than a name."""
    return name if re.fullmatch(r"[A-Za-z][A-Za-z-]{3,}", name) else f'"{name}"'
