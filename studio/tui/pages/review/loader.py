"""What has to be read for a review: evidence, the library, whole replies.

Reads block, so they go to a thread, one at a time. What was found is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from textual.worker import Worker

from engines.core.errors import StudioError
from engines.core.library import Library
from engines.core.text.similarity import Change, word_diff
from engines.core.types import Operation, UnparsedReply
from engines.record.run_dir import RunDir, Workspace
from studio.review.wording import Near, find_similar
from studio.tui.page import Page

if TYPE_CHECKING:
    from studio.review.evidence import EvidenceLoader, GroupEvidence

_KEPT = 400
"""Operations whose evidence is kept; more of them are read again."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found for one operation. `trouble` says why some of it could not be read."""

    groups: tuple[GroupEvidence, ...] = ()
    near: tuple[Near, ...] = ()
    changes: tuple[Change, ...] | None = None  # of a long text; None: it is short
    answers: Mapping[str, str] = field(default_factory=dict)  # by rollout id, once opened
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class FindingsRequest:
    """What is to be found: one operation against the library as it stands."""

    operation: Operation
    texts: Mapping[str, str]
    stamp: int  # changes when the texts do
    before: str = ""
    after: str = ""
    long: bool = False  # the difference of before and after is to be made
    opened: bool = False  # whole replies are wanted

    @property
    def key(self) -> tuple[str, str, int, bool]:
        return (self.operation.id, self.after, self.stamp, self.opened)


class RunReader:
    """Blocking reads about one run, for a thread; StudioError where it is gone or damaged."""

    def __init__(self, workspace: Workspace, run: RunDir) -> None:
        self._workspace, self._run = workspace, run
        self._load_groups = lru_cache(_KEPT)(lambda op: self._evidence.operation_groups(op))
        self._known: dict[tuple[str, str, int, bool], Findings] = {}

    @cached_property
    def _evidence(self) -> EvidenceLoader:
        from studio.review.evidence import EvidenceLoader

        return EvidenceLoader(self._run)

    def cached_findings(self, wanted: FindingsRequest) -> Findings | None:
        """What was found before; reads nothing."""
        return self._known.get(wanted.key)

    def load_library(self, name: str, version: int) -> Library:
        return self._workspace.library(name).at(version)

    def load_findings(self, wanted: FindingsRequest) -> Findings:
        """Read it; an error is told in the findings."""
        trouble = ""
        groups: tuple[GroupEvidence, ...] = ()
        answers: dict[str, str] = {}
        try:
            groups = self._load_groups(wanted.operation)
            if wanted.opened:
                answers = self._load_answers(groups)
        except StudioError as error:
            trouble = str(error)
        except OSError as error:
            trouble = f"{self._run.path}: {error.strerror or error}"
        wording, target = wanted.after or wanted.before, wanted.operation.target
        others = [(name, text) for name, text in wanted.texts.items() if name != target]
        near = find_similar(wording, others) if wanted.operation.kind != "weights" else ()
        changes = word_diff(wanted.before, wanted.after) if wanted.long else None
        found = Findings(groups, near, changes, answers, trouble)
        self._known[wanted.key] = found
        if len(self._known) > _KEPT:
            del self._known[next(iter(self._known))]
        return found

    def load_reply(self, repair: UnparsedReply) -> str:
        """The whole of a reply that waits to be mended."""
        return self._evidence.reply_source(repair).reply

    def _load_answers(self, groups: tuple[GroupEvidence, ...]) -> dict[str, str]:
        out = {}
        for witness in (witness for group in groups for witness in group.witnesses):
            try:
                messages = self._evidence.messages(witness)
            except StudioError:
                continue  # one lost record; its last words are in the journal
            said = [m.content for m in messages if m.role == "assistant"]
            out[witness.id] = said[-1] if said else ""
        return out


class ReviewLoader:
    """Reads in the background what the page shows, and has it drawn once it is there."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._worker: Worker[None] | None = None
        self.reset()

    def reset(self, reader: RunReader | None = None) -> None:
        """Another run is shown, or none."""
        self.reader = reader
        self.base: Library | None = None  # that the standing decisions are about
        self.trouble = ""  # why the library cannot be read
        self.found: Findings | None = None  # for the operation under the cursor
        self._base_key: tuple[str, int, int] | None = None
        self._wanted: FindingsRequest | None = None

    @property
    def knows_base(self) -> bool:
        """Whether the library was read, or cannot be."""
        return self.base is not None or bool(self.trouble)

    @property
    def _wanted_base(self) -> tuple[str, int, int] | None:
        """Name and version of the library, and how many steps had counted uses of it."""
        state = self._page.state
        if state is None or state.started is None:
            return None
        credited = state.current.credited if state.current is not None else 0
        return state.started.library, state.base_version, credited

    def request_base(self) -> None:
        """Have the library read, where it is not the one that is known."""
        wanted = self._wanted_base
        if self.reader is not None and wanted is not None and wanted != self._base_key:
            self._start_reading()

    def request_findings(self, wanted: FindingsRequest | None) -> None:
        """Have `found` be what is wanted; at once where it is known."""
        if wanted is None or self.reader is None:
            self._wanted = self.found = None
            return
        before, self._wanted = self._wanted, wanted
        found = self.reader.cached_findings(wanted)
        if found is None:
            self._start_reading()
            if before is not None and before.operation.id == wanted.operation.id:
                found = self.found  # until it has been read again
        self.found = found

    async def load_reply(self, unparsed: UnparsedReply) -> str | None:
        """The whole of a reply that waits to be mended; None where no run is shown.

        Raises StudioError: the run's journal or records cannot be read.
        """
        if self.reader is None:
            return None
        return await asyncio.to_thread(self.reader.load_reply, unparsed)

    def _start_reading(self) -> None:
        if self._worker is None or self._worker.is_finished:
            self._worker = self._page.run_worker(self._read_pending(), group="load")

    async def wait(self) -> None:
        """Wait until nothing is left to be read for what is shown."""
        while self._worker is not None and not self._worker.is_finished:
            await self._worker.wait()

    async def _read_pending(self) -> None:
        """The library first, then what the cursor stands on by then; one at a time."""
        page = self._page
        while (reader := self.reader) is not None and page.is_attached:
            if (key := self._wanted_base) is None:
                return
            if key != self._base_key:
                trouble, base = "", None
                try:
                    base = await asyncio.to_thread(reader.load_library, *key[:2])
                except (StudioError, OSError) as error:
                    trouble = str(error)
                if reader is not self.reader:
                    continue  # another run was opened meanwhile
                self.base, self._base_key, self.trouble = base, key, trouble
            elif self._wanted is not None and reader.cached_findings(self._wanted) is None:
                await asyncio.to_thread(reader.load_findings, self._wanted)
                if reader is not self.reader:
                    continue
            else:
                return
            if page.is_open:
                page.draw()
