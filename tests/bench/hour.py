"""A scripted hour at the real screen, while rollouts stream behind it.

    python -m tests.bench.hour --sessions 30 --jobs 2 --keys 660 --seed 1 --out hour.json

So many robots as `--jobs` share the sessions, each in a workspace of its own with a run that goes
on from session to session, and its own seed: `--seed N` is the first one's, N + 1 the next one's. A
robot sits at a pseudo-terminal: random keys at a person's speed over every page and dialog,
resizes from 60x16 to 200x50, detaching and coming back. After each session the run is paused. Then
each page must be, cell by cell with its colours, what `ctrl+l` draws anew. And once cursor, order,
zoom and ways of showing are where a person finds them first, its text must be, with the lines on
top, what a screen shows that was started only now. Tells of each session on stderr as it ends, and
writes what was found so far to `--out`. Prints JSON; exit code 1 where something differs or a
screen ended by itself.
"""

from __future__ import annotations

import argparse
import base64
import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from queue import Empty
from typing import Any, NoReturn

from engines.core import events as ev
from engines.core.errors import StudioError
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
QUIET_S, STUCK_S = 0.5, 40.0
_ANSWER_S = 0.04
"""What is drawn comes in pieces no further apart."""
CALL_S = 3.0
"""Calls under way go on to their end in a pause; so long nothing is heard of none."""
AGAIN = 3
"""So often a screen that was started now is looked at, before it is said to show something else."""
LEAVE = "\x1b\x1b\x1b\x1b"
PANES = "sdfga"
"""Jump letters, the first pane last; a letter that no pane has leaves the focus where it is."""
BEGIN = {
    "1": "gs{step}p0r0\r",
    "4": "b\x15hour@0\rB\x15hour@last\r",
    "6": "gs{step}p0r0\r",
}
"""Pressed first: which group is shown, and which two versions."""
WAYS = {
    "1": (("z", "wall:"),),
    "2": (
        *(("S", "sorted: in order"), ("w", "the change by words")),
        *(("gg", ""), ("1", ""), ("2", "")),  # panes get rows anew where the page is opened
    ),
    "3": (("S", "sorted by id"),),
    "4": (
        ("w", "changes by words"),
        ("=", "what is equal is hidden"),
        ("N", "no further change|no experience differs"),
    ),
    "5": (("S", "sort: time"), (" ", "is no longer marked")),
    "7": (("]", "held out: arithmetic-heldout"),),
}
"""A key is pressed until the screen says this: what is a person's own goes to one place."""
UNRECORDED = re.compile(
    r"step \d+: (drawing operations from its groups|its operations can be reviewed: press 2"
    r"|everything is decided, c commits)|evaluating \S+: \d+ rollouts …"
    r"|the connection to its process was lost"
)
"""Of the activity, whole lines: stages, the beginning of an evaluation and a lost connection are
told as they happen. The journal holds what comes of them, and no line for them."""
COPIED = re.compile(rb"\x1b\]52;c;([A-Za-z0-9+/=]*)")
PLAIN = str.maketrans("┏┓┗┛━┃", "┌┐└┘─│")
"""A pane's border says that it has the focus."""
OWN = re.compile(
    r"\d+ (more )?(above|below)"  # a cursor that was moved scrolls its list less than one put there
    r"|\| [\d.]+k?/s( shown)? |\| ETA [^|]*"  # measured while this screen looked on
    r"|(?<=…) (\d+m )?\d+ s"  # how long this screen has seen it go on
    r"|this session: [^│]*"  # how much was decided at this screen
)
"""What is a screen's own, whatever it shows."""

PROBE = b"\x1b[?2026$p"

Cells = list[list[tuple[Any, ...]]]


@dataclass(slots=True)
class Found:
    """What sessions came to."""

    sessions: int = 0
    steps: int = 0  # that began meanwhile
    keys: int = 0
    resizes: int = 0
    detaches: int = 0
    pages: int = 0
    differs: list[dict[str, Any]] = field(default_factory=list)  # from what ctrl+l draws
    stale: list[dict[str, Any]] = field(default_factory=list)  # from a screen started now
    ended: list[str] = field(default_factory=list)  # by themselves

    def add(self, other: Found) -> None:
        for name in Found.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def is_good(self) -> bool:
        return not (self.differs or self.stale or self.ended)


def cells(terminal: Terminal) -> Cells:
    """Every cell with its colours; the line of the last action left out, since it expires."""
    screen = terminal.screen
    rows = [
        [tuple(screen.buffer[y][x]) for x in range(screen.columns)] for y in range(screen.lines)
    ]
    rows[-2] = []
    return rows


def settle(terminal: Terminal, quiet_s: float = QUIET_S) -> None:
    """Until nothing has been drawn for a while."""
    until = time.monotonic() + STUCK_S
    size, since = -1, time.monotonic()
    while time.monotonic() - since < quiet_s and time.monotonic() < until:
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

    def __init__(self, workspace: Path, seed: int) -> None:
        self.workspace, self.seed = workspace, seed
        self.chance = random.Random(seed)
        self.number = 0  # of the session
        self.found = Found()  # in it
        self.size = (120, 36)
        self.typed: list[str] = []

    def open(self, *words: str) -> Terminal:
        columns, rows = self.size
        command = [*STUDIO, "--workspace", str(self.workspace), *words]
        environ = {"EDITOR": "true", "PAGER": "cat", "STUDIO_PERSON": "robot"}
        terminal = AnsweringTerminal(command, columns=columns, rows=rows, environ=environ)
        try:
            return terminal.until(lambda here: re.search("1 Live|Live\\]", here.text), STUCK_S)
        except AssertionError:
            terminal.close()
            raise

    def ctl(self, *words: str) -> None:
        command = [*STUDIO, "--workspace", str(self.workspace), "ctl", *words]
        subprocess.run(command, capture_output=True, check=False, timeout=STUCK_S)

    def step(self) -> int:
        """The last step that began, from the journal."""
        entries = Workspace(self.workspace).run(RUN).entries()
        begun = [one.event.step for one in entries if isinstance(one.event, ev.StepStarted)]
        return begun[-1] if begun else 0

    def new_size(self) -> tuple[int, int]:
        self.size = self.chance.randint(60, 200), self.chance.randint(16, 50)
        return self.size

    def press(self, terminal: Terminal, keys: str, pause_s: float) -> None:
        self.typed.append(keys)
        terminal.type(keys)
        until = time.monotonic() + pause_s
        while time.monotonic() < until:
            read(0.02)

    def ask(self, terminal: Terminal, keys: str, said: str = "", longest_s: float = 0.25) -> bool:
        """Press, and wait for the answer: that the screen says this, or that it was drawn."""
        self.typed.append(keys)
        since = len(terminal.raw)
        terminal.type(keys)
        until = time.monotonic() + longest_s
        while time.monotonic() < until:
            came = read(_ANSWER_S)
            if re.search(said, terminal.text) if said else not came and len(terminal.raw) > since:
                return True
        return not said

    def jump(self, terminal: Terminal, pane: str) -> None:
        """Give a pane the focus; letters stand on the panes until it has it."""
        self.ask(terminal, "\x17", r"\(a\) ")
        self.ask(terminal, pane)
        until = time.monotonic() + 1.0
        while "(a) " in terminal.text and time.monotonic() < until:
            read(_ANSWER_S)

    def sit(self, terminal: Terminal, keys: int) -> Terminal:
        """Press so many keys; returns the terminal in the end, perhaps another one."""
        chance = self.chance
        for number in range(keys):
            self.found.keys = number + 1
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
            for key in (LEAVE, "q"):
                self.press(terminal, key, 0.2)
        terminal.ended()
        if not terminal.is_sane:
            self.found.ended.append("the terminal was left in another mode")
        terminal.close()

    def come_back(self, terminal: Terminal) -> Terminal:
        self.leave(terminal)
        self.found.detaches += 1
        return self.open("attach", RUN)

    def turn_to(self, terminal: Terminal, page: str, quiet_s: float = QUIET_S) -> None:
        for key in (LEAVE, page):  # what follows escape at once is taken for alt and that
            self.press(terminal, key, 0.15)
        settle(terminal, quiet_s)

    def check_redraws(self, terminal: Terminal) -> None:
        """Each page as it stands must be what ctrl+l draws."""
        for page in PAGES:
            self.turn_to(terminal, page)
            until = time.monotonic() + STUCK_S  # what a page reads from the disk
            while " reading the " in terminal.text and time.monotonic() < until:
                read(_ANSWER_S)
            settle(terminal, QUIET_S / 2)
            before = cells(terminal)
            self.press(terminal, "\x0c", 0.2)
            settle(terminal, QUIET_S / 2)
            after = cells(terminal)
            self.found.pages += 1
            if before != after:
                self.found.differs.append(self._difference(page, before, after))

    def texts(self, terminal: Terminal, page: str, step: int) -> list[str]:
        """What a page says where cursor, order and ways of showing are the same for all."""
        self.turn_to(terminal, page)
        self.turn_to(terminal, page, QUIET_S / 2)  # escape has cleared what was left there
        for key in BEGIN.get(page, "").format(step=step):
            self.ask(terminal, key, longest_s=0.5 if key == "\r" else 0.1)
        for key, said in WAYS.get(page, ()):
            any(self.ask(terminal, key, said) for _ in range(30 if key == "N" else 6))
        copied = []
        if page in "16":
            if page == "6" and "[turn 0]" not in self.copy(terminal, "s"):
                self.ask(terminal, "$")  # calls are shown, or not
            copied = [self.copy(terminal, pane) for pane in PANES]
        for pane in PANES:
            self.jump(terminal, pane)
            self.press(terminal, "gg", 0.05)
        settle(terminal)
        return [*plain_rows(terminal, page), *copied]

    def copy(self, terminal: Terminal, pane: str) -> str:
        """What `Y` copies of a pane: all of it, whatever is folded."""
        self.jump(terminal, pane)
        since = len(terminal.raw)
        self.ask(terminal, "Y")
        found = COPIED.search(bytes(terminal.raw[since:]))
        text = base64.b64decode(found[1]).decode() if found else ""
        # The time stands before what happened: when it was heard of, or when it was recorded.
        said = [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in text.splitlines()]
        kept = [line for line in said if not UNRECORDED.fullmatch(line)]
        return "\n".join(kept[-150:])  # what happened long ago is left to the journal

    def _difference(
        self, page: str, before: Cells | list[str], after: Cells | list[str]
    ) -> dict[str, Any]:
        pairs = list(zip_longest(before, after, fillvalue=""))
        rows = [y for y, (one, two) in enumerate(pairs) if one != two]
        text = [["".join(str(c[0]) for c in side).rstrip() for side in pairs[y]] for y in rows]
        return {
            "seed": self.seed,
            "session": self.number,
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
    if page == "1":  # how far back the activity goes is this screen's own; it is copied
        rows = rows[
            : next((y for y, row in enumerate(rows) if re.search("[─-] Activity", row)), None)
        ]
    return [re.sub("[─ ]+", " ", row).rstrip() for row in rows]


def one_session(robot: Robot, keys: int) -> None:
    """Sit at the screen, then compare each page; what is found is the robot's."""
    robot.number += 1
    robot.found = found = Found(sessions=1)
    robot.new_size()
    robot.typed.clear()
    if robot.number == 1:
        words = ("run", "rehearsal", "--name", RUN, "--review", "wait", *SETTINGS)
        terminal, before = robot.open(*words), 0
    else:
        before = robot.step()
        terminal = robot.open("attach", RUN)
        robot.ctl("resume", RUN)
    try:
        journal = robot.workspace / "runs" / RUN / "journal.jsonl"
        terminal.until(lambda here: journal.exists(), STUCK_S)
        terminal = robot.sit(terminal, keys)
        robot.ctl("pause", RUN, "--now")
        settle(terminal, CALL_S)
        robot.check_redraws(terminal)
        # Else what is decided would be committed as the screen is left.
        for key in (LEAVE, "c", LEAVE):
            robot.press(terminal, key, 0.3)
        settle(terminal, CALL_S)
        step = robot.step()
        found.steps = step - before
        old = {page: robot.texts(terminal, page, step) for page in PAGES}
        size = journal.stat().st_size
        robot.leave(terminal)
        terminal = robot.open("attach", RUN)
        settle(terminal)
        for page in PAGES:
            for _ in range(AGAIN):
                new = robot.texts(terminal, page, step)
                if new == old[page]:
                    break
            else:
                found.stale.append(robot._difference(page, old[page], new))
        robot.leave(terminal)
        if journal.stat().st_size != size:
            raise AssertionError("the run went on while its screens were compared")
    except AssertionError:
        terminal.close()
        raise


def work(seed: int, sessions: int, keys: int, say: Callable[[Any], None]) -> None:
    """Sit so many sessions at one workspace; what each came to is said as it ends."""
    signal.signal(signal.SIGTERM, _leave)
    with tempfile.TemporaryDirectory(prefix="hour-") as folder:
        robot = Robot(Path(folder) / "practice", seed)
        try:
            for _ in range(sessions):
                began = time.monotonic()
                try:
                    one_session(robot, keys)
                except (AssertionError, StudioError, subprocess.TimeoutExpired) as error:
                    typed = f"{robot.size}, {robot.typed[-30:]}"
                    where = f"seed {seed}, session {robot.number}"
                    robot.found.ended.append(f"{where}, {typed}: {error}")
                found, took_s = robot.found, round(time.monotonic() - began)
                say((f"seed {seed}, session {robot.number}, {robot.size}, {took_s} s", found))
        finally:
            for pid in processes(robot.workspace):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _leave(*_: object) -> NoReturn:
    sys.exit(1)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sessions", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=1, help="sessions at once")
    parser.add_argument("--keys", type=int, default=660, help="pressed in a session")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="written anew after each session")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _leave)
    found, began, text = Found(), time.monotonic(), ""
    context = multiprocessing.get_context("spawn")
    ended = context.Queue()
    workers = []
    for job in range(options.jobs):
        share = len(range(job, options.sessions, options.jobs))
        given = (options.seed + job, share, options.keys, ended.put)
        workers.append(context.Process(target=work, args=given))
        workers[-1].start()
    try:
        while found.sessions < options.sessions:
            try:
                named, one = ended.get(timeout=1.0)
            except Empty:
                if any(worker.exitcode for worker in workers):
                    found.ended.append("a robot failed: see above")
                    break
                continue
            found.add(one)
            wrong = f"{len(one.differs)} differ, {len(one.stale)} stale, {len(one.ended)} ended"
            done = f"{found.sessions} of {options.sessions}"
            print(f"{done}: {named}, {one.steps} steps: {wrong}", file=sys.stderr, flush=True)
            text = json.dumps(
                {**asdict(found), "wall_s": round(time.monotonic() - began)}, indent=1
            )
            if options.out:
                options.out.write_text(text + "\n")
    finally:
        for worker in workers:
            if found.sessions < options.sessions:
                worker.terminate()
            worker.join()
    print(text)
    return 0 if found.is_good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
