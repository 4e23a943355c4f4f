"""A session with a running process, connected again whenever its connection is lost.

The state is that of the run's journal, read once up to where its process says it stands, then
of the events as they come. A request whose connection is lost is sent again, and carried out
once. Without a process a fallback session decides.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable, Collection
from shlex import quote
from typing import Any, TypeVar

from engines.core.codec import JsonObject
from engines.core.errors import ConflictError, LockedError, StudioError
from engines.core.events import event_from_dict, is_durable
from engines.core.state.fold import fold
from engines.core.state.run_state import Live, RunState
from engines.record.derived.run_state import read_run
from engines.record.run_dir import RunDir
from studio.session import control_socket, requests, session

T = TypeVar("T")

MOST_SENT = 8
"""How often one request is sent: one that loses its connection each time is at fault itself."""
ANSWER_S = 30.0
"""How long a process that accepted the connection may take to answer `attach`."""
LOOK_S = 1.5
"""While there is no process: seconds between two looks for one."""
RETRY_S = 0.05
"""Before each try to connect again."""
_READ_BYTES = 1_000_000


class ConnectionLost(Exception):
    """The connection ended before the answer came."""


class NoProcess(Exception):
    """No process listens on the run's socket."""


class Connection:
    """An open connection. Answers arrive while somebody iterates `pushed_messages`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._waiting: dict[str, asyncio.Future[JsonObject]] = {}  # by id of the request
        self._lost = False

    async def ask(self, request: requests.Request[T], since: int | None = None) -> T:
        """Send a request and return its answer; `since` where it is sent again.

        Raises ConflictError: the run refused, or it is too long to be sent. ConnectionLost: whether
        the run did it is not known.
        """
        answer = self._waiting[request.id] = asyncio.get_running_loop().create_future()
        try:
            self.send(request, since)
            return requests.parse_answer(request, await answer)
        finally:
            self._waiting.pop(request.id, None)

    def send(self, request: requests.Request[Any], since: int | None = None) -> None:
        """Send a request; an answer that nobody waits for is dropped."""
        if self._lost:
            raise ConnectionLost
        self._writer.write(requests.request_line(request, since))

    async def ask_first(self, request: requests.Request[T]) -> T:
        """Ask before anybody iterates `pushed_messages`, and return the answer."""
        self.send(request)
        if not (line := await self._read_line()):
            raise ConnectionLost
        return requests.parse_answer(request, json.loads(line))

    async def pushed_messages(self) -> AsyncIterator[JsonObject]:
        """Yield what is pushed until the connection ends; answers go to those who asked."""
        try:
            while line := await self._read_line():
                message = json.loads(line)
                if "id" not in message:
                    yield message
                elif (answer := self._waiting.get(message["id"])) is not None and not answer.done():
                    answer.set_result(message)
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection; whoever waits for an answer gets ConnectionLost."""
        self._lost = True
        self._writer.close()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionLost())

    async def aclose(self) -> None:
        """Close the connection, and wait until it is closed."""
        self.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _read_line(self) -> bytes:
        """One line of any length; b"" at the end of the input, also within a line."""
        parts: list[bytes] = []
        while True:
            try:
                parts.append(await self._reader.readuntil(b"\n"))
                return b"".join(parts)
            except asyncio.LimitOverrunError as more:
                parts.append(await self._reader.readexactly(more.consumed))
            except (asyncio.IncompleteReadError, OSError):
                return b""


async def connect(run: control_socket.RunAddress) -> Connection:
    """Connect to a run's process.

    Raises NoProcess: there is none; a socket file may be left of it. ConflictError: its socket is
    somebody else's, or its path is too long. OSError: it could not be reached now.
    """
    try:
        with control_socket.connect_path(run) as path:
            control_socket.check_owner(path, run)
            reader, writer = await asyncio.open_unix_connection(path, limit=_READ_BYTES)
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as error:
        raise NoProcess from error
    return Connection(reader, writer)


class LiveSession(session.Session):
    """One person's session with one run, whose process may end and come back.

    `fallback` opens the session that decides once the run has no process; None: then nothing is
    decided. One that is not `as_screen` only follows the run: it never becomes the controller, and
    is refused decisions while a screen is.
    """

    def __init__(
        self,
        run: RunDir,
        who: str,
        *,
        fallback: Callable[[], session.Session] | None = None,
        as_screen: bool = True,
        look_s: float = LOOK_S,
    ) -> None:
        super().__init__(run, who)
        self.connection: Connection | None = None
        self.refused: ConflictError | None = None  # why a living process is of no use
        self._fallback, self._as_screen, self._look_s = fallback, as_screen, look_s
        self._session = os.urandom(8).hex()  # tells our connections from those of other screens
        self._wants_control = True  # where nobody has it
        self._subscribed: frozenset[str] = frozenset()
        self._known = asyncio.Event()  # connected, or known to have no process
        self._look_now = asyncio.Event()  # somebody asks whether a process is back
        self._reported = ""  # why there is no connection, as it was last reported
        self._running: asyncio.Task[None] | None = None
        self._offline: session.Session | None = None  # the fallback, while it is in use
        self._forwarding: asyncio.Task[None] | None = None

    async def messages(self) -> AsyncIterator[session.Message]:
        async for message in super().messages():
            yield message
        if self._running is not None and not self._running.cancelled():
            self._running.result()  # else a bug would look like a quiet run

    def subscribe(self, rollouts: Collection[str]) -> None:
        self._subscribed = frozenset(rollouts)
        if self.connection is not None:
            with contextlib.suppress(ConnectionLost):  # the next connection begins with them
                self.connection.send(requests.Subscribe(tuple(sorted(self._subscribed))))

    async def wait_for_connection(self) -> Connection | None:
        """Wait until it is known whether there is a connection, and return it."""
        await self._begin()
        await self._known.wait()
        return self.connection

    async def reattach(self) -> bool:
        """Look whether a process of the run is back, and attach to it; whether one answers."""
        if not self.closed and not self.living and self._known.is_set():
            self._known.clear()
            self._wants_control = True
            self._look_now.set()
        await self.wait_for_connection()
        return self.living

    def _mark_lost(self, connection: Connection) -> None:
        """A request found this connection lost: `wait_for_connection` waits for the next."""
        connection.close()
        if self.connection is connection:
            self.connection = None
            self._known.clear()

    def _set_controller(self, driver: JsonObject) -> None:
        """Note who decides; a change is a message."""
        before = self.controls, self.controller
        self.controls, self.controller = _parse_controller(driver)
        if before != (self.controls, self.controller):
            self._enqueue(session.ControllerChanged(self.controls, self.controller))

    async def _stop(self) -> None:
        self.closed, self.living = True, False
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        self.connection = None
        self._on_stopped()

    async def _begin(self) -> None:
        if self._running is None and not self.closed:
            self._running = asyncio.create_task(self._keep_attached())
            self._running.add_done_callback(self._on_stopped)

    def _on_stopped(self, _: object = None) -> None:
        """It ended, by `close` or by a bug: nobody may go on waiting."""
        self._known.set()
        self._end_queue()

    async def _keep_attached(self) -> None:
        """Connect, follow, and connect again, for as long as a process answers."""
        while True:
            try:
                await self._attach_once()
                # A run that has ended takes its process along, which the next try finds out.
                reason = "" if self.state.ending else "the connection to its process was lost"
            except NoProcess:
                self.refused = None
                await self._wait_without_process("no process of it is running", ended=True)
                continue
            except StudioError as error:
                self.refused = ConflictError(error.place, error.cause, error.move)
                await self._wait_without_process(str(error), ended=False)
                continue
            except (OSError, TimeoutError) as error:
                reason = f"its process does not answer ({error or 'no word'})"
            self._disconnect(reason, ended=False)
            await asyncio.sleep(RETRY_S)

    async def _attach_once(self) -> None:
        """Connect and handle what comes, until the connection is lost."""
        connection = await connect(self.run)
        try:
            async with asyncio.timeout(ANSWER_S):
                follow: requests.Request[JsonObject] = requests.Watch()
                if self._as_screen:  # who attached and does not control may decide nothing
                    follow = requests.Attach(self.who, self._session, self._wants_control)
                answer = await connection.ask_first(follow)
            await self.release_lock()  # the process holds it now
            await self._reload_state(int(answer["events"]))
            self.connection, self.living, self._reported = connection, True, ""
            self.refused = None
            if self._as_screen:
                connection.send(requests.Subscribe(tuple(sorted(self._subscribed))))
                self.controls, self.controller = _parse_controller(answer["driver"])
                self.pace_tokens_per_s = answer.get("pace_tokens_per_s")
            self.state.live.name_tries(map(str, answer.get("under_way", ())), self.state.current)
            self._enqueue(session.SnapshotReceived(self.state.events))
            self._enqueue(session.ControllerChanged(self.controls, self.controller))
            self._known.set()
            async for message in connection.pushed_messages():
                await self._handle_message(message)
        except ConnectionLost:
            return
        finally:
            await connection.aclose()

    async def _handle_message(self, message: JsonObject) -> None:
        if "streams" in message:
            pieces = tuple(session.TextPiece(*piece) for piece in message["streams"])
            self._enqueue(session.TextReceived(pieces))
        elif "driver" in message:
            self._set_controller(message["driver"])
        elif "event" in message:
            try:
                event = event_from_dict(message["event"])
            except ValueError as error:
                raise ConflictError(
                    f"run {self.run.run}",
                    f"its process sends what this release does not know ({error}).",
                    "Use the studio release that started the run.",
                ) from error
            if is_durable(event):
                if message["seq"] <= self.state.events:
                    return
                if message["seq"] > self.state.events + 1:
                    await self._reload_state(message["seq"])
                    self._enqueue(session.SnapshotReceived(events=self.state.events))
                    return
            fold(self.state, event)
            self._enqueue(session.EventReceived(event))

    async def _reload_state(self, events: int | None = None) -> None:
        """Fold the state from the first so many events of the journal; None: from all."""
        self.state = await asyncio.to_thread(_state_at, self.run, events)

    async def _wait_without_process(self, reason: str, *, ended: bool) -> None:
        """Go on from the journal until it is time to look for a process, or somebody asks to."""
        if self._reported != reason:
            self._disconnect("", ended=ended)
            self._reported = reason
            with contextlib.suppress(StudioError):  # else the state stays as it was
                await self._reload_state()
            if ended and self.state.ending:
                reason = "the run has ended, and its process too"
            self._enqueue(session.Disconnected(reason, ended))
            self._enqueue(session.SnapshotReceived(events=self.state.events))
            if ended and self._fallback is not None:  # nobody else is there to decide
                self._set_controller({"mine": True, "who": self.who})
        self._look_now.clear()
        self._known.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._look_s):
                await self._look_now.wait()

    def _disconnect(self, reason: str, *, ended: bool) -> None:
        if self.living:  # the controller wants to stay it, unless somebody else is by then
            self._wants_control = self.controls
        self.connection, self.living = None, False
        self.state.live = Live()  # nobody knows what goes on while there is no line to the run
        self._known.clear()
        self.controls, self.controller = False, ""
        if reason:
            self._enqueue(session.Disconnected(reason, ended))

    async def take_control(self) -> None:
        self._set_controller((await self.send(requests.TakeControl()))["driver"])

    async def release_lock(self) -> str:
        last_words = ""
        if self._offline is not None:
            offline, self._offline = self._offline, None
            last_words = await offline.close()
        if self._forwarding is not None:
            forwarding, self._forwarding = self._forwarding, None
            await forwarding  # it ends with the session it forwards
        return last_words

    async def close(self) -> str:
        living = self.living
        await self._stop()
        last_words = await self.release_lock()
        back = f"come back with: studio attach {quote(self.run.run)}"
        return f"run {self.run.run} goes on; {back}" if living else last_words or back

    async def send(self, request: requests.Request[T]) -> T:
        if not request.changes:
            return await self._send(request, None)
        async with self._turn:
            await self.wait_for_connection()
            return await self._send(request, self.state.events)

    async def _send(self, request: requests.Request[T], seen: int | None) -> T:
        """Send a request until it is answered; `seen` are the events that came before it."""
        since: int | None = None  # it was sent before
        for _ in range(MOST_SENT):
            if (connection := await self.wait_for_connection()) is None:
                await self.reattach()  # a process may be back
                connection = await self.wait_for_connection()
            if connection is None:
                if since is not None and (done := await self._find_answer(request, since)):
                    return done
                try:
                    return await self._ask_fallback(request)
                except ConnectionLost:
                    continue
                except ConflictError as error:
                    if since is not None and self._fallback_session() is None:
                        raise requests.ended_early_error(self.run.run) from error
                    raise
            try:
                return await connection.ask(request, since)
            except ConnectionLost:
                since = seen
                self._mark_lost(connection)
        if since is not None and (done := await self._find_answer(request, since)):
            return done
        raise ConflictError(
            f"run {self.run.run}",
            f"its process cut the connection each time it was asked to {request.do}.",
            f"See what it said last in {self.run.log}.",
        )

    async def _ask_fallback(self, request: requests.Request[T]) -> T:
        """Ask the session that decides without a process; ConnectionLost: one is back just now."""
        answers_here = request.changes or not request.needs_process
        offline = self._fallback_session() if answers_here else None
        if offline is None:
            raise self.refused or requests.not_running_error(self.run.run)
        try:
            return await offline.send(request)
        except LockedError as error:
            if await self.reattach():
                raise ConnectionLost from error
            raise
        finally:
            if offline is self._offline and offline.state.events:
                self.state = offline.state

    async def _find_answer(self, request: requests.Request[T], since: int) -> T | None:
        """The answer to what an ended process did before it could say so."""
        return await asyncio.to_thread(requests.find_answer, request, self.run, self.state, since)

    def _fallback_session(self) -> session.Session | None:
        """The session that decides while the run has no process; None where nothing does."""
        if self._fallback is None or self.refused is not None or self.closed:
            return None
        if self.connection is not None or self.living:
            return None
        if self._offline is None:
            self._offline = self._fallback()
            self._forwarding = asyncio.create_task(self._forward(self._offline))
        return self._offline

    async def _forward(self, offline: session.Session) -> None:
        with contextlib.suppress(StudioError):  # whoever asks it something is told
            async for message in offline.messages():
                if isinstance(message, session.SnapshotReceived):
                    self.state = offline.state
                self._enqueue(message)


def _parse_controller(driver: JsonObject) -> tuple[bool, str]:
    return bool(driver["mine"]), str(driver["who"])


def _state_at(run: RunDir, events: int | None) -> RunState:
    """What the first so many events of a journal add up to."""
    state = read_run(run.journal, events).state
    if events is not None and state.events < events:
        raise ConflictError(
            f"run {run.run}",
            f"its process is at event {events}, and its journal holds {state.events}.",
            "See `studio doctor`.",
        )
    return state
