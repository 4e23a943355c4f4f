"""Where decisions are made: at a living run's socket, or alone with its lock.

Owns the difference between the two, so that whoever asks a person need not know it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from engines.core.codec import from_dict
from engines.core.errors import ConflictError, LockedError
from engines.core.library import Library
from engines.core.reply import MAX_REPLY_CHARS
from engines.core.state import RunState, fold
from engines.core.types import Decision, Operation, Repair
from engines.pipeline.gate import Gate
from engines.pipeline.recorder import Recorder
from engines.record.catalogue import note_library, note_run
from engines.record.export import refresh_agent
from engines.record.journal import Journal
from engines.record.lock import writing
from engines.record.run_dir import RunDir, Workspace
from engines.training_free.mend import Mended, too_long
from studio import link
from studio.late_linter import LateLinter
from studio.mending import mend


@dataclass(frozen=True, slots=True)
class Sheet:
    """What lies on the desk: open operations, standing decisions, the draft's texts.

    `repairs` wait to be mended; of their replies they hold no more than a list shows, and
    `studio.mending.behind` has the whole.
    """

    open: tuple[Operation, ...]
    decided: tuple[Decision, ...]
    draft: tuple[tuple[str, str], ...]
    stale: int | None = None  # the version the library had moved to under the lesson
    repairs: tuple[Repair, ...] = ()


class Desk(Protocol):
    def sheet(self) -> Sheet: ...

    def decide(self, decision: Decision) -> tuple[Decision, str]:
        """Journal a decision; returns it as journalled and the gate's note."""
        ...

    def undo(self, operation_id: str) -> tuple[str, ...]:
        """Take a decision back; returns the operations asked again."""
        ...

    def mend(self, repair_id: str, text: str, reviewer: str) -> Mended:
        """Resubmit a reply as it was mended; what it holds is open from then on."""
        ...

    def drop(self, repair_id: str, reason: str, reviewer: str) -> None:
        """Let a reply go that nobody can understand."""
        ...

    def close(self) -> str:
        """Leave in good order; returns what happened in words, or ""."""
        ...


@contextmanager
def desk_of(
    workspace: Workspace, run: RunDir, tell: Callable[[str], None] = lambda _: None
) -> Iterator[Desk]:
    """The desk of a run: its process's where one lives, else our own under its lock.

    `tell` hears what could not be done as it should be.

    Raises:
        LockedError: a process holds the run and does not answer.
        ConflictError: the run's library is gone.
    """
    if link.is_alive(run):
        yield LivingDesk(run)
        return
    with writing(run.path), asyncio.Runner() as runner:
        if link.is_alive(run):
            raise LockedError(str(run.path), "a process just took it up.", "Try again.")
        desk = OwnDesk(workspace, run, runner, tell)
        try:
            yield desk
        finally:
            desk.release()


class LivingDesk:
    """Decides over the socket of the run's process.

    Once the process has ended, which it may do right after the last decision, nothing lies
    on this desk any more; the next sitting has a desk of its own.
    """

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._ended = False

    def sheet(self) -> Sheet:
        try:
            answer = link.ask(self._run, "review")
        except ConflictError:
            if link.is_alive(self._run):
                raise
            self._ended = True
            return Sheet((), (), ())
        return Sheet(
            tuple(from_dict(Operation, data) for data in answer["open"]),
            tuple(from_dict(Decision, data) for data in answer["decided"]),
            tuple((name, text) for name, text in answer["draft"]),
            answer["stale"],
            tuple(from_dict(Repair, data) for data in answer["repairs"]),
        )

    def decide(self, decision: Decision) -> tuple[Decision, str]:
        answer = link.ask(self._run, "decide", decision=decision)
        return from_dict(Decision, answer["decision"]), answer["note"]

    def undo(self, operation_id: str) -> tuple[str, ...]:
        return tuple(link.ask(self._run, "undo", operation=operation_id)["undone"])

    def mend(self, repair_id: str, text: str, reviewer: str) -> Mended:
        if len(text) > MAX_REPLY_CHARS:  # it might not even fit the line
            return Mended(problems=(too_long(text),))
        asked = {"repair": repair_id, "text": text, "reviewer": reviewer}
        return from_dict(Mended, link.without_envelope(link.ask(self._run, "mend", **asked)))

    def drop(self, repair_id: str, reason: str, reviewer: str) -> None:
        link.ask(self._run, "drop", repair=repair_id, reason=reason, reviewer=reviewer)

    def close(self) -> str:
        return f"the process of run {self._run.run} has ended" if self._ended else ""


class OwnDesk:
    """Decides in the run's journal itself; commits only after the run's end."""

    def __init__(
        self,
        workspace: Workspace,
        run: RunDir,
        runner: asyncio.Runner,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._workspace, self._run, self._runner = workspace, run, runner
        self._journal = Journal(run.journal, mask=workspace.mask)
        self._state = RunState()
        for entry in self._journal.taken():
            fold(self._state, entry.event)
        if self._state.started is None:
            raise ConflictError(
                f"run {run.run}",
                "it was cut off before it began: there is nothing to review.",
                f"Start it again with `studio headless`, or remove it: studio runs rm {run.run}.",
            )
        folder = workspace.library(self._state.started.library)
        recorder = Recorder(self._journal, self._state)
        limit = self._state.settings.get("practice.library_limit")
        linter = LateLinter(workspace, run, tell)
        self._gate = Gate(recorder, folder, (), run=run.run, limit=limit, linter=linter)
        self._runner.run(self._gate.follow_head(self._state.step))

    def sheet(self) -> Sheet:
        state = self._state
        return Sheet(
            state.open,
            tuple(state.decisions.values()),
            _texts(self._gate.draft()),
            state.flagged_stale,
            tuple(state.repairs.values()),
        )

    def decide(self, decision: Decision) -> tuple[Decision, str]:
        settled = self._runner.run(self._gate.decide(decision))
        return settled.decision, settled.note

    def undo(self, operation_id: str) -> tuple[str, ...]:
        return self._runner.run(self._gate.undo(operation_id))

    def mend(self, repair_id: str, text: str, reviewer: str) -> Mended:
        repair = self._gate.repair(repair_id)
        found = mend(self._run, repair, text, self._gate.draft(), reviewer)
        if found.problems:
            return found
        made = self._runner.run(self._gate.mend(repair_id, found.operations, reviewer))
        return replace(found, operations=made)

    def drop(self, repair_id: str, reason: str, reviewer: str) -> None:
        self._runner.run(self._gate.drop(repair_id, reason, reviewer))

    def close(self) -> str:
        state = self._state
        if state.status != "finished":
            left = len(state.undecided)
            waiting = f"{left} operations are left" if left else "every operation is decided"
            return f"{waiting}; go on with `studio headless --resume {self._run.run}`"
        if not state.reviewed:
            note_run(self._workspace, self._run)  # a reply mended or dropped counts there
            return ""
        done = self._runner.run(self._gate.commit(0))
        refresh_agent(self._run.agent_file, done.library, self._run.run, self._workspace.mask)
        note_library(self._workspace, done.library)
        note_run(self._workspace, self._run)
        return f"committed: library {done.library.name} is at v{done.library.version}"

    def release(self) -> None:
        self._runner.run(self._journal.aclose())


def _texts(library: Library) -> tuple[tuple[str, str], ...]:
    return tuple((e.id, e.text) for e in library.experiences)
