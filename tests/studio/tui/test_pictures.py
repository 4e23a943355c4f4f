"""A picture of every page in every state at two sizes, of full ones at a third, and themes.

`pytest tests/studio/tui/test_pictures.py --update-pictures` draws them anew; read the diff then.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from studio.tui.settings import ScreenSettings
from tests.studio.tui.pictures import check_picture
from tests.studio.tui.scenes import SCENES, SHOWN_WIDE, SIZES, WIDE, on_stage
from tests.studio.tui.stage import picture

THEMES = ("studio-dark", "studio-light", "studio-ansi", "studio-mono")


@pytest.fixture(autouse=True)
def _as_on_any_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are relative, and runs that were recorded before midnight began today."""
    monkeypatch.chdir(tmp_path)


# What streams keeps its place when the terminal is resized: here each size begins anew.
STREAMING = {"group", "wall", "paused", "evaluating", "disconnected", "died", "running", "commit"}
SCROLLED = {"range", "delete"}  # where a list stands follows from the sizes that it had before
VISITS = [
    (name, sizes)
    for name in SCENES
    for wanted in [[*SIZES, WIDE] if name in SHOWN_WIDE else SIZES]
    for alone in [name.split("-")[1] in STREAMING | SCROLLED]
    for sizes in ([[size] for size in wanted] if alone else [wanted])
]


@pytest.mark.parametrize(
    ("name", "sizes"), VISITS, ids=[f"{name}-{sizes[0][0]}" for name, sizes in VISITS]
)
async def test_a_page_in_a_state_looks_as_it_did(name: str, sizes: list[tuple[int, int]]) -> None:
    """One app for all sizes where a terminal that is resized shows what one of its size does."""
    async with on_stage(SCENES[name], Path(), sizes[0]) as stage:
        for width, height in sizes:
            if stage.app.size != (width, height):
                await stage.pilot.resize_terminal(width, height)
                await stage.rest()
            check_picture(stage.app, f"{name}-{width}x{height}")


@pytest.mark.parametrize("theme", THEMES)
async def test_review_looks_as_it_did_in_each_theme(theme: str) -> None:
    settings = ScreenSettings(theme=theme)
    async with on_stage(SCENES["review-held"], Path(), (120, 36), settings) as stage:
        check_picture(stage.app, f"review-held-{theme}-120x36")


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", ["review-held", "live-group", "progress-over", "inspect-split"])
async def test_in_ascii_nothing_else_is_drawn(name: str, size: tuple[int, int]) -> None:
    settings = ScreenSettings(theme="studio-mono", ascii=True)
    async with on_stage(SCENES[name], Path(), size, settings) as stage:
        rows = [row for row in picture(stage.app) if not row.isascii()]
        # What a model wrote is shown as it is; the screen's own words and lines are ASCII.
        assert not [row for row in rows if set(row) - set("“”") - set(map(chr, range(128)))]
        if name == "review-held":
            check_picture(stage.app, f"{name}-ascii-{size[0]}x{size[1]}")
