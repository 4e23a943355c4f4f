"""A review in lines that hears nothing more ends in words, and does not ask the disk for ever."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from engines.core.errors import DamagedError
from studio.review.review_run import LoopThread, RunReview
from studio.session.session import Message, Session


class Deaf:
    """A session whose first message cannot be read."""

    run = SimpleNamespace(run="mine", path=Path("mine"))
    living = True

    async def messages(self) -> AsyncIterator[Message]:
        raise DamagedError("journal.jsonl:5", "this line fails its checksum.", "Restore it.")
        yield  # as an iterator


def test_waiting_ends_with_what_the_listening_failed_of() -> None:
    with LoopThread() as loop:
        said: list[str] = []
        review = RunReview(cast(Session, Deaf()), loop.run, True, said.append, said.append)
        loop.run(review.start_listening())
        with pytest.raises(DamagedError, match="checksum"):
            loop.run(review.wait_for_change())
