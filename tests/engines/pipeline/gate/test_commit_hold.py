"""The hold of a commit: who takes a decision back is not done with the lesson."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engines.pipeline.reviewers import HumanReviewer
from tests.engines.pipeline.gate.test_gate import ADD, MORE, Desk


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    made = Desk(tmp_path, "one", "two")
    yield made
    await made.journal.aclose()


async def test_an_undo_takes_back_the_release_of_the_lesson(desk: Desk) -> None:
    await desk.propose(ADD, MORE)
    gate = desk.opened(HumanReviewer())
    gate.hold.set(True)
    review = asyncio.create_task(gate.review(1))
    await asyncio.sleep(0)
    await desk.decide(ADD)
    gate.hold.set(False)  # released, with one operation open
    await gate.undo(ADD.id)
    await desk.decide(MORE)
    await desk.decide(ADD)
    gate.hold.set(True)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not review.done(), "it was released before the undo, not since"
    gate.hold.release_once()
    await review
