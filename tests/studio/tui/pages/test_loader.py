"""The loader of the pages: what was asked for last is what is shown, and trouble loses nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, cast

from engines.core.errors import RecordError
from studio.tui.page import Page
from studio.tui.pages.lists import Loader


class Work:
    """A worker as a page has one."""

    def __init__(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.ensure_future(work)

    @property
    def is_finished(self) -> bool:
        return self._task.done()

    async def wait(self) -> None:
        await self._task


class FakePage:
    is_attached, children = True, ("a pane",)

    def run_worker(self, work: Coroutine[Any, Any, None], *, group: str) -> Work:
        return Work(work)


async def test_what_was_asked_for_last_is_shown_whatever_was_being_read() -> None:
    go_on, shown = threading.Event(), list[str | None]()

    def read(key: str) -> str:
        if key == "first":
            go_on.wait(60)
        return key.upper()

    loader = Loader[str, str](cast(Page, FakePage()), read, lambda: shown.append(loader.value))
    loader.request("first")
    await asyncio.sleep(0)
    loader.request("second")
    go_on.set()
    await loader.wait()
    assert shown == ["SECOND"] and (loader.key, loader.is_reading) == ("second", False)
    loader.request("second")
    await loader.wait()
    assert shown == ["SECOND"]
    loader.request("second", again=True)
    await loader.wait()
    assert shown == ["SECOND", "SECOND"]


async def test_what_was_there_stays_where_the_next_thing_cannot_be_read() -> None:
    def read(key: str) -> str:
        if key == "lost":
            raise RecordError("lost", "it is gone.", "Look elsewhere.")
        return key

    loader = Loader[str, str](cast(Page, FakePage()), read, lambda: None)
    loader.request("there")
    await loader.wait()
    loader.request("lost")
    await loader.wait()
    assert (loader.value, loader.key, loader.wanted) == ("there", "there", "lost")
    assert loader.trouble == "lost: it is gone. Look elsewhere."
    loader.request("there")
    await loader.wait()
    assert loader.trouble == ""
    loader.forget()
    assert (loader.value, loader.wanted) == (None, None)
