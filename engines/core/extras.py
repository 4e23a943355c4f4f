"""How an extra of this package is installed: from a checkout, where it runs from one."""

import os
import shlex
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def install_command(extra: str) -> str:
    """The command that installs it into the environment of this process."""
    here = Path.cwd()
    # One may stand in a checkout while the program runs from an ordinary install.
    root = next((folder for folder in (_ROOT, here) if _is_checkout(folder)), None)
    if root is None:
        return f"pip install 'practice-studio[{extra}]'"
    pip = Path(sys.executable).parent / "pip"  # an environment that is not activated has its own
    shown = os.path.relpath(pip, here) if pip.is_relative_to(here) else str(pip)
    target = "." if here == root else str(root)
    return f"{shlex.quote(shown)} install -e {shlex.quote(f'{target}[{extra}]')}"


def installed_version(package: str) -> str | None:
    """Read from its metadata: importing torch takes seconds."""
    from importlib.metadata import PackageNotFoundError, version  # not where nobody asks

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _is_checkout(folder: Path) -> bool:
    try:
        return '\nname = "practice-studio"\n' in (folder / "pyproject.toml").read_text("utf-8")
    except (OSError, ValueError):
        return False
