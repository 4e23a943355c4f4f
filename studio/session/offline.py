"""Where decisions are made: at a living run's socket, or alone with its lock.

Owns the difference between the two, so that whoever asks a person need not know it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from shlex import quote
from typing import Protocol

from engines.core import events as ev
from engines.core.codec import from_dict
from engines.core.errors import ConflictError, LockedError
from engines.core.library import Library
from engines.core.state.fold import fold
from engines.core.state.run_state import RunState
from engines.core.text.reply import MAX_REPLY_CHARS
from engines.core.types import Decision, Operation, UnparsedReply
from engines.pipeline.gate.gate import DecisionPreview, Gate
from engines.pipeline.recorder import Listener, Recorder
from engines.record.catalogue import write_library_rows, write_run_row
from engines.record.export import refresh_agent
from engines.record.journal import Journal
from engines.record.lock import write_lock
from engines.record.run_dir import RunDir, Workspace
from engines.training_free.resubmit import Resubmission, too_long_reason
from studio.run.linter import LazyLinter
from studio.session import client, protocol
from studio.session.unparsed_replies import parse_resubmission

_BRINGS_SOMETHING = frozenset(
    (
        "Watching",
        "StageEntered",
        "GroupReflected",
        "OperationProposed",
        "LessonReturned",
        "DecisionUndone",
    )
)
"""What a living run may tell when its sheet is to be looked at again."""


WAIT_S = 1.0
"""Between two looks whether a screen still decides."""


class ControlledElsewhereError(ConflictError):
    """Somebody decides on a screen, and one decides at a time."""

    def __init__(self, refusal: ConflictError) -> None:
        super().__init__(refusal.place, refusal.cause, refusal.move)


@dataclass(frozen=True, slots=True)
class ReviewQueue:
    """What lies on the desk: open operations, standing decisions, the draft's texts.

    `repairs` wait to be mended; of their replies they hold no more than a list shows, and
    `studio.session.unparsed_replies.find_reply_source` has the whole.
    """

    open: tuple[Operation, ...]
    decided: tuple[Decision, ...]
    draft: tuple[tuple[str, str], ...]
    stale: int | None = None  # the version the library had moved to under the lesson
    repairs: tuple[UnparsedReply, ...] = ()


class ReviewSession(Protocol):
    living: bool
    """Whether a process goes on with the run beside it."""

    def review_queue(self) -> ReviewQueue:
        """What lies here.

        Raises:
            TakenError: a screen decides.
        """
        ...

    def lint(self, decision: Decision) -> DecisionPreview:
        """What speaks against an edit and what is noteworthy about it; decides nothing."""
        ...

    def decide(self, decision: Decision) -> tuple[Decision, str]:
        """Journal a decision; returns it as journalled and the gate's note."""
        ...

    def undo(self, operation_id: str) -> tuple[str, ...]:
        """Take a decision back; returns the operations asked again."""
        ...

    def resubmit(self, repair_id: str, text: str, reviewer: str) -> Resubmission:
        """Resubmit a reply as it was mended; what it holds is open from then on."""
        ...

    def drop(self, repair_id: str, reason: str, reviewer: str) -> None:
        """Let a reply go that nobody can understand."""
        ...

    def watch_changes(self) -> Iterator[None]:
        """Yield now, and each time something new may lie here, for as long as the run goes on."""
        ...

    def wait(self) -> None:
        """Return once no screen decides; see `ControlledElsewhereError`."""
        ...

    def close(self) -> str:
        """Leave in good order; returns what happened in words, or ""."""
        ...


@contextmanager
def open_review_session(
    workspace: Workspace, run: RunDir, tell: Callable[[str], None] = lambda _: None
) -> Iterator[ReviewSession]:
    """The desk of a run: its process's where one lives, else our own under its lock.

    `tell` hears what could not be done as it should be.

    Raises:
        LockedError: a process holds the run and does not answer.
        ConflictError: the run's library is gone.
    """
    if client.is_alive(run):
        yield LiveReviewSession(run)
        return
    with open_offline_review(workspace, run, tell) as desk:
        yield desk


@contextmanager
def open_offline_review(
    workspace: Workspace,
    run: RunDir,
    tell: Callable[[str], None] = lambda _: None,
    listener: Listener = lambda _: None,
    *,
    who: str = "a person's `studio review`",
) -> Iterator[OfflineReviewSession]:
    """A desk of our own, under the run's lock, which belongs to the thread that opens it.

    `listener` hears every event that is journalled here; `who` is told to whoever wants the
    lock meanwhile.

    Raises:
        LockedError: a process holds the run.
        ConflictError: the run's library is gone.
    """
    with write_lock(run.path, who=who), asyncio.Runner() as runner:
        if client.is_alive(run):
            raise LockedError(str(run.path), "a process just took it up.", "Try again.")
        desk = OfflineReviewSession(workspace, run, runner, tell, listener)
        try:
            yield desk
        finally:
            desk.release()


class LiveReviewSession:
    """Decides over the socket of the run's process.

    Once the process has ended, which it may do right after the last decision, nothing lies
    on this desk any more; the next sitting has a desk of its own.
    """

    living = True

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._ended = False

    def review_queue(self) -> ReviewQueue:
        try:
            answer = client.ask(self._run, "review")
        except ConflictError:
            if client.is_alive(self._run):
                raise
            self._ended = True
            return ReviewQueue((), (), ())
        if who := answer.get("driven_by"):
            raise ControlledElsewhereError(client.controlled_elsewhere_error(self._run, who))
        return ReviewQueue(
            tuple(from_dict(Operation, data) for data in answer["open"]),
            tuple(from_dict(Decision, data) for data in answer["decided"]),
            tuple((name, text) for name, text in answer["draft"]),
            answer["stale"],
            tuple(from_dict(UnparsedReply, data) for data in answer["repairs"]),
        )

    def lint(self, decision: Decision) -> DecisionPreview:
        return from_dict(
            DecisionPreview,
            protocol.strip_envelope(client.ask(self._run, "lint", decision=decision)),
        )

    def decide(self, decision: Decision) -> tuple[Decision, str]:
        try:
            answer = client.ask(self._run, "decide", decision=decision)
        except ConflictError:
            # A process may end on the very decision, and take its answer along.
            if (made := self._find_journalled(decision)) is None:
                raise
            return made, ""
        return from_dict(Decision, answer["decision"]), answer["note"]

    def _find_journalled(self, wanted: Decision) -> Decision | None:
        """The decision as an ended process wrote it down; None where it lives or did not."""
        if client.is_alive(self._run):
            return None
        made = None
        for entry in self._run.entries():
            event = entry.event
            if isinstance(event, ev.OperationDecided):
                found = event.decision
                same = found.operation_id == wanted.operation_id
                # The time it took, to the millisecond, tells it from one of another sitting.
                if same and found.took_s is not None and found.took_s == wanted.took_s:
                    made = found
            elif isinstance(event, ev.DecisionUndone) and event.operation_id == wanted.operation_id:
                made = None
        return made

    def undo(self, operation_id: str) -> tuple[str, ...]:
        return tuple(client.ask(self._run, "undo", operation=operation_id)["undone"])

    def resubmit(self, repair_id: str, text: str, reviewer: str) -> Resubmission:
        if len(text) > MAX_REPLY_CHARS:  # it might not even fit the line
            return Resubmission(problems=(too_long_reason(text),))
        asked = {"repair": repair_id, "text": text, "reviewer": reviewer}
        return from_dict(
            Resubmission, protocol.strip_envelope(client.ask(self._run, "mend", **asked))
        )

    def drop(self, repair_id: str, reason: str, reviewer: str) -> None:
        client.ask(self._run, "drop", repair=repair_id, reason=reason, reviewer=reviewer)

    def watch_changes(self) -> Iterator[None]:
        with suppress(ConflictError):  # it ended between two questions
            while client.is_alive(self._run):  # who reads too slowly is let go of meanwhile
                for event in client.watch(self._run):
                    if event["kind"] in _BRINGS_SOMETHING:
                        yield
        self._ended = True

    def wait(self) -> None:
        """Return once no screen decides any more, or the process has ended."""
        with suppress(ConflictError):  # it ended
            while client.ask(self._run, "review").get("driven_by"):
                time.sleep(WAIT_S)

    def close(self) -> str:
        if self._ended:
            return f"the process of run {self._run.run} has ended"
        try:
            now = client.ask(self._run, "status")
        except ConflictError:
            return ""
        if now["undecided"] or now["step"] >= now["steps"]:
            return ""
        run = quote(self._run.run)
        return f"the run goes on; `studio review {run} --wait` stays for its next steps"


class OfflineReviewSession:
    """Decides in the run's journal itself; commits only after the run's end."""

    living = False

    def __init__(
        self,
        workspace: Workspace,
        run: RunDir,
        runner: asyncio.Runner,
        tell: Callable[[str], None] = lambda _: None,
        listener: Listener = lambda _: None,
    ) -> None:
        self._workspace, self._run, self._runner = workspace, run, runner
        self._journal = Journal(run.journal, mask=workspace.mask)
        self._state = RunState()
        for entry in self._journal.take_entries():
            fold(self._state, entry.event)
        if self._state.started is None:
            raise ConflictError(
                f"run {run.run}",
                "it was cut off before it began: there is nothing to review.",
                f"Start it again with `studio headless`, or remove it: studio runs rm {run.run}.",
            )
        folder = workspace.library(self._state.started.library)
        self.events = self._state.events  # that it found
        recorder = Recorder(self._journal, self._state)
        recorder.listen(listener)
        limit = self._state.settings.get("practice.library_limit")
        linter = LazyLinter(workspace, run, tell)
        self._gate = Gate(recorder, folder, (), run=run.run, limit=limit, linter=linter)
        self._runner.run(self._gate.follow_head(self._state.step))

    def review_queue(self) -> ReviewQueue:
        return _review_queue(self._state, self._gate)

    def lint(self, decision: Decision) -> DecisionPreview:
        return self._runner.run(self._gate.lint(decision))

    def decide(self, decision: Decision) -> tuple[Decision, str]:
        settled = self._runner.run(self._gate.decide(decision))
        return settled.decision, settled.note

    def undo(self, operation_id: str) -> tuple[str, ...]:
        return self._runner.run(self._gate.undo(operation_id))

    def propose(self, operation: Operation, reviewer: str) -> Operation:
        """Put a person's own operation into the queue."""
        return self._runner.run(self._gate.queue.propose(operation, reviewer))

    def resubmit(self, repair_id: str, text: str, reviewer: str) -> Resubmission:
        repair = self._gate.queue.unparsed_reply(repair_id)
        found = parse_resubmission(self._run, repair, text, self._gate.draft(), reviewer)
        if found.problems:
            return found
        made = self._runner.run(self._gate.queue.resubmit(repair_id, found.operations, reviewer))
        return replace(found, operations=made)

    def drop(self, repair_id: str, reason: str, reviewer: str) -> None:
        self._runner.run(self._gate.queue.drop(repair_id, reason, reviewer))

    def watch_changes(self) -> Iterator[None]:
        yield

    def wait(self) -> None:
        """Nobody else decides under our lock."""

    def close(self) -> str:
        state = self._state
        if state.status != "finished":
            left = len(state.undecided_operations)
            waiting = f"{left} operations are left" if left else "every operation is decided"
            return f"{waiting}; go on with `studio headless --resume {self._run.run}`"
        if not state.reviewed_operations:
            write_run_row(self._workspace, self._run)  # a reply mended or dropped counts there
            return ""
        done = self._runner.run(self._gate.commit(0))
        refresh_agent(self._run.agent_file, done.library, self._run.run, self._workspace.mask)
        write_library_rows(self._workspace, done.library)
        write_run_row(self._workspace, self._run)
        return f"committed: library {done.library.name} is at v{done.library.version}"

    def release(self) -> None:
        self._runner.run(self._journal.aclose())


def read_review_queue(workspace: Workspace, run: RunDir) -> ReviewQueue:
    """What lies on the desk of a run without a process, read without its lock.

    Raises:
        ConflictError: the run was cut off before it began, or its library is gone.
    """
    state = run.state()
    if state.started is None:
        raise ConflictError(f"run {run.run}", "it was cut off before it began.", "Start it again.")
    limit = state.settings.get("practice.library_limit")
    folder = workspace.library(state.started.library)
    gate = Gate(Recorder(_ReadOnlyLog(), state), folder, (), run=run.run, limit=limit)
    return _review_queue(state, gate)


class _ReadOnlyLog:
    """An `EventLog` of somebody who only reads."""

    async def append(self, event: ev.DurableEvent) -> ev.DurableEvent:
        raise AssertionError(f"{type(event).__name__} without the run's lock")


def _review_queue(state: RunState, gate: Gate) -> ReviewQueue:
    return ReviewQueue(
        state.open_operations,
        tuple(state.decisions.values()),
        _draft_texts(gate.draft()),
        state.flagged_stale,
        tuple(state.repairs.values()),
    )


def _draft_texts(library: Library) -> tuple[tuple[str, str], ...]:
    return tuple((e.id, e.text) for e in library.experiences)
