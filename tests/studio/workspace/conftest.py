"""No cluster that may run on this machine is asked."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "no-ray"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
