"""A screen's line to a run whose process lives: attaches, follows, decides, attaches again.

Keeps the protocol `studio.link.messages.Session`. The state is the run's journal, read once
up to where the process says it stands, and from there the events as they come. Owns what
happens when the line is cut; what is asked while it is, is asked again, and never done twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import replace
from shlex import quote
from typing import Any

from engines.core.codec import from_dict
from engines.core.errors import ConflictError, StudioError
from engines.core.events import DurableEvent, event_from_dict
from engines.core.run_state import RunState
from engines.core.state import fold, folded
from engines.core.types import Decision, Flag, Operation, Repair, own_operation_id
from engines.record.run_dir import RunDir
from studio.link.client import ended_first, nobody_runs, status_of
from studio.link.journalled import done_already, events_since
from studio.link.line import Cut, Line, NoProcess, connected
from studio.link.messages import (
    Began,
    Desktop,
    Driven,
    Message,
    Objected,
    Parted,
    Piece,
    Session,
    Streamed,
    Told,
)

ANSWER_S = 30.0
"""How long a process that accepted the connection may take to answer `attach`."""
_PAUSES_S = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Before each try to attach again; the last for every further one."""
_STEADY_S = 5.0
"""A line that held so long was no false start: the next try is made at once."""


class Attached:
    """One screen at one run. Used from one event loop.

    Args:
        run: the run.
        who: sits here.
        fallback: opens the session that decides once the run has no process; None: then
            nothing is decided.
    """

    def __init__(
        self, run: RunDir, who: str, *, fallback: Callable[[], Session] | None = None
    ) -> None:
        self.run = run
        self._state = RunState()
        self.living = False
        self.drives = False
        self.driver = ""
        self._who = who
        self._fallback = fallback
        self._wants = True  # to drive, where nobody does
        self._followed: frozenset[str] = frozenset()
        self._line: Line | None = None
        self._settled = asyncio.Event()  # attached, or known to be alone
        self._call = asyncio.Event()  # somebody wants to know whether a process is back
        self._refused: ConflictError | None = None  # why a living process is of no use
        self._alone_for = ""  # the reason that was told for there being no line
        self._queue: deque[Message] = deque()  # not yet taken by whoever draws
        self._some = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()  # one decision at a time is under way
        self._stored: Session | None = None
        self._forwarding: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def state(self) -> RunState:
        """Where the run stands; the fallback's, where that decides."""
        stored = self._stored
        return stored.state if stored is not None and stored.state.events else self._state

    @state.setter
    def state(self, state: RunState) -> None:
        self._state = state

    async def messages(self) -> AsyncIterator[Message]:
        self._keep()
        while True:
            while self._queue:
                yield self._queue.popleft()
            if self._keeping is None or self._keeping.done():
                break
            self._some.clear()
            await self._some.wait()
        if self._keeping is not None and not self._keeping.cancelled():
            self._keeping.result()  # a bug is not to pass for a quiet run

    def subscribe(self, rollouts: Collection[str]) -> None:
        self._followed = frozenset(rollouts)
        if self._line is not None:
            with contextlib.suppress(Cut):  # the next line begins with them
                self._line.tell("subscribe", rollouts=sorted(self._followed))

    async def desktop(self) -> Desktop:
        try:
            answer = await self._asked("review")
        except ConflictError:
            if (other := self._other()) is not None:
                return await other.desktop()
            raise
        return Desktop(
            tuple(from_dict(Operation, data) for data in answer["open"]),
            tuple(from_dict(Decision, data) for data in answer["decided"]),
            tuple((name, text) for name, text in answer["draft"]),
            answer["stale"],
            tuple(from_dict(Repair, data) for data in answer["repairs"]),
            answer["base_version"],
        )

    async def decide(self, decision: Decision) -> tuple[Decision, str]:
        answer = await self._steered("decide", decision=decision)
        if isinstance(answer, dict):
            return from_dict(Decision, answer["decision"]), str(answer["note"])
        return await answer.decide(decision)

    async def weigh(self, decision: Decision) -> Objected:
        try:
            answer = await self._asked("lint", decision=decision)
        except ConflictError:
            if (other := self._other()) is not None:
                return await other.weigh(decision)
            raise
        flags = tuple(from_dict(Flag, data) for data in answer["flags"])
        return Objected(str(answer["objection"]), flags)

    async def undo(self, operation_id: str) -> tuple[str, ...]:
        answer = await self._steered("undo", operation=operation_id)
        if isinstance(answer, dict):
            return tuple(answer["undone"])
        return await answer.undo(operation_id)

    async def propose(self, operation: Operation) -> Operation:
        wanted = operation if operation.id else numbered(operation, self.state)
        answer = await self._steered("propose", operation=wanted, reviewer=self._who)
        if isinstance(answer, dict):
            return from_dict(Operation, answer["operation"])
        return await answer.propose(wanted)

    async def mend(self, repair_id: str, text: str, reviewer: str) -> tuple[str, ...]:
        from engines.core.reply import MAX_REPLY_CHARS
        from engines.training_free.mend import too_long

        if len(text) > MAX_REPLY_CHARS:  # it might not even fit the line
            return (too_long(text),)
        answer = await self._steered("mend", repair=repair_id, text=text, reviewer=reviewer)
        if isinstance(answer, dict):
            return tuple(answer["problems"])
        return await answer.mend(repair_id, text, reviewer)

    async def drop(self, repair_id: str, reason: str, reviewer: str) -> None:
        answer = await self._steered("drop", repair=repair_id, reason=reason, reviewer=reviewer)
        if not isinstance(answer, dict):
            await answer.drop(repair_id, reason, reviewer)

    async def commit(self) -> str:
        answer = await self._steered("commit", step=self.state.step, reviewer=self._who)
        return str(answer["said"]) if isinstance(answer, dict) else await answer.commit()

    async def control(self, do: str, **arguments: Any) -> dict[str, Any]:
        if not self.living:
            await self.reattach()
        if do == "status":
            try:
                return await self._asked("status")
            except ConflictError:
                return status_of(self.state)
        answer = await self._steered(do, **arguments)
        return answer if isinstance(answer, dict) else await answer.control(do, **arguments)

    async def drive(self) -> None:
        self._wants = True
        answer = await self._asked("drive")
        self._driven(answer["driver"])

    async def reattach(self) -> bool:
        """Look whether a process of the run is back, and attach to it; whether one answers."""
        if not self._closed and not self.living and self._settled.is_set():
            self._settled.clear()
            self._wants = True
            self._call.set()
        self._keep()
        await self._settled.wait()
        return self.living

    async def let_go(self) -> str:
        """Release the run's lock, where this session holds it, so that a process can begin."""
        said = ""
        if self._stored is not None:
            self._state = self.state
            stored, self._stored = self._stored, None
            said = await stored.close()
        if self._forwarding is not None:
            forwarding, self._forwarding = self._forwarding, None
            await forwarding  # it ends with the session it forwards
        return said

    async def close(self) -> str:
        living, self._closed = self.living, True
        self.living = False
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        self._line = None
        self._settled.set()
        said = await self.let_go()
        self._some.set()
        back = f"come back with: studio attach {quote(self.run.run)}"
        return f"run {self.run.run} goes on; {back}" if living else said or back

    # What is asked.

    async def _asked(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Ask what may be asked twice, until it is answered.

        Raises:
            ConflictError: the run refuses, or has no process.
        """
        while True:
            line = await self._attached_line()
            with contextlib.suppress(Cut):
                return await line.ask(do, **arguments)
            await self._lost(line)

    async def _steered(self, do: str, **arguments: Any) -> dict[str, Any] | Session:
        """Ask for something to be done, once; a `Session` is who else is to do it.

        Raises:
            ConflictError: the run refuses, or has no process and nobody else decides.
        """
        async with self._turn:
            self._keep()
            await self._settled.wait()
            since = self.state.events
            again: dict[str, Any] = {}
            while True:
                try:
                    line = await self._attached_line()
                except ConflictError as error:
                    if again and (done := await self._done(do, arguments, since)) is not None:
                        return done
                    if (other := self._other()) is not None:
                        return other
                    raise ended_first(self.run) if again else error from error
                try:
                    return await line.ask(do, **arguments, since=since, **again)
                except Cut:
                    again = {"again": True}
                    await self._lost(line)

    async def _done(self, do: str, asked: dict[str, Any], since: int) -> dict[str, Any] | None:
        """The answer to what an ended process did before it could say so."""
        events = await asyncio.to_thread(events_since, self.run, since)
        done = done_already(do, asked, events)
        if done is not None and do == "commit":
            return {"said": f"committed: the library is at v{done['version']}"}
        return done if done is None else done or status_of(self.state)

    async def _attached_line(self) -> Line:
        self._keep()
        await self._settled.wait()
        if self._line is None:
            raise self._refused or nobody_runs(self.run)
        return self._line

    async def _lost(self, line: Line) -> None:
        """Wait until it is noticed that this line is cut."""
        line.cut()
        if self._line is line:
            self._line = None
            self._settled.clear()

    def _other(self) -> Session | None:
        """Who decides where the run has no process."""
        if self._fallback is None or self._refused is not None or self._closed:
            return None
        if self._line is not None or self.living:
            return None
        if self._stored is None:
            self._stored = self._fallback()
            self._forwarding = asyncio.create_task(self._forward(self._stored))
        return self._stored

    async def _forward(self, stored: Session) -> None:
        with contextlib.suppress(StudioError):  # whoever asks it something is told
            async for message in stored.messages():
                self._say(message)

    # What is heard.

    def _keep(self) -> None:
        if self._keeping is None and not self._closed:
            self._keeping = asyncio.create_task(self._attend())
            self._keeping.add_done_callback(self._kept)

    def _kept(self, _: asyncio.Task[None]) -> None:
        """Nobody follows any more: let go of whoever waits."""
        self._settled.set()
        self._some.set()

    async def _attend(self) -> None:
        """Attach, follow, and attach again, for as long as a process answers."""
        loop = asyncio.get_running_loop()
        tried = 0
        while True:
            await asyncio.sleep(_PAUSES_S[min(tried, len(_PAUSES_S) - 1)])
            tried, began = tried + 1, loop.time()
            try:
                await self._follow()
                reason = "the line to its process was cut"
            except NoProcess:
                await self._alone("no process of it is running", ended=True)
                tried = 0
                continue
            except StudioError as error:
                self._refused = ConflictError(error.place, error.cause, error.move)
                await self._alone(str(error), ended=False)
                self._refused, tried = None, 0
                continue
            except (OSError, TimeoutError) as error:
                reason = f"its process does not answer ({error or 'no word'})"
            if self.living:  # it was attached: 1, since a line may be cut again and again
                tried = 0 if loop.time() - began > _STEADY_S else 1
            self._part(reason, ended=False)

    async def _follow(self) -> None:
        """Attach and take in what comes, until the line is cut.

        Raises:
            NoProcess: nobody is there.
            StudioError: it refuses, or its journal cannot be read.
            OSError, TimeoutError: it could not be reached.
        """
        line = await connected(self.run)
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await line.first("attach", drive=self._wants, who=self._who)
            await self.let_go()  # it holds no lock, else this process could not have begun
            await self._read_anew(int(answer["seq"]))
            self._line, self.living, self._alone_for = line, True, ""
            line.tell("subscribe", rollouts=sorted(self._followed))
            self.drives, self.driver = _driver(answer["driver"])
            self._say(Began())
            self._say(Driven(self.drives, self.driver))
            self._settled.set()
            async for said in line.received():
                await self._hear(said)
        except Cut:
            return
        finally:
            await line.aclose()

    async def _hear(self, said: dict[str, Any]) -> None:
        if "streams" in said:
            pieces = tuple(Piece(*piece) for piece in said["streams"])
            self._say(Streamed(pieces))
        elif "driver" in said:
            self._driven(said["driver"])
        elif "event" in said:
            try:
                event = event_from_dict(said["event"])
            except ValueError as error:
                raise ConflictError(
                    f"run {self.run.run}",
                    f"its process tells of what this release does not know ({error}).",
                    "Use the studio release that started the run.",
                ) from error
            if isinstance(event, DurableEvent):
                if said["seq"] <= self.state.events:
                    return
                if said["seq"] > self.state.events + 1:
                    await self._read_anew(said["seq"])
                    self._say(Began())
                    return
                fold(self.state, event)
            self._say(Told(event))

    async def _read_anew(self, events: int | None = None) -> None:
        """Make the state from so many events of the journal; None: from all."""
        self.state = await asyncio.to_thread(_state_at, self.run, events)

    async def _alone(self, reason: str, *, ended: bool) -> None:
        """Go on from the journal until somebody asks to look for a process again."""
        if self._alone_for != reason:
            self._part(reason, ended=ended)
            self._alone_for = reason
            with contextlib.suppress(StudioError):  # else what was known before is shown
                await self._read_anew()
            self._say(Began())
        self._call.clear()
        self._settled.set()
        await self._call.wait()

    def _part(self, reason: str, *, ended: bool) -> None:
        if self.living:  # who drove goes on to, unless somebody else does by then
            self._wants = self.drives
        self._line, self.living = None, False
        self._settled.clear()
        self.drives, self.driver = False, ""
        self._say(Parted(reason, ended))

    def _driven(self, driver: dict[str, Any]) -> None:
        before = self.drives, self.driver
        self.drives, self.driver = _driver(driver)
        if before != (self.drives, self.driver):
            self._say(Driven(self.drives, self.driver))

    def _say(self, message: Message) -> None:
        if isinstance(message, Streamed) and self._queue:
            last = self._queue[-1]
            if isinstance(last, Streamed):  # who draws slowly finds all of it at once
                self._queue[-1] = Streamed(last.pieces + message.pieces)
                return
        self._queue.append(message)
        self._some.set()


def _driver(said: dict[str, Any]) -> tuple[bool, str]:
    return bool(said["mine"]), str(said["who"])


def numbered(operation: Operation, state: RunState) -> Operation:
    """A person's operation with the next free id, by which it is known if it is sent again."""
    number = 1
    while own_operation_id(state.step, number) in state.own:
        number += 1
    return replace(operation, id=own_operation_id(state.step, number))


def _state_at(run: RunDir, events: int | None) -> RunState:
    """What the first so many events of a journal add up to.

    Raises:
        StudioError: it cannot be read, or holds fewer.
    """
    found = run.entries()
    if events is not None and len(found) < events:
        raise ConflictError(
            f"run {run.run}",
            f"its process tells of event {events}, and its journal holds {len(found)}.",
            "See `studio doctor`.",
        )
    return folded(entry.event for entry in found[:events])
