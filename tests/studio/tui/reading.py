"""Waiting until a page has read what it reads in threads."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from textual.app import App
from textual.pilot import Pilot

GROUPS = frozenset(
    {"load", "runs", "start", "facts", "check", "set", "inspect", "truths", "export"}
)


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


async def wait_for_loads(app: App[Any]) -> None:
    """Until no loader of a page reads any more."""
    while loads := [one for one in app.workers if one.group == "load" and not one.is_finished]:
        await asyncio.gather(*(one.wait() for one in loads), return_exceptions=True)


def make_unreadable(folder: Path) -> None:
    """Put what nobody can read in the place of a folder: its modes would not stop root."""
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("x" * 300)  # a longer name than any file can have
