"""`studio` alone: where things stand and what one would do next."""

from __future__ import annotations

from pathlib import Path


def home(folder: Path) -> None:
    from engines.record.run_dir import Workspace
    from studio.listing import home_text, listed_runs

    workspace = Workspace(folder)
    print(home_text(listed_runs(workspace), workspace))
