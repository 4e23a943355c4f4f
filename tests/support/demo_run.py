"""The run of `studio demo` in this process, at once, decided as a careful person would."""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import run

from engines.record.run_dir import Workspace
from tests.support.made_once import made_once

CAREFUL = """
rules:
  - when: {flag: [leak, duplicate]}
    do: reject
    reason: careless
  - do: approve
"""


def demo_workspace() -> Workspace:
    """The workspace of a demo that is finished; nobody mended its reply. Not to be changed."""

    def make(folder: Path) -> None:
        rules = folder / "rules.yaml"
        rules.write_text(CAREFUL)
        words = ("headless", "demo", f"--review=rules:{rules}", "policy.pace_tokens_per_s=null")
        command = [sys.executable, "-m", "studio", "--workspace", str(folder / "practice"), *words]
        done = run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 4, done.stderr  # with losses: the reply

    return Workspace(made_once("demo", make) / "practice")
