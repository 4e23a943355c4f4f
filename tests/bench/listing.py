"""What lists, indexes and questions cost: `python -m tests.bench.listing`, a minute or two.

Journals of 200 runs and of one of 92,000 events are written as processes of such runs would have
left them; then every command is a process of its own. Prints JSON: CPU seconds, the start of Python
and its imports included, and megabytes at most. Exits with 1 where a bound does not hold, which
`missed` names. "first" is with nothing derived yet, "cold" without the catalogue.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from engines.record.derived import catalogue
from engines.record.run_dir import Workspace
from tests.support.long_runs import write_long_run

START = """
import os, sys
pid = os.fork()
if not pid:
    for fd in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), fd)
    os.execv(sys.argv[1], sys.argv[1:])
_, status, used = os.wait4(pid, 0)
print([status, used.ru_utime + used.ru_stime, used.ru_maxrss])
"""
RUNS, STEPS, LONG_STEPS, REPEATS = 200, 5, 1_020, 3
BOUNDS = {"list": 1.0, "list_cold": 10.0, "show": 1.0, "query": 1.0, "query_rebuilt": 10.0}


def run(folder: Path, *words: str) -> dict[str, float]:
    """CPU seconds and megabytes at most of one command."""
    command = [sys.executable, "-m", "studio", "--workspace", str(folder), *words]
    # A small process between: a new one begins with the memory of the one that made it.
    made = subprocess.run(
        [sys.executable, "-S", "-c", START, *command], capture_output=True, text=True, check=True
    )
    status, cpu_s, kilobytes = json.loads(made.stdout)
    if status:
        raise SystemExit(f"studio {' '.join(words)}: {os.waitstatus_to_exitcode(status)}")
    return {"cpu_s": round(cpu_s, 2), "megabytes": round(kilobytes / 1024)}


def least(folder: Path, *words: str, without: str = "") -> dict[str, float]:
    found = []
    for _ in range(REPEATS):
        for path in folder.glob(without) if without else ():
            path.unlink()
        found.append(run(folder, *words))
    return min(found, key=lambda one: one["cpu_s"])


def measure(folder: Path) -> dict[str, Any]:
    many, long = Workspace(folder / "many"), Workspace(folder / "long")
    for number in range(RUNS):
        write_long_run(many, f"exp-{number + 2}", steps=STEPS, library=number % 10 == 0)
    events = write_long_run(long, "long", steps=LONG_STEPS)
    return {
        "events": events,
        "journal_bytes": long.run("long").journal.stat().st_size,
        "start": least(folder, "version"),
        "list_first": run(many.path, "runs", "list"),
        "list_cold": least(many.path, "runs", "list", without="catalogue.json"),
        "list": least(many.path, "runs", "list"),
        "home": least(many.path),
        "show_first": run(long.path, "runs", "show", "long"),
        "show": least(long.path, "runs", "show", "long"),
        "query_rebuilt": least(long.path, "query", "carry", without=f"*/*/{catalogue.NAME}"),
        "query": least(long.path, "query", "carry"),
        "query_many_rebuilt": least(many.path, "query", "carry", without=f"*/*/{catalogue.NAME}"),
        "query_many": least(many.path, "query", "carry"),
    }


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder))
    missed = [name for name, bound in BOUNDS.items() if found[name]["cpu_s"] > bound]
    print(json.dumps(found | {"bounds": BOUNDS, "missed": missed}, indent=2))
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
