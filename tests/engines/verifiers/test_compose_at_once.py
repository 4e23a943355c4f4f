"""Run files are read by several threads of a screen at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from studio.config.loading import load_run


def test_presets_are_composed_by_several_threads_at_once(tmp_path: Path) -> None:
    def seed(number: int) -> int:
        return load_run("rehearsal", [f"seed={number}"], tmp_path, keyless=True).config.seed

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(seed, range(16))) == list(range(16))
