"""What an attached screen is told of a run, and what it may ask: the contract of both ends.

Owns values and one protocol. `studio.session.live.LiveSession` keeps the protocol for a run
whose process lives, `studio.session.offline_screen.OfflineSession` for one that has none.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from typing import Any, Protocol

from engines.core.events import DurableEvent, TransientEvent
from engines.core.state.run_state import RunState
from engines.core.types import Decision, Flag, Operation, UnparsedReply
from engines.record.run_dir import RunDir


@dataclass(frozen=True, slots=True)
class SnapshotReceived:
    """Where the run stands; `Session.state` is a new object. Comes first, and after each gap."""

    under_way: frozenset[str] | None = None  # ids of rollouts; None: nobody said


@dataclass(frozen=True, slots=True)
class EventReceived:
    """One event; a durable one is folded into `Session.state` already."""

    event: DurableEvent | TransientEvent


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text of a rollout under way, from `offset` on, both in characters.

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
    """Who decides changed: `mine`, or `who` (their name, "" where nobody drives)."""

    mine: bool
    who: str


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The line to the run's process is gone.

    `ended` is True where the process has ended or died; the session then goes on from the
    run's journal (a `SnapshotReceived` follows), and `Session.living` is False.
    """

    reason: str
    ended: bool


Message = SnapshotReceived | EventReceived | TextReceived | ControllerChanged | Disconnected


@dataclass(frozen=True, slots=True)
class VersionedReviewQueue:
    """What lies before a reviewer: a `studio.session.offline.ReviewQueue`, plus the library's base.

    `draft` is the library as the standing decisions would leave it, in its order.
    """

    open: tuple[Operation, ...]
    decided: tuple[Decision, ...]
    draft: tuple[tuple[str, str], ...]
    stale: int | None = None
    repairs: tuple[UnparsedReply, ...] = ()
    base_version: int = 0


@dataclass(frozen=True, slots=True)
class DecisionPreview:
    """What speaks against a decision before it is made; `objection` "" where it fits."""

    objection: str = ""
    flags: tuple[Flag, ...] = ()


class Session(Protocol):
    """One screen's line to one run. All of it is used from one event loop.

    Every asking method raises ConflictError where the run refuses (also: somebody else
    drives), with place, cause and move; a request that was cut is sent again, and answered
    as it was the first time.
    """

    run: RunDir

    @property
    def state(self) -> RunState: ...

    @property
    def living(self) -> bool:
        """A process of the run answers."""
        ...

    @property
    def controls(self) -> bool:
        """This screen may decide."""
        ...

    @property
    def controller(self) -> str:
        """Who may decide, "" where nobody does."""
        ...

    @property
    def pace_tokens_per_s(self) -> float | None:
        """The pace at which scripted replies are given; None: unpaced."""
        ...

    def messages(self) -> AsyncIterator[Message]:
        """Attach, then yield what happens until `close`; never raises for a lost line."""
        ...

    def subscribe(self, rollouts: Collection[str]) -> None:
        """Ask for the text of these rollouts under way, and no longer of any other."""
        ...

    async def review_queue(self) -> VersionedReviewQueue: ...

    async def decide(self, decision: Decision) -> tuple[Decision, str]:
        """Journal it; returns it as journalled and the gate's note. On disk when it returns."""
        ...

    async def preview(self, decision: Decision) -> DecisionPreview:
        """What the gate and the lint would say of it; nothing is decided."""
        ...

    async def undo(self, operation_id: str) -> tuple[str, ...]:
        """Take a decision back; returns every operation asked again."""
        ...

    async def propose(self, operation: Operation) -> Operation:
        """Put a person's own operation into the queue; returns it with its id and flags."""
        ...

    async def resubmit(self, repair_id: str, text: str, reviewer: str) -> tuple[str, ...]:
        """Resubmit a mended reply; returns what is still wrong with it, () where it was taken."""
        ...

    async def drop(self, repair_id: str, reason: str, reviewer: str) -> None: ...

    async def commit(self) -> str:
        """Commit what is decided, the undecided being deferred; returns what happened.

        A run holds its commit while a screen drives, until this is asked or the driver leaves.
        """
        ...

    async def control(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Pause (now=bool) | resume | step | stop (after_step=bool) | kill (rollout) | status."""
        ...

    async def take_control(self) -> None:
        """Take over: from now on this screen decides, and the one before observes."""
        ...

    async def release_lock(self) -> object:
        """Give back what keeps a process of the run from beginning; what is decided stands."""
        ...

    async def close(self) -> str:
        """Detach; the run goes on. Returns how to come back, in words."""
        ...
