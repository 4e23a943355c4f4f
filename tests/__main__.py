"""`python -m tests`: everything that decides whether a change is good, here and in CI."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
CHECKS = (
    (BIN / "ruff", "format", "--check", "."),
    (BIN / "ruff", "check", "."),
    (BIN / "mypy",),
    (BIN / "lint-imports",),
    # By file, because the tests of one share what it took to set them up.
    (sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", *sys.argv[1:]),
)


def main() -> int:
    """Run every check, the later ones also after a failure; returns 1 if any failed."""
    failed = []
    for check in CHECKS:
        name = " ".join(Path(part).name if part is check[0] else str(part) for part in check)
        print(f"\n== {name}", flush=True)
        began = time.monotonic()
        if subprocess.run([str(part) for part in check], cwd=ROOT, check=False).returncode:
            failed.append(name)
        print(f"== {time.monotonic() - began:.1f} s", flush=True)
    for name in failed:
        print(f"FAILED: {name}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
