"""What the screen costs and how fast it answers, in a pseudo-terminal: `python -m tests.bench.tui`.

Prints JSON: per target of the design its value, the target and whether it is met. Streams
come from a recorded file of tokens; no model is asked. On a noisy machine CPU a frame and
bytes are what to trust. Measured here: what the canvas costs (B1 to B4, B6, B10), and B7 and
B8 for the whole program. B5, B9 and B11 need the app with a run and are not here yet.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.tui_pty import Line, Terminal

ROOT = Path(__file__).parents[2]
SLOW = Line(16_000, 0.1)
_WORDS = """
the of 12 = so we that answer is 100 modulo prime factor by 3^4 81 + (x-1) hence
""".split()  # noqa: SIM905 - read as words
_FORBIDDEN = ("openai", "pydantic", "numpy", "httpx", "sympy", "torch")
Facts = dict[str, Any]


def record(path: Path, streams: int, tokens: int = 997) -> None:
    """A file of tokens as a model streams them: one JSON list a stream."""
    chance = random.Random(streams)
    rows = [
        [chance.choice(_WORDS) + chance.choice([" "] * 12 + ["\n"]) for _ in range(tokens)]
        for _ in range(streams)
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))


def streamed(
    streams: int,
    size: tuple[int, int] = (120, 36),
    *,
    columns: int = 8,
    theme: str = "studio-ansi",
    line: Line | None = None,
    tmux: bool = False,
    seconds: float = 8.0,
    rate: float = 50.0,
    keys: bool = True,
) -> Facts:
    """Run the canvas in a terminal, press keys meanwhile; what the child and the line say."""
    with tempfile.TemporaryDirectory() as folder:
        events, out = Path(folder, "events.jsonl"), Path(folder, "facts.json")
        record(events, streams)
        command = [sys.executable, "-m", "tests.bench.tui_canvas", "--events", str(events)]
        command += ["--out", str(out), "--columns", str(columns), "--theme", theme]
        command += ["--seconds", str(seconds), "--rate", str(rate)]
        environ = {k: v for k, v in os.environ.items() if k not in ("TMUX", "NO_COLOR")}
        # As the app's start does: a key waits half as long for Textual's own frame.
        environ |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "TEXTUAL_FPS": "120"}
        name = f"bench{os.getpid()}"
        if tmux:
            inner = shlex.join(["env", f"PYTHONPATH={ROOT}", *command])
            options = ["-f", "/dev/null", "new-session", "-x", str(size[0]), "-y", str(size[1])]
            command = ["tmux", "-L", name, *options, inner, ";", "set", "status", "off"]
        terminal = Terminal(*size, line or Line())
        terminal.start(command, environ, str(ROOT))
        try:
            return _measured(terminal, out, keys, seconds)
        finally:
            terminal.stop()
            if tmux:
                subprocess.run(
                    ["tmux", "-L", name, "kill-server"], check=False, capture_output=True
                )


def _measured(terminal: Terminal, out: Path, keys: bool, seconds: float) -> Facts:
    if not terminal.until(lambda: "key#" in terminal.screen.display[0], 15):
        raise RuntimeError("nothing was drawn:\n" + terminal.text())
    terminal.run(1.0)  # what the first page costs is B7's business
    taken, since = terminal.taken, time.monotonic()
    waits: list[float] = []
    pressed = 0
    while not out.exists():
        terminal.run(0.17)
        if not keys or out.exists():
            continue
        pressed += 1
        asked = time.monotonic()
        terminal.press("x")
        wanted = f"key#{pressed:06d}"
        if terminal.until(lambda wanted=wanted: wanted in terminal.screen.display[0], 10):
            waits.append((time.monotonic() - asked) * 1000)
        if time.monotonic() - since > seconds + 60:
            raise RuntimeError("the streams never ended")
    drawn = (terminal.taken - taken) / (time.monotonic() - since)
    terminal.run(1.5)
    before = list(terminal.screen.display)
    terminal.press("R")
    terminal.run(2.0)
    changed = sum(
        a != b
        for one, other in zip(before, terminal.screen.display, strict=True)
        for a, b in zip(one, other, strict=False)
    )
    terminal.press("Q")
    terminal.run(0.5)
    waits.sort()
    facts: Facts = json.loads(out.read_text())
    facts["drawn_bytes_per_s"] = drawn
    facts["repaint_changes"] = changed
    if waits:
        facts["key_p50_ms"] = waits[len(waits) // 2]
        facts["key_p95_ms"] = waits[min(len(waits) - 1, int(len(waits) * 0.95))]
    return facts


def judged(facts: Facts, **most: float) -> Facts:
    """Values with the most they may be."""
    return {
        name: {"value": round(facts[name], 3), "target": limit, "met": facts[name] <= limit}
        for name, limit in most.items()
    } | {"link": facts.get("link"), "cpu_ms_per_frame": facts.get("cpu_ms_per_frame")}


def b1() -> Facts:
    return judged(streamed(64), cpu_share=0.25, bytes_per_s=60_000, key_p50_ms=15,
                  key_p95_ms=50, lost=0)  # fmt: skip


def b2() -> Facts:
    wide = streamed(128, columns=16)
    small = streamed(128, (80, 24), columns=8)
    return {
        "120x36": judged(wide, cpu_share=0.35, bytes_per_s=60_000, key_p95_ms=60, lost=0),
        "80x24": judged(small, bytes_per_s=35_000, lost=0),
    }


def b3() -> Facts:
    return {
        "truecolor": judged(streamed(64, theme="studio-dark"), bytes_per_s=85_000, lost=0),
        "tmux": judged(streamed(64, tmux=True), drawn_bytes_per_s=20_000, lost=0),
    }


def b4() -> Facts:
    return {
        "plain": judged(streamed(64, line=SLOW), key_p50_ms=150, key_p95_ms=800, lost=0),
        "tmux": judged(streamed(64, line=SLOW, tmux=True), key_p95_ms=100),
    }


def b6() -> Facts:
    """The drawing half: a million tokens into the canvas, and another one."""
    one = streamed(64, seconds=10, rate=1_600, keys=False)
    two = streamed(64, seconds=20, rate=1_600, keys=False)
    two["growth_mb"] = two["rss_mb"] - one["rss_mb"]
    return judged(one, rss_mb=80, lost=0) | judged(two, growth_mb=10) | {"tokens": two["tokens"]}


def b7() -> Facts:
    code = "import sys, studio.tui.app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    begun = time.monotonic()
    subprocess.run([sys.executable, "-c", "import studio.tui.app"], check=False, cwd=ROOT,
                   capture_output=True)  # fmt: skip
    heavy = sorted(loaded & set(_FORBIDDEN))
    return {
        "imports": {"value": heavy, "target": [], "met": done.returncode == 0 and not heavy},
        "import_s": time.monotonic() - begun,
    }


def b8() -> Facts:
    took = []
    for _ in range(10):
        begun = time.monotonic()
        subprocess.run([sys.executable, "-m", "studio", "--help"], check=True, cwd=ROOT,
                       capture_output=True)  # fmt: skip
        took.append(time.monotonic() - begun)
    return judged({"help_s": min(took)}, help_s=0.15)


def b10() -> Facts:
    return judged(streamed(24, columns=4), repaint_changes=0)


MEASURED: dict[str, Callable[[], Facts]] = {
    "B1": b1, "B2": b2, "B3": b3, "B4": b4, "B6": b6, "B7": b7, "B8": b8, "B10": b10,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(MEASURED), help="such as B1,B4")
    wanted = parser.parse_args().only.split(",")
    if unknown := set(wanted) - set(MEASURED):
        parser.error(f"{sorted(unknown)}: choose from {', '.join(MEASURED)}")
    print(json.dumps({name: MEASURED[name]() for name in wanted}, indent=1))


if __name__ == "__main__":
    main()
