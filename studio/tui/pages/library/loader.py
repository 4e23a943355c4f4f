"""Reading what the library page shows: versions, citations, the libraries of a workspace.

The functions block; `LibraryLoader` calls them in threads, and has the page drawn.
"""

import asyncio
from collections.abc import Mapping
from functools import partial

from engines.core.errors import RecordError, StudioError
from engines.core.events import LessonCommitted, LessonProposed, LessonReturned, StepFinished
from engines.core.library import Library
from engines.record.libraries import LibraryFolder, version_path
from engines.record.run_dir import Workspace
from studio.facts.library import ListedLibrary, history_facts, listed_library
from studio.library.citations import Citation, Citations
from studio.review.wording import Near, find_similar
from studio.session.session import EventReceived, Message, Session, SnapshotReceived
from studio.tui.page import Page, write_export
from studio.tui.pages.library.view import History, Item

_MOVES_THE_HEAD = LessonCommitted | LessonReturned
_BRINGS_USES = StepFinished | LessonProposed | LessonCommitted
_MOST_COMPARED = 2_000
"""Experiences whose likes are kept."""


def list_libraries(workspace: Workspace) -> tuple[ListedLibrary, ...]:
    """Return every library of a workspace; one that cannot be read says why."""
    listed = []
    for folder in workspace.libraries():
        try:
            listed.append(listed_library(folder))
        except StudioError as error:
            listed.append(ListedLibrary(folder.name, trouble=str(error)))
    return tuple(listed)


def export_library(workspace: Workspace, folder: LibraryFolder, library: Library) -> str:
    """Copy a version's file into `exports/` of the workspace; returns the path.

    Raises RecordError: it cannot be written, or the version's own file is not there.
    """
    source = version_path(folder.path, library.version)
    try:
        data = source.read_bytes()
    except OSError as error:
        raise RecordError(
            str(source), f"it could not be copied: {error.strerror}.", "Look at `studio doctor`."
        ) from error
    return write_export(workspace, f"{folder.name}-v{library.version:04d}.yaml", data)


class LibraryLoader:
    """What is known of one library, or of those of the workspace where no run is open."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.folder: LibraryFolder | None = None
        self.history: History = ()
        self.labels: Mapping[str, int] = {}
        self.trouble = ""
        self.libraries: tuple[ListedLibrary, ...] | None = None  # None: not read yet
        self.citations: Citations | None = None
        self.uses: Mapping[str, tuple[Citation, ...]] = {}
        self.commits: list[str] | None = None  # of the next; None: not read
        self.commits_of = ""
        self.is_due = self._count_due = True
        self._name = ""  # of the library that is shown
        self._is_reading = self._is_counting = False
        self._similar: dict[tuple[str, str], tuple[Near, ...]] = {}
        self._comparing: tuple[str, str] | None = None  # what is compared with the others now

    def handle_message(self, message: Message) -> None:
        """Note what is to be read again once it can be seen."""
        if isinstance(message, SnapshotReceived):
            self.mark_due()
        elif isinstance(message, EventReceived):
            self.is_due |= isinstance(message.event, _MOVES_THE_HEAD)
            self._count_due |= isinstance(message.event, _BRINGS_USES)

    def mark_due(self) -> None:
        self.is_due = self._count_due = True

    def shows_other_than(self, name: str) -> bool:
        """Whether what is known is of another library; then forgets it."""
        if self.folder is None or self.folder.name == name:
            return False
        self.folder, self.history, self.trouble = None, (), ""
        self.uses, self.citations = {}, None
        self.mark_due()
        return True

    def reload_if_due(self, name: str) -> None:
        """Read again what has changed of a library; for "", list those there are, without a run."""
        page, session = self._page, self._page.session
        self._name = name
        if self.is_due and not self._is_reading:
            self.is_due = False
            if name:
                self._is_reading = True
                page.run_exclusive("library", partial(self._read, name))
            elif session is None:
                page.run_exclusive("libraries", self._list)
        if self._count_due and not self._is_counting and session is not None and self.history:
            self._count_due, self._is_counting = False, True
            page.run_exclusive("citations", partial(self._count_citations, session))

    async def _read(self, name: str) -> None:
        folder = self.folder or self._page.host.workspace.library(name)
        try:
            history = await asyncio.to_thread(folder.history)
            labels = await asyncio.to_thread(folder.labels)
        except StudioError as error:
            self.trouble = str(error)
        else:
            if name == self._name:  # else another run was opened meanwhile
                self.folder, self.history, self.trouble = folder, history, ""
                self.labels = labels
        finally:
            self._is_reading = False
        self._page.draw_if_open()

    async def _list(self) -> None:
        try:
            self.libraries = await asyncio.to_thread(list_libraries, self._page.host.workspace)
        except StudioError as error:
            self.trouble = str(error)
        self._page.draw_if_open()

    async def _count_citations(self, session: Session) -> None:
        citations = self.citations or Citations(session.run)
        try:
            await asyncio.to_thread(citations.refresh)
        except StudioError as error:
            self._page.host.tell(f"uses could not be counted: {error}", "failed")
        finally:
            self._is_counting = False
        if session is self._page.session:
            self.citations = citations
            names = {e.id for library, _ in self.history for e in library.experiences}
            self.uses = citations.by_experience(names)
            self._page.draw_if_open()

    def similar(self, library: Library, one: Item) -> tuple[Near, ...] | None:
        """Experiences most like this one; None: they are being looked for."""
        key = (library.content_hash, one.id)
        if key not in self._similar and key != self._comparing:
            self._comparing = key
            self._page.run_exclusive("near", partial(self._find_similar, library, one))
        return self._similar.get(key)

    async def _find_similar(self, library: Library, one: Item) -> None:
        others = [(e.id, e.text) for e in library.experiences if e.id != one.id]
        found = await asyncio.to_thread(find_similar, one.text, others)
        if len(self._similar) > _MOST_COMPARED:
            self._similar.clear()
        self._similar[library.content_hash, one.id] = found
        self._comparing = None
        self._page.draw_if_open()

    def request_commits(self, name: str) -> None:
        """Have the commits read that concern one experience."""
        self.commits, self.commits_of = None, name
        if self.folder is not None:
            self._page.run_exclusive("history", partial(self._read_commits, self.folder, name))

    async def _read_commits(self, folder: LibraryFolder, name: str) -> None:
        from studio.render.library_lines import history_lines

        try:
            entries = await asyncio.to_thread(history_facts, folder, name)
            self.commits = history_lines(entries, rejections=False)
        except StudioError as error:
            self.commits = [str(error)]
        self._page.draw_if_open()
