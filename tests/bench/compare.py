"""What `studio compare` costs: two logs of 50,000 rows of each format, 100,000 in all.

    python -m tests.bench.compare [--rows 100000] [FORMAT …]

Prints JSON: seconds of the whole command and of CPU, start included, and its peak memory in MB. A
row of a log has some 400 to 900 bytes of text beside its score; lm-eval has two rows for a score.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.foreign_logs import WRITERS, Tried

FORMATS = [name for name in WRITERS if name not in ("agentskills", "inspect .eval, Zstandard")]

_CHILD = """
import re, sys, time
from studio.cli import run
code = run(sys.argv[1:])
with open("/proc/self/status") as file:  # of this process alone, unlike ru_maxrss
    peak = re.search(r"VmHWM:\\s+(\\d+)", file.read())[1]
print(peak, time.process_time(), code, file=sys.stderr)
"""


def tries(rows: int, chance: float, seed: int) -> list[Tried]:
    """Four tries a problem, graded in quarters."""
    draw = random.Random(seed)
    return [
        (
            f"p{at // 4}",
            at % 4 + 1,
            min(1.0, draw.randint(0, 3) / 4 + 0.25 * (draw.random() < chance)),
        )
        for at in range(rows)
    ]


def measure(name: str, rows: int) -> dict[str, float]:
    with TemporaryDirectory() as folder:
        paths = []
        for side, chance in (("before", 0.4), ("after", 0.45)):
            Path(folder, side).mkdir()
            paths.append(WRITERS[name](Path(folder, side), tries(rows // 2, chance, len(side))))
        begun = time.perf_counter()
        words = ["--workspace", folder, "compare", *map(str, paths), "--format", "md"]
        command = [sys.executable, "-c", _CHILD, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        took = time.perf_counter() - begun
    peak, cpu, code = done.stderr.split()[-3:]
    assert code == "0", done.stderr
    times = {"seconds": round(took, 2), "cpu_seconds": round(float(cpu), 2)}
    return {**times, "peak_mb": round(int(peak) / 1024, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("formats", nargs="*", choices=[[], *FORMATS])
    parser.add_argument("--rows", type=int, default=100_000)
    given = parser.parse_args()
    found = {name: measure(name, given.rows) for name in given.formats or FORMATS}
    print(json.dumps({"rows": given.rows, "formats": found}, indent=2))


if __name__ == "__main__":
    main()
