"""Where decisions are made: at a living run's socket, or alone with its lock.

Owns the difference between the two, so that whoever asks a person need not know it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from engines.core.codec import from_dict
from engines.core.errors import ConflictError, LockedError
from engines.core.library import Library
from engines.core.state import RunState, fold
from engines.core.types import Decision, Operation
from engines.pipeline.gate import Gate
from engines.pipeline.recorder import Recorder
from engines.record.catalogue import note_library, note_run
from engines.record.export import refresh_agent
from engines.record.journal import Journal
from engines.record.lock import writing
from engines.record.run_dir import RunDir, Workspace
from studio import link


@dataclass(frozen=True, slots=True)
class Sheet:
    """What lies on the desk: open operations, standing decisions, the draft's texts."""

    open: tuple[Operation, ...]
    decided: tuple[Decision, ...]
    draft: tuple[tuple[str, str], ...]
    stale: int | None = None  # the version the library had moved to under the lesson


class Desk(Protocol):
    def sheet(self) -> Sheet: ...

    def decide(self, decision: Decision) -> tuple[Decision, str]:
        """Journal a decision; returns it as journalled and the gate's note."""
        ...

    def undo(self, operation_id: str) -> tuple[str, ...]:
        """Take a decision back; returns the operations asked again."""
        ...

    def close(self) -> str:
        """Leave in good order; returns what happened in words, or ""."""
        ...


@contextmanager
def desk_of(workspace: Workspace, run: RunDir) -> Iterator[Desk]:
    """The desk of a run: its process's where one lives, else our own under its lock.

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
        desk = OwnDesk(workspace, run, runner)
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
        )

    def decide(self, decision: Decision) -> tuple[Decision, str]:
        answer = link.ask(self._run, "decide", decision=decision)
        return from_dict(Decision, answer["decision"]), answer["note"]

    def undo(self, operation_id: str) -> tuple[str, ...]:
        return tuple(link.ask(self._run, "undo", operation=operation_id)["undone"])

    def close(self) -> str:
        return f"the process of run {self._run.run} has ended" if self._ended else ""


class OwnDesk:
    """Decides in the run's journal itself; commits only after the run's end."""

    def __init__(self, workspace: Workspace, run: RunDir, runner: asyncio.Runner) -> None:
        self._workspace, self._run, self._runner = workspace, run, runner
        self._journal = Journal(run.journal)
        self._state = RunState()
        for entry in self._journal.taken():
            fold(self._state, entry.event)
        assert self._state.started is not None
        folder = workspace.library(self._state.started.library)
        recorder = Recorder(self._journal, self._state)
        limit = self._state.settings.get("practice.library_limit")
        self._gate = Gate(recorder, folder, (), run=run.run, limit=limit)
        self._runner.run(self._gate.follow_head(self._state.step))

    def sheet(self) -> Sheet:
        state = self._state
        return Sheet(
            state.open,
            tuple(state.decisions.values()),
            _texts(self._gate.draft()),
            state.flagged_stale,
        )

    def decide(self, decision: Decision) -> tuple[Decision, str]:
        settled = self._runner.run(self._gate.decide(decision))
        return settled.decision, settled.note

    def undo(self, operation_id: str) -> tuple[str, ...]:
        return self._runner.run(self._gate.undo(operation_id))

    def close(self) -> str:
        state = self._state
        if state.status != "finished":
            left = len(state.undecided)
            waiting = f"{left} operations are left" if left else "every operation is decided"
            return f"{waiting}; go on with `studio headless --resume {self._run.run}`"
        if not state.reviewed:
            return ""
        done = self._runner.run(self._gate.commit(0))
        refresh_agent(self._run.agent_file, done.library, self._run.run)
        note_library(self._workspace, done.library)
        note_run(self._workspace, self._run)
        return f"committed: library {done.library.name} is at v{done.library.version}"

    def release(self) -> None:
        self._runner.run(self._journal.aclose())


def _texts(library: Library) -> tuple[tuple[str, str], ...]:
    return tuple((e.id, e.text) for e in library.experiences)
