"""Waiting until a page has read what it reads in threads."""

from __future__ import annotations

import asyncio
from typing import Any

from textual.pilot import Pilot

GROUPS = frozenset({"runs", "start", "facts", "check", "set", "inspect", "truths", "export"})


async def has_read(pilot: Pilot[Any], *but: str) -> None:
    """Until no worker reads any more; `but` names groups that wait for a person."""
    await pilot.pause()
    while reading := [
        worker
        for worker in pilot.app.workers
        if worker.group in GROUPS - set(but) and not worker.is_finished
    ]:
        await asyncio.gather(*(worker.wait() for worker in reading), return_exceptions=True)
        await pilot.pause()
    await pilot.pause()
