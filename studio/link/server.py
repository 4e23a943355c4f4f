"""A run's process at its end of `control.sock`: connections, and who of them decides.

Owns the socket, the connections and the one driver. What a request does is
`studio.link.requests`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from engines.core.errors import ConflictError, StudioError
from engines.pipeline.practice import Practice
from studio.link.feed import BATCH_S, Feed, Outlet
from studio.link.protocol import MAX_LINE, line_of, refusal_of, request_of
from studio.link.requests import STEERING, Requests, said

_LAST_WORDS_S = 2.0
"""How long an ending run waits for somebody that reads slowly."""
_LONGEST_PATH = 100  # what sun_path holds on every platform, with room for the NUL


@asynccontextmanager
async def serve(practice: Practice, path: Path, *, batch_s: float = BATCH_S) -> AsyncIterator[None]:
    """Answer requests about a run for as long as the context lasts.

    Args:
        practice: the run.
        path: of its socket.
        batch_s: seconds between two batches of text under way.
    """
    server = _Server(practice, batch_s)
    with _bound(path) as bound:
        listening = socket.socket(socket.AF_UNIX)
        # Before it has a name, so that nobody else can connect in between; after it for
        # systems that look at the name only.
        os.fchmod(listening.fileno(), 0o600)
        listening.bind(bound)
        os.chmod(bound, 0o600)
        listener = await asyncio.start_unix_server(server.attend, sock=listening, limit=MAX_LINE)
        try:
            yield
        finally:
            listener.close()
            await server.close()


class _Connection:
    """One client: what it is sent, and who it is once it attached."""

    def __init__(self, outlet: Outlet) -> None:
        self.outlet = outlet
        self.who: str | None = None  # None: it asks, and is not attached


class _Server:
    """Attends clients, each in its own task."""

    def __init__(self, practice: Practice, batch_s: float) -> None:
        self._practice = practice
        self._requests = Requests(practice)
        self._feed = Feed(practice.recorder.state, batch_s)
        self._stop_listening = practice.recorder.listen(self._feed)
        self._connections: dict[asyncio.Task[None], _Connection] = {}
        self._under_way: set[asyncio.Task[Any]] = set()
        self._driver: _Connection | None = None
        self._closing = False

    async def attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closing:  # it was waiting to be let in
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        client = self._connections[task] = _Connection(Outlet(self._feed))
        sending = asyncio.create_task(client.outlet.send(writer))
        reading = asyncio.create_task(self._attended(client, reader))
        client.outlet.let_go = sending.cancel  # it may wait for somebody who never reads
        try:
            # Whichever ends first: it left, it stopped reading, or the run is over.
            await asyncio.wait((sending, reading), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass  # it did not take the run's last words
        finally:
            self._leave(client)
            for part in (sending, reading):
                part.cancel()
            await asyncio.gather(sending, reading, return_exceptions=True)
            writer.close()
            if client.outlet.gone or not client.outlet.ended:
                writer.transport.abort()  # what it did not read must not keep us
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()
            self._connections.pop(task, None)

    async def close(self) -> None:
        """Let everyone have the last events, for a moment."""
        self._closing = True
        self._stop_listening()
        self._feed.close()
        self._requests.close()
        if self._under_way:  # a decision that is being written is written
            await asyncio.wait(self._under_way, timeout=_LAST_WORDS_S)
        tasks = tuple(self._connections)
        for client in self._connections.values():
            client.outlet.end()
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=_LAST_WORDS_S)
            for task in left:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _attended(self, client: _Connection, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError, ValueError):  # gone, or a line beyond bounds
            while (line := await reader.readline()) and not self._closing:
                # A client that leaves must not cut what it asked for: half a decision, on
                # disk and not in the state, would be worse than one nobody waits for.
                answering = asyncio.create_task(self._answer(client, line))
                self._under_way.add(answering)
                answering.add_done_callback(self._under_way.discard)
                await asyncio.shield(answering)
                await client.outlet.emptied()

    async def _answer(self, client: _Connection, line: bytes) -> None:
        number: Any = None
        try:
            request = request_of(line)
            number = request.get("id")
            answer = await self._do(client, request)
        except StudioError as error:
            client.outlet.say(refusal_of(number, error))
            return
        # The status comes first, and what else is known as `ok` or `id` never.
        client.outlet.say(line_of(**{**answer, "id": number, "ok": True}))
        if request["do"] == "watch":
            self._feed.join(client.outlet)

    async def _do(self, client: _Connection, request: Mapping[str, Any]) -> dict[str, Any]:
        match do := str(request.get("do")):
            case "attach":
                return self._attach(client, request)
            case "drive":
                if client.who is None:
                    raise ConflictError(
                        "request drive", "only a screen that attached drives.", "Send attach first."
                    )
                self._drives(client)
                return self._told_driver(client)
            case "subscribe":
                self._subscribe(client, request)
                return {}
        if do in STEERING and client.who is not None and client is not self._driver:
            raise self._observes()
        return await self._requests.do(do, request, who=client.who, driven=self._driver is not None)

    def _attach(self, client: _Connection, request: Mapping[str, Any]) -> dict[str, Any]:
        (who,) = said(request, "who")
        client.who = who or "somebody"
        if request.get("drive") and self._driver is None:
            self._drives(client)
        # From here to the events there is no await, so that none falls between.
        self._feed.join(client.outlet)
        return {
            **self._requests.status(),
            "seq": self._feed.seq,
            **self._told_driver(client),
        }

    def _subscribe(self, client: _Connection, request: Mapping[str, Any]) -> None:
        rollouts = request.get("rollouts")
        if not isinstance(rollouts, list) or not all(isinstance(one, str) for one in rollouts):
            raise ConflictError(
                "request subscribe", 'its "rollouts" is no list of ids.', "Send ids such as s1p0r2."
            )
        if client.who is None:
            raise ConflictError(
                "request subscribe", "only who attached is sent text.", "Send attach first."
            )
        self._feed.follow(client.outlet, frozenset(rollouts))

    def _drives(self, client: _Connection | None) -> None:
        """Let this one decide, None nobody, and tell everyone else who is attached."""
        if client is self._driver:
            return
        self._driver = client
        self._practice.gate.hold_commit(client is not None)
        for other in self._connections.values():
            if other.who is not None and other is not client:
                other.outlet.say(line_of(**self._told_driver(other)))

    def _told_driver(self, client: _Connection) -> dict[str, Any]:
        who = (self._driver.who or "") if self._driver is not None else ""
        return {"driver": {"mine": client is self._driver, "who": who}}

    def _observes(self) -> ConflictError:
        if self._driver is None:
            return ConflictError(
                "this screen", "it observes; nobody drives now.", "Press T to take over."
            )
        return ConflictError(
            "this screen",
            f"it observes; {self._driver.who} drives this run.",
            "Press T to take over.",
        )

    def _leave(self, client: _Connection) -> None:
        self._feed.leave(client.outlet)
        client.who = None
        if client is self._driver:
            self._drives(None)


@contextlib.contextmanager
def _bound(path: Path) -> Iterator[str]:
    """Where to bind: the path itself, or a short one it then links to."""
    path.unlink(missing_ok=True)  # left by a process that was killed: we hold the run's lock
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        yield str(path)
        path.unlink(missing_ok=True)
        return
    with tempfile.TemporaryDirectory(prefix="studio-") as private:  # made with mode 0700
        short = Path(private) / "control.sock"
        path.symlink_to(short)
        yield str(short)
        path.unlink(missing_ok=True)
