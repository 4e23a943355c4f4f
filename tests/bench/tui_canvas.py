"""An app of one canvas that draws a recorded stream, for `tests.bench.tui`.

Owns no measurement but that of its own process: it writes what it used to a file when the
streams are over.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

from rich.segment import Segment
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from studio.tui import themes
from studio.tui.canvas import PaneModel, StreamCanvas
from studio.tui.pump import Pump, install


def recorded(path: Path) -> list[list[str]]:
    """Tokens of each stream: one JSON list a line."""
    return [json.loads(line) for line in path.read_text().splitlines()]


class CanvasApp(App[int]):
    """Streams at a rate, a key that changes one cell, and what all that took."""

    CSS = "Screen { layers: base; } #keys { height: 1; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("x", "press"),
        Binding("R", "repaint"),
        Binding("Q", "leave"),
    ]
    ENABLE_COMMAND_PALETTE = False
    pump: Pump

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__()
        self.arguments = arguments
        self.streams = recorded(arguments.events)
        self.canvas = StreamCanvas(id="streams")
        self.presses = 0
        self.sent: list[list[str]] = [[] for _ in self.streams]
        self.at = [0] * len(self.streams)
        self.handler_s: list[float] = []
        self.began = 0.0
        self.over = False
        themes.register(self, {}, arguments.theme)

    def compose(self) -> ComposeResult:
        yield Counter(id="keys")
        yield self.canvas

    def on_mount(self) -> None:
        self.canvas.set_panes(
            [PaneModel(f"s{i}", f"r{i}", "streaming") for i in range(len(self.streams))],
            columns=self.arguments.columns,
        )
        install(self)
        self.pump.watch(self.canvas)
        self.pump.add(self.drain)
        self.call_after_refresh(self.begin)

    def begin(self) -> None:
        self.began = time.monotonic()
        self.cpu = time.process_time()
        self.written = self.pump.written
        self.frames = self.flushes = 0
        shown = self._display

        def counted(screen: Any, renderable: Any) -> None:
            self.frames += renderable is not None
            shown(screen, renderable)

        self._display = counted  # type: ignore[method-assign]

    def drain(self) -> None:
        """What a feed would have brought since the last beat."""
        if not self.began or self.over:
            return
        elapsed = time.monotonic() - self.began
        due = int(elapsed * self.arguments.rate)
        for index, tokens in enumerate(self.streams):
            upto = min(due, int(self.arguments.seconds * self.arguments.rate))
            if upto > self.at[index]:
                size = len(tokens)
                piece = "".join(tokens[i % size] for i in range(self.at[index], upto))
                self.at[index] = upto
                self.sent[index].append(piece)
                self.canvas.feed(f"s{index}", piece)
        if elapsed >= self.arguments.seconds:
            self.over = True
            self.set_timer(0.3, self.report)

    def report(self) -> None:
        self.canvas.flush()
        wall = time.monotonic() - self.began
        cpu = time.process_time() - self.cpu
        whole = [hashlib.sha256("".join(p).encode()).hexdigest() for p in self.sent]
        kept = [self.canvas.pane_text(f"s{i}") for i in range(len(self.streams))]
        # At the usual rate nothing is dropped from what is kept, so all of it must be there.
        whole_kept = self.arguments.rate <= 50
        lost = 0
        for pieces, text in zip(self.sent, kept, strict=True):
            sent = "".join(pieces)
            lost += text != sent if whole_kept else not (text and sent.endswith(text))
        facts = {
            "cpu_share": cpu / wall,
            "cpu_ms_per_frame": cpu / max(1, self.frames) * 1000,
            "frames": self.frames,
            "bytes_per_s": (self.pump.written - self.written) / wall,
            "held": self.pump.held,
            "link": self.pump.link_text,
            "lost": lost,
            "kept_rows": min(len(text.splitlines()) for text in kept),
            "sha": hashlib.sha256("".join(whole).encode()).hexdigest(),
            "presses": self.presses,
            "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "tokens": sum(self.at),
        }
        self.arguments.out.write_text(json.dumps(facts))

    def action_press(self) -> None:
        self.presses += 1
        self.query_one(Counter).count(self.presses)

    def action_repaint(self) -> None:
        self.refresh(repaint=True, layout=True)

    def action_leave(self) -> None:
        self.exit(0)


class Counter(Widget):
    """What a key shows: how many were pressed."""

    shown = 0

    def count(self, number: int) -> None:
        self.shown = number
        self.refresh(Region(0, 0, 20, 1))

    def render_line(self, y: int) -> Strip:
        text = f"key#{self.shown:06d}#".ljust(self.size.width)
        return Strip([Segment(text, self.rich_style)], self.size.width)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rate", type=float, default=50.0, help="tokens a second of a stream")
    parser.add_argument("--columns", type=int, default=8)
    parser.add_argument("--theme", default=themes.ANSI)
    os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")
    sys.exit(CanvasApp(parser.parse_args()).run() or 0)


if __name__ == "__main__":
    main()
