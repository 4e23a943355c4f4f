"""Where a person's decision goes: a session with a run, its requests and its messages.

`studio.session.live` is one with a run whose process answers, `studio.session.offline` one without
a process. The screen, line mode and scripts all decide through it.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Collection
from typing import Any, TypeVar

from engines.core.errors import ConflictError
from engines.core.events import DurableEvent, TransientEvent
from engines.core.frozen import frozen
from engines.core.state.run_state import RunState
from engines.record.run_dir import RunDir
from studio.session.requests import Request, Status, status_of

T = TypeVar("T")


@frozen
class SnapshotReceived:
    """Where the run stands; `Session.state` is a new object. Comes first, and after each gap."""

    events: int | None = None  # of the journal in that state; None: not known


@frozen
class EventReceived:
    """One event; a durable one is folded into `Session.state` already."""

    event: DurableEvent | TransientEvent


@frozen
class TextPiece:
    """Text of a running rollout, from `offset` on, both in characters.

    The first piece after a subscription begins at 0 and holds all there is so far; a piece
    whose offset is not where the text known so far ends replaces it from there.
    """

    rollout: str  # its id, such as s3p0r2
    offset: int
    text: str


@frozen
class TextReceived:
    """Pieces of the rollouts that are subscribed to, ten times a second at most."""

    pieces: tuple[TextPiece, ...]


@frozen
class ControllerChanged:
    """Who decides changed: this screen if `mine`, else `who` (a name, "" for nobody)."""

    mine: bool
    who: str


@frozen
class Disconnected:
    """The connection to the run's process is lost.

    `ended` is True where the process has ended or died; the session then goes on from the
    run's journal (a `SnapshotReceived` follows), and `Session.living` is False.
    """

    reason: str
    ended: bool


Message = SnapshotReceived | EventReceived | TextReceived | ControllerChanged | Disconnected


class Session(ABC):
    """One person's session with one run. All of it is used from one event loop.

    `send` raises ConflictError where the run refuses a request (also: somebody else decides),
    with place, cause and move. One whose connection is lost is sent again, carried out once,
    and answered as it was the first time.
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
        self.who = who
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

    async def status(self) -> dict[str, Any]:
        """Where the run stands, by its process or, where none answers, by its journal."""
        try:
            return await self.send(Status())
        except ConflictError:
            return status_of(self.state)

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
