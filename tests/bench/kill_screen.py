"""Screens and runs that are killed while a person decides, against a sitting left in peace.

    python -m tests.bench.kill --screen --kills 200 --seed 1

A robot sits at real `studio` screens in pseudo-terminals: it opens Review, approves what it
sees and commits, and comes back however it was thrown out. Owns what it does with what it
sees, where it is struck, and what must hold afterwards; how a picture is made of bytes is
`tests.support.screen_terminal`'s.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from engines.record.run_dir import Workspace
from studio.tui.drafts import SAVE_EVERY_S
from tests.bench.outcome import left
from tests.support.screen_terminal import Terminal, read

RUN = "kill"
SETTINGS = (
    "practice.epochs=1",
    "practice.batch_size=8",
    "practice.group_size=4",
    "data.truncate=24",
    "evaluation.do_eval=false",
    "policy.pace_tokens_per_s=400",
)
STUDIO = (sys.executable, "-W", "error", "-m", "studio")
KILLS_A_RUN = 8
BARREN = 5
"""Runs in a row without a single kill after which something is wrong with the bench."""
STUCK_S = 60.0
"""Longer than this no sitting of these runs takes; then the picture is printed."""
BACK_S = 1.0
"""Within which who comes back to a living run sees the same operation again (B9)."""
AGAIN_S = 5.0
"""Who sees nothing happen for so long looks again, and presses again."""
OPEN = "◦"
"""The sign of an operation that is not decided."""
SIZES = ((120, 36), (120, 36), (80, 24))

Struck = Literal["app", "run", "both"]
_APPROVED = re.compile(r"approved (op\d+\.\d+)")
_SHOWN = re.compile(r"[│┃](?:ADD|MODIFY|DELETE|NO CHANGE TO) (?:\S+  )?(?:.*? )?(op\d+\.\w+)")
_UNDER_CURSOR = re.compile(r"^[│┃]> (\S)", re.MULTILINE)


@dataclass(slots=True)
class Blow:
    """Whom to kill, and when: after so many bytes drawn, or so long after a key.

    Args:
        whom: the screen's process, the run's, or both.
        drawn: bytes that the screen is sent from here on; None where a key is waited for.
        keys: so many are pressed from here on.
        after_s: between that and the blow.
    """

    whom: Struck
    probe_if_due: int | None
    keys: int
    after_s: float


class Killed(Exception):
    """The blow fell."""


@dataclass(slots=True)
class Seen:
    """What the screens of one run showed."""

    approved: set[str] = field(default_factory=set)
    saved_by: float = 0.0  # where the cursor went by itself is kept from then on at the latest
    struck_at: float = 0.0
    cursor: str = ""  # the operation before the person's eyes, last
    pressed_on: str = ""  # the one decided by a key that was not seen to be answered
    elsewhere: list[str] = field(default_factory=list)  # came back to another operation
    back_s: list[float] = field(default_factory=list)  # from the command to the same operation
    at: list[str] = field(default_factory=list)  # whom each blow hit, and doing what


@dataclass(slots=True)
class Outcome:
    """What one run came to."""

    library: Any
    decisions: list[Any]
    doubled: int  # operations decided, or steps committed, more than once
    lost: list[str]  # shown as approved, and not in the journal
    orphans: list[str]
    seen: Seen

    @property
    def kills(self) -> int:
        return len(self.seen.at)

    def same(self, other: Outcome) -> bool:
        return (self.library, self.decisions) == (other.library, other.decisions)


def measure(kills: int, seed: int) -> dict[str, Any]:
    """Kill and come back until there were so many kills; returns what is printed."""
    draw = random.Random(seed)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kill-screen-") as place:
        wanted, drawn = sat_through(Path(place) / "undisturbed", draw, [])
        keys = len(wanted.decisions) + 4
        found: list[Outcome] = []
        while (left := kills - sum(run.kills for run in found)) > 0:
            blows = [_blow(draw, drawn, keys) for _ in range(min(KILLS_A_RUN, left))]
            found.append(sat_through(Path(place) / f"run-{len(found) + 1}", draw, blows)[0])
            if not any(run.kills for run in found[-BARREN:]) and len(found) >= BARREN:
                raise RuntimeError(f"{BARREN} runs in a row ended before they could be killed")
    back_s = sorted(second for run in found for second in run.seen.back_s)
    return {
        "kills": sum(run.kills for run in found),
        "runs": len(found),
        "seed": seed,
        "undisturbed": {
            "experiences": len(wanted.library["experiences"]),
            "decisions": len(wanted.decisions),
        },
        "equal": [run.same(wanted) for run in found],
        "all_equal": all(run.same(wanted) for run in found),
        "shown_as_approved": sum(len(run.seen.approved) for run in found),
        "lost": [name for run in (wanted, *found) for name in run.lost],
        "doubled": sum(run.doubled for run in (wanted, *found)),
        "came_back_elsewhere": [words for run in found for words in run.seen.elsewhere],
        "orphans": [words for run in (wanted, *found) for words in run.orphans],
        "back_to_the_same_operation_s": {
            "n": len(back_s),
            "min": round(back_s[0], 2) if back_s else None,
            "median": round(back_s[len(back_s) // 2], 2) if back_s else None,
            "max": round(back_s[-1], 2) if back_s else None,
        },
        "killed": dict(Counter(words for run in found for words in run.seen.at).most_common()),
        "wall_s": round(time.monotonic() - began, 1),
    }


def is_good(found: dict[str, Any]) -> bool:
    """Whether nothing was lost, doubled, mislaid or left behind."""
    wrong = ("lost", "doubled", "came_back_elsewhere", "orphans")
    decided = found["undisturbed"]["decisions"] > 0
    return decided and found["all_equal"] and not any(found[name] for name in wrong)


def is_quick(found: dict[str, Any]) -> bool:
    """Whether the way back is short; the shortest counts: a loaded machine delays the others."""
    shortest = found["back_to_the_same_operation_s"]["min"]
    return shortest is None or shortest <= BACK_S


def sat_through(workspace: Path, draw: random.Random, blows: Sequence[Blow]) -> tuple[Outcome, int]:
    """One run to its end, through these blows; also the bytes that its last screen was sent."""
    seen, waiting, drawn = Seen(), deque(blows), 0
    try:
        finished = False
        while not finished:
            columns, rows = draw.choice(SIZES)
            with Terminal(_way_in(draw, workspace), columns=columns, rows=rows) as terminal:
                with suppress(Killed):
                    finished = _Robot(terminal, workspace, seen, waiting, draw).sit()
                drawn = max(drawn, len(terminal.raw))
        return outcome(workspace, seen), drawn
    finally:
        for pid in processes(workspace):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class _Robot:
    """Sits at one screen until the run is finished or the blow falls."""

    def __init__(
        self,
        terminal: Terminal,
        workspace: Path,
        seen: Seen,
        blows: deque[Blow],
        draw: random.Random,
    ) -> None:
        self.terminal, self.workspace, self.seen = terminal, workspace, seen
        self.blows = blows
        self.began = time.monotonic()
        self.keys = self.bytes = 0  # pressed and drawn, up to the last blow
        self.due_at: float | None = None  # the moment of the next one, once it is known
        self.came_back = False  # whether the first operation was looked at
        self.alive = bool(run_pids(workspace))  # as the screen was opened
        self.offline = draw.random() < 0.5  # decide where the run has no process, or resume first

    def sit(self) -> bool:
        """Decide all there is; True once the run is finished, False where the screen ended."""
        until = time.monotonic() + STUCK_S
        while self.terminal.child.poll() is None:
            if time.monotonic() > until:
                raise TimeoutError(f"{self.workspace}: stuck\n{self._picture}")
            self._look()
            word, page = self.status, self.page
            if word == "FINISHED":
                self.terminal.type("q")
                self.terminal.ended()
                return True
            if word in ("NO RUN", "NO PROC") and page == "start" and self._ready_to_open:
                self._open()
            elif word == "NO RUN" and page == "start":
                if not self._wait(lambda: self._ready_to_open):
                    self.terminal.type("q")  # it is finished by now
                    self.terminal.ended()
            elif word in ("", "NO RUN", "STARTING"):
                self._changes()
            elif word in ("NO PROC", "STOPPED", "FAILED") and not self._decides_here():
                self._resume()
            elif page != "review":
                self._press("2", lambda: self.page == "review")
            elif word == "HELD: c commits":
                self._press("c", lambda: self.status != "HELD: c commits")
            elif word in ("HELD", "NO PROC") and self.sign == OPEN:
                self._approve()
            elif word in ("HELD", "NO PROC") and self.sign:
                self._next()
            else:
                self._changes()
        return False

    # -- what it sees --------------------------------------------------------------------------

    @property
    def _picture(self) -> str:
        return self.terminal.text

    @property
    def status(self) -> str:
        """What the run is doing, in one word or two, whatever the width."""
        words = ("FINISHED", "HELD: c commits", "HELD", "NO PROC", "STARTING", "NO RUN",
                 "COMMITTING", "STOPPED", "FAILED", "PAUSED", "RUN")  # fmt: skip
        header = self.terminal.screen.display[0]
        return next((word for word in words if word in header), "")

    @property
    def page(self) -> str:
        chosen = re.search(r"\[\d (\w+)", self.terminal.screen.display[1])
        return chosen[1].lower() if chosen else "start"

    @property
    def _ready_to_open(self) -> bool:
        """The start page lists this run, and the cursor is on it: what waits comes first."""
        return any("> " in line and RUN in line for line in self.terminal.screen.display[2:12])

    @property
    def shown(self) -> str:
        """The operation before the person's eyes."""
        found = _SHOWN.search(self._picture) if self.page == "review" else None
        return found[1] if found else ""

    @property
    def sign(self) -> str:
        """How the operation under the cursor stands: `◦` open, `✓` approved."""
        found = _UNDER_CURSOR.search(self._picture) if self.shown else None
        return found[1] if found else ""

    def _look(self) -> None:
        """Note what is drawn, and fall where the blow is due."""
        last = self.terminal.screen.display[self.terminal.screen.lines - 2]
        self.seen.approved |= set(_APPROVED.findall(last))
        if (shown := self.shown) and self.sign:
            if not self.came_back:
                self.came_back = True
                self._compare(shown)
            if shown != self.seen.cursor:
                self.seen.cursor, self.seen.pressed_on = shown, ""
        self._strike_if_due()

    def _compare(self, shown: str) -> None:
        """Whether the person finds themselves where they were."""
        before, pressed = self.seen.cursor, self.seen.pressed_on
        if (
            not before
            or self.seen.struck_at < self.seen.saved_by
            or (self.sign != OPEN and pressed)
        ):
            return
        state = Workspace(self.workspace).run(RUN).state()
        if before not in state.operations:
            return  # its lesson was committed meanwhile
        # A key that was under way moves on, or does not: both are where the person was.
        if shown != before and not (pressed == before and before in state.decisions):
            self.seen.elsewhere.append(f"{before} -> {shown}, after {self.seen.at[-1]}")
        elif self.alive:
            self.seen.back_s.append(time.monotonic() - self.began)

    # -- what it does --------------------------------------------------------------------------

    def _approve(self) -> None:
        shown = self.shown
        self.seen.pressed_on = shown
        self._press("a", lambda: self.shown != shown or self.sign != OPEN or self._asks_again)

    def _open(self) -> None:
        word = self.status
        self._press("\r", lambda: self.page != "start" or self.status != word)

    def _next(self) -> None:
        was, word = self.shown, self.status
        self.seen.saved_by = time.monotonic() + 1.25 * SAVE_EVERY_S
        self._press("n", lambda: self.shown != was or self.status != word)

    def _changes(self) -> None:
        was = self._picture
        self._wait(lambda: self._picture != was)

    @property
    def _asks_again(self) -> bool:
        return "press again" in self._picture

    def _decides_here(self) -> bool:
        """Whether a few are decided before a run without a process is started again."""
        here = self.page == "review" and self.sign == OPEN
        return self.offline and (here or (self.page != "review" and not self.came_back))

    def _resume(self) -> None:
        if self.page != "live":
            self._press("1", lambda: self.page == "live")
        ends = ("NO PROC", "STOPPED", "FAILED")
        self._press("sr", lambda: self.status not in ends or self.page == "start")

    def _press(self, key: str, done: Callable[[], bool]) -> None:
        self.keys += 1
        self.terminal.type(key)
        read(0.02)  # the answer, before what stood there is taken for it
        self._look()
        self._wait(done)

    def _wait(self, done: Callable[[], bool]) -> bool:
        """Go on until it holds; False where it does not for so long that one looks again."""
        until = time.monotonic() + AGAIN_S
        while not done() and self.terminal.child.poll() is None:
            now = time.monotonic()
            if now > until:
                return False
            read(max(0.0, min(0.02, self.due_at - now)) if self.due_at is not None else 0.02)
            self._look()
        return True

    def _strike_if_due(self) -> None:
        if not self.blows:
            return
        blow, now = self.blows[0], time.monotonic()
        if self.due_at is None:
            drawn = len(self.terminal.raw) - self.bytes
            if self.keys >= blow.keys if blow.probe_if_due is None else drawn >= blow.probe_if_due:
                self.due_at = now + blow.after_s
        if self.due_at is None or now < self.due_at:
            return
        self.blows.popleft()
        self.seen.struck_at = now
        self.due_at, self.keys, self.bytes = None, 0, len(self.terminal.raw)
        doing = self.status.lower() or "opening"
        hit = []
        for pid in run_pids(self.workspace) if blow.whom != "app" else ():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                hit = ["run"]
        if blow.whom != "run":
            hit.append("app")
            self.terminal.kill()
        if hit:
            self.seen.at.append(f"{' and '.join(hit)}: {doing}")
        if blow.whom != "run":
            self.terminal.ended()
            raise Killed


def outcome(workspace: Path, seen: Seen) -> Outcome:
    """Read what a run left, once its process has ended."""
    until = time.monotonic() + STUCK_S
    while (living := processes(workspace)) and time.monotonic() < until:
        time.sleep(0.01)
    library, decisions, decided = left(workspace, RUN)
    return Outcome(
        library,
        sorted(decisions, key=lambda data: data["operation_id"]),
        sum(n - 1 for n in decided.values()),
        sorted(seen.approved - decided.keys()),
        sorted(living.values()),
        seen,
    )


def processes(workspace: Path) -> dict[int, str]:
    """Processes of this workspace, by their command lines."""
    told = subprocess.run(
        ["ps", "-ww", "-eo", "pid=,args="], capture_output=True, text=True, check=True
    )
    found = (line.strip().partition(" ") for line in told.stdout.splitlines())
    named = f"--workspace {workspace} "
    return {int(pid): args for pid, _, args in found if named in args}


def run_pids(workspace: Path) -> list[int]:
    return [pid for pid, args in processes(workspace).items() if " headless " in args]


def _blow(draw: random.Random, drawn: int, keys: int) -> Blow:
    """Half of them anywhere in what is drawn, half within the moments after a key."""
    whom: Struck = draw.choice(("app", "app", "run", "both"))
    if draw.random() < 0.5:
        return Blow(whom, draw.randrange(drawn // 2), 0, draw.random() * 0.3)
    return Blow(whom, None, draw.randrange(1, max(2, keys // 2)), draw.random() ** 2 * 0.1)


def _way_in(draw: random.Random, workspace: Path) -> list[str]:
    """How the person comes in: each of the commands that lead to the screen."""
    command = [*STUDIO, "--workspace", str(workspace)]
    again = ("run", "rehearsal", "--name", RUN, "--review", "wait", *SETTINGS)
    journal = workspace / "runs" / RUN / "journal.jsonl"
    if not journal.exists() or not journal.stat().st_size:
        return [*command, *again]
    return [*command, *draw.choice([again, ("attach", RUN), ("attach", RUN), ()])]
