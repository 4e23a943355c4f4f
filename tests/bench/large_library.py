"""What a library of 10,000 experiences costs, and whether a run with it still answers.

`python -m tests.bench.large_library` prints JSON: CPU seconds of each command as a process,
beside the same without experiences, what the experiences add to a run, and how long `status` took
on the sockets of other runs, in milliseconds. Exits with 1 where a command, or what is added to a
run, takes more than 3 s, or an answer more than 100 ms.
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

import yaml

from engines.record.run_dir import RunDir
from studio.session.control_socket import ask
from studio.session.requests import NotRunningError, Status

EXPERIENCES, REPEATS = 10_000, 3
CPU_S, ANSWER_MS = 3.0, 100.0
"""The most that a command and an answer may take."""
_PARTS = ("b", "br", "d", "f", "gl", "k", "l", "m", "n", "p", "r", "s", "st", "t", "tr", "v")


def make_words() -> list[str]:
    vowels = "aeiou"
    return [f"{a}{v}{b}{w}" for a in _PARTS for v in vowels for b in _PARTS[:6] for w in vowels]


def make_text(chance: random.Random, words: list[str]) -> str:
    # As in real text, some words stand in nearly all of them.
    often = ["when", "the", "of", "a", "before", "you", "it", "and", "is", "number", "answer"]
    body = [chance.choice(often if chance.random() < 0.45 else words) for _ in range(24)]
    return f"{chance.choice(words).title()}: {' '.join(body)}."


class Bench:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        chance, words = random.Random(5), make_words()
        entries = [
            {"id": f"E{n}", "text": make_text(chance, words)} for n in range(1, EXPERIENCES + 1)
        ]
        reworded = [
            {"id": f"X{n}", "text": f"{one['text'].rpartition(' ')[0]} {chance.choice(words)}."}
            for n, one in enumerate(entries)
        ]
        agents = folder / "configs" / "agents"
        agents.mkdir(parents=True)
        for name, rows in (("large", entries), ("reworded", reworded)):
            data = {"name": name, "experiences": rows}
            (agents / f"{name}.yaml").write_text(yaml.safe_dump(data, sort_keys=False))
        mounts = "defaults: [rehearsal, /agents/large@agent, _self_]\n"
        (folder / "large.yaml").write_text(f"{mounts}exp_id: large\n")
        (folder / "small.yaml").write_text("defaults: [rehearsal, _self_]\nexp_id: small\n")
        self.runs = 0

    def cpu_s(self, *command: str) -> float:
        """Of one process, those that it starts included."""
        process = self._start(*command)
        _, status, used = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"studio {' '.join(command)}: {os.waitstatus_to_exitcode(status)}")
        return round(used.ru_utime + used.ru_stime, 2)

    def time_run(self, file: str, *settings: str) -> float:
        self.runs += 1
        return self.cpu_s("headless", file, f"exp_id=r{self.runs}", *settings)

    def ask_run(self, file: str, *settings: str) -> list[float]:
        """The milliseconds that each answer of a run took, which is asked all the time."""
        self.runs += 1
        run = RunDir(self.folder / "runs" / f"r{self.runs}")
        process = self._start("headless", file, f"exp_id={run.run}", *settings)
        took_ms: list[float] = []
        while not (found := os.wait4(process.pid, os.WNOHANG))[0]:
            began = time.perf_counter()
            try:
                ask(run, Status())
            except NotRunningError:  # it opens, or has ended
                time.sleep(0.005)
                continue
            took_ms.append((time.perf_counter() - began) * 1_000)
            time.sleep(0.005)
        if found[1]:
            raise SystemExit(f"studio headless {file}: {os.waitstatus_to_exitcode(found[1])}")
        return took_ms

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        studio = [sys.executable, "-m", "studio", "--workspace", "."]
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen([*studio, *command], cwd=self.folder, **silent)


def describe(took_ms: list[float]) -> dict[str, Any]:
    ordered = sorted(took_ms)
    return {
        "answers": len(ordered),
        "p50": round(ordered[len(ordered) // 2], 1),
        "p99": round(ordered[len(ordered) * 99 // 100], 1),
        "longest": round(ordered[-1], 1),
    }


def measure(folder: Path) -> dict[str, Any]:
    bench = Bench(folder)
    runs = {
        "run small": ("small.yaml",),
        "run mounted": ("large.yaml",),
        "run from library": ("small.yaml", "library.start=r2@0"),
    }
    rounds = [{name: bench.time_run(*run) for name, run in runs.items()} for _ in range(REPEATS)]
    cpu_s = {name: min(one[name] for one in rounds) for name in runs}
    adds_s = {name: round(cpu_s[name] - cpu_s["run small"], 2) for name in [*runs][1:]}
    commands = {
        "try small": ("try", "small.yaml"),
        "try mounted": ("try", "large.yaml"),
        "edit": ("library", "edit", "r2", "E7", "--text", "Check each carry {}."),
        "diff": ("diff", "configs/agents/large.yaml", "configs/agents/reworded.yaml"),
    }
    for name, command in commands.items():
        cpu_s[name] = min(
            bench.cpu_s(*(part.format(n) for part in command)) for n in range(REPEATS)
        )
    # The quietest of several: on a busy machine a process waits for its turn.
    answers = {
        name: describe(min((bench.ask_run(*run) for _ in range(REPEATS)), key=max))
        for name, run in runs.items()
    }
    return {"cpu_s": cpu_s, "adds_s": adds_s, "answers_ms": answers}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder))
    judged = {**found["cpu_s"], **found["adds_s"]}  # of a run only what is added to it
    slow = [name for name, took_s in judged.items() if took_s > CPU_S and name != "run small"]
    late = [name for name, took in found["answers_ms"].items() if took["longest"] > ANSWER_MS]
    print(
        json.dumps({**found, "missed": [*slow, *(f"answers of {name}" for name in late)]}, indent=2)
    )
    raise SystemExit(1 if slow or late else 0)


if __name__ == "__main__":
    main()
