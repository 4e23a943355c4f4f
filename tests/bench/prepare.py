"""What the seed's data costs: 182,190 rows prepared, and a dry run on them.

`python -m tests.bench.prepare` writes rows of the length of Natural Questions and DeepMath (with
solutions, which are not to be read), and prints JSON: CPU and wall seconds and the most memory, in
MB, of `studio data prepare planner-182k` and of `studio headless … --dry-run` with the seed's
batches of 2. Exits with 1 where preparing takes more than 60 s or 1,000 MB, or the dry run more
than 10 s of CPU: its wall time is printed beside it, since others may use the machine.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from tests.bench.lesson_size import make_words

NQ, DEEPMATH = 79_168, 103_022


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        _write_sources(Path(folder))
        found = {
            "prepare": _measure(folder, "data", "prepare", "planner-182k", "--from", folder),
            "again": _measure(folder, "data", "prepare", "planner-182k", "--from", folder),
            "dry_run": _measure(
                folder,
                *("headless", "rehearsal", "data.practice=planner-182k", "practice.batch_size=2"),
                "--dry-run",
            ),
        }
    print(json.dumps(found, indent=2))
    held = found["prepare"]["wall_s"] <= 60 and found["prepare"]["memory_mb"] <= 1000
    return 0 if held and found["dry_run"]["cpu_s"] <= 10 else 1


def _write_sources(folder: Path) -> None:
    draw = random.Random(1)
    words = make_words()

    def text(n: int) -> str:
        return " ".join(draw.choices(words, k=n))

    with (folder / "nq.jsonl").open("w") as file:
        for n in range(NQ):
            answers = [text(2) for _ in range(draw.randint(1, 3))]
            row = {"id": f"train_{n}", "question": text(10), "golden_answers": answers}
            file.write(json.dumps(row) + "\n")
    solution = text(600)
    names = ("question", "final_answer", "topic", *(f"r1_solution_{k}" for k in (1, 2, 3)))
    kinds: list[tuple[str, Any]] = [(name, pyarrow.string()) for name in names]
    schema = pyarrow.schema([*kinds, ("difficulty", pyarrow.float64())])
    with parquet.ParquetWriter(folder / "deepmath-103k.parquet", schema) as writer:
        for first in range(0, DEEPMATH, 2000):
            rows = [
                dict.fromkeys(names, f"{solution} {n}")
                | {"question": text(35), "final_answer": str(draw.randint(0, 9999))}
                | {"topic": "Mathematics -> Algebra", "difficulty": 5.0}
                for n in range(first, min(first + 2000, DEEPMATH))
            ]
            writer.write_batch(pyarrow.RecordBatch.from_pylist(rows, schema=schema))
    aime = [{"ID": f"{n}", "Problem": text(40), "Answer": n} for n in range(30)]
    parquet.write_table(pyarrow.Table.from_pylist(aime), folder / "aime24.parquet")


_RUN = """
import resource, subprocess, sys
code = subprocess.call([sys.executable, "-m", "studio", *sys.argv[1:]], stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, code)
"""


def _measure(folder: str, *args: str) -> dict[str, float]:
    began = time.monotonic()
    place = ("--workspace", f"{folder}/practice")
    ran = subprocess.run(
        [sys.executable, "-c", _RUN, *place, *args], capture_output=True, text=True, check=True
    )
    cpu, memory, code = ran.stdout.split()
    if code != "0":
        raise SystemExit(ran.stderr)
    wall = time.monotonic() - began
    return {
        "cpu_s": round(float(cpu), 1),
        "wall_s": round(wall, 1),
        "memory_mb": round(float(memory)),
    }


if __name__ == "__main__":
    sys.exit(main())
