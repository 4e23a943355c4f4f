"""The hold of a commit: a person looks once more at a decided lesson before it is committed.

Nothing of it is journalled: whoever holds must be there.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from engines.core import events as ev
from engines.pipeline.gate.draft import Draft
from engines.pipeline.recorder import Recorder


class CommitHold:
    """Holds each lesson that a person reviews, until it is released.

    A lesson without operations is never held, nor one that was decided without any person.
    """

    def __init__(self, recorder: Recorder, draft: Draft) -> None:
        self._recorder = recorder
        self._draft = draft
        self._wanted = False
        self._released = False  # this lesson may be committed once nothing is undecided
        self._changed = asyncio.Event()  # something was decided, undone, held or released
        self._waiting: list[asyncio.Future[str]] = []  # of whoever asked for the commit

    def set(self, wanted: bool) -> None:
        """Hold lessons from now on, or release the one under review and hold none.

        A released lesson is committed as soon as nothing of it is undecided, also where the hold
        begins again at once; where something still is undecided, it is held again.
        """
        self._wanted = wanted
        if not wanted:
            self._released = True
        elif self._recorder.state.undecided_operations:
            self._released = False  # who comes back decides the rest, and when it is committed
        self._changed.set()

    def release_once(self) -> asyncio.Future[str]:
        """Release the lesson under review, where all is decided; the next one is held again.

        The future tells why it was not committed; "" once it is.
        """
        self._released = not self._recorder.state.undecided_operations
        self._changed.set()
        self._waiting.append(asyncio.get_running_loop().create_future())
        return self._waiting[-1]

    def finish(self, why_not: str) -> None:
        """Tell everyone who asked for the commit what came of it; "" where it is made."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(why_not)
        self._waiting.clear()

    def cancel_release(self) -> None:
        self._released = False

    def notify(self) -> None:
        """Something was decided or undone."""
        self._changed.set()

    async def wait_for_release(self, step: int) -> bool:
        """Wait while the commit is held; False where something was taken back meanwhile."""
        last_counts: dict[str, int] = {}
        while self._wanted and not self._released:
            if self._recorder.state.undecided_operations:
                return False
            if (counts := self._count_decisions()) != last_counts:
                self._recorder.emit(ev.StageEntered(step, "ready", counts))
                last_counts = counts
            self._changed.clear()
            await self._changed.wait()
        return not self._recorder.state.undecided_operations

    def _count_decisions(self) -> dict[str, int]:
        """How many decisions of each kind stand, and the version that they would make."""
        made = Counter(one.action for one in self._recorder.state.decisions.values())
        return {
            "approved": made["approve"],
            "edited": made["edit"],
            "rejected": made["reject"],
            "deferred": made["defer"],
            "version": self._draft.preview_commit().library.version,
        }
