"""What the screen costs and how fast it answers: `python -m tests.bench.tui`, some minutes.

The real screen (`studio attach`) in a pseudo-terminal, on a run whose process plays a
recorded file of events; no model is asked. Prints JSON: per target of the design its value,
the most it may be, and whether it is met; `missed` names those that are not. Each figure is
the least of three runs, since noise only ever adds. On a noisy machine trust CPU and bytes.
`--only B1,B4` measures some, `--repeat 1` once.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Any

from engines.core import events as ev
from studio.tui.keymap import KEYS
from tests.bench.progress import b12
from tests.bench.tui_run import RUN
from tests.bench.tui_stage import COMPILED, ROOT, SLOW, Stage, said

RATE = 50.0
_FORBIDDEN = ("openai", "pydantic", "numpy", "httpx", "sympy", "torch")
_BUDGETS: dict[str, dict[str, float]] = {
    "B1": {"cpu_share": 0.25, "bytes_per_s": 60_000, "key_p50_ms": 15, "key_p95_ms": 50, "lost": 0},
    "B2": {"cpu_share": 0.35, "bytes_per_s": 60_000, "key_p95_ms": 60, "lost": 0},
    "B2 80x24": {"bytes_per_s": 35_000, "lost": 0},
    "B3 truecolor": {"bytes_per_s": 85_000, "lost": 0},
    "B3 tmux": {"out_bytes_per_s": 20_000, "lost": 0},
    "B4": {"handler_p95_ms": 20, "key_p50_ms": 150, "key_p95_ms": 800, "lost": 0},
    "B4 tmux": {"handler_p95_ms": 20, "key_p95_without_rtt_ms": 100, "lost": 0},
    "B5": {"j_bytes": 2_000, "decision_bytes": 3_000, "key_p95_ms": 40},
    "B5 load": {"j_bytes": 2_000, "decision_bytes": 3_000, "key_p95_ms": 60},
    "B6": {"lost": 0, "rss_mb": 80, "growth_mb": 10},
    "B7": {"attach_s": 0.6, "attach_cpu_s": 0.6, "start_s": 0.6, "start_cpu_s": 0.6},
    "B8": {"help_s": 0.15, "status_s": 0.15},
    "B9": {"durable_p95_ms": 10, "back_s": 1.0, "other_operation": 0},
    "B10": {"changed_cells": 0},
    "B11": {"keys": 60, "undecided": 0},
    "B12": {"draw_ms": 50, "cursor_ms": 10},
}
"""The most that each figure may be, from the design."""
_LEAST = {"B6": {"tokens_per_s": 100_000}}
Facts = dict[str, Any]


def _p(values: Sequence[float], share: float) -> float:
    found = sorted(values)
    return found[min(len(found) - 1, int(len(found) * share))]


def _marked(stage: Stage) -> frozenset[tuple[int, int]]:
    """Cells that are drawn in reverse: where the focus is."""
    screen = stage.terminal.screen
    return frozenset(
        (y, x) for y, row in screen.buffer.items() for x, cell in row.items() if cell.reverse
    )


def _cursor(stage: Stage) -> object:
    """The row under the list's cursor."""
    rows = stage.terminal.screen.display
    return next(((y, row[:30]) for y, row in enumerate(rows) if row[1:2] == ">"), None)


def _pressed(stage: Stage, key: str, seen: Callable[[Stage], object]) -> float:
    """Press a key; milliseconds until what is seen is something else."""
    before = seen(stage)
    began = time.monotonic()
    stage.terminal.press(key)
    stage.until(lambda: seen(stage) != before, f"what {key} does")
    return (time.monotonic() - began) * 1000


# -- streams -------------------------------------------------------------------------------


def streamed(groups: int, size: int, *, zooms: int = 0, seconds: float = 8.0, **of: Any) -> Facts:
    """Texts at their rate into the live page, and j and k pressed meanwhile."""
    with Stage(groups, size, seconds=seconds, **of) as stage:
        stage.show_runs("RUN")
        stage.quiet()
        for _ in range(zooms):
            stage.terminal.press("z")
            stage.quiet(0.3)
        stage.play()
        stage.terminal.run(2.5)  # they begin after one second, and the page after that
        before, taken = stage.look(), stage.terminal.taken
        waits: list[float] = []
        while (played := stage.played()) is None:
            waits.append(_pressed(stage, "jk"[len(waits) % 2], _marked))
            stage.terminal.run(0.19)
        after, drawn = stage.look(), stage.terminal.taken - taken
        stage.quiet()
        last = stage.look()
        passed = after["at"] - before["at"]
        cpu = after["cpu_s"] - before["cpu_s"]
        right = said(groups, size, int(seconds * RATE))
        lost = [
            name
            for name in last["on_screen"]
            if last["texts"].get(name) != sha256(right[name].encode()).hexdigest()
        ]
        return {
            "cpu_share": cpu / passed,
            "cpu_ms_per_frame": cpu / max(1, after["frames"] - before["frames"]) * 1000,
            "bytes_per_s": (after["written"] - before["written"]) / passed,
            "out_bytes_per_s": drawn / passed,
            "key_p50_ms": statistics.median(waits),
            "key_p95_ms": _p(waits, 0.95),
            "handler_p95_ms": _p(after["handled_ms"][len(before["handled_ms"]) :], 0.95),
            "lost": len(lost),
            "on_screen": len(last["on_screen"]),
            "streams": played["tokens"] / (seconds * RATE),
            "theme": last["theme"],
            "link": last["link"],
        }


def b1() -> Facts:
    """64 texts in one group fill the grid; on the wall they are a line each."""
    return {"B1 group": streamed(1, 64), "B1 wall": streamed(8, 8, zooms=2)}


def b2() -> Facts:
    return {
        "B2 group": streamed(1, 128),
        "B2 wall": streamed(16, 8, zooms=2),
        "B2 80x24": streamed(16, 8, screen=(80, 24)),
    }


def b3() -> Facts:
    return {
        "B3 truecolor": streamed(1, 64, theme="studio-dark"),
        "B3 tmux": streamed(1, 64, theme="studio-ansi", ssh=False, tmux=True),
    }


def b4() -> Facts:
    """The line's own 100 ms are in every key; tmux's limit of 100 ms can only be for the rest."""
    found = {
        "B4": streamed(1, 64, line=SLOW),
        "B4 tmux": streamed(1, 64, line=SLOW, tmux=True),
    }
    for facts in found.values():
        facts["key_p95_without_rtt_ms"] = facts["key_p95_ms"] - SLOW.rtt_s * 1000
    return found


# -- review --------------------------------------------------------------------------------


def reviewed(operations: int | None, *, load: bool = False, presses: int = 20) -> Facts:
    """Keys on the review page of a held run: their bytes and how long they take."""
    with Stage(held=True, operations=operations, seconds=60, theme="studio-ansi") as stage:
        stage.show_runs("HELD")
        stage.terminal.press("1")
        stage.quiet()
        if load:
            stage.play()
            stage.terminal.run(1.5)
        stage.terminal.press("2")
        stage.show_runs("op1.")
        stage.quiet(0.4, 3.0)
        moves, bytes_of_move = _measured(stage, "jk", presses)
        many = operations is not None
        decisions, bytes_of_decision = _measured(
            stage, "a" if many else "au", presses if many else 4
        )
        facts = {
            "j_bytes": max(bytes_of_move),
            "decision_bytes": max(bytes_of_decision),
            "key_p95_ms": _p(moves + decisions, 0.95),
            "key_p50_ms": statistics.median(moves + decisions),
            "handler_p95_ms": _p(stage.look()["handled_ms"], 0.95),
        }
        if many:  # over the edge of the pane every row moves
            stage.terminal.press("\x04" * 3)
            stage.quiet(0.3)
            _, scrolled = _measured(stage, "j", 5)
            facts["j_bytes_scrolling"] = max(scrolled)
        return facts


def _measured(stage: Stage, keys: str, presses: int) -> tuple[list[float], list[int]]:
    waits, sizes = [], []
    for number in range(presses):
        taken = stage.terminal.taken
        waits.append(_pressed(stage, keys[number % len(keys)], _cursor))
        stage.terminal.run(0.35)
        sizes.append(stage.terminal.taken - taken)
    return waits, sizes


def b5() -> Facts:
    return {
        "B5 recorded": reviewed(None),
        "B5 1000": reviewed(1_000),
        "B5 load recorded": reviewed(None, load=True),
        "B5 load 1000": reviewed(1_000, load=True),
    }


# -- the rest ------------------------------------------------------------------------------


def b6() -> Facts:
    """A million tokens at once into 64 texts that a screen of 80 rows follows, and another."""
    flood = 15_625
    with Stage(screen=(120, 84), flood=flood, seconds=1) as stage:
        stage.show_runs("RUN")
        stage.quiet()
        stage.terminal.press("zz")
        stage.quiet()
        begun = stage.look()
        facts: Facts = {"rss_before_mb": begun["rss_mb"], "follows": len(begun["on_screen"])}
        right = sum(map(len, said(8, 8, flood).values()))
        for name, times in (("rss_mb", 1), ("rss_after_two_mb", 2)):
            stage.play(at_once=True)
            found: list[Facts] = []
            stage.until(lambda found=found: found.extend(filter(None, [stage.played()])) or found,
                        "what was played", 60)  # fmt: skip
            wanted = right * times
            seen = stage.look()
            end = time.monotonic() + 20
            while seen["chars"] < wanted and time.monotonic() < end:
                stage.terminal.run(0.05)
                seen = stage.look()
            facts[name] = seen["rss_mb"]
            facts["lost"] = int(seen["chars"] != wanted)
            rate = found[0]["tokens"] / (seen["at"] - found[0]["began"])
            facts["tokens_per_s"] = max(rate, facts.get("tokens_per_s", 0.0))
        facts["growth_mb"] = facts["rss_after_two_mb"] - facts["rss_mb"]
        return {"B6": facts}


def _first_paint(name: str, words: Sequence[str]) -> Facts:
    """Seconds from the beginning of the process until the first frame, and of its CPU.

    The line that stands there meanwhile is no frame: the tabs and the keys are, drawn at once.
    """
    with Stage(words=words, hooked=False, attaches=False) as stage:
        line, took, cpu = [], [], []
        for _ in range(5):
            stage.open()
            stage.until(lambda: "opening" in stage.terminal.screen.display[0], "the line")
            line.append(time.monotonic() - stage.began)
            stage.until(lambda: "? help" in stage.terminal.screen.display[1], "its tabs")
            took.append(time.monotonic() - stage.began)
            cpu.append(stage.terminal.cpu_s())
            stage.close()
        return {f"{name}_line_s": min(line), f"{name}_s": min(took), f"{name}_cpu_s": min(cpu)}


def b7() -> Facts:
    code = "import sys, studio.tui.app; print(*sys.modules)"
    done = _python("-c", code)
    heavy = {name.partition(".")[0] for name in done.split()} & set(_FORBIDDEN)
    return {
        "B7": {
            **_first_paint("attach", ["attach", RUN]),
            **_first_paint("start", []),
            "import_s": _took(lambda: _python("-c", "import studio.tui.app"))
            - _took(lambda: _python("-c", "pass")),
            "heavy_imports": sorted(heavy),
        }
    }


def _python(*words: str) -> str:
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=ROOT, check=True,
        env=os.environ | COMPILED,
    ).stdout  # fmt: skip


def _took(work: Callable[[], object]) -> float:
    """Seconds, the least of five."""
    took = []
    for _ in range(5):
        began = time.monotonic()
        work()
        took.append(time.monotonic() - began)
    return min(took)


def b8() -> Facts:
    with Stage(attaches=False) as stage:
        folder = str(stage.workspace.path)
        status = ("-m", "studio", "--workspace", folder, "ctl", "status", RUN)
        return {
            "B8": {
                "help_s": _took(lambda: _python("-m", "studio", "--help")),
                "status_s": _took(lambda: _python(*status)),
            }
        }


def b9() -> Facts:
    """Decisions, then the screen is killed and opened again: the same operation lies there."""
    with Stage(held=True, operations=40, theme="studio-ansi") as stage:
        stage.show_runs("HELD")
        stage.terminal.press("2")
        stage.show_runs("op1.")
        stage.quiet()
        _measured(stage, "a", 20)
        stage.terminal.press("jjj")
        stage.quiet()
        asked, before = stage.look()["decided_ms"], _under_cursor(stage)
        stage.terminal.run(2.2)  # where the person is, is kept every two seconds
        stage.close()
        stage.open()
        stage.until(lambda: _cursor(stage) is not None and "op1." in stage.terminal.text(),
                    "the review page")  # fmt: skip
        back = time.monotonic() - stage.began
        stage.quiet()
        other = int(_under_cursor(stage) != before)
        durable = stage.stop_run()
        return {
            "B9": {
                "durable_p95_ms": _p(durable, 0.95),
                "durable_p50_ms": statistics.median(durable),
                "asked_p95_ms": _p(asked, 0.95),
                "decisions": len(durable),
                "back_s": back,
                "other_operation": other,
            }
        }


def _under_cursor(stage: Stage) -> str:
    found = _cursor(stage)
    return found[1] if isinstance(found, tuple) else ""


def b10() -> Facts:
    """After some keys on every page: what a full repaint changes."""
    changed: dict[str, int] = {}
    for held in (False, True):
        with Stage(held=held, operations=40 if held else None, seconds=3) as stage:
            stage.show_runs("HELD" if held else "RUN")
            stage.quiet()
            if not held:
                stage.play()
                stage.terminal.run(16)  # ten seconds later no tokens a second are told any more
            for page in "12345670":
                for key in (page, "j", "j", "k", "G", "\t", "j"):
                    stage.terminal.press(key)
                    stage.terminal.run(0.1)
                stage.quiet()
                before = _cells(stage)
                stage.terminal.press("\x0c")
                stage.quiet()
                name = f"{'held' if held else 'streamed'} {page}"
                both = zip(before, _cells(stage), strict=True)
                # How long ago something was goes on meanwhile.
                changed[name] = sum(a != b and not a.data.isdigit() for a, b in both)
    return {"B10": {"changed_cells": sum(changed.values()), "pages": changed}}


def _cells(stage: Stage) -> list[Any]:
    screen = stage.terminal.screen
    return [screen.buffer[y][x] for y in range(screen.lines) for x in range(screen.columns)]


def b11() -> Facts:
    """Forty operations, six of them with another wording, committed."""
    with Stage(held=True, operations=40, theme="studio-ansi") as stage:
        stage.show_runs("HELD")
        stage.terminal.press("2")
        stage.show_runs("op1.")
        stage.quiet()
        keys = 1
        for number in range(40):
            before = _cursor(stage)
            if number % 7 == 3:
                stage.terminal.press("e")
                stage.quiet(0.3)
                stage.terminal.press(" Always.")
                stage.quiet(0.3)
                stage.terminal.press("\r")
                keys += 2
            else:
                stage.terminal.press("a")
                keys += 1
            if number < 39:
                stage.until(lambda before=before: _cursor(stage) != before, "the next operation")
            stage.terminal.run(0.2)
        stage.terminal.press("c")
        keys += 1
        stage.quiet()
        state = stage.workspace.run(RUN).state()
        entries = stage.workspace.run(RUN).entries()
        batches = [e.event.decisions for e in entries if isinstance(e.event, ev.DecisionEvent)]
        actions = [decision.action for batch in batches for decision in batch]
        return {
            "B11": {
                "keys": keys,
                "undecided": len(state.undecided_operations),
                "edited": actions.count("edit"),
                "decided": len(actions),
                "library_version": state.library_version,
                "bindings": len(KEYS),
            }
        }


# -- judging -------------------------------------------------------------------------------

MEASURED: dict[str, Callable[[], Facts]] = {
    "B1": b1, "B2": b2, "B3": b3, "B4": b4, "B5": b5, "B6": b6, "B7": b7, "B8": b8, "B9": b9,
    "B10": b10, "B11": b11, "B12": b12,
}  # fmt: skip
_ONCE = ("B7", "B8", "B10", "B11")
"""Those that repeat by themselves, or whose figures no noise changes."""


def least(runs: Sequence[Facts]) -> Facts:
    """Of each figure the least, of rates the most."""
    out: Facts = {}
    for name, value in runs[0].items():
        if isinstance(value, dict):
            out[name] = least([run[name] for run in runs])
        elif isinstance(value, int | float):
            best = max if name in ("tokens_per_s", "lost", "other_operation") else min
            out[name] = best(run[name] for run in runs)
        else:
            out[name] = value
    return out


def judged(name: str, facts: Facts) -> Facts:
    """Each figure with its limit where it has one."""
    key = next(k for k in sorted(_BUDGETS, key=len, reverse=True) if name.startswith(k))
    most, wanted = _BUDGETS[key], _LEAST.get(key, {})
    out: Facts = {}
    for figure, value in facts.items():
        shown = round(value, 3) if isinstance(value, float) else value
        if figure in most:
            met = value <= most[figure]
            out[figure] = {"value": shown, "target": f"<= {most[figure]:g}", "met": met}
        elif figure in wanted:
            met = value >= wanted[figure]
            out[figure] = {"value": shown, "target": f">= {wanted[figure]:g}", "met": met}
        else:
            out[figure] = shown
    return out


def missed(results: Facts) -> Iterable[str]:
    for name, facts in results.items():
        for figure, value in facts.items():
            if isinstance(value, dict) and value.get("met") is False:
                yield f"{name} {figure}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(MEASURED), help="such as B1,B4")
    parser.add_argument("--repeat", type=int, default=3, help="runs of which the least counts")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",")
    if unknown := set(wanted) - set(MEASURED):
        parser.error(f"{sorted(unknown)}: choose from {', '.join(MEASURED)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended
    results: Facts = {}
    for name in wanted:
        repeats = 1 if name in _ONCE else arguments.repeat
        found = least([MEASURED[name]() for _ in range(repeats)])
        results |= {key: judged(key, facts) for key, facts in found.items()}
    print(json.dumps({**results, "missed": [*missed(results)]}, indent=1))
    return int(any(missed(results)))


if __name__ == "__main__":
    sys.exit(main())
