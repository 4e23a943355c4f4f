"""How an extra of this package is installed: from a checkout, where it runs from one."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def install_command(extra: str) -> str:
    """The command that installs it into the environment of this process."""
    if not (_ROOT / "pyproject.toml").is_file():
        return f"pip install 'practice-studio[{extra}]'"
    pip = Path(sys.executable).parent / "pip"  # an environment that is not activated has its own
    here = Path.cwd()
    shown = os.path.relpath(pip, here) if pip.is_relative_to(here) else str(pip)
    root = "." if here == _ROOT else str(_ROOT)
    return f"{shlex.quote(shown)} install -e {shlex.quote(f'{root}[{extra}]')}"
