"""The connection of a session to a run's process, made again whenever it is lost.

Owns the state: the run's journal, read once up to where its process says it stands, then the
events as they come. What is asked over the connection is `studio.session.live`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Any

from engines.core.errors import ConflictError, StudioError
from engines.core.events import DurableEvent, event_from_dict
from engines.core.state.fold import fold, fold_events
from engines.core.state.run_state import RunState
from engines.record.run_dir import RunDir
from studio.session.base import (
    ControllerChanged,
    Disconnected,
    EventReceived,
    Message,
    SnapshotReceived,
    TextPiece,
    TextReceived,
)
from studio.session.connection import Connection, ConnectionLost, NoProcess, connect

ANSWER_S = 30.0
"""How long a process that accepted the connection may take to answer `attach`."""
LOOK_S = 1.5
"""While there is no process: seconds between two looks for one."""
_PAUSES_S = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Before each try to connect again; the last for every further one."""
_STEADY_S = 5.0
"""After a connection that lasted so long the next try is made at once."""


class ReconnectingClient:
    """One session's connection. Used from one event loop.

    Args:
        run: the run.
        who: the person whose session it is.
        decides_alone: the session can decide although the run has no process.
        as_screen: attach, and control the run where nobody does; False: only follow its events.
        on_process_found: called before anything is read: a process holds the lock now.
        look_s: see `LOOK_S`.
    """

    def __init__(
        self,
        run: RunDir,
        who: str,
        *,
        decides_alone: bool,
        as_screen: bool,
        on_process_found: Callable[[], Awaitable[object]],
        look_s: float = LOOK_S,
    ) -> None:
        self.run = run
        self.state = RunState()
        self.living = False
        self.controls = False
        self.controller = ""
        self.pace_tokens_per_s: float | None = None
        self.connection: Connection | None = None
        self.refused: ConflictError | None = None  # why a living process is of no use
        self.closed = False
        self._who, self._decides_alone, self._as_screen = who, decides_alone, as_screen
        self._on_process_found, self._look_s = on_process_found, look_s
        self._session = os.urandom(8).hex()  # tells our connections from those of other screens
        self._wants_control = True  # where nobody has it
        self._subscribed: frozenset[str] = frozenset()
        self._known = asyncio.Event()  # connected, or known to have no process
        self._look_now = asyncio.Event()  # somebody asks whether a process is back
        self._reported = ""  # why there is no connection, as it was last reported
        self._queue: deque[Message] = deque()  # not taken by whoever iterates `messages` yet
        self._has_messages = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    async def messages(self) -> AsyncIterator[Message]:
        self._start()
        while True:
            while self._queue:
                yield self._queue.popleft()
            if self._running is None or self._running.done():
                break
            self._has_messages.clear()
            await self._has_messages.wait()
        if self._running is not None and not self._running.cancelled():
            self._running.result()  # else a bug would look like a quiet run

    def subscribe(self, rollouts: Collection[str]) -> None:
        self._subscribed = frozenset(rollouts)
        if self.connection is not None:
            with contextlib.suppress(ConnectionLost):  # the next connection begins with them
                self.connection.send("subscribe", rollouts=sorted(self._subscribed))

    async def wait_for_connection(self) -> Connection | None:
        """Wait until it is known whether there is a connection, and return it."""
        self._start()
        await self._known.wait()
        return self.connection

    def mark_lost(self, connection: Connection | None) -> None:
        """A request found this connection lost: `wait_for_connection` waits for the next."""
        if connection is None:
            return
        connection.close()
        if self.connection is connection:
            self.connection = None
            self._known.clear()

    async def try_reconnect(self) -> bool:
        """Look for a process of the run and connect to it; returns whether one answers."""
        if not self.closed and not self.living and self._known.is_set():
            self._known.clear()
            self._wants_control = True
            self._look_now.set()
        await self.wait_for_connection()
        return self.living

    def set_controller(self, driver: dict[str, Any]) -> None:
        """Note who decides; a change is a message."""
        before = self.controls, self.controller
        self.controls, self.controller = _parse_controller(driver)
        if before != (self.controls, self.controller):
            self.enqueue(ControllerChanged(self.controls, self.controller))

    def enqueue(self, message: Message) -> None:
        if isinstance(message, TextReceived) and self._queue:
            last = self._queue[-1]
            if isinstance(last, TextReceived):  # a slow screen draws all of it at once
                self._queue[-1] = TextReceived(last.pieces + message.pieces)
                return
        self._queue.append(message)
        self._has_messages.set()

    async def close(self) -> None:
        self.closed, self.living = True, False
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        self.connection = None
        self._known.set()
        self._has_messages.set()

    # What is received.

    def _start(self) -> None:
        if self._running is None and not self.closed:
            self._running = asyncio.create_task(self._keep_attached())
            self._running.add_done_callback(self._on_stopped)

    def _on_stopped(self, _: asyncio.Task[None]) -> None:
        """It ended, by `close` or by a bug: nobody may go on waiting."""
        self._known.set()
        self._has_messages.set()

    async def _keep_attached(self) -> None:
        """Connect, follow, and connect again, for as long as a process answers."""
        loop = asyncio.get_running_loop()
        tried = 0
        while True:
            await asyncio.sleep(_PAUSES_S[min(tried, len(_PAUSES_S) - 1)])
            tried, began = tried + 1, loop.time()
            try:
                await self._attach_once()
                reason = "the connection to its process was lost"
            except NoProcess:
                self.refused = None
                await self._wait_without_process("no process of it is running", ended=True)
                tried = 0
                continue
            except StudioError as error:
                self.refused = ConflictError(error.place, error.cause, error.move)
                await self._wait_without_process(str(error), ended=False)
                tried = 0
                continue
            except (OSError, TimeoutError) as error:
                reason = f"its process does not answer ({error or 'no word'})"
            if self.living:  # 1, since a connection may be lost again and again
                tried = 0 if loop.time() - began > _STEADY_S else 1
            self._disconnect(reason, ended=False)

    async def _attach_once(self) -> None:
        """Connect and handle what comes, until the connection is lost.

        Raises:
            NoProcess: nobody is there.
            StudioError: it refuses, or its journal cannot be read.
            OSError, TimeoutError: it could not be reached.
        """
        connection = await connect(self.run)
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await self._attach_or_watch(connection)
            await self._on_process_found()
            await self._reload_state(int(answer["events"]))
            self.connection, self.living, self._reported = connection, True, ""
            self.refused = None
            if self._as_screen:
                connection.send("subscribe", rollouts=sorted(self._subscribed))
                self.controls, self.controller = _parse_controller(answer["driver"])
                self.pace_tokens_per_s = answer.get("pace_tokens_per_s")
            self.enqueue(SnapshotReceived(frozenset(map(str, answer.get("under_way", ())))))
            self.enqueue(ControllerChanged(self.controls, self.controller))
            self._known.set()
            async for message in connection.pushed_messages():
                await self._handle_message(message)
        except ConnectionLost:
            return
        finally:
            await connection.aclose()

    async def _attach_or_watch(self, connection: Connection) -> dict[str, Any]:
        if not self._as_screen:  # who attached and does not control may decide nothing
            return await connection.ask_first("watch")
        return await connection.ask_first(
            "attach", drive=self._wants_control, who=self._who, session=self._session
        )

    async def _handle_message(self, said: dict[str, Any]) -> None:
        if "streams" in said:
            pieces = tuple(TextPiece(*piece) for piece in said["streams"])
            self.enqueue(TextReceived(pieces))
        elif "driver" in said:
            self.set_controller(said["driver"])
        elif "event" in said:
            try:
                event = event_from_dict(said["event"])
            except ValueError as error:
                raise ConflictError(
                    f"run {self.run.run}",
                    f"its process sends what this release does not know ({error}).",
                    "Use the studio release that started the run.",
                ) from error
            if isinstance(event, DurableEvent):
                if said["seq"] <= self.state.events:
                    return
                if said["seq"] > self.state.events + 1:
                    await self._reload_state(said["seq"])
                    self.enqueue(SnapshotReceived())
                    return
                fold(self.state, event)
            self.enqueue(EventReceived(event))

    async def _reload_state(self, events: int | None = None) -> None:
        """Fold the state from the first so many events of the journal; None: from all."""
        self.state = await asyncio.to_thread(_state_at, self.run, events)

    async def _wait_without_process(self, reason: str, *, ended: bool) -> None:
        """Go on from the journal until it is time to look for a process, or somebody asks to."""
        if self._reported != reason:
            self._disconnect(reason, ended=ended)
            self._reported = reason
            with contextlib.suppress(StudioError):  # else the state stays as it was
                await self._reload_state()
            self.enqueue(SnapshotReceived())
            if ended and self._decides_alone:  # nobody else is there to decide
                self.set_controller({"mine": True, "who": self._who})
        self._look_now.clear()
        self._known.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._look_s):
                await self._look_now.wait()

    def _disconnect(self, reason: str, *, ended: bool) -> None:
        if self.living:  # the controller wants to stay it, unless somebody else is by then
            self._wants_control = self.controls
        self.connection, self.living = None, False
        self._known.clear()
        self.controls, self.controller = False, ""
        self.enqueue(Disconnected(reason, ended))


def _parse_controller(said: dict[str, Any]) -> tuple[bool, str]:
    return bool(said["mine"]), str(said["who"])


def _state_at(run: RunDir, events: int | None) -> RunState:
    """What the first so many events of a journal add up to.

    Raises:
        StudioError: it cannot be read, or holds fewer.
    """
    found = run.entries()
    if events is not None and len(found) < events:
        raise ConflictError(
            f"run {run.run}",
            f"its process is at event {events}, and its journal holds {len(found)}.",
            "See `studio doctor`.",
        )
    return fold_events(entry.event for entry in found[:events])
