"""A workspace that is written to by hand, from outside any run.

Owns which secrets such a command can know.
"""

from __future__ import annotations

from pathlib import Path

from engines.core.text.masking import Mask
from engines.record.run_dir import Workspace
from studio.secrets.output import current_mask, remember
from studio.secrets.remembered import secret_finder
from studio.secrets.rules import run_file_secrets


def masking_workspace(folder: Path) -> Workspace:
    """A workspace into which no secret is written that its runs had or ask the environment for."""
    for run_file in folder.glob("runs/*/run.yaml"):
        remember(run_file_secrets(run_file))
    return Workspace(folder, Mask(current_mask().values, secret_finder(folder)))
