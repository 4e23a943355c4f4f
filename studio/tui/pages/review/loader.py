"""Reads in the background for a review: evidence, the library, whole replies.

Reads block, so they go to a thread, one at a time, and have the page drawn once they are done.
What was found is kept.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from textual.worker import Worker

from engines.core.errors import StudioError
from engines.core.library import Library
from engines.core.library_notes import NO_MARK, NotesMark
from engines.core.text.similarity import Change, word_diff
from engines.core.types import Operation, UnparsedReply
from studio.review.wording import Near, find_similar
from studio.session.session import Session
from studio.tui.page import Page

if TYPE_CHECKING:
    from studio.review.evidence import EvidenceLoader, GroupEvidence

_KEPT = 400
"""Operations whose evidence is kept; more of them are read again."""
_Key = tuple[str, str, int, bool]


@dataclass(frozen=True, slots=True)
class Findings:
    """The findings about one operation. `trouble` says why some of it could not be read."""

    groups: "tuple[GroupEvidence, ...]" = ()
    near: tuple[Near, ...] = ()
    changes: tuple[Change, ...] | None = None  # of a long text; None: it is short
    answers: Mapping[str, str] = field(default_factory=dict)  # by rollout id, once opened
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class FindingsRequest:
    """One operation, to be looked at against the library as it stands."""

    operation: Operation
    texts: Mapping[str, str]
    stamp: int  # changes when the texts do
    before: str = ""
    after: str = ""
    long: bool = False  # the difference of before and after is to be made
    opened: bool = False  # whole replies are wanted

    @property
    def key(self) -> _Key:
        return (self.operation.id, self.after, self.stamp, self.opened)


class ReviewLoader:
    """Reads about the run that the page shows."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._worker: Worker[None] | None = None
        self.reset(None)

    def reset(self, session: Session | None) -> None:
        """Another run is shown, or none."""
        self._session = session
        self.base: Library | None = None  # that the standing decisions are about
        self.trouble = ""  # why the library cannot be read
        self.found: Findings | None = None  # for the operation under the cursor
        self._base_key: tuple[str, int, NotesMark] | None = None
        self._wanted: FindingsRequest | None = None
        self._known: dict[_Key, Findings] = {}
        self._evidence: EvidenceLoader | None = None
        self._load_groups = lru_cache(_KEPT)(
            lambda operation: self._open_evidence().operation_groups(operation)
        )

    @property
    def knows_base(self) -> bool:
        """Whether the library was read, or cannot be."""
        return self.base is not None or bool(self.trouble)

    @property
    def _wanted_base(self) -> tuple[str, int, NotesMark] | None:
        """Name and version of the library, and how far its notes had come."""
        state = self._page.state
        if self._session is None or state is None or state.started is None:
            return None
        mark = state.current.notes if state.current is not None else NO_MARK
        return state.started.library, state.base_version, mark

    def request_base(self) -> None:
        """Have the library read, where it is not the one that is known."""
        if self._wanted_base not in (None, self._base_key):
            self._start_reading()

    def request_findings(self, wanted: FindingsRequest | None) -> None:
        """Have `found` be what is wanted; at once where it is known."""
        before, self._wanted = self._wanted, wanted
        if wanted is None:
            self.found = None
            return
        found = self._known.get(wanted.key)
        if found is None:
            self._start_reading()
            if before is not None and before.operation.id == wanted.operation.id:
                found = self.found  # until it has been read again
        self.found = found

    async def load_reply(self, unparsed: UnparsedReply) -> str | None:
        """Return the whole of a reply that waits to be mended; None where no run is shown.

        Raises StudioError: the run's journal or records cannot be read.
        """
        if self._session is None:
            return None
        source = await asyncio.to_thread(self._open_evidence().reply_source, unparsed)
        return source.reply

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
        while (session := self._session) is not None and page.is_attached:
            if (key := self._wanted_base) is None:
                return
            wanted = self._wanted
            if key != self._base_key:
                trouble, base = "", None
                try:
                    folder = page.host.workspace.library(key[0])
                    base = await asyncio.to_thread(folder.at, key[1])
                except (StudioError, OSError) as error:
                    trouble = str(error)
                if session is self._session:  # else another run was opened meanwhile
                    self.base, self._base_key, self.trouble = base, key, trouble
            elif wanted is not None and wanted.key not in self._known:
                findings = await asyncio.to_thread(self.load_findings, wanted)
                if session is self._session:
                    self._known[wanted.key] = findings
                    if len(self._known) > _KEPT:
                        del self._known[next(iter(self._known))]
            else:
                return
            if session is self._session and page.is_open:
                page.draw()

    # -- in a thread -------------------------------------------------------------------------

    def _open_evidence(self) -> "EvidenceLoader":
        if self._evidence is None:
            from studio.review.evidence import EvidenceLoader

            assert self._session is not None
            self._evidence = EvidenceLoader(self._session.run)
        return self._evidence

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
            trouble = f"{error.filename}: {error.strerror or error}"
        wording, target = wanted.after or wanted.before, wanted.operation.target
        others = [(name, text) for name, text in wanted.texts.items() if name != target]
        near = find_similar(wording, others) if wanted.operation.kind != "weights" else ()
        changes = word_diff(wanted.before, wanted.after) if wanted.long else None
        return Findings(groups, near, changes, answers, trouble)

    def _load_answers(self, groups: "tuple[GroupEvidence, ...]") -> dict[str, str]:
        answers = {}
        for witness in (witness for group in groups for witness in group.witnesses):
            try:
                messages = self._open_evidence().messages(witness)
            except StudioError:
                continue  # one lost record; its last words are in the journal
            replies = [m.content for m in messages if m.role == "assistant"]
            answers[witness.id] = replies[-1] if replies else ""
        return answers
