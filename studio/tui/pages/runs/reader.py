"""The runs of a workspace for the pages that list them, read in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from engines.core.errors import StudioError
from studio.tui.page import Page

if TYPE_CHECKING:
    from studio.workspace.listing import KnownRun

AGAIN_S = 3.0
"""Between two looks at the workspace while the page is open."""


class RunsReader:
    """One look at a time, after which `show` is called; what was there stays until then."""

    def __init__(self, page: Page, show: Callable[[], None]) -> None:
        self._page, self._show = page, show
        self.runs: tuple[KnownRun, ...] | None = None  # None: not read yet
        self.trouble = ""
        self._is_reading = False
        self._due_at = 0.0  # by the clock of the screen

    def poll(self) -> None:
        """Look again while the page is open, since runs go on, also of other processes."""
        if self._page.is_open and self._page.host.clock() >= self._due_at:
            self.reload()

    def reload(self) -> None:
        self._page.run_worker(self.read(), group="runs")

    async def read(self) -> None:
        from studio.workspace.listing import known_runs

        if self._is_reading:
            return
        host = self._page.host
        self._is_reading, began = True, host.clock()
        try:
            self.runs = await asyncio.to_thread(known_runs, host.workspace)
            self.trouble = ""
        except (StudioError, OSError) as error:
            self.trouble = str(error)
        finally:
            self._is_reading = False
        # A workspace that takes long to read is read for a tenth of the time at most.
        self._due_at = host.clock() + max(AGAIN_S, 10 * (host.clock() - began))
        if self._page.children:  # else the screen was left meanwhile
            self._show()
