"""Draws the pictures of README.md: real pages over real rehearsal runs, at both sizes.

    python -m tests.studio.tui.screenshots FOLDER

Writes SVG files that load nothing from elsewhere.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from textual.pilot import Pilot

from studio.tui.app import StudioApp
from tests.studio.tui.reading import has_read
from tests.studio.tui.stage import FakeSession, app_on, finished_workspace, held_workspace

SIZES = ((120, 36), (80, 24))
SHOWN = {
    "live-120x36",
    "review-120x36",
    "review-80x24",
    "library-120x36",
    "diff-80x24",
    "inspect-120x36",
}
_FONT_FACE = re.compile(r"@font-face\s*\{[^}]*\}\s*")

Keys = Callable[[StudioApp, "Pilot[int]"], Awaitable[None]]


async def _pressed(app: StudioApp, pilot: Pilot[int], *keys: str) -> None:
    for key in keys:
        await pilot.press(key)
        await app.wait_for_requests()
        await pilot.pause()


async def draw(folder: Path) -> list[Path]:
    """Every picture; returns the files written."""
    written = []
    for size in SIZES:
        with tempfile.TemporaryDirectory() as place:
            held = held_workspace(Path(place) / "held")
            finished = finished_workspace(Path(place) / "finished")
            shots = (
                ("live", held, "mine", ("1",)),
                ("review", held, "mine", ("2",)),
                ("library", finished, "rehearsal", ("3",)),
                ("diff", finished, "rehearsal", ("4",)),
                ("inspect", held, "mine", ("2", "o")),
            )
            for name, workspace, run, keys in shots:
                if f"{name}-{size[0]}x{size[1]}" not in SHOWN:
                    continue
                session = FakeSession(workspace.run(run), living=run == "mine")
                app = app_on(session, workspace)
                async with app.run_test(size=size) as pilot:
                    await pilot.pause()
                    await _pressed(app, pilot, *keys)
                    await has_read(pilot)
                    await pilot.pause()
                    picture = _FONT_FACE.sub("", app.export_screenshot(title="studio"))
                path = folder / f"{name}-{size[0]}x{size[1]}.svg"
                path.write_text(picture, encoding="utf-8")
                written.append(path)
    return written


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for path in asyncio.run(draw(folder)):
        print(path)


if __name__ == "__main__":
    main()
