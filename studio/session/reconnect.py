"""A screen's line to a run, kept up: attached, followed, attached again for as long as it can be.

Owns the state, which is the run's journal, read once up to where its process says it stands,
and from there the events as they come; and what happens when the line is cut. What is asked
over the line is `studio.session.live`'s.
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
"""While there is no process: between two looks whether one is back."""
_PAUSES_S = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Before each try to attach again; the last for every further one."""
_STEADY_S = 5.0
"""A line that held so long was no false start: the next try is made at once."""


class ReconnectingClient:
    """One screen's line. Used from one event loop.

    Args:
        run: the run.
        who: sits at the screen.
        decides_alone: somebody else decides once the run has no process, for this screen.
        found: called when a process is found, before anything is read: it holds the lock.
        look_s: see `LOOK_S`.
    """

    def __init__(
        self,
        run: RunDir,
        who: str,
        *,
        decides_alone: bool,
        found: Callable[[], Awaitable[object]],
        look_s: float = LOOK_S,
    ) -> None:
        self.run = run
        self.state = RunState()
        self.living = False
        self.drives = False
        self.driver = ""
        self.pace_tokens_per_s: float | None = None
        self.line: Connection | None = None
        self.refused: ConflictError | None = None  # why a living process is of no use
        self.closed = False
        self._who, self._decides_alone = who, decides_alone
        self._found, self._look_s = found, look_s
        self._session = os.urandom(8).hex()  # tells our lines from those of other screens
        self._wants = True  # to drive, where nobody does
        self._followed: frozenset[str] = frozenset()
        self._settled = asyncio.Event()  # attached, or known to be alone
        self._call = asyncio.Event()  # somebody wants to know whether a process is back
        self._alone_for = ""  # the reason that was told for there being no line
        self._queue: deque[Message] = deque()  # not yet taken by whoever draws
        self._some = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    async def messages(self) -> AsyncIterator[Message]:
        self._start()
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
        if self.line is not None:
            with contextlib.suppress(ConnectionLost):  # the next line begins with them
                self.line.send("subscribe", rollouts=sorted(self._followed))

    async def wait_for_connection(self) -> Connection | None:
        """Wait until it is known whether there is a line, and return it."""
        self._start()
        await self._settled.wait()
        return self.line

    def mark_lost(self, line: Connection | None) -> None:
        """This line turned out to be cut; `settled` waits until that is noticed."""
        if line is None:
            return
        line.close()
        if self.line is line:
            self.line = None
            self._settled.clear()

    async def try_reconnect(self) -> bool:
        """Look whether a process of the run is back, and attach to it; whether one answers."""
        if not self.closed and not self.living and self._settled.is_set():
            self._settled.clear()
            self._wants = True
            self._call.set()
        await self.wait_for_connection()
        return self.living

    def set_controller(self, driver: dict[str, Any]) -> None:
        """Note who decides, and tell where that is news."""
        before = self.drives, self.driver
        self.drives, self.driver = _parse_controller(driver)
        if before != (self.drives, self.driver):
            self.enqueue(ControllerChanged(self.drives, self.driver))

    def enqueue(self, message: Message) -> None:
        if isinstance(message, TextReceived) and self._queue:
            last = self._queue[-1]
            if isinstance(last, TextReceived):  # who draws slowly finds all of it at once
                self._queue[-1] = TextReceived(last.pieces + message.pieces)
                return
        self._queue.append(message)
        self._some.set()

    async def close(self) -> None:
        self.closed, self.living = True, False
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        self.line = None
        self._settled.set()
        self._some.set()

    # What is heard.

    def _start(self) -> None:
        if self._keeping is None and not self.closed:
            self._keeping = asyncio.create_task(self._keep_attached())
            self._keeping.add_done_callback(self._on_stopped)

    def _on_stopped(self, _: asyncio.Task[None]) -> None:
        """Nobody follows any more: let go of whoever waits."""
        self._settled.set()
        self._some.set()

    async def _keep_attached(self) -> None:
        """Attach, follow, and attach again, for as long as a process answers."""
        loop = asyncio.get_running_loop()
        tried = 0
        while True:
            await asyncio.sleep(_PAUSES_S[min(tried, len(_PAUSES_S) - 1)])
            tried, began = tried + 1, loop.time()
            try:
                await self._attach_once()
                reason = "the line to its process was cut"
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
            if self.living:  # it was attached: 1, since a line may be cut again and again
                tried = 0 if loop.time() - began > _STEADY_S else 1
            self._disconnect(reason, ended=False)

    async def _attach_once(self) -> None:
        """Attach and take in what comes, until the line is cut.

        Raises:
            NoProcess: nobody is there.
            StudioError: it refuses, or its journal cannot be read.
            OSError, TimeoutError: it could not be reached.
        """
        line = await connect(self.run)
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await line.ask_first(
                    "attach", drive=self._wants, who=self._who, session=self._session
                )
            await self._found()
            await self._reload_state(int(answer["seq"]))
            self.line, self.living, self._alone_for = line, True, ""
            self.refused = None
            line.send("subscribe", rollouts=sorted(self._followed))
            self.drives, self.driver = _parse_controller(answer["driver"])
            self.pace_tokens_per_s = answer.get("pace_tokens_per_s")
            self.enqueue(SnapshotReceived(frozenset(map(str, answer.get("under_way", ())))))
            self.enqueue(ControllerChanged(self.drives, self.driver))
            self._settled.set()
            async for said in line.pushed_messages():
                await self._handle_message(said)
        except ConnectionLost:
            return
        finally:
            await line.aclose()

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
                    f"its process tells of what this release does not know ({error}).",
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
        """Make the state from so many events of the journal; None: from all."""
        self.state = await asyncio.to_thread(_state_at, self.run, events)

    async def _wait_without_process(self, reason: str, *, ended: bool) -> None:
        """Go on from the journal until it is time to look, or somebody asks to."""
        if self._alone_for != reason:
            self._disconnect(reason, ended=ended)
            self._alone_for = reason
            with contextlib.suppress(StudioError):  # else what was known before is shown
                await self._reload_state()
            self.enqueue(SnapshotReceived())
            if ended and self._decides_alone:  # nobody else is there to decide
                self.set_controller({"mine": True, "who": self._who})
        self._call.clear()
        self._settled.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._look_s):
                await self._call.wait()

    def _disconnect(self, reason: str, *, ended: bool) -> None:
        if self.living:  # who drove goes on to, unless somebody else does by then
            self._wants = self.drives
        self.line, self.living = None, False
        self._settled.clear()
        self.drives, self.driver = False, ""
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
            f"its process tells of event {events}, and its journal holds {len(found)}.",
            "See `studio doctor`.",
        )
    return fold_events(entry.event for entry in found[:events])
