"""`studio review --mcp` killed, or left by its client, at any moment, and gone on with.

    python -m tests.bench.kill_mcp --kills 100 --seed 1

A client's person approves, rejects and puts off the open operations of a finished run. The studio
is killed, or its client leaves, at a moment drawn over all of that; the next session goes on with
what is open. Prints JSON; exits 1 where an acknowledged decision was lost, one was recorded twice,
or the library ended otherwise than without a kill.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from engines.core.types import GATE
from engines.record.run_dir import RunDir, Workspace
from tests.bench.kill_editor import run
from tests.support.line_mcp_client import LineClient
from tests.support.processes import SMALL, studio

ACTIONS = ("approve", "reject", "approve", "approve", "defer")


def make(folder: Path) -> None:
    rules = folder / "later.yaml"
    rules.write_text("rules:\n  - do: defer\n")
    words = ("headless", "rehearsal", *SMALL, "data.truncate=24", "--review", f"rules:{rules}")
    done = studio(folder / "practice", *words)
    assert done.returncode == 3, done.stderr


def sit(
    run: RunDir, todo: dict[str, str], told: list[str], kill_after_s: float | None, opened: bool
) -> str:
    """Decide until all is, or the kill comes; returns where that was, "" where none came.

    It comes so long after the start, or after the handshake where that is `opened`.
    """
    stage, client = "starting", LineClient(run)
    leaves = kill_after_s is not None and kill_after_s % 0.002 < 0.001
    stop = client.process.stdin.close if leaves else client.process.kill
    timer = threading.Timer(kill_after_s or 0, stop)
    if kill_after_s is not None and not opened:
        timer.start()
    try:
        with client:
            if kill_after_s is not None and opened:
                timer.start()
            for name in [op.id for op in run.state().open_operations if op.id in todo]:
                for stage in client.decide(name, todo[name]):
                    if stage == "told":
                        told.append(name)
                        del todo[name]
            stage = "closing"
            client.close()
    except (OSError, ValueError):  # its end of the pipe, or the middle of a line
        return stage
    finally:
        timer.cancel()
    return ""


def outcome(run: RunDir) -> tuple[Any, ...]:
    """What stands of the library, and how often each operation was decided."""
    library = Workspace(run.path.parents[1]).library("rehearsal").head()
    made = Counter(
        one.operation_id
        for entry in run.entries()
        for one in getattr(entry.event, "decisions", ())
        if " via " in one.reviewer or one.reviewer == GATE
    )
    return sorted(e.text for e in library.experiences), made


def measure(kills: int, seed: int) -> dict[str, Any]:
    draw, began = random.Random(seed), time.monotonic()
    at: Counter[str] = Counter()
    lost = doubled = otherwise = tried = 0
    with tempfile.TemporaryDirectory(prefix="kill-mcp-") as folder:
        place = Path(folder)
        make(place)

        def a_copy(name: str) -> tuple[RunDir, dict[str, str]]:
            shutil.copytree(place / "practice", place / name)
            run = Workspace(place / name).run("rehearsal")
            found = [op.id for op in run.state().open_operations]
            return run, {name: ACTIONS[n % len(ACTIONS)] for n, name in enumerate(found)}

        run, todo = a_copy("whole")
        decided = len(todo)
        taken_s = []
        for _ in range(2):  # the second time nothing is open: it is a start alone
            started = time.monotonic()
            sit(run, todo, [], None, False)
            taken_s.append(time.monotonic() - started)
        (lasts, starts), (wanted, _) = taken_s, outcome(run)
        while sum(at.values()) < kills:
            tried += 1
            run, todo = a_copy(str(tried))
            told: list[str] = []
            opened = draw.random() < 0.85  # most of the rest is the start of a process
            longest_s = max(0.1, lasts - starts) if opened else lasts
            where = sit(run, todo, told, draw.random() * longest_s, opened)
            at[where] += bool(where)
            made = outcome(run)[1]
            lost += sum(not made[name] for name in told)
            for name in made:  # its acknowledgement was lost, the decision was not
                todo.pop(name, None)
            sit(run, todo, told, None, False)
            texts, made = outcome(run)
            otherwise += texts != wanted
            doubled += sum(n - 1 for n in made.values() if n > 1)
            shutil.rmtree(place / str(tried))
    return {
        "kills": kills,
        "seed": seed,
        "decisions": decided,
        "killed_while": dict(at.most_common()),
        "lost": lost,
        "doubled": doubled,
        "ended_otherwise": otherwise,
        "wall_s": round(time.monotonic() - began, 1),
    }


if __name__ == "__main__":
    sys.exit(run(measure, __doc__))
