"""A session with a running process; without one, a fallback session decides.

A request whose connection is lost is sent again, and never done twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from shlex import quote
from typing import Any, TypeVar

from engines.core.errors import ConflictError, LockedError, StudioError
from studio.session.base import Request, ReviewQueue, Session, SnapshotReceived
from studio.session.idempotency import events_since, prior_result
from studio.session.protocol import controlled_elsewhere_error, ended_early_error, not_running_error
from studio.session.reconnect import ConnectionLost, ReconnectingClient
from studio.session.status import status_of

MOST_SENT = 8
"""How often one request is sent: one that loses its connection each time is at fault itself."""

T = TypeVar("T")


class LiveSession(ReconnectingClient):
    """One person's session with one run, whose process may end and come back."""

    _offline: Session | None = None  # the fallback, while it is in use
    _forwarding: asyncio.Task[None] | None = None

    def _parse_queue(self, answer: dict[str, Any]) -> ReviewQueue:
        if (controller := answer.get("driven_by")) and not self._as_screen:
            raise controlled_elsewhere_error(self.run, controller)
        return super()._parse_queue(answer)

    async def take_control(self) -> None:
        request: Request[dict[str, Any]] = Request("drive", {}, dict, is_query=True)
        self._set_controller((await self.send(request))["driver"])

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

    async def send(self, request: Request[T]) -> T:
        if request.is_query:
            return await self._send(request)
        async with self._turn:
            await self.wait_for_connection()
            return await self._send(request, since=self.state.events)

    async def _send(self, request: Request[T], **since: int) -> T:
        """Send a request until it is answered; one with `since` is done once."""
        again: dict[str, bool] = {}
        for _ in range(MOST_SENT):
            if (connection := await self.wait_for_connection()) is None:
                await self.reattach()  # a process may be back
                connection = await self.wait_for_connection()
            if connection is None:
                if again and (done := await self._prior_result(request, **since)):
                    return request.parse(done)
                try:
                    return await self._ask_fallback(request)
                except ConnectionLost:
                    continue
                except ConflictError as error:
                    if again and self._fallback_session() is None:
                        raise ended_early_error(self.run) from error
                    raise
            try:
                answer = await connection.ask(request.do, **request.arguments, **since, **again)
                return request.parse(answer)
            except ConnectionLost:
                again = {"again": True} if since else {}
                self._mark_lost(connection)
        if again and (done := await self._prior_result(request, **since)):
            return request.parse(done)
        cause = f"its process cut the connection each time it was asked to {request.do}."
        move = f"See what it said last in {self.run.log}."
        raise ConflictError(f"run {self.run.run}", cause, move)

    async def _ask_fallback(self, request: Request[T]) -> T:
        """Ask the session that decides without a process; ConnectionLost: one is back just now."""
        answers_here = request.act is not None or not request.is_query
        offline = self._fallback_session() if answers_here else None
        if offline is None:
            raise self.refused or not_running_error(self.run)
        try:
            return await offline.send(request)
        except LockedError as error:
            if await self.reattach():
                raise ConnectionLost from error
            raise
        finally:
            if offline is self._offline and offline.state.events:
                self.state = offline.state

    async def _prior_result(self, request: Request[T], since: int) -> dict[str, Any] | None:
        """The answer to what an ended process did before it could say so."""
        events = await asyncio.to_thread(events_since, self.run, since)
        done = prior_result(request.do, request.arguments, events)
        if done is not None and request.do == "commit":
            return {"said": f"committed: the library is at v{done['version']}"}
        return done if done is None else done or status_of(self.state)

    def _fallback_session(self) -> Session | None:
        """The session that decides while the run has no process; None where nothing does."""
        if self._fallback is None or self.refused is not None or self.closed:
            return None
        if self.connection is not None or self.living:
            return None
        if self._offline is None:
            self._offline = self._fallback()
            self._forwarding = asyncio.create_task(self._forward(self._offline))
        return self._offline

    async def _forward(self, offline: Session) -> None:
        with contextlib.suppress(StudioError):  # whoever asks it something is told
            async for message in offline.messages():
                if isinstance(message, SnapshotReceived):
                    self.state = offline.state
                self._enqueue(message)
