"""Workspaces with a recorded run, its process and a real screen on it, for `tests.bench.tui`.

Owns these processes: whatever happens they are ended. Measures nothing.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Self

from engines.core import events as ev
from engines.core.types import operation_id, rollout_id
from engines.record.journal import Journal
from engines.record.run_dir import Workspace
from studio.secrets.sanitize import sanitize
from studio.tui.drawing.cells import normalize_width
from tests.bench.tui_pty import Line, Terminal
from tests.bench.tui_run import RUN

ROOT = Path(__file__).parents[2]
PLAIN = Line()
SLOW = Line(16_000, 0.1)


_NOT_OURS = ("TMUX", "NO_COLOR", "SSH_CONNECTION", "COLORFGBG", "TEXTUAL_FPS")
COMPILED = {
    "PYTHONPATH": str(ROOT),
    "PYTHONDONTWRITEBYTECODE": "",
    "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / f"studio-bench-{os.getuid()}-pyc"),
}
"""A checkout whose bytecode is kept, as an installed program's is."""


@cache
def recording(groups: int, size: int) -> Path:
    """A folder with `events.jsonl` and the workspace it was recorded in; made when missing."""
    folder = Path(tempfile.gettempdir()) / f"studio-bench-{os.getuid()}-{groups}x{size}"
    if not (folder / "events.jsonl").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        half = folder / "events.half"
        _child("record", "--workspace", folder / "practice", "--events", half,
               "--groups", groups, "--size", size)  # fmt: skip
        half.rename(folder / "events.jsonl")
    return folder


def _child(*words: object) -> None:
    command = [sys.executable, "-m", "tests.bench.tui_run", *map(str, words)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def said(groups: int, size: int, tokens: int) -> dict[str, str]:
    """The text of each rollout after so many tokens, as a screen may show it."""
    found: dict[str, list[str]] = {}
    for line in (recording(groups, size) / "events.jsonl").open():
        if '"kind": "TextStreamed"' in line:
            event = json.loads(line)
            key = event["key"]
            name = rollout_id(key["step"], key["position"], key["index"])
            found.setdefault(name, []).append(event["text"])
    return {
        name: normalize_width(sanitize("".join(words[n % len(words)] for n in range(tokens))))
        for name, words in found.items()
    }


def staged(folder: Path, groups: int, size: int, operations: int | None, held: bool) -> Workspace:
    """A copy of the recorded run as its process left it when it was killed.

    Args:
        folder: where it is to lie.
        groups: of the recording.
        size: of each group.
        operations: that wait for a decision; None: those of the recording.
        held: at its review; else while its rollouts stream.
    """
    shutil.copytree(recording(groups, size) / "practice", folder / "practice")
    workspace = Workspace(folder / "practice")
    run = workspace.run(RUN)
    events = [entry.event for entry in run.entries()]
    run.journal.unlink()
    journal = Journal(run.journal)
    for event in events:
        if isinstance(event, ev.RolloutFinished | ev.RunEnded) and not held:
            break
        if isinstance(event, ev.RunEnded):
            continue
        if isinstance(event, ev.LessonProposed) and operations is not None:
            event = _with_operations(event, operations)
        journal.append_now(event)
    journal.close()
    return workspace


def _with_operations(event: ev.LessonProposed, wanted: int) -> ev.LessonProposed:
    """So many, made of the recorded ones: no two have a wording in common, evidence repeats."""
    known = event.lesson.operations
    chance = random.Random(wanted)
    made = tuple(
        replace(
            known[number % len(known)],
            id=operation_id(event.step, number + 1),
            text=f"When {_words(chance, 6)} ask, {_words(chance, 10)}.",
        )
        for number in range(wanted)
    )
    return replace(event, lesson=replace(event.lesson, operations=made))


def _words(chance: random.Random, count: int) -> str:
    """Words that nobody ever read: none is like another."""
    parts = "ba ke li mo nu ra se ti vo zu dor fen gim hal jur".split()  # noqa: SIM905
    return " ".join("".join(chance.choices(parts, k=3)) for _ in range(count))


@dataclass
class Stage:
    """The run's process and a screen in a terminal, while the context lasts."""

    groups: int = 8
    size: int = 8
    screen: tuple[int, int] = (120, 36)
    line: Line = PLAIN
    ssh: bool = True  # then it draws in the terminal's own colours
    tmux: bool = False
    held: bool = False
    operations: int | None = None
    seconds: float = 8.0
    flood: int = 0
    theme: str = ""
    words: Sequence[str] = ("attach", RUN)
    hooked: bool = True  # the screen tells of its counters
    attaches: bool = True
    terminal: Terminal = field(init=False)

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="studio-bench-")
        self.folder = Path(self._folder.name)
        self._looks = self._plays = 0
        self._run: subprocess.Popen[bytes] | None = None
        self._tmux = f"studio-bench-{os.getpid()}"
        try:
            self.workspace = staged(self.folder, self.groups, self.size, self.operations, self.held)
            if self.theme:
                (self.workspace.path / "screen.yaml").write_text(f"theme: {self.theme}\n")
            self._serve()
            if self.attaches:
                self.open()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self.stop_run()
        self._folder.cleanup()

    # -- the run ---------------------------------------------------------------------------

    def _serve(self) -> None:
        ready = self.folder / "ready"
        words = ["serve", "--workspace", self.workspace.path, "--seconds", self.seconds,
                 "--events", recording(self.groups, self.size) / "events.jsonl",
                 "--ready", ready, "--out", self.folder / "played.json",
                 "--flood", self.flood, *(["--practise"] if self.held else [])]  # fmt: skip
        self._run = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.tui_run", *map(str, words)],
            cwd=ROOT, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        end = time.monotonic() + 30
        while not ready.exists():
            if self._run.poll() is not None or time.monotonic() > end:
                raise RuntimeError("the run's process did not begin")
            time.sleep(0.02)

    def play(self, *, at_once: bool = False) -> None:
        """Let the texts stream."""
        assert self._run is not None
        self._run.send_signal(signal.SIGUSR2 if at_once else signal.SIGUSR1)

    def played(self) -> dict[str, Any] | None:
        """What was played, once the latest `play` is over."""
        found = self._read("played.json")
        if found is None or found["plays"] <= self._plays:
            return None
        self._plays = found["plays"]
        return found

    def stop_run(self) -> list[float]:
        """End the run's process; returns how long each decision took it, in milliseconds."""
        if self._run is not None and self._run.poll() is None:
            self._run.terminate()
            try:
                self._run.wait(5)
            except subprocess.TimeoutExpired:
                self._run.kill()
                self._run.wait()
        self._run = None
        return list(self._read("played.decided") or [])

    # -- the screen ------------------------------------------------------------------------

    def open(self) -> None:
        """Start the screen in a terminal of its own."""
        module = ["tests.bench.tui_screen", str(self.folder)] if self.hooked else ["studio"]
        command = [sys.executable, "-m", *module, "--workspace", str(self.workspace.path)]
        command += self.words
        environ = {name: value for name, value in os.environ.items() if name not in _NOT_OURS}
        environ |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8"}
        environ |= COMPILED
        if self.ssh:
            environ["SSH_CONNECTION"] = "192.0.2.1 50000 192.0.2.2 22"
        if self.tmux:
            inner = shlex.join(command)
            options = ["-f", "/dev/null", "new-session", "-x", str(self.screen[0]),
                       "-y", str(self.screen[1])]  # fmt: skip
            command = ["tmux", "-L", self._tmux, *options, inner, ";", "set", "status", "off"]
        (self.folder / "pid").unlink(missing_ok=True)
        self._looks = 0
        self.terminal = Terminal(*self.screen, self.line)
        self.began = time.monotonic()
        self.terminal.start(command, environ, str(ROOT))

    def close(self) -> None:
        terminal: Terminal | None = self.__dict__.pop("terminal", None)
        if terminal is not None:
            terminal.stop()
        if self.tmux:
            subprocess.run(
                ["tmux", "-L", self._tmux, "kill-server"], check=False, capture_output=True
            )

    def show_runs(self, text: str, timeout_s: float = 20.0) -> None:
        """Go on until a text is on the screen."""
        self.until(lambda: any(text in row for row in self.terminal.screen.display), text,
                   timeout_s)  # fmt: skip

    def until(self, done: Callable[[], object], what: str, timeout_s: float = 20.0) -> None:
        if not self.terminal.until(lambda: bool(done()), timeout_s):
            raise RuntimeError(f"the screen never showed {what}:\n{self.terminal.text()}")

    def look(self) -> dict[str, Any]:
        """The screen's own counters, now."""
        pid = int((self.folder / "pid").read_text())
        os.kill(pid, signal.SIGUSR1)
        found: list[dict[str, Any]] = []

        def came() -> bool:
            facts = self._read("screen.json")
            if facts is not None and facts["looks"] > self._looks:
                self._looks = facts["looks"]
                found.append(facts)
            return bool(found)

        self.until(came, "its counters")
        return found[0]

    def quiet(self, quiet_s: float = 0.5, most_s: float = 10.0) -> None:
        """Go on until nothing was drawn for some time."""
        end = time.monotonic() + most_s
        while time.monotonic() < end:
            before = self.terminal.taken
            self.terminal.run(quiet_s)
            if self.terminal.taken == before:
                return

    def _read(self, name: str) -> Any:
        path = self.folder / name
        return json.loads(path.read_text()) if path.exists() else None
