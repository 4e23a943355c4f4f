"""Where a person's decision goes: the values and the one protocol of a session with a run.

`studio.session.live.LiveSession` implements it for a run whose process answers,
`studio.session.offline.OfflineSession` for a run without a process. The screen, line mode and
scripts all decide through it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from engines.core.events import DurableEvent, TransientEvent
from engines.core.library import Library
from engines.core.state.run_state import RunState
from engines.core.types import Decision, Operation, UnparsedReply
from engines.pipeline.gate.results import DecisionPreview, DecisionResult
from engines.record.run_dir import RunDir

if TYPE_CHECKING:  # it loads the parser of replies, which few sessions need
    from engines.training_free.resubmit import Resubmission


@dataclass(frozen=True, slots=True)
class SnapshotReceived:
    """Where the run stands; `Session.state` is a new object. Comes first, and after each gap."""

    under_way: frozenset[str] | None = None  # ids of running rollouts; None: not known


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

    @classmethod
    def read(cls, state: RunState, draft: Library) -> ReviewQueue:
        """The queue of a run at this state, whose gate has this draft."""
        return cls(
            state.open_operations,
            tuple(state.decisions.values()),
            tuple((experience.id, experience.text) for experience in draft.experiences),
            state.flagged_stale,
            tuple(state.repairs.values()),
            state.base_version,
        )


class Session(Protocol):
    """One person's session with one run. All of it is used from one event loop.

    Every request raises ConflictError where the run refuses it (also: somebody else
    decides), with place, cause and move. A request whose connection is lost is sent again,
    done once, and answered as it was the first time.
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
        """Connect, then yield what happens until `close`; raises nothing for a lost connection."""
        ...

    def subscribe(self, rollouts: Collection[str]) -> None:
        """Ask for the text of these running rollouts, and of no other."""
        ...

    async def review_queue(self) -> ReviewQueue:
        """What waits for a reviewer.

        Raises:
            NotRunningError: the process has ended, and no other session decides.
            ControlledElsewhereError: a screen decides, and this session is none.
        """
        ...

    async def decide(self, decision: Decision) -> DecisionResult:
        """Journal a decision. It is on disk when this returns."""
        ...

    async def preview(self, decision: Decision) -> DecisionPreview:
        """What the gate and the lint would say of a decision; nothing is decided."""
        ...

    async def undo(self, operation_id: str) -> tuple[str, ...]:
        """Take a decision back; returns every operation asked again."""
        ...

    async def propose(self, operation: Operation) -> Operation:
        """Put a person's own operation into the queue; returns it with its id and flags."""
        ...

    async def resubmit(self, repair_id: str, text: str, reviewer: str) -> Resubmission:
        """Hand in a corrected reply; the operations it holds are open from then on."""
        ...

    async def drop(self, repair_id: str, reason: str, reviewer: str) -> None:
        """Give up a reply that nobody can parse."""
        ...

    async def commit(self) -> str:
        """Commit what is decided, the undecided being deferred; returns what happened.

        A run holds its commit while a screen controls it, until this is asked or the
        screen leaves.
        """
        ...

    async def control(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Pause (now=bool) | resume | step | stop (after_step=bool) | kill (rollout) | status."""
        ...

    async def take_control(self) -> None:
        """Take over: from now on this screen decides, and the one before observes."""
        ...

    async def release_lock(self) -> object:
        """Release the run's lock so that a process can start; decisions stand."""
        ...

    async def close(self) -> str:
        """Leave; the run goes on. Returns how to come back, in words."""
        ...
