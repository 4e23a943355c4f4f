"""A scripted hour at the real screen, while rollouts stream behind it.

    python -m tests.bench.hour --sessions 30 --keys 660 --seed 1

A robot sits at a pseudo-terminal: random keys at a person's speed over every page and dialog,
resizes from 60x16 to 200x50, detaching and coming back. After each session the run is paused. Then
each page must be, cell by cell with its colours, what `ctrl+l` draws anew. And once cursor, order,
zoom and ways of showing are where a person finds them first, its text must be, with the lines on
top, what a screen shows that was started only now. Prints JSON; exit code 1 where something differs
or a screen ended by itself.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from engines.core import events as ev
from engines.record.run_dir import Workspace
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
PANES = "sdfga"
"""Jump letters; a letter that no pane has leaves the focus where it is."""
WAYS = {
    "1": (("z", "wall:"),),
    "2": (("S", "sorted: in order"), ("w", "the change by words")),
    "3": (("S", "sorted by id"),),
    "4": (("w", "changes by words"), ("=", "what is equal is hidden")),
    "5": (("S", "sort: time"),),
    "7": (("]", "held out: arithmetic-heldout"),),
}
"""A key is pressed until the screen says this: what is a person's own goes to one place."""
BEGIN = {
    "1": "gs{step}p0r0\r",
    "4": "b\x15hour@0\rB\x15hour@last\r",
    "6": "gs{step}p0\r",
}
"""Pressed first: which group and which two versions are shown."""
UNRECORDED = re.compile(
    "drawing operations|evaluating|are reviewed|everything is decided"
    "|process|measuring|attached|control"
)
"""Of the activity: what is told as it happens, and stands in no journal."""
COPIED = re.compile(rb"\x1b\]52;c;([A-Za-z0-9+/=]*)")
PLAIN = str.maketrans("┏┓┗┛━┃", "┌┐└┘─│")
"""A pane's border says that it has the focus."""
OWN = re.compile(
    r"\d+ (above|below)|\b\d+ ?(s|min|h)\b( \d+ ?(s|min)\b)?|[\d.]+k? tok/s|just now|ETA \S+( \|)?"
)
"""Where a text is scrolled to, how long ago something was, and what this screen measured."""

PROBE = b"\x1b[?2026$p"

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


class AnsweringTerminal(Terminal):
    """Answers what the pacer asks, as most do: otherwise streams are held back for seconds."""

    def _read(self) -> bool:
        since = len(self.raw)
        came = super()._read()
        for _ in range(self.raw.count(PROBE, max(0, since - len(PROBE) + 1))):
            os.write(self._master, b"\x1b[?2026;2$y")
        return came


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
        terminal = AnsweringTerminal(command, columns=columns, rows=rows, environ=environ)
        return terminal.until(lambda here: "1 Live" in here.text or "Live]" in here.text, STUCK_S)

    def ctl(self, *words: str) -> None:
        command = [*STUDIO, "--workspace", str(self.workspace), "ctl", *words]
        subprocess.run(command, capture_output=True, check=False, timeout=STUCK_S)

    def step(self) -> str:
        """The last step that began, from the journal."""
        entries = Workspace(self.workspace).run(RUN).entries()
        begun = [one.event.step for one in entries if isinstance(one.event, ev.StepStarted)]
        return str(begun[-1] if begun else 1)

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

    def check_redraws(self, terminal: Terminal) -> None:
        """Each page as it stands must be what ctrl+l draws."""
        for page in PAGES:
            for key in (*LEAVE, page):
                self.press(terminal, key, 0.15)
            settle(terminal)
            before = cells(terminal)
            self.press(terminal, "\x0c", 0.2)
            settle(terminal)
            after = cells(terminal)
            self.found.pages += 1
            if before != after:
                self.found.differs.append(self._difference(page, before, after))

    def texts(self, terminal: Terminal, step: str) -> dict[str, list[str]]:
        """What each page says where cursor, order and ways of showing are the same for all."""
        shown = {}
        for page in PAGES:
            for key in (*LEAVE, page):  # what follows escape at once is taken for alt and that
                self.press(terminal, key, 0.15)
            settle(terminal)
            for key in BEGIN.get(page, "").format(step=step):
                self.press(terminal, key, 0.5 if key in "\rbB" else 0.03)
            for key, said in WAYS.get(page, ()):
                for _ in range(6):
                    self.press(terminal, key, 0.3)
                    if said in terminal.text:
                        break
            copied = [self.copy(terminal, pane) for pane in PANES] if page in "16" else []
            for pane in PANES:
                for key in ("\x17", pane, "g", "g"):
                    self.press(terminal, key, 0.04)
            settle(terminal)
            shown[page] = [*plain_rows(terminal, page), *copied]
        return shown

    def copy(self, terminal: Terminal, pane: str) -> str:
        """What `Y` copies of a pane: all of it, whatever is folded."""
        for key in ("\x17", pane):
            self.press(terminal, key, 0.06)
        since = len(terminal.raw)
        self.press(terminal, "Y", 0.3)
        found = COPIED.search(bytes(terminal.raw[since:]))
        text = base64.b64decode(found[1]).decode() if found else ""
        text = text.partition("\n\n[turn 0]")[0]  # `$` shows calls, or not
        kept = [line for line in text.splitlines() if not UNRECORDED.search(line)]
        return "\n".join(kept[-60:])  # what happened long ago is left to the journal

    def _difference(
        self, page: str, before: Cells | list[str], after: Cells | list[str]
    ) -> dict[str, Any]:
        pairs = list(zip_longest(before, after, fillvalue=""))
        rows = [y for y, (one, two) in enumerate(pairs) if one != two]
        text = [["".join(str(c[0]) for c in side).rstrip() for side in pairs[y]] for y in rows]
        return {
            "session": self.found.sessions,
            "size": self.size,
            "page": page,
            "rows": rows,
            "before_after": text[:8],
            "typed": "".join(self.typed[-40:]),
        }


def plain_rows(terminal: Terminal, page: str) -> list[str]:
    """The lines above the message, without what is a person's own."""
    rows = [OWN.sub("", line.translate(PLAIN)) for line in terminal.text.splitlines()[:-2]]
    if page == "6":  # what is folded there is a person's own; its panes are copied whole
        rows = rows[:2]
    if page == "1":  # so is the activity
        rows = rows[: next((y for y, row in enumerate(rows) if "─ Activity" in row), None)]
    return [re.sub("[─ ]+", " ", row).rstrip() for row in rows]


def one_session(robot: Robot, keys: int) -> None:
    found = robot.found
    robot.new_size()
    robot.typed.clear()
    if found.sessions == 1:
        words = ("run", "rehearsal", "--name", RUN, "--review", "wait", *SETTINGS)
        terminal = robot.open(*words)
        journal = Workspace(robot.workspace).run(RUN).journal
        terminal.until(lambda here: journal.exists(), STUCK_S)
    else:
        terminal = robot.open("attach", RUN)
        robot.ctl("resume", RUN)
    try:
        terminal = robot.sit(terminal, keys)
        robot.ctl("pause", RUN, "--now")
        settle(terminal)
        robot.check_redraws(terminal)
        step = robot.step()
        old = robot.texts(terminal, step)
        robot.leave(terminal)
        terminal = robot.open("attach", RUN)
        settle(terminal)
        new = robot.texts(terminal, step)
        for page in PAGES:
            if old[page] != new[page]:
                found.stale.append(robot._difference(page, old[page], new[page]))
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
