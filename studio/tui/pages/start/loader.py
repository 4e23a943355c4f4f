"""What the start page finds out in threads: what a run file says, and what checks of it say."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable
from typing import TypeVar

from engines.core.errors import StudioError
from studio.tui.page import Page
from studio.tui.pages.start import checks
from studio.tui.pages.start.checks import CheckReport, RunFacts
from studio.tui.pages.start.view import Choice

_T = TypeVar("_T")
_Asked = tuple[str, str]  # what is chosen and the overrides it has


class FactsLoader:
    """Keeps what was found out, by the choice and its overrides."""

    def __init__(self, page: Page, draw: Callable[[], None]) -> None:
        self._page, self._draw = page, draw
        self.overrides: dict[str, str] = {}  # by key of a choice, as typed
        self.facts: dict[_Asked, RunFacts | str] = {}  # a text says why there are none
        self.checked: dict[_Asked, CheckReport | str] = {}
        self.busy = ""  # what is being found out
        # Of run files: Hydra's state is one for all threads.
        self._one_at_a_time = asyncio.Lock()

    def forget(self) -> None:
        self.facts.clear()
        self.checked.clear()

    def overrides_of(self, choice: Choice) -> str:
        return self.overrides.get(choice.key, "")

    def key(self, choice: Choice) -> _Asked:
        return choice.key, self.overrides_of(choice)

    def known_facts(self, choice: Choice) -> RunFacts | str | None:
        return self.facts.get(self.key(choice))

    def known_checks(self, choice: Choice) -> CheckReport | str | None:
        return self.checked.get(self.key(choice))

    async def load_facts(self, choice: Choice) -> RunFacts | None:
        found = await self._load(self.facts, "reading it ...", checks.load_facts, choice)
        return found if isinstance(found, RunFacts) else None

    async def load_checks(self, choice: Choice) -> CheckReport | None:
        found = await self._load(self.checked, "checking ...", checks.run_checks, choice)
        return found if isinstance(found, CheckReport) else None

    async def _load(
        self, known: dict[_Asked, _T | str], doing: str, what: Callable[..., _T], choice: Choice
    ) -> _T | str:
        """What a thread finds out, or why it could not."""
        from studio.config.source import Source

        asked = self.key(choice)
        if asked in known:
            return known[asked]
        async with self._one_at_a_time:
            self.busy = doing
            self._draw()
            try:
                words = tuple(shlex.split(self.overrides_of(choice)))
                source, workspace = Source(words, choice.argument), self._page.host.workspace
                if choice.do != "new":
                    source = Source(words, resume=choice.argument)
                known[asked] = await asyncio.to_thread(what, workspace, source)
            except (StudioError, OSError) as error:
                known[asked] = str(error)
            finally:
                self.busy = ""
                self._page.call_later(self._draw)
        return known[asked]
