"""Writing a preset out as a run file of one's own. Never overwrites."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path

from engines.core.errors import ConfigError
from studio.presets import list_presets, preset_path

_EXP_ID = re.compile(r"^exp_id:.*$", re.MULTILINE)


def write_run_file(preset: str, to: Path | None) -> Path:
    """Write a preset, comments and all, named after its new file; returns the file.

    The run's name follows the file's, since two files of one name would resume each
    other's runs.

    Raises:
        ConfigError: no such preset, the file exists, or it cannot be written.
    """
    source = preset_path(preset)
    if source is None:
        names = [name for name, _ in list_presets()]
        close = get_close_matches(preset, names, n=1)
        raise ConfigError(
            f'preset "{preset}"',
            "There is no preset of that name.",
            f'Did you mean "{close[0]}"?' if close else f"There are: {', '.join(names)}.",
        )
    target = to or Path(f"{preset}.yaml")
    text = source.read_text(encoding="utf-8")
    named = re.sub(r"[^A-Za-z0-9._-]", "-", target.stem).lstrip("._-") or preset
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(_EXP_ID.sub(f"exp_id: {_quote_name(named)}", text, count=1))
    except FileExistsError as error:
        raise ConfigError(
            str(target),
            "it exists already and is never overwritten.",
            "Choose another file with --to FILE.",
        ) from error
    except OSError as error:
        raise ConfigError(
            str(target),
            f"it cannot be written ({error.strerror}).",
            "Choose another file with --to FILE.",
        ) from error
    return target


def _quote_name(name: str) -> str:
    """YAML would read `2024` or `on` as something else than a name."""
    return name if re.fullmatch(r"[A-Za-z][A-Za-z-]{3,}", name) else f'"{name}"'
