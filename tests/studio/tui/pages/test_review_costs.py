"""What a key of the review page costs where hundreds of operations wait: counts, no times."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.color import ColorSystem

from studio.tui.pages.review import view
from tests.studio.tui.pages.test_review import a_desk, an_add
from tests.studio.tui.terminal.test_frames import Drawn

MOST = {"j": 2_000, "a": 3_000}
"""Bytes that a key may send, in the terminal's own colours."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often was made what concerns the whole list, or one operation."""
    counted: Counter[str] = Counter()

    def count(owner: Any, name: str) -> None:
        made = getattr(owner, name)

        def wrapped(*given: Any, **named: Any) -> Any:
            counted[name] += 1
            return made(*given, **named)

        monkeypatch.setattr(owner, name, wrapped)

    for owner, name in (
        (view, "items"), (view, "_wrapped_row"), (view, "make_item"), (view, "change_lines"),
    ):  # fmt: skip
        count(owner, name)
    return counted


async def test_a_key_draws_one_operation_however_many_there_are(
    tmp_path: Path, calls: Counter[str]
) -> None:
    operations = [an_add(n, f"When case {n} comes up, try way {n * 7} of it.") for n in range(300)]
    async with a_desk(tmp_path, *operations) as desk:
        desk.app.theme = "studio-ansi"
        desk.app.console._color_system = ColorSystem.STANDARD
        await desk.press("j", "k")
        drawn = Drawn(desk.app, 120, 36)
        drawn.paint_all()
        for key, wanted in (  # twice: once more when its evidence was read
            ("j", {"change_lines": 2}),
            ("a", {"items": 1, "_wrapped_row": 1, "make_item": 301, "change_lines": 2}),
        ):
            calls.clear()
            before = drawn.sent
            await desk.press(key)
            assert dict(calls) == wanted, key
            assert 0 < drawn.sent - before <= MOST[key]
        assert desk.page.queue.item is not None and desk.page.queue.item.id == "op1.2"
