"""What a run of 100,000 rollouts costs: `python -m tests.bench.long_run`, a quarter of an hour.

The rehearsal practises through the real command line, 100 rollouts of about 4 kB a step. Its
process is watched from outside: CPU seconds and memory at the end of each step. When so many
rollouts are done it is killed, and all that reads the run is measured: the resume up to the first
event of a new step, `runs show`, `ctl status`, what a screen reads when it is opened. `--folder
DIR` keeps the run there, and measures again what is there already. Beside it 500 short runs are
listed at home. Prints JSON; exits with 1 where a bound does not hold, which `missed` names. Bounds
on seconds are meant for the wall of an idle machine, so CPU seconds are held to them here; on a
busy one "start" (`studio version`) and "resume_young" tell what of them is the machine's.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from engines.record.run_dir import Workspace
from sample_data import make_problems
from tests.bench.listing import least, run
from tests.support.long_runs import write_long_run

ROLLOUTS, BATCH, TRIES, PROBLEMS = 100_000, 25, 4, 250
RUN, RUNS, SHARES = "long", 500, 20
YOUNG, WARM_UP, COMPARED, REPEATS = 6_000, 3, 20, 5
"""Rollouts of the young run; steps of it and of the long one that are compared, so many times."""
BOUNDS = {
    "megabytes": 500.0,
    "slower": 1.1,
    "resume_s": 2.0,
    "show_s": 1.0,
    "status_s": 1.0,
    "home_s": 0.5,
}
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_WORDS = "Work slowly and say what each number counts before it is used again in another line. "
LOOKS = {
    "state": "from engines.record.run_dir import *; RunDir(run).state()",
    "live_page": "from studio.tui.pages.live.page import *; load_event_history(RunDir(run))",
    "evidence": "from studio.review.evidence import *; EvidenceLoader(RunDir(run))",
    "citations": "from studio.tui.pages.library.page import *; read_citations(RunDir(run))",
}


def write_problems(path: Path) -> None:
    chance = random.Random(1)
    kinds = (make_problems.additions, make_problems.subtractions, make_problems.mixed_operations)
    rows = [pair for kind in kinds for pair in islice(kind(chance), PROBLEMS // len(kinds) + 1)]
    lines = (json.dumps({"question": asked, "answer": str(answer)}) for asked, answer in rows)
    path.write_text("\n".join([*lines][:PROBLEMS]) + "\n")


def command(folder: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "studio", "--workspace", str(folder), *words]


def settings(folder: Path) -> list[str]:
    given = {
        "data.practice": folder / "problems.jsonl",
        "practice.batch_size": BATCH,
        "practice.group_size": TRIES,
        "practice.epochs": 1_000,  # more than is practised
        "practice.concurrency": BATCH * TRIES,
        "evaluation.do_eval": "false",
        "verifier": "text",
        "agent.instructions": _WORDS * 23,
    }
    return [f"{name}={value}" for name, value in given.items()]


def used_by(pid: int) -> tuple[float, float]:
    """CPU seconds of a process so far, and the most megabytes it ever held."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = Path(f"/proc/{pid}/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0])
    return (int(fields[11]) + int(fields[12])) * _TICK_S, peak / 1024


@contextmanager
def events_of(folder: Path, *words: str) -> Iterator[tuple[int, Iterator[dict[str, Any]]]]:
    """A process of the run and its events; it is killed at the end."""
    line = command(folder, "headless", *words, "--json")
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            yield process.pid, map(json.loads, process.stdout)
        finally:
            process.send_signal(signal.SIGKILL)


def practise(folder: Path, rollouts: int) -> dict[str, Any]:
    """The run, killed in the middle of the step after so many rollouts."""
    folder.mkdir(parents=True)
    write_problems(folder / "problems.jsonl")
    steps, points = rollouts // (BATCH * TRIES), [(0.0, 0.0)]
    words = ("rehearsal", "--name", RUN, *settings(folder))
    with events_of(folder, *words) as (pid, events):
        done = 0
        for event in events:
            if event["kind"] == "StepFinished":
                points.append(used_by(pid))
                done = event["step"]
            if event["kind"] == "RolloutJudged" and done >= steps:
                break
    share = max(1, steps // SHARES)
    cpu_s = [points[at + share][0] - points[at][0] for at in range(0, steps - share + 1, share)]
    return {
        "steps": steps,
        "megabytes": round(points[-1][1]),
        "megabytes_after_50_steps": round(points[min(50, steps)][1]),
        "step_cpu_s": [round(taken / share, 3) for taken in cpu_s],
    }


def step_cpu_s(folder: Path) -> float:
    """Of a step, once the resumed process has made a few."""
    with events_of(folder, "--resume", RUN) as (pid, events):
        points = []
        for event in events:
            if event["kind"] == "StepFinished":
                points.append(used_by(pid)[0])
            if len(points) > WARM_UP + COMPARED:
                break
    return (points[-1] - points[WARM_UP]) / COMPARED


def compare_steps(short: Path, long: Path) -> dict[str, Any]:
    """Steps of the long run against those of its like that is young, in turns: loads change."""
    early, late = [], []
    for _ in range(REPEATS):
        early.append(step_cpu_s(short))
        late.append(step_cpu_s(long))
    pairs = [round(after / before, 3) for before, after in zip(early, late, strict=True)]
    return {
        "early_step_cpu_s": round(min(early), 4),
        "late_step_cpu_s": round(min(late), 4),
        "slower_each": pairs,
        "slower": round(min(late) / min(early), 3),
    }


def resume(folder: Path) -> dict[str, float]:
    """Seconds until the resumed run goes on with its step, and of these the process's own."""
    began = time.perf_counter()
    with events_of(folder, "--resume", RUN) as (pid, events):
        next(event for event in events if event["kind"] in ("StepStarted", "RolloutStarted"))
        cpu_s, peak = used_by(pid)
        return {
            "cpu_s": round(cpu_s, 2),
            "wall_s": round(time.perf_counter() - began, 2),
            "megabytes": round(peak),
        }


def look(folder: Path, code: str) -> dict[str, float]:
    """What one look at the run costs in a process that has imported all it needs."""
    imports, _, call = code.rpartition("; ")
    program = (
        "import time, resource\nfrom engines.record.run_dir import Path, RunDir\n"
        f"{imports.replace('; ', chr(10))}\nrun = Path({str(folder / 'runs' / RUN)!r})\n"
        f"t = time.process_time()\nkept = {call}\nt = time.process_time() - t\n"
        "print(t, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    )
    made = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if made.returncode:
        raise SystemExit(made.stderr)
    cpu_s, megabytes = map(float, made.stdout.split())
    return {"cpu_s": round(cpu_s, 2), "megabytes": round(megabytes)}


def measure(folder: Path, rollouts: int) -> dict[str, Any]:
    long, short, many = folder / "long", folder / "short", Workspace(folder / "many")
    notes = folder / "practised.json"
    if not notes.exists():
        shutil.rmtree(folder, ignore_errors=True)
        made = practise(long, rollouts)
        practise(short, min(YOUNG, rollouts))
        for number in range(RUNS):
            write_long_run(many, f"exp-{number + 2}", steps=5, library=number % 10 == 0)
        notes.write_text(json.dumps(made))
    found: dict[str, Any] = json.loads(notes.read_text())
    at = long / "runs" / RUN
    sizes = {
        "journal": sum(path.stat().st_size for path in at.glob("journal*")),
        "records": sum(path.stat().st_size for path in at.glob("records/*")),
    }
    found["bytes_a_rollout"] = {name: round(size / rollouts) for name, size in sizes.items()}
    found |= compare_steps(short, long)
    found["start"] = least(long, "version")
    for name, folder in (("resume_young", short), ("resume", long)):
        resumes = [resume(folder) for _ in range(REPEATS)]
        found[name] = min(resumes, key=lambda one: one["cpu_s"])
    found["show_first"] = run(long, "runs", "show", RUN)
    found["show"] = least(long, "runs", "show", RUN)
    found["status"] = least(long, "ctl", "status", RUN)
    found["home_first"] = run(many.path)
    found["home"] = least(many.path)
    found["looks"] = {name: look(long, code) for name, code in LOOKS.items()}
    for name in ("resume", "show", "status", "home"):
        found[f"{name}_s"] = found[name]["cpu_s"]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rollouts", type=int, default=ROLLOUTS)
    parser.add_argument("--folder", type=Path, help="keep the runs there, or measure those there")
    given = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # users have compiled files
    with tempfile.TemporaryDirectory() as place:
        found = measure((given.folder or Path(place) / "runs").resolve(), given.rollouts)
    missed = [name for name, bound in BOUNDS.items() if found[name] > bound]
    print(json.dumps(found | {"bounds": BOUNDS, "missed": missed}, indent=2))
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
