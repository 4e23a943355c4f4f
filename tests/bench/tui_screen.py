"""The real screen for `tests.bench.tui`, with a look at its counters: `… FOLDER studio-words`.

It is `studio` itself; around some of its calls the clock is read. SIGUSR1 has it write what
it used and what its canvases hold into the folder.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_counts = {"frames": 0, "looks": 0}
_key_at = [0.0]
_handled_ms: list[float] = []
_decided_ms: list[float] = []


def rss_mb() -> float:
    """Resident now, not at its peak."""
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def facts(app: Any) -> dict[str, Any]:
    """What the process used so far."""
    page = app.navigation.page("live")
    canvas = page.wall.canvas
    received = {id: canvas._panes[id].received for id in canvas._order}
    texts = {id: canvas.pane_text(id) for id, chars in received.items() if chars}
    return {
        "at": time.monotonic(),
        "cpu_s": time.process_time(),
        "written": app.frame_clock.written,
        "held": app.frame_clock.held,
        "link": app.frame_clock.link_text,
        "theme": app.theme,
        "rss_mb": rss_mb(),
        "on_screen": list(canvas.visible_ids),
        "chars": sum(received.values()),
        "texts": {id: hashlib.sha256(text.encode()).hexdigest() for id, text in texts.items()},
        "handled_ms": _handled_ms[:],
        "decided_ms": _decided_ms[:],
        **_counts,
    }


def watch(folder: Path) -> None:
    """Hang the clock on the app's classes, which are the real ones."""
    from studio.commands.run import configure_textual

    configure_textual()
    from textual import events

    from studio.session.live import LiveSession
    from studio.session.requests import Decide
    from studio.tui.app import StudioApp
    from studio.tui.terminal.frames import FrameClock

    def look(app: StudioApp) -> None:
        _counts["looks"] += 1
        new = folder / "screen.new"
        new.write_text(json.dumps(facts(app)))
        new.replace(folder / "screen.json")

    mounted, heard, act, drawn = (
        StudioApp.on_mount, StudioApp.on_event, StudioApp.run_action, FrameClock.probe_if_due,
    )  # fmt: skip
    send = LiveSession.send

    def on_mount(app: StudioApp) -> None:
        mounted(app)
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, look, app)
        (folder / "pid").write_text(str(os.getpid()))

    async def on_event(app: StudioApp, event: events.Event) -> None:
        if isinstance(event, events.Key):
            _key_at[0] = event.time  # when the driver's thread read it
        await heard(app, event)

    async def run_action(app: StudioApp, *given: Any, **named: Any) -> bool:
        done = await act(app, *given, **named)
        if _key_at[0]:
            _handled_ms.append((time.monotonic() - _key_at[0]) * 1000)
            _key_at[0] = 0.0
        return done

    def counted(clock: FrameClock) -> None:
        _counts["frames"] += 1
        drawn(clock)

    async def timed(session: LiveSession, request: Any) -> Any:
        began = time.perf_counter()
        try:
            return await send(session, request)
        finally:
            if isinstance(request, Decide):
                _decided_ms.append((time.perf_counter() - began) * 1000)

    patches: list[tuple[type, str, Callable[..., Any]]] = [
        (StudioApp, "on_mount", on_mount), (StudioApp, "on_event", on_event),
        (StudioApp, "run_action", run_action), (FrameClock, "probe_if_due", counted),
        (LiveSession, "send", timed),
    ]  # fmt: skip
    for owner, name, patch in patches:
        setattr(owner, name, patch)


def main() -> None:
    from studio.cli import run

    folder, *words = sys.argv[1:]
    watch(Path(folder))
    sys.exit(run(words))


if __name__ == "__main__":
    main()
