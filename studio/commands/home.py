"""`studio` alone: where things stand and what one would do next."""

from __future__ import annotations

from pathlib import Path

from studio import exit_codes


def home(folder: Path) -> int:
    """The start screen where somebody sits at a terminal, else the same as a page of text."""
    from studio.commands.screen import has_screen, show

    if has_screen():
        return show(folder)
    from engines.record.run_dir import Workspace
    from studio.workspace.listing import home_text, listed_runs

    workspace = Workspace(folder)
    print(home_text(listed_runs(workspace), workspace))
    return exit_codes.DONE
