"""Run files for tests: written to a folder, loaded, or refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from engines.core.errors import ConfigError
from studio.config.loading import LoadedRun, load_run

SMALL = "policy: rehearsal\ndata: {practice: sums}\n"


def write(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def loaded(
    folder: Path, text: str, *overrides: str, environ: Mapping[str, str] | None = None
) -> LoadedRun:
    path = write(folder, text)
    return load_run(str(path), overrides, folder / "workspace", environ or {}, cwd=folder)


def refused(
    folder: Path, text: str, *overrides: str, environ: Mapping[str, str] | None = None
) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        loaded(folder, text, *overrides, environ=environ)
    return caught.value
