"""Screens and runs that are killed while a person decides, against a sitting left in peace.

    python -m tests.bench.kill --screen --kills 200 --seed 1

A robot sits at real `studio` screens in pseudo-terminals: it opens Review, approves what it
sees and commits, and comes back however it was thrown out. Owns what it does with what it
sees, where it is struck, and what must hold afterwards; how a picture is made of bytes is
`tests.cli.screen_terminal`'s.
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
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from engines.core import events as ev
from engines.core.codec import to_dict
from engines.record.journal import read_journal
from engines.record.run_dir import Workspace
from tests.cli.screen_terminal import Terminal, read

RUN = "kill"
SETTINGS = (
    "practice.epochs=1",
    "practice.batch_size=4",
    "practice.group_size=3",
    "data.truncate=12",
    "evaluation.do_eval=false",
)
STUDIO = (sys.executable, "-W", "error", "-m", "studio")
KILLS_A_RUN = 8
BARREN = 5
"""Runs in a row without a single kill after which something is wrong with the bench."""
STUCK_S = 20.0
"""Longer than this nothing of these runs takes; then the picture is printed."""
BACK_S = 1.0
"""Within which who comes back to a living run sees the same operation again (B9)."""
SIZES = ((120, 36), (120, 36), (80, 24))

Struck = Literal["app", "run", "both"]
_APPROVED = re.compile(r"approved (op\d+\.\d+)")
_SHOWN = re.compile(r"[│┃](?:ADD|MODIFY|DELETE|KEEP) (?:\S+  )?(?:.*? )?(op\d+\.\w+)")
_UNDER_CURSOR = re.compile(r"^[│┃]> (\S)", re.MULTILINE)


@dataclass(slots=True)
class Blow:
    """Whom to kill, and when: after so many bytes drawn, or so long after a key.

    Args:
        whom: the screen's process, the run's, or both.
        drawn: bytes that this screen was sent; None where a key is waited for.
        key: the nth key of this sitting.
        after_s: between that and the blow.
    """

    whom: Struck
    drawn: int | None
    key: int
    after_s: float
    due_at: float | None = None  # once it is known


class Killed(Exception):  # noqa: N818  (an end, not an error)
    """The blow fell."""


@dataclass(slots=True)
class Seen:
    """What the screens of one run showed."""

    approved: set[str] = field(default_factory=set)
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
    kills: int = 0

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
    """Whether nothing was lost, doubled, mislaid or left behind, and the way back is short.

    The shortest of the ways back counts: a loaded machine delays some, a slow screen all.
    """
    wrong = ("lost", "doubled", "came_back_elsewhere", "orphans")
    shortest = found["back_to_the_same_operation_s"]["min"]
    quick = shortest is None or shortest <= BACK_S
    decided = found["undisturbed"]["decisions"] > 0
    return decided and quick and found["all_equal"] and not any(found[name] for name in wrong)


def sat_through(
    workspace: Path, draw: random.Random, blows: Sequence[Blow]
) -> tuple[Outcome, int]:
    """One run to its end, through these blows; also the bytes that its last screen was sent."""
    seen, waiting, drawn = Seen(), list(blows), 0
    count, first = 0, True
    try:
        while True:
            command = _way_in(draw, workspace, first)
            columns, rows = draw.choice(SIZES)
            blow = waiting[0] if waiting else None
            with Terminal(command, columns=columns, rows=rows) as terminal:
                robot = _Robot(terminal, workspace, seen, blow, draw)
                try:
                    finished = robot.sit()
                except Killed:
                    waiting.pop(0)
                    count += 1
                    finished = False
                drawn = max(drawn, len(terminal.raw))
            first = first and not (workspace / "runs" / RUN / "run.yaml").exists()
            if finished:
                break
        done = outcome(workspace, seen)
    finally:
        for pid in processes(workspace):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    done.kills = count
    return done, drawn


class _Robot:
    """Sits at one screen until the run is finished or the blow falls."""

    def __init__(
        self,
        terminal: Terminal,
        workspace: Path,
        seen: Seen,
        blow: Blow | None,
        draw: random.Random,
    ) -> None:
        self.terminal, self.workspace, self.seen = terminal, workspace, seen
        self.blow, self.draw = blow, draw
        self.began = time.monotonic()
        self.keys = 0
        self.came_back = False  # whether the first operation was looked at
        self.alive = bool(run_pids(workspace))  # as the screen was opened
        self.offline = draw.random() < 0.5  # decide where the run has no process, or resume first

    def sit(self) -> bool:
        """Decide all there is; True once the run is finished, False where the screen ended."""
        while self.terminal.child.poll() is None:
            self._look()
            word, page = self.status, self.page
            if word == "FINISHED":
                self.terminal.type("q")
                self.terminal.ended()
                return True
            if word == "NO RUN" and page == "start" and self._ready_to_open:
                self._press("\r", lambda: self.page != "start" or self.status != "NO RUN")
            elif word in ("NO RUN", "STARTING"):
                self._wait(lambda was=self._picture: self._picture != was)
            elif word in ("NO PROC", "STOPPED", "FAILED") and not self._decides_here():
                self._resume()
            elif page != "review":
                self._press("2", lambda: self.page == "review")
            elif word == "DECIDED":
                self._press("c", lambda: self.status != "DECIDED")
            elif word in ("HELD", "NO PROC") and self.sign == "?":
                self._approve()
            elif word in ("HELD", "NO PROC") and self.sign:
                was = self.shown
                self._press("n", lambda: self.shown != was or self.status != word)
            else:
                self._wait(lambda was=self._picture: self._picture != was)
        return False

    # -- what it sees --------------------------------------------------------------------------

    @property
    def _picture(self) -> str:
        return self.terminal.text

    @property
    def status(self) -> str:
        """What the run is doing, in one word or two, whatever the width."""
        words = ("FINISHED", "DECIDED", "HELD", "NO PROC", "STARTING", "NO RUN", "COMMITTING",
                 "STOPPED", "FAILED", "PAUSED", "RUN")  # fmt: skip
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
        """How the operation under the cursor stands: `?` open, `v` approved."""
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
        if not before or self.sign not in "?" and pressed:
            return
        state = Workspace(self.workspace).run(RUN).state()
        if before not in state.operations:
            return  # its lesson was committed meanwhile
        # A key that was under way moves on, or does not: both are where the person was.
        if shown != before and not (pressed == before and before in state.decisions):
            self.seen.elsewhere.append(f"{before} -> {shown} {'alive' if self.alive else ''}")
        elif self.alive:
            self.seen.back_s.append(time.monotonic() - self.began)

    # -- what it does --------------------------------------------------------------------------

    def _approve(self) -> None:
        shown = self.shown
        self.seen.pressed_on = shown
        self._press("a", lambda: self.shown != shown or self.sign != "?" or self._asks_again)

    @property
    def _asks_again(self) -> bool:
        return "press again" in self._picture

    def _decides_here(self) -> bool:
        """Whether a few are decided before a run without a process is started again."""
        here = self.page == "review" and self.sign == "?"
        return self.offline and (here or self.page != "review" and not self.came_back)

    def _resume(self) -> None:
        if self.page != "live":
            self._press("1", lambda: self.page == "live")
        self._press("r", lambda: self.status not in ("NO PROC", "STOPPED", "FAILED"))

    def _press(self, key: str, done: Callable[[], bool]) -> None:
        self.keys += 1
        blow = self.blow
        if blow is not None and blow.drawn is None and self.keys == blow.key:
            blow.due_at = time.monotonic() + blow.after_s
        self.terminal.type(key)
        self._wait(done)

    def _wait(self, done: Callable[[], bool]) -> None:
        until = time.monotonic() + STUCK_S
        while not done() and self.terminal.child.poll() is None:
            now = time.monotonic()
            if now > until:
                raise TimeoutError(f"{self.workspace}: stuck\n{self._picture}")
            due = self.blow.due_at if self.blow is not None else None
            read(max(0.0, min(0.02, due - now)) if due is not None else 0.02)
            self._look()

    def _strike_if_due(self) -> None:
        blow = self.blow
        if blow is None:
            return
        if blow.drawn is not None and blow.due_at is None and len(self.terminal.raw) >= blow.drawn:
            blow.due_at = time.monotonic() + blow.after_s
        if blow.due_at is None or time.monotonic() < blow.due_at:
            return
        doing = self.status.lower() or "opening"
        hit = []
        if blow.whom != "app":
            for pid in run_pids(self.workspace):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    hit.append("run")
            if blow.whom == "run":
                self.blow = None
                if not hit:
                    return
                self.seen.at.append(f"run, {doing}")
                raise _RunKilled
        self.terminal.kill()
        self.terminal.ended()
        self.seen.at.append(f"{'both' if hit else 'app'}, {doing}")
        raise Killed


def outcome(workspace: Path, seen: Seen) -> Outcome:
    """Read what a run left, once its process has ended."""
    until = time.monotonic() + STUCK_S
    while (left := processes(workspace)) and time.monotonic() < until:
        time.sleep(0.01)
    space = Workspace(workspace)
    folder, run = space.library(RUN), space.run(RUN)
    head = to_dict(folder.head())
    for experience in head["experiences"]:
        for origin in experience.get("history", ()):
            origin.pop("at", None)
    library = {name: head[name] for name in ("version", "next_number", "experiences")}
    decisions, decided = [], Counter[str]()
    for entry in read_journal(run.journal):
        match entry.event:
            case ev.OperationDecided(decision=decision):
                data = to_dict(decision)
                decisions.append({k: v for k, v in data.items() if k not in ("at", "took_s")})
                decided[decision.operation_id] += 1
            case ev.LessonCommitted(step=step):
                decided[f"step {step}"] += 1
    for _, commit in folder.history():
        if commit is not None:
            decided[f"commit {commit.step}"] += 1
    return Outcome(
        library,
        sorted(decisions, key=lambda data: data["operation_id"]),
        sum(n - 1 for n in decided.values()),
        sorted(seen.approved - decided.keys()),
        sorted(left.values()),
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
    whom: Struck = draw.choice(("app", "run", "both"))
    if draw.random() < 0.5:
        return Blow(whom, draw.randrange(drawn), 0, draw.random() * 0.3)
    return Blow(whom, None, draw.randrange(1, max(2, keys // 2)), draw.random() ** 2 * 0.1)


def _way_in(draw: random.Random, workspace: Path, first: bool) -> list[str]:
    """How the person comes in: each of the commands that lead to the screen."""
    command = [*STUDIO, "--workspace", str(workspace)]
    again = ("run", "rehearsal", "--name", RUN, "--review", "wait", *SETTINGS)
    if first:
        return [*command, *again]
    return [*command, *draw.choice([again, ("attach", RUN), ("attach", RUN), ()])]
