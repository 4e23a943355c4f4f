"""`python -m tests`: everything that decides whether a change is good, here and in CI.

`python -m tests nightly` runs the cases that take longest and nothing else: each stands beside
shorter ones of the same behaviour. Other arguments go to pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
STATIC = (
    (BIN / "ruff", "format", "--check", "."),
    (BIN / "ruff", "check", "."),
    (BIN / "lint-imports",),
    (BIN / "mypy",),
)
# Four for two cores: a third of a worker's time is waiting for processes and terminals. What is
# left of a share goes to the worker that is through first, from its end: the tests of a file stay
# together, and share what it took to set them up.
PYTEST = (sys.executable, "-m", "pytest", "-q", "-n", "4", "--dist", "worksteal")
# Bytecode is kept: else each worker compiles every test anew before it runs the first.
ENVIRONMENT = {k: value for k, value in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def main() -> int:
    """Run every check, the others also after a failure; returns 1 if any failed.

    The static ones run beside the tests, which often wait, and are printed at the end.
    """
    if sys.argv[1:2] == ["nightly"]:
        return int(run_check((*PYTEST, "-m", "nightly", *sys.argv[2:])).failed)
    tests = (*PYTEST, "-m", "not nightly", *sys.argv[1:])
    with ThreadPoolExecutor(1) as beside:
        static = [beside.submit(run_check, check, quiet=True) for check in STATIC]
        results = [run_check(tests), *(future.result() for future in static)]
    for result in results:
        if result.output:
            print(f"\n== {result.name}\n{result.output.rstrip()}\n== {result.took_s:.1f} s")
    failed = [result.name for result in results if result.failed]
    for name in failed:
        print(f"FAILED: {name}", flush=True)
    return 1 if failed else 0


@dataclass(frozen=True)
class CheckResult:
    """How a check ended; its output where it was kept back."""

    name: str
    failed: bool
    took_s: float
    output: str


def run_check(check: Sequence[str | Path], *, quiet: bool = False) -> CheckResult:
    """Run a command in the repository; `quiet` keeps what it prints for its result."""
    name = " ".join(Path(part).name if part is check[0] else str(part) for part in check)
    if not quiet:
        print(f"\n== {name}", flush=True)
    began = time.monotonic()
    done = subprocess.run(
        [str(part) for part in check],
        cwd=ROOT,
        env=ENVIRONMENT,
        check=False,
        text=True,
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.STDOUT if quiet else None,
    )
    took_s = time.monotonic() - began
    if not quiet:
        print(f"== {took_s:.1f} s", flush=True)
    return CheckResult(name, bool(done.returncode), took_s, done.stdout or "")


if __name__ == "__main__":
    sys.exit(main())
