"""What a session of 10,000 steps costs to import: `python -m tests.bench.sessions`.

Prints a line of JSON for each format; none should take more than 5 s and 200 MB.
"""

from __future__ import annotations

import argparse
import asyncio.base_events
import http.client
import inspect
import json
import random
import resource
import smtplib
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support.session_files import WRITERS, Act, act, say, user

STEPS = 10_000


def a_long_session() -> list[Act]:
    chance = random.Random(0)
    sources = (argparse, asyncio.base_events, http.client, smtplib, ssl)
    lines = [line for module in sources for line in inspect.getsource(module).splitlines()]
    acts = [user("Mend all of it")]
    for number in range(STEPS // 2):
        at = chance.randrange(len(lines) - 60)
        result = "\n".join(lines[at : at + 60])
        acts.append(act("Bash", {"command": f"sed -n {number}p a.py"}, result, 0))
        if number % 500 == 499:
            acts += [say("Done."), user(f"Now the next part, {number}")]
    return [*acts, say("All is done.")]


def main() -> None:
    if len(sys.argv) == 4:
        _, name, path, workspace = sys.argv
        from engines.record.run_dir import Workspace
        from studio.data.sessions import import_sessions

        began, cpu = time.perf_counter(), time.process_time()
        done = import_sessions(Workspace(Path(workspace)), name, Path(path), "long")
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        found = {"tries": done["tries"], "s": round(seconds, 2), "cpu_s": round(cpu, 2)}
        print(json.dumps({"format": name, **found, "peak_mb": round(peak)}))
        return
    with tempfile.TemporaryDirectory() as folder:
        for label, (name, write) in WRITERS.items():
            place = Path(folder) / label.replace(" ", "-")
            place.mkdir()
            path = write(place, "long", a_long_session())
            call = [sys.executable, "-m", "tests.bench.sessions", name, str(path), str(place / "w")]
            said = subprocess.run(call, capture_output=True, text=True, check=True).stdout
            size = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
            print(json.dumps({"file": label, "mb": round(size / 1e6, 1), **json.loads(said)}))


if __name__ == "__main__":
    main()
