"""What the loop itself costs: `python -m tests.bench.loop`, a few minutes.

A server of canned replies runs in a process of its own (`tests.bench.loop_server`), the
real command line in another (`tests.bench.loop_child`), which reads its own counters.
Prints JSON; times are the minimum of the repeats. Exits with 1 when a target is missed,
which `missed` names. `--only PART …` measures some parts, `--quick` everything once or
twice and the large ones small.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from tests.bench.makespan import Latencies, ideal

GROUP, BATCH, EPOCHS, SLOTS = 4, 32, 2, 32
PARTS = ("cpu", "start", "memory", "latency", "steps")
TARGETS = {
    "cpu_ms_per_call": 4.0,
    "start_to_first_request_s": 1.0,
    "peak_mb": 150.0,
    "peak_mb_10000_rollouts": 300.0,
    "wall_to_bound_at_500_ms": 1.25,
    "wall_to_bare_client_at_50_ms": 2.0,
    "cpu_of_a_step_320_to_32": 1.3,
    "written_of_a_step_320_to_32": 1.02,
    "events_of_a_step_320_to_32": 1.02,
    "read_of_late_steps_to_early": 1.02,
    "written_of_late_steps_to_early": 1.02,
}
"""The most that each figure may be."""


@dataclass
class Bench:
    """A running server, a folder for workspaces, and how often to repeat."""

    url: str
    folder: Path
    repeats: int
    large: int  # rollouts of the large memory run
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def script(self, *, delay_s: float = 0.0, chars: int = 0) -> None:
        self._get("script", json.dumps({"delay_s": delay_s, "chars": chars}).encode())

    def stats(self) -> dict[str, Any]:
        """What the server was asked since the last look."""
        return dict(self._get("stats"))

    def _get(self, path: str, body: bytes | None = None) -> Any:
        with urlopen(self.url.removesuffix("/v1") + f"/{path}", body, timeout=10) as answer:
            return json.loads(answer.read())

    def run_file(self, problems: int, **practice: Any) -> Path:
        """A fresh workspace with a run file in it."""
        folder = self.folder / f"ws{next(self.numbers)}"
        folder.mkdir()
        rows = ({"question": f"What is {n + 9} - {n + 2}?", "answer": "7"} for n in range(problems))
        (folder / "problems.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        config = {
            "exp_id": "bench",
            "policy": {"model": "openai:canned", "base_url": self.url},
            "data": {"practice": "problems.jsonl"},
            "practice": {
                "epochs": EPOCHS,
                "batch_size": BATCH,
                "group_size": GROUP,
                "concurrency": SLOTS,
                **practice,
            },
        }
        (folder / "run.yaml").write_text(json.dumps(config))  # JSON is YAML
        return folder / "run.yaml"

    def practised(self, problems: int, **practice: Any) -> dict[str, Any]:
        """One run to its end: the looks of its process, and what the server saw."""
        file = self.run_file(problems, **practice)
        self.stats()
        done = self.child("studio", *headless(file))
        done["server"] = self.stats()
        done["records"] = file.parent / "practice/runs/bench/records"
        if done["exit"] or done["lost"]:
            raise SystemExit(f"the measured run went wrong: {done}")
        return done

    def bare(self, records: Path) -> dict[str, Any]:
        return self.child("bare", self.url, str(records), str(SLOTS))

    def child(self, *arguments: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "tests.bench.loop_child", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        return dict(json.loads(done.stdout))


def headless(file: Path) -> tuple[str, ...]:
    return ("--workspace", str(file.parent / "practice"), "headless", str(file))


@contextmanager
def serving(repeats: int, large: int) -> Iterator[Bench]:
    command = [sys.executable, "-m", "tests.bench.loop_server"]
    folder = Path(tempfile.mkdtemp(prefix="loop-"))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin and server.stdout
        try:
            port = int(server.stdout.readline())
            yield Bench(f"http://127.0.0.1:{port}/v1", folder, repeats, large)
        finally:
            server.stdin.close()
            server.kill()
            shutil.rmtree(folder)


def inside(run: dict[str, Any], name: str) -> float:
    """How much a counter grew from the beginning of practice to its end."""
    return float(run["looks"][-1][name] - run["looks"][0][name])


def step_means(run: dict[str, Any]) -> dict[str, float]:
    """Means over the steps but the first, which warms caches and opens connections."""
    looks = run["looks"][1:-1]  # the last look is after the last step
    names = ("cpu_s", "read", "written", "events", "calls")
    return {name: (looks[-1][name] - looks[0][name]) / (len(looks) - 1) for name in names}


# ── the parts


def cpu(bench: Bench) -> dict[str, Any]:
    """CPU of the loop's process for each call, with replies that come at once."""
    bench.script()
    runs = [bench.practised(BATCH) for _ in range(bench.repeats)]
    bare = [bench.bare(run["records"]) for run in runs]
    calls = inside(runs[0], "calls")
    return {
        "calls": int(calls),
        "cpu_ms_per_call": round(min(1e3 * inside(run, "cpu_s") / calls for run in runs), 3),
        "bare_client_ms_per_call": round(min(1e3 * b["cpu_s"] / b["calls"] for b in bare), 3),
        "wall_s": round(min(inside(run, "at") for run in runs), 3),
        "bare_client_wall_s": round(min(b["wall_s"] for b in bare), 3),
        "peak_mb": round(max(run["peak_mb"] for run in runs), 1),
    }


def start(bench: Bench) -> dict[str, Any]:
    """From starting `python -m studio` to what the server sees first: the ping, then a rollout."""
    bench.script()
    first, rollout, cpu_s = [], [], []
    for _ in range(bench.repeats):
        file = bench.run_file(GROUP, epochs=1)
        bench.stats()
        began = time.monotonic()
        command = [sys.executable, "-m", "studio", *headless(file)]
        subprocess.run(command, capture_output=True, check=True)
        seen = bench.stats()
        first.append(seen["first_at"] - began)
        rollout.append(seen["first_rollout_at"] - began)
        cpu_s.append(bench.practised(GROUP, epochs=1)["looks"][0]["cpu_s"])
    return {
        "start_to_first_request_s": round(min(first), 3),  # the ping that every start makes
        "start_to_first_rollout_s": round(min(rollout), 3),
        "cpu_before_practice_s": round(min(cpu_s), 3),
    }


def memory(bench: Bench) -> dict[str, Any]:
    """Highest resident memory of the loop's process."""
    bench.script()
    small = bench.practised(BATCH)["peak_mb"]
    # All in one step, where nothing of it can be let go of before the step's end, and
    # without summaries, so that whole replies stand in the reflector's prompts as well.
    bench.script(chars=8_000)
    groups = bench.large // GROUP
    whole = bench.practised(groups, batch_size=groups, epochs=1, read_chars=10**9)
    steps = bench.practised(groups, epochs=1, read_chars=10**9)
    return {
        "peak_mb": round(small, 1),
        "rollouts": groups * GROUP,
        "peak_mb_10000_rollouts": round(max(whole["peak_mb"], steps["peak_mb"]), 1),
        "in_one_step_mb": round(whole["peak_mb"], 1),
        "in_steps_of_32_mb": round(steps["peak_mb"], 1),
        "written_mb": round(inside(whole, "written") / 2**20, 1),
    }


def latency_bound(delay_s: float) -> float:
    """What the calls' latency alone makes of the run: our order of calls, at no other cost.

    A step of 128 rollouts and 32 reflections fills 32 slots five times over; since ready
    reflections go first, the last rollouts share the fifth wave with reflections, and theirs
    make a sixth. The consolidations follow. That is simulated, not taken from the loop.
    """
    calls = Latencies(((delay_s,) * GROUP,) * BATCH, (delay_s,) * BATCH)
    return EPOCHS * (ideal(calls, SLOTS) + delay_s)


def least_of_any_order(delay_s: float) -> float:
    """The same for an order that knew all latencies, with every wave full."""
    waves = math.ceil(BATCH * (GROUP + 1) / SLOTS)
    return EPOCHS * (waves + 1) * delay_s


def latency(bench: Bench) -> dict[str, Any]:
    """Wall time beside what the latency of the calls alone makes necessary."""
    bench.script(delay_s=0.5)
    slow = [bench.practised(BATCH) for _ in range(bench.repeats)]
    bound_s, least_s = latency_bound(0.5), least_of_any_order(0.5)
    wall_s = min(inside(run, "at") for run in slow)
    bench.script(delay_s=0.05)
    fast = [bench.practised(BATCH) for _ in range(bench.repeats)]
    bare_s = min(bench.bare(run["records"])["wall_s"] for run in fast)
    fast_s = min(inside(run, "at") for run in fast)
    return {
        "wall_at_500_ms_s": round(wall_s, 3),
        "bound_at_500_ms_s": bound_s,
        "wall_to_bound_at_500_ms": round(wall_s / bound_s, 3),
        "least_of_any_order_at_500_ms_s": least_s,
        "wall_to_least_of_any_order": round(wall_s / least_s, 3),
        "wall_at_50_ms_s": round(fast_s, 3),
        "bound_at_50_ms_s": round(latency_bound(0.05), 3),
        "bare_client_at_50_ms_s": round(bare_s, 3),
        "wall_to_bare_client_at_50_ms": round(fast_s / bare_s, 3),
    }


def steps(bench: Bench) -> dict[str, Any]:
    """What a step costs in a run of ten times as many steps of the same size.

    What is read is compared within the long run alone, steps 31 to 40 with steps 11 to 20: the
    short run is over before the first segment of its journal is closed, for which it is read.
    """
    bench.script()
    short = [bench.practised(BATCH, epochs=4) for _ in range(bench.repeats)]
    long = [bench.practised(10 * BATCH, epochs=4) for _ in range(bench.repeats)]
    few, many = [list(map(step_means, runs)) for runs in (short, long)]
    report: dict[str, Any] = {}
    for name in ("cpu_s", "read", "written", "events"):
        one, ten = min(step[name] for step in few), min(step[name] for step in many)
        report[name] = {"32": round(one, 4), "320": round(ten, 4)}
    for name, parts in (("cpu", ("cpu_s",)), ("written", ("written",)), ("events", None)):
        one, ten = (sum(report[n][size] for n in parts or (name,)) for size in ("32", "320"))
        report[f"{name}_of_a_step_320_to_32"] = round(ten / one, 4)
    looks = long[0]["looks"]
    for name in ("read", "written"):
        late, early = (looks[to][name] - looks[to - 10][name] for to in (40, 20))
        report[f"{name}_of_late_steps_to_early"] = round(late / early, 4)
    return report


def missed(report: dict[str, Any]) -> list[str]:
    """Which targets are missed, each with its figure and what it may be at most."""
    figures = {k: v for part in PARTS for k, v in report.get(part, {}).items() if k in TARGETS}
    return [
        f"{name}: {figure} > {TARGETS[name]}"
        for name, figure in figures.items()
        if figure > TARGETS[name]
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--quick", action="store_true", help="two repeats, 1,000 large rollouts")
    options = parser.parse_args(arguments)
    repeats, large = (2, 1_000) if options.quick else (5, 10_000)
    parts = {"cpu": cpu, "start": start, "memory": memory, "latency": latency, "steps": steps}
    report: dict[str, Any] = {"repeats": repeats, "targets": TARGETS}
    with serving(repeats, large) as bench:
        for name in options.only:
            report[name] = parts[name](bench)
            print(f"{name}: {report[name]}", file=sys.stderr)
    report["missed"] = missed(report)
    print(json.dumps(report, indent=2))
    return 1 if report["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
