"""A workspace that is written to by hand, from outside any run.

Owns which secrets such a command can know.
"""

from __future__ import annotations

from pathlib import Path

from engines.record.run_dir import Workspace
from studio.secrets.output import current_mask, remember
from studio.secrets.rules import run_file_secrets


def masking_workspace(folder: Path) -> Workspace:
    """A workspace into which no secret is written that its runs ask the environment for.

    A key that was written as its value in a run file is known to the process of that run alone: it
    is stored nowhere, so no later command can recognise it.
    """
    for run_file in folder.glob("runs/*/run.yaml"):
        remember(run_file_secrets(run_file))
    return Workspace(folder, current_mask())
