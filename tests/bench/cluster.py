"""A run on a Ray cluster against the same run here: overhead, lost workers, a lost driver.

    python -m tests.bench.cluster --kills 100 --seed 1

Starts a cluster of one machine (`ray start --head`) for all but the cold start, runs real `studio
headless` processes on it, and kills worker processes at random moments of them. Prints JSON; exits
1 where a library, a journal or what was paid differs, or something is left behind.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from engines.core import events as ev
from engines.record.run_dir import Workspace
from tests.support.harness import comparable
from tests.support.processes import Process, running
from tests.support.usage import read_usage

PRACTICE = ("data.truncate=24", "practice.epochs=1", "practice.batch_size=8")
COMMON = (*PRACTICE, "practice.group_size=5", "evaluation.do_eval=false", "practice.concurrency=16")
PORT = 6399
STEPS = 3
WARM_TRIES = (STEPS - 1) * 8 * 5


def actors() -> list[psutil.Process]:
    """Worker processes on this machine, of whatever cluster."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if "ray::_Actor" in " ".join(process.cmdline()):
                found.append(process)
    return found


@contextmanager
def cluster() -> Iterator[str]:
    """An existing cluster, as `ray start` makes one, that outlives every run."""
    ray = str(Path(sys.executable).parent / "ray")
    start = f"{ray} start --head --port {PORT} --num-cpus 2 --include-dashboard=false"
    subprocess.run([*start.split(), "--disable-usage-stats"], check=True, capture_output=True)
    try:
        yield f"127.0.0.1:{PORT}"
    finally:
        subprocess.run([ray, "stop", "--force"], check=False, capture_output=True)


def wait_until(holds: Any, limit_s: float) -> float:
    """Seconds until something holds; the limit where it never does."""
    began = time.monotonic()
    while not holds() and time.monotonic() - began < limit_s:
        time.sleep(0.05)
    return time.monotonic() - began


def paid(home: Path, run: str) -> list[str]:
    return sorted(map(repr, read_usage(Workspace(home).run(run).records)))


def practice_s(home: Path, run: str) -> float:
    """Seconds from the second step to the last rollout: in the first one all is cold."""
    entries = list(Workspace(home).run(run).entries())
    steps = (entry for entry in entries if isinstance(entry.event, ev.StepStarted))
    began = next(entry.at for entry in steps if entry.event.step == 2)
    return max(e.at for e in entries if isinstance(e.event, ev.RolloutJudged)) - began


def run_whole(home: Path, preset: str, name: str, *more: str) -> None:
    with running(home, preset, *COMMON, *more, "--name", name) as process:
        if code := process.end():
            raise SystemExit(f"{name} ended with {code}")


def kill_some(home: Path, name: str, address: str, rng: random.Random) -> int:
    """A run of which a worker is killed at a random moment of each step; returns how many were.

    Once a step, since a try that is lost twice has failed.
    """
    killed = 0
    more = ("dispatch=ray", f"ray.address={address}", "ray.tries_per_worker=8")
    with running(home, "math", *COMMON, *more, "--name", name) as process:
        for _ in range(STEPS):
            process.until("StepStarted")
            if count := rng.randint(0, 36):
                process.until("RolloutFinished", count)
            time.sleep(rng.uniform(0, 0.3))
            if found := actors():
                rng.choice(found).kill()
                killed += 1
            process.until("StepFinished")
        if code := process.end():
            raise SystemExit(f"{name} ended with {code}")
    return killed


def lose_driver(home: Path, address: str) -> dict[str, Any]:
    """A run whose own process is killed, and resumed on the same cluster."""
    more = ("dispatch=ray", f"ray.address={address}", "ray.tries_per_worker=8")
    with running(home, "math", *COMMON, *more, "--name", "driver") as process:
        process.until("RolloutFinished", 20)
        before = len(actors())
        process.child.kill()
    gone_s = wait_until(lambda: not actors(), 60)
    left = len(actors())
    resumed = Process(home, "--resume", "driver", *more)
    resumed.until("RunEnded")
    return {"actors": before, "left": left, "gone_s": round(gone_s, 2), "resumed": resumed.end()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    rng, found = random.Random(asked.seed), dict[str, Any]()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "practice"
        began = time.time()
        run_whole(home, "rehearsal", "cold", "dispatch=ray", "ray.address=local")
        entries = Workspace(home).run("cold").entries()
        first = next(entry.at for entry in entries if isinstance(entry.event, ev.RolloutFinished))
        found["first_rollout_s"] = round(first - began, 2)
        with cluster() as address:
            ray = ("dispatch=ray", f"ray.address={address}", "ray.tries_per_worker=8")
            took = dict[str, float]()
            for preset in ("rehearsal", "math"):
                for side, more in (("here", ()), ("ray", ray)):
                    times = []
                    for n in range(asked.repeats):
                        run_whole(home, preset, f"{preset}-{side}-{n}", *more)
                        times.append(practice_s(home, f"{preset}-{side}-{n}"))
                    took[f"{preset} {side}"] = min(times)
                beyond = took[f"{preset} ray"] - took[f"{preset} here"]
                found[f"{preset}_overhead_ms"] = round(1000 * beyond / WARM_TRIES, 2)
            found["practice_s"] = {name: round(value, 2) for name, value in took.items()}
            print(json.dumps(found), file=sys.stderr, flush=True)  # kills may end it early
            whole = comparable(Workspace(home).run("math-here-0"))
            killed, differ, runs = 0, 0, 0
            while killed < asked.kills and runs < asked.kills:
                name, runs = f"cut-{runs}", runs + 1
                killed += kill_some(home, name, address, rng)
                same = comparable(Workspace(home).run(name)) == whole
                differ += not same or paid(home, name) != paid(home, "math-here-0")
                print(f"{killed} kills, {differ} runs differ", file=sys.stderr, flush=True)
            found["kills"] = {"kills": killed, "runs": runs, "differ": differ}
            found["driver"] = lose_driver(home, address)
            same = paid(home, "driver") == paid(home, "math-here-0")
            found["driver"]["same_paid"] = same
    print(json.dumps(found, indent=2))
    bad = found["kills"]["differ"] or found["driver"]["left"] or found["driver"]["resumed"]
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
