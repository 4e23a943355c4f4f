"""What the problems of the live page ask: told by the run's process, else found in its records."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from engines.core.types import RecordRef
from studio.secrets.sanitize import one_line
from studio.session.base import Session
from studio.tui.page import Page

_Refs = Mapping[str, Sequence[RecordRef]]  # problem → where a try at it is recorded, if one is
_MOST_CHARS = 4_000


class Questions:
    """The questions of one run by the ids of their problems."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.known: dict[str, str] = {}  # on one line each
        self._session: Session | None = None  # that was asked: another one may know
        self._tried: set[tuple[str, bool]] = set()  # problem, and whether it was in the records

    def load(self, wanted: _Refs) -> None:
        """Find out about those that are not known, unless that was tried."""
        if self._page.session is not self._session:
            self._session = self._page.session
            self._tried.clear()
        unknown = wanted.keys() - self.known.keys()
        new = {
            name: wanted[name] for name in unknown if (name, bool(wanted[name])) not in self._tried
        }
        if new and self._page.session is not None:
            self._tried |= {(name, bool(refs)) for name, refs in new.items()}
            self._page.run_worker(self._load(new), group="questions")

    async def _load(self, new: _Refs) -> None:
        session = self._page.session
        if session is None:
            return
        found = await session.questions(new) if session.living else {}
        left = {name: refs for name, refs in new.items() if refs and name not in found}
        if left:
            found |= await asyncio.to_thread(load_questions, session.run.records, left)
        if session is self._page.session and self._page.is_attached:
            self.known |= {name: one_line(text, _MOST_CHARS) for name, text in found.items()}
            self._page.host.redraw_soon()


def load_questions(folder: Path, refs: _Refs) -> dict[str, str]:
    """What the first turns of these tries asked, as far as their records can be read. Blocks."""
    from engines.core.errors import StudioError
    from engines.record.ledger import read_trajectory

    found: dict[str, str] = {}
    for name, of_one in refs.items():
        try:
            messages = read_trajectory(folder, of_one)
        except StudioError:
            continue  # its pane says so
        if asked := next((m.content for m in messages if m.role == "user"), ""):
            found[name] = asked
    return found
