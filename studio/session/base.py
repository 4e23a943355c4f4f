"""Where a person's decision goes: a session with a run, its requests and its messages.

`studio.session.live` is one with a run whose process answers, `studio.session.offline` one without
a process. The screen, line mode and scripts all decide through it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from engines.core.codec import from_dict
from engines.core.errors import ConflictError, StudioError
from engines.core.events import DurableEvent, TransientEvent
from engines.core.library import Library
from engines.core.state.run_state import RunState
from engines.core.state.use_counts import UseCounts
from engines.core.types import Decision, Operation, UnparsedReply
from engines.pipeline.gate.queue import DecisionPreview, DecisionResult
from engines.record.run_dir import RunDir, Workspace
from studio.render.words import dropped_texts, fates_under_review, merged_text
from studio.session.idempotency import free_operation_id
from studio.session.protocol import parse_results, parse_value
from studio.session.status import status_of

if TYPE_CHECKING:  # they load the parser of replies, which few sessions need
    from engines.pipeline.gate.gate import Gate
    from engines.training_free.proposals import Resubmission

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SnapshotReceived:
    """Where the run stands; `Session.state` is a new object. Comes first, and after each gap."""

    under_way: frozenset[str] | None = None  # ids of running rollouts; None: not known
    events: int | None = None  # of the journal in that state; None: not known


@dataclass(frozen=True, slots=True)
class EventReceived:
    """One event; a durable one is folded into `Session.state` already."""

    event: DurableEvent | TransientEvent


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text of a running rollout, from `offset` on, both in characters.

    The first piece after a subscription begins at 0 and holds all there is so far; a piece
    whose offset is not where the text known so far ends replaces it from there.
    """

    rollout: str  # its id, such as s3p0r2
    offset: int
    text: str


@dataclass(frozen=True, slots=True)
class TextReceived:
    """Pieces of the rollouts that are subscribed to, ten times a second at most."""

    pieces: tuple[TextPiece, ...]


@dataclass(frozen=True, slots=True)
class ControllerChanged:
    """Who decides changed: this screen if `mine`, else `who` (a name, "" for nobody)."""

    mine: bool
    who: str


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection to the run's process is lost.

    `ended` is True where the process has ended or died; the session then goes on from the
    run's journal (a `SnapshotReceived` follows), and `Session.living` is False.
    """

    reason: str
    ended: bool


Message = SnapshotReceived | EventReceived | TextReceived | ControllerChanged | Disconnected


@dataclass(frozen=True, slots=True)
class ReviewQueue:
    """What waits for a reviewer, and what is decided and not committed yet.

    `draft` is the library as the standing decisions would leave it, in its order. `repairs`
    are replies that could not be parsed, each with no more text than a list shows;
    `studio.session.unparsed_replies.find_reply_source` has the whole.
    """

    open: tuple[Operation, ...] = ()
    decided: tuple[Decision, ...] = ()
    draft: tuple[tuple[str, str], ...] = ()
    stale: int | None = None  # the version the library had moved to under the lesson
    repairs: tuple[UnparsedReply, ...] = ()
    base_version: int = 0
    pinned: tuple[str, ...] = ()  # ids of experiences of the draft
    notes: Mapping[str, str] = field(default_factory=dict)  # by operation, kept as it was put off
    uses: Mapping[str, UseCounts] = field(default_factory=dict)  # of wordings that still stand
    merged: Mapping[str, str] = field(default_factory=dict)  # by operation, the proposals in it
    dropped: tuple[str, ...] = ()  # proposals of the step under way, each with the reason

    @classmethod
    def read(cls, state: RunState, draft: Library) -> ReviewQueue:
        """The queue of a run at this state, whose gate has this draft."""
        fates, texts = fates_under_review(state)
        merged = {op.id: merged_text(op.id, fates) for op in state.open_operations}
        return cls(
            state.open_operations,
            tuple(state.decisions.values()),
            tuple((experience.id, experience.text) for experience in draft.experiences),
            state.flagged_stale,
            tuple(state.repairs.values()),
            state.base_version,
            draft.pinned_ids,
            dict(state.notes),
            draft.uses,
            merged,
            tuple(dropped_texts(fates, texts)),
        )


@dataclass(frozen=True, slots=True)
class LockedRun:
    """A run without a process, under its lock; used by the thread that took it."""

    workspace: Workspace
    run: RunDir
    state: RunState
    gate: Gate
    runner: asyncio.Runner
    events_read: int  # what the journal held when the lock was taken

    async def review_queue(self) -> ReviewQueue:
        return ReviewQueue.read(self.state, self.gate.draft())

    async def commit(self) -> str:
        """Commit the decisions of a finished run; returns what happened."""
        from engines.record.catalogue.rows import write_library_rows
        from engines.record.export import refresh_agent
        from engines.record.seal import refuse_altered

        run, state = self.run, self.state
        if state.status != "finished":
            left = len(state.open_operations)
            what = f"{left} still open" if left else "every operation is decided"
            move = f"`studio headless --resume {run.run}` goes on and commits"
            return f"{what}; decisions are kept: {move}"
        if not state.reviewed_operations:
            return "nothing is decided, so nothing was committed"
        refuse_altered(run.agent_file)  # before anything is committed
        before = state.base_version
        library = (await self.gate.commit(0)).library
        if not state.curates:  # it has no agent of its own
            refresh_agent(run.agent_file, library, run.run, self.workspace.mask)
        write_library_rows(self.workspace, library)
        if library.version == before:
            return f"nothing was committed: library {library.name} stays at v{before}"
        return f"committed: library {library.name} is at v{library.version}"


@dataclass(frozen=True, slots=True)
class Request(Generic[T]):
    """What is asked of a run: of its process, or of its journal where it has none."""

    do: str
    arguments: dict[str, Any]
    parse: Callable[[dict[str, Any]], T]  # reads the answer of a process
    act: Callable[[LockedRun], Coroutine[Any, Any, T]] | None = None  # None: needs a process
    is_query: bool = False  # it changes nothing, so that it may be asked twice


class Session(ABC):
    """One person's session with one run. All of it is used from one event loop.

    Every request raises ConflictError where the run refuses it (also: somebody else
    decides), with place, cause and move. A request whose connection is lost is sent again,
    done once, and answered as it was the first time.
    """

    living = False  # a process of the run answers
    controls = False  # this screen may decide
    controller = ""  # who may decide, "" where nobody does
    pace_tokens_per_s: float | None = None  # of scripted replies; None: unpaced

    @property
    def label(self) -> str:
        """Of a replay, in which nothing can be decided: "replay 10×"; "" of a run itself."""
        return ""

    def __init__(self, run: RunDir, who: str) -> None:
        self.run = run
        self.state = RunState()
        self.closed = False
        self._who = who
        self._turn = asyncio.Lock()  # one request at a time is under way
        self._queue: deque[Message] = deque()  # not taken by whoever iterates `messages` yet
        self._queue_changed = asyncio.Event()
        self._queue_ended = False

    async def messages(self) -> AsyncIterator[Message]:
        """Connect, then yield what happens until `close`; raises nothing for a lost connection."""
        await self._begin()
        while True:
            while self._queue:
                yield self._queue.popleft()
            if self._queue_ended:
                return
            self._queue_changed.clear()
            await self._queue_changed.wait()

    @abstractmethod
    async def _begin(self) -> None:
        """Begin to fill the queue of messages, unless it is closed."""

    @abstractmethod
    async def send(self, request: Request[T]) -> T:
        """Send a request until it is answered."""

    @abstractmethod
    def subscribe(self, rollouts: Collection[str]) -> None:
        """Ask for the text of these running rollouts, and of no other."""

    @abstractmethod
    async def take_control(self) -> None:
        """Take over: from now on this screen decides, and the one before observes."""

    @abstractmethod
    async def release_lock(self) -> object:
        """Release the run's lock so that a process can start; decisions stand."""

    @abstractmethod
    async def close(self) -> str:
        """Leave; the run goes on. Returns how to come back, in words."""

    async def review_queue(self) -> ReviewQueue:
        """What waits for a reviewer.

        Raises NotRunningError: the process has ended, and no other session decides.
        ControlledElsewhereError: a screen decides, and this session is none.
        """
        parse, read = self._parse_queue, LockedRun.review_queue
        return await self.send(Request("review", {}, parse, read, is_query=True))

    def _parse_queue(self, answer: dict[str, Any]) -> ReviewQueue:
        return parse_value(ReviewQueue, answer)

    async def decide(self, decision: Decision) -> DecisionResult:
        """Journal a decision. It is on disk when this returns."""
        parse = partial(parse_value, DecisionResult)
        asked = {"decision": decision}
        return await self.send(Request("decide", asked, parse, lambda r: r.gate.decide(decision)))

    async def decide_all(self, decisions: Sequence[Decision]) -> Sequence[DecisionResult]:
        """Journal several decisions as one record: on disk all of them stand, or none."""
        if len(decisions) == 1:
            return [await self.decide(decisions[0])]
        parse, asked = partial(parse_results, DecisionResult), {"decisions": decisions}
        request: Request[Sequence[DecisionResult]] = Request(
            "decide_all", asked, parse, lambda r: r.gate.decide_all(decisions)
        )
        return await self.send(request)

    async def preview(self, decision: Decision) -> DecisionPreview:
        """What the gate and the lint would say of a decision; nothing is decided."""
        return (await self.preview_all([decision]))[0]

    async def preview_all(
        self,
        decisions: Sequence[Decision],
        own: Sequence[Operation] = (),
        undone: Sequence[str] = (),
    ) -> list[DecisionPreview]:
        """The same of several, once others are undone and one's own operations proposed."""
        given = (decisions, own, undone)
        asked = dict(zip(("decisions", "operations", "undone"), given, strict=True))
        parse = partial(parse_results, DecisionPreview)
        return await self.send(
            Request("lint", asked, parse, lambda r: r.gate.lint(*given), is_query=True)
        )

    async def undo(self, operation_id: str) -> tuple[str, ...]:
        """Take a decision back; returns every operation asked again."""
        asked = {"operation": operation_id}
        act, parse = lambda r: r.gate.undo(operation_id), lambda answer: tuple(answer["undone"])
        return await self.send(Request("undo", asked, parse, act))

    async def propose(self, operation: Operation) -> Operation:
        """Put a person's own operation into the queue; returns it with its id and flags."""
        if not operation.id and self.state.events:  # known by it if it is sent again
            operation = replace(operation, id=free_operation_id(self.state))
        return await self.send(
            Request(
                "propose",
                {"operation": operation, "reviewer": self._who},
                lambda answer: from_dict(Operation, answer["operation"]),
                lambda run: run.gate.queue.propose(operation, self._who),
            )
        )

    async def try_operations(self, names: Sequence[str]) -> dict[str, Any]:
        """Have the run's process try open operations; verdicts come as events. [] means all."""
        return await self.send(Request("gate", {"operations": list(names)}, dict))

    async def resubmit(self, repair_id: str, text: str, reviewer: str) -> Resubmission:
        """Hand in a corrected reply; the operations it holds are open from then on."""
        from engines.core.text.reply import MAX_REPLY_CHARS, too_long_reason
        from engines.training_free.proposals import Resubmission
        from studio.session.unparsed_replies import resubmit_reply

        if len(text) > MAX_REPLY_CHARS:  # it might be longer than a request may be
            return Resubmission(problems=(too_long_reason(text),))
        return await self.send(
            Request(
                "mend",
                {"repair": repair_id, "text": text, "reviewer": reviewer},
                partial(parse_value, Resubmission),
                lambda run: resubmit_reply(self.run, run.gate, repair_id, text, reviewer),
            )
        )

    async def drop(self, repair_id: str, reason: str, reviewer: str) -> None:
        asked = {"repair": repair_id, "reason": reason, "reviewer": reviewer}
        await self.send(
            Request("drop", asked, dict, lambda r: r.gate.queue.drop(repair_id, reason, reviewer))
        )

    async def commit(self) -> str:
        """Commit what is decided, the undecided being deferred; returns what happened.

        A run holds its commit while a screen controls it, until this is asked or the screen leaves.
        """
        asked = {"step": self.state.step, "reviewer": self._who}
        return await self.send(
            Request("commit", asked, lambda answer: str(answer["said"]), lambda run: run.commit())
        )

    async def control(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Pause (now=bool) | resume | step | stop (after_step=bool) | kill (rollout) | status."""
        try:
            return await self.send(Request(do, arguments, dict, is_query=do == "status"))
        except ConflictError:
            if do != "status":
                raise
            return status_of(self.state)

    async def questions(self, problems: Collection[str]) -> dict[str, str]:
        """What these problems ask, by id: as far as a process of the run tells it."""
        asked = {"problems": sorted(problems)}
        try:
            return await self.send(
                Request("questions", asked, lambda a: dict(a["questions"]), is_query=True)
            )
        except StudioError:
            return {}

    def _enqueue(self, message: Message) -> None:
        if isinstance(message, TextReceived) and self._queue:
            last = self._queue[-1]
            if isinstance(last, TextReceived):  # a slow screen draws all of it at once
                self._queue[-1] = TextReceived(last.pieces + message.pieces)
                return
        self._queue.append(message)
        self._queue_changed.set()

    def _end_queue(self) -> None:
        self._queue_ended = True
        self._queue_changed.set()
