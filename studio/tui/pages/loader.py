"""Reads what a page shows: in a thread, the last thing asked for alone, and then it is drawn."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from textual.worker import Worker

from engines.core.errors import StudioError
from studio.tui.page import Page

K = TypeVar("K")
V = TypeVar("V")


class Loader(Generic[K, V]):
    """Keeps what was read last while something else is read, or cannot be.

    `read` blocks and is called in a thread; `show` is called once it is done, if the screen is
    still there.
    """

    def __init__(
        self, page: Page, read: Callable[[K], V], show: Callable[[], None] | None = None
    ) -> None:
        self._page, self._read = page, read
        self._show = show
        self._worker: Worker[None] | None = None
        self.forget()

    def forget(self) -> None:
        """Nothing that was read, or is being read, is of what is shown now."""
        self.value: V | None = None
        self.key: K | None = None  # what `value` was read for
        self.wanted: K | None = None  # what was asked for last
        self.trouble = ""  # why that could not be read
        self._is_due = self.is_reading = False

    def request(self, key: K, *, again: bool = False) -> None:
        """Have this read, unless it was the last thing asked for; `again`: also then."""
        if again or key != self.wanted:
            self.wanted, self._is_due, self.is_reading = key, True, True
            if self._worker is None or self._worker.is_finished:
                self._worker = self._page.run_worker(self._read_wanted(), group="load")

    async def wait(self) -> None:
        """Wait until nothing is left to be read."""
        while self._worker is not None and not self._worker.is_finished:
            await self._worker.wait()

    async def _read_wanted(self) -> None:
        while self._is_due and (key := self.wanted) is not None:
            self._is_due = False
            trouble = ""
            try:
                value = await asyncio.to_thread(self._read, key)
            except StudioError as error:
                trouble = str(error)
            except OSError as error:
                trouble = f"{error.filename}: {error.strerror or error}"
            if key != self.wanted:
                continue  # something else is asked for by now
            self.trouble, self.is_reading = trouble, self._is_due
            if not trouble:
                self.value, self.key = value, key
            if self._page.is_attached and self._page.children:
                (self._show or self._page.draw_if_open)()
