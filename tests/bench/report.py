"""What a report of a long run costs: `python -m tests.bench.report`, a minute or two.

The rehearsal practises 10,000 rollouts through the real command line; then each form of its report
is written by a process of its own. Prints JSON: the least CPU and wall seconds of three runs, and
megabytes at most. The bound is on CPU seconds, which on an idle machine are those of the wall: it
uses one core and waits for nothing. Exits with 1 where a bound does not hold, which `missed` names.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROLLOUTS, TRIES, REPEATS = 10_000, 5, 3
MOST_S, MOST_MB = 5.0, 300.0
FORMS = {"html": ("--html", "report.html"), "markdown": ("--md", "report.md"), "json": ("--json",)}


def write_problems(path: Path) -> None:
    """Sums, differences and rows of both, so that lessons of several kinds are learned."""
    chance = random.Random(1)
    rows = []
    for n in range(ROLLOUTS // TRIES):
        a, b, c = chance.randint(30, 99), chance.randint(3, 29), chance.randint(2, 9)
        asked = (
            (f"What is {a} + {b}?", a + b),
            (f"What is {a} - {b}?", a - b),
            (f"What is {b} + {c} * {c}?", b + c * c),
        )[n % 3]
        rows.append(json.dumps({"question": asked[0], "answer": str(asked[1])}))
    path.write_text("\n".join(rows) + "\n")


def run(folder: Path, *words: str) -> tuple[float, float, float]:
    """CPU and wall seconds, and megabytes at most, of one command in a process of its own."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "studio", "--workspace", ".", *words],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"studio {' '.join(words)}: {os.waitstatus_to_exitcode(status)}")
    return used.ru_utime + used.ru_stime, time.perf_counter() - began, used.ru_maxrss / 1024


def measure(folder: Path) -> dict[str, Any]:
    write_problems(folder / "problems.jsonl")
    practice = (f"practice.group_size={TRIES}", "practice.batch_size=20", "practice.epochs=1")
    run(folder, "headless", "rehearsal", "data.practice=problems.jsonl", *practice)
    found: dict[str, Any] = {}
    for name, words in FORMS.items():
        took = [run(folder, "report", "rehearsal", *words) for _ in range(REPEATS)]
        found[name] = {
            "cpu_s": round(min(one[0] for one in took), 2),
            "wall_s": round(min(one[1] for one in took), 2),
            "megabytes": round(max(one[2] for one in took)),
        }
    journal = (folder / "runs/rehearsal/journal.jsonl").read_text("utf-8")
    sizes = {path: (folder / path).stat().st_size for path in ("report.html", "report.md")}
    return {"rollouts": journal.count('"RolloutFinished"'), "bytes": sizes, **found}


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder))
    missed = [
        name
        for name in FORMS
        if found[name]["cpu_s"] > MOST_S or found[name]["megabytes"] > MOST_MB
    ]
    if found["rollouts"] < ROLLOUTS:
        missed.append("rollouts")
    print(json.dumps(found | {"missed": missed}, indent=2))
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
