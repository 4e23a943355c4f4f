"""A scripted hour at the real screen, while rollouts stream behind it.

    python -m tests.bench.hour --sessions 30 --keys 660 --seed 1

A robot sits at a pseudo-terminal: random keys at a person's speed over every page and dialog,
resizes from 60x16 to 200x50, detaching and coming back. After each session the run is paused. Then
each page must be, cell by cell with its colours, what `ctrl+l` draws anew, and its body what a
screen draws that was started only now. Prints JSON; exit code 1 where a cell differs or a screen
ended by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.kill_screen import processes
from tests.support.screen_terminal import Terminal, read

RUN = "hour"
STUDIO = (sys.executable, "-W", "error", "-m", "studio")
SETTINGS = (
    "practice.epochs=200",
    "practice.batch_size=6",
    "practice.group_size=4",
    "data.truncate=12",
    "evaluation.limit=8",
    "policy.pace_tokens_per_s=60",
)
PAGES = "12345670"
KEYS = (
    *PAGES, *PAGES, *"jjjjkkkkhl", *"GnNzwfSotvmeaaarRAuMpdiHD[]=bBy$ ?:/cgg", "\t", "\t", "\x17",
    "\r", "\r", "\x1b", "\x1b", "\x1b", "\x1b", "\x04", "\x15", "\x12", "\x0c", "s", "T", "Y",
    "\x1b[A", "\x1b[B", "\x1b[5~", "\x1b[6~", "\x1bOQ",
)  # fmt: skip
"""What is pressed at random; keys that end the run, the screen or a rollout are left out."""
PHRASES = ("2aaac\r", "2A\r", "2A \r", "2c\r", "2eword \r", "2rr", "2 j M\r", "/st\r",
    "?/re\x1b\x1b", ":dif\r", "g3\r", "1z1z1z", "3p", "7nnN", "4n=", "2R why\r",
    "2m so\r", "6w", "\x0c")  # fmt: skip
QUIET_S, STUCK_S = 0.7, 40.0
LEAVE = ("\x1b", "\x1b", "\x1b", "\x1b")

Cells = list[list[tuple[Any, ...]]]


@dataclass(slots=True)
class Found:
    """What the hour came to."""

    sessions: int = 0
    keys: int = 0
    resizes: int = 0
    detaches: int = 0
    pages: int = 0
    differs: list[dict[str, Any]] = field(default_factory=list)  # from what ctrl+l draws
    stale: list[dict[str, Any]] = field(default_factory=list)  # from a screen started now
    ended: list[str] = field(default_factory=list)  # by themselves


def cells(terminal: Terminal) -> Cells:
    """Every cell with its colours; the line of the last action left out, since it expires."""
    screen = terminal.screen
    rows = [
        [tuple(screen.buffer[y][x]) for x in range(screen.columns)] for y in range(screen.lines)
    ]
    rows[-2] = []
    return rows


def settle(terminal: Terminal) -> None:
    """Until nothing has been drawn for a while."""
    until = time.monotonic() + STUCK_S
    size, since = -1, time.monotonic()
    while time.monotonic() - since < QUIET_S and time.monotonic() < until:
        read(0.05)
        if len(terminal.raw) != size:
            size, since = len(terminal.raw), time.monotonic()


class Robot:
    """One person at one workspace."""

    def __init__(self, workspace: Path, chance: random.Random, found: Found) -> None:
        self.workspace, self.chance, self.found = workspace, chance, found
        self.size = (120, 36)
        self.typed: list[str] = []

    def open(self, *words: str) -> Terminal:
        columns, rows = self.size
        command = [*STUDIO, "--workspace", str(self.workspace), *words]
        environ = {"EDITOR": "true", "PAGER": "cat", "STUDIO_PERSON": "robot"}
        terminal = Terminal(command, columns=columns, rows=rows, environ=environ)
        return terminal.until(lambda here: "1 Live" in here.text or "Live]" in here.text, STUCK_S)

    def ctl(self, *words: str) -> None:
        command = [*STUDIO, "--workspace", str(self.workspace), "ctl", *words]
        subprocess.run(command, capture_output=True, check=False, timeout=STUCK_S)

    def new_size(self) -> tuple[int, int]:
        self.size = self.chance.randint(60, 200), self.chance.randint(16, 50)
        return self.size

    def press(self, terminal: Terminal, keys: str, pause_s: float) -> None:
        self.typed.append(keys)
        self.found.keys += 1
        terminal.type(keys)
        until = time.monotonic() + pause_s
        while time.monotonic() < until:
            read(0.02)

    def sit(self, terminal: Terminal, keys: int) -> Terminal:
        """Press so many keys; returns the terminal in the end, perhaps another one."""
        chance = self.chance
        for _ in range(keys):
            what = chance.random()
            if what < 0.02:
                terminal.resize(*self.new_size())
                self.found.resizes += 1
            elif what < 0.03:
                terminal = self.come_back(terminal)
            elif what < 0.15:
                for key in chance.choice(PHRASES):
                    self.press(terminal, key, chance.uniform(0.02, 0.15))
            else:
                self.press(terminal, chance.choice(KEYS), chance.uniform(0.02, 0.15))
            if terminal.child.poll() is not None:
                raise AssertionError(f"the screen ended by itself\n{terminal.text}")
        return terminal

    def leave(self, terminal: Terminal) -> None:
        until = time.monotonic() + STUCK_S
        while terminal.child.poll() is None and time.monotonic() < until:
            for key in (*LEAVE, "q"):
                self.press(terminal, key, 0.1)
        terminal.ended()
        if not terminal.is_sane:
            self.found.ended.append("the terminal was left in another mode")
        terminal.close()

    def come_back(self, terminal: Terminal) -> Terminal:
        self.leave(terminal)
        self.found.detaches += 1
        return self.open("attach", RUN)

    def pictures(self, terminal: Terminal) -> dict[str, Cells]:
        """Each page as it stands, checked against what ctrl+l draws."""
        shown = {}
        for page in PAGES:
            for key in (*LEAVE, page):
                self.press(terminal, key, 0.1)
            settle(terminal)
            before = cells(terminal)
            self.press(terminal, "\x0c", 0.2)
            settle(terminal)
            after = cells(terminal)
            self.found.pages += 1
            if before != after:
                self.found.differs.append(self._difference(page, before, after))
            shown[page] = after
        return shown

    def _difference(self, page: str, before: Cells, after: Cells) -> dict[str, Any]:
        rows = [y for y, (one, two) in enumerate(zip(before, after, strict=True)) if one != two]
        text = [
            ["".join(str(c[0]) for c in side[y]).rstrip() for side in (before, after)] for y in rows
        ]
        return {
            "session": self.found.sessions,
            "size": self.size,
            "page": page,
            "rows": rows,
            "before_after": text[:6],
            "typed": "".join(self.typed[-40:]),
        }


def body(shown: Cells) -> list[str]:
    """Text between the lines on top and at the bottom."""
    return ["".join(str(cell[0]) for cell in row).rstrip() for row in shown[2:-2]]


def one_session(robot: Robot, keys: int) -> None:
    found = robot.found
    robot.new_size()
    robot.typed.clear()
    if found.sessions == 1:
        words = ("run", "rehearsal", "--name", RUN, "--review", "wait", *SETTINGS)
        terminal = robot.open(*words)
    else:
        terminal = robot.open("attach", RUN)
        robot.ctl("resume", RUN)
    try:
        terminal = robot.sit(terminal, keys)
        robot.ctl("pause", RUN, "--now")
        settle(terminal)
        old = robot.pictures(terminal)
        robot.leave(terminal)
        terminal = robot.open("attach", RUN)
        settle(terminal)
        new = robot.pictures(terminal)
        for page in PAGES:
            if body(old[page]) != body(new[page]):
                found.stale.append(robot._difference(page, old[page][2:-2], new[page][2:-2]))
        robot.leave(terminal)
    except AssertionError as error:
        found.ended.append(f"session {found.sessions}, {robot.size}, {robot.typed[-30:]}: {error}")
        terminal.close()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sessions", type=int, default=30)
    parser.add_argument("--keys", type=int, default=660, help="pressed in a session")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    found, began = Found(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hour-") as folder:
        workspace = Path(folder) / "practice"
        robot = Robot(workspace, random.Random(options.seed), found)
        try:
            for _ in range(options.sessions):
                found.sessions += 1
                one_session(robot, options.keys)
        finally:
            for pid in processes(workspace):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    facts = {name: getattr(found, name) for name in Found.__slots__}
    print(json.dumps({**facts, "wall_s": round(time.monotonic() - began)}, indent=1))
    return 1 if found.differs or found.stale or found.ended else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
