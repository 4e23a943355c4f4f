"""`studio review --editor` killed at any moment and gone on with, against one that never was.

    python -m tests.bench.kill_editor --kills 100 --seed 1

The person rewords, rejects and adds in the file of 38 open operations, saves it in two goes, and
says yes. The studio is killed at a moment drawn over all of that; the editor lives on, as one in
a terminal does, and the next `--editor` goes on. Prints JSON; exits 1 where a text was lost, a
decision was made twice, or the run ended with other decisions than the undisturbed one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE
from typing import Any

from engines.core import events as ev
from engines.record.run_dir import Workspace
from tests.support import forty
from tests.support.forked_studio import STUDIO, ForkedStudio

EDITOR = """
import pathlib, re, sys, time
path = pathlib.Path(sys.argv[-1])
place = path.parents[4]
(place / "opened").touch()
text = path.read_text()
for half in (1, 2):
    time.sleep(0.05)
    if half == 1 and "[op1.h3] approve" in text:
        text = re.sub(r"\\n\\[op1\\.h3\\][^\\[]*", "\\n", text)
        text = text.replace("draw it first.", "draw it at once.")
    if half == 2 and "First of mine." not in text:
        text = text.rstrip() + " First of mine.\\n\\nSecond of mine.\\n"
    path.write_text(text)
    (place / f"saved {half}").touch()
(place / "closed").touch()
"""
LONGEST_S = 60.0


def review(workspace: Workspace) -> Any:
    """Start a review whose editor edits, and which is confirmed at once."""
    script = workspace.path.parent / "editor.py"
    script.write_text(EDITOR)
    words = [*STUDIO, "--workspace", str(workspace.path), "review", forty.RUN, "--editor"]
    environ = {**os.environ, "EDITOR": shlex.join([sys.executable, "-IS", str(script)])}
    child = ForkedStudio(words, env=environ, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True)
    assert child.stdin is not None
    child.stdin.write("y\n")
    child.stdin.flush()
    return child


def outcome(workspace: Workspace) -> tuple[dict[str, Any], int]:
    """What stands without times, and how much was decided or proposed more than once."""
    state = workspace.run(forty.RUN).state()
    made: Counter[str] = Counter()
    for entry in workspace.run(forty.RUN).entries():
        for decision in getattr(entry.event, "decisions", ()):
            made[decision.operation_id] += 1
        if isinstance(entry.event, ev.OperationProposed) and entry.event.reviewer == forty.PERSON:
            made[entry.event.operation.text] += 1
    stands = {
        name: (one.action, one.text, one.assigned, state.operations[name].text)
        for name, one in sorted(state.decisions.items())
    }
    return stands, sum(n - 1 for n in made.values())


def phase(workspace: Workspace, entries: int) -> str:
    """Where a kill struck, by what it left."""
    place, run = workspace.path.parent, workspace.run(forty.RUN)
    written = len(run.entries()) - entries
    if written:
        return "recorded" if not (run.path / "editor" / "review.txt").exists() else "recording"
    for mark in ("saved 2", "saved 1", "opened"):
        if (place / mark).exists():
            return mark
    return "starting"


def killed(place: Path, after_s: float, opened: bool) -> tuple[Workspace, str, str]:
    """One review killed so long after it started, or after its editor has `opened`.

    Returns where that was, "" where it ended before, and what was lost, "" of nothing.
    """
    workspace = forty.forty_workspace(place)
    entries = len(workspace.run(forty.RUN).entries())
    child = review(workspace)
    while opened and not (place / "opened").exists() and child.poll() is None:
        time.sleep(0.002)
    time.sleep(after_s)
    if child.poll() is not None:
        child.communicate()
        return workspace, "", ""
    child.kill()
    child.wait()
    at, until = phase(workspace, entries), time.monotonic() + LONGEST_S
    while (place / "opened").exists() and not (place / "closed").exists():
        if time.monotonic() > until:
            raise TimeoutError("the editor did not end")
        time.sleep(0.01)
    child.communicate()
    file, lost = workspace.run(forty.RUN).path / "editor" / "review.txt", ""
    saved = at != "recorded" and (place / "closed").exists()
    if saved and not (file.exists() and "Second of mine." in file.read_text()):
        lost = f"{at}: the text is gone"
    for mark in ("opened", "saved 1", "saved 2", "closed"):
        (place / mark).unlink(missing_ok=True)
    again = review(workspace)
    _, told = again.communicate(timeout=LONGEST_S)
    if again.returncode not in (0, 3):
        lost = lost or f"{at}: {told}"
    return workspace, at, lost


def measure(kills: int, seed: int) -> dict[str, Any]:
    draw, began = random.Random(seed), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kill-editor-") as folder:
        place = Path(folder)
        whole = forty.forty_workspace(place / "whole")
        started = time.monotonic()
        child = review(whole)
        while not (place / "whole" / "opened").exists():
            time.sleep(0.002)
        opens_s = time.monotonic() - started
        child.communicate(timeout=LONGEST_S)
        goes_on_s = time.monotonic() - started - opens_s
        wanted, _ = outcome(whole)
        at: Counter[str] = Counter()
        lost, others, doubled, tried = [], 0, 0, 0
        while sum(at.values()) < kills:
            tried += 1
            opened = draw.random() < 0.8  # most of the rest is the start of a process
            after_s = draw.random() * (goes_on_s if opened else opens_s)
            workspace, where, what = killed(place / str(tried), after_s, opened)
            if not where:
                continue
            at[where] += 1
            lost += [what] if what else []
            found, twice = outcome(workspace)
            others += found != wanted
            doubled += twice
    return {
        "kills": kills,
        "seed": seed,
        "decisions": len(wanted),
        "killed_while": dict(at.most_common()),
        "lost": lost,
        "ended_otherwise": others,
        "doubled": doubled,
        "reviews": tried,
        "review_s": round(opens_s + goes_on_s, 2),
        "wall_s": round(time.monotonic() - began, 1),
    }


def run(measure: Callable[[int, int], dict[str, Any]], about: str | None) -> int:
    """Print what `measure` finds with the kills and the seed asked for; 1 where it is bad."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    found = measure(asked.kills, asked.seed)
    print(json.dumps(found, indent=1))
    return int(bool(found["lost"] or found["ended_otherwise"] or found["doubled"]))


if __name__ == "__main__":
    sys.exit(run(measure, __doc__))
