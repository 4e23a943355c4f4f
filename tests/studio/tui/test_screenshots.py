"""README's pictures: they exist, say that replies are scripted, and load nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.studio.tui.screenshots import MOVING, PICTURES, STILLS

README = Path(__file__).parents[3] / "README.md"


def test_readme_shows_the_pictures_that_are_drawn_and_no_other_is_kept() -> None:
    shown = re.findall(r"\.github/screens/([\w-]+\.svg)", README.read_text(encoding="utf-8"))
    assert sorted(shown) == sorted((MOVING, *STILLS))
    assert {path.name for path in PICTURES.iterdir()} == {MOVING, *STILLS}


@pytest.mark.parametrize("name", [MOVING, *STILLS])
def test_a_picture_says_rehearsal_and_loads_nothing_from_elsewhere(name: str) -> None:
    drawn = (PICTURES / name).read_text(encoding="utf-8")
    assert drawn.count("rehearsal") > 1  # in its title and on the screen itself
    assert re.findall(r"https?://[^\"' ]+", drawn) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"<script|<image|url\(|@import|@font-face|href=\"[^#]", drawn)
    assert len(drawn.encode()) < 600_000


def test_the_moving_picture_has_several_frames_that_take_turns() -> None:
    drawn = (PICTURES / MOVING).read_text(encoding="utf-8")
    frames = re.findall(r'<g class="f (f\d+)">', drawn)
    assert len(frames) >= 6
    assert all(f"@keyframes k{at}{{" in drawn for at in range(len(frames)))
    # Where nothing moves, the first one is seen.
    assert ".f{visibility:hidden}.f0{visibility:visible}" in drawn
