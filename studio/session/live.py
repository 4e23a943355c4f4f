"""A session with a running process; without one, a fallback session decides.

Implements `studio.session.base.Session`. A request whose connection is lost is sent again,
and never done twice. The connection itself is `studio.session.reconnect`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING, Any, TypeVar

from engines.core.codec import from_dict
from engines.core.errors import ConflictError, LockedError, StudioError
from engines.core.state.run_state import RunState
from engines.core.types import Decision, Operation
from engines.pipeline.gate.results import DecisionPreview, DecisionResult
from engines.record.run_dir import RunDir
from studio.session.base import Message, ReviewQueue, Session
from studio.session.connection import Connection, ConnectionLost
from studio.session.idempotency import events_since, free_operation_id, prior_result
from studio.session.protocol import (
    controlled_elsewhere_error,
    ended_early_error,
    not_running_error,
    parse_value,
)
from studio.session.reconnect import LOOK_S, ReconnectingClient
from studio.session.status import status_of

if TYPE_CHECKING:
    from engines.training_free.resubmit import Resubmission

MOST_SENT = 8
"""How often one request is sent: one that loses its connection each time is at fault itself."""

T = TypeVar("T")


class LiveSession:
    """One person's session with one run. Used from one event loop.

    Args:
        run: the run.
        who: the person who decides.
        fallback: opens the session that decides once the run has no process; None: then
            nothing is decided.
        as_screen: it may control the run. False: it asks as a script does, never becomes the
            controller, and is refused decisions while a screen is.
        look_s: see `studio.session.reconnect.LOOK_S`.
    """

    def __init__(
        self,
        run: RunDir,
        who: str,
        *,
        fallback: Callable[[], Session] | None = None,
        as_screen: bool = True,
        look_s: float = LOOK_S,
    ) -> None:
        self.run = run
        self._who, self._fallback, self._as_screen = who, fallback, as_screen
        self._client = ReconnectingClient(
            run,
            who,
            decides_alone=fallback is not None,
            as_screen=as_screen,
            on_process_found=self.release_lock,
            look_s=look_s,
        )
        self._turn = asyncio.Lock()  # one decision at a time is under way
        self._offline: Session | None = None  # the fallback, while it is in use
        self._forwarding: asyncio.Task[None] | None = None

    @property
    def state(self) -> RunState:
        """Where the run stands; the fallback's, where that decides."""
        offline = self._offline
        return offline.state if offline is not None and offline.state.events else self._client.state

    @property
    def living(self) -> bool:
        return self._client.living

    @property
    def controls(self) -> bool:
        return self._client.controls

    @property
    def controller(self) -> str:
        return self._client.controller

    @property
    def pace_tokens_per_s(self) -> float | None:
        return self._client.pace_tokens_per_s

    def messages(self) -> AsyncIterator[Message]:
        return self._client.messages()

    def subscribe(self, rollouts: Collection[str]) -> None:
        self._client.subscribe(rollouts)

    async def review_queue(self) -> ReviewQueue:
        return await self._query(
            "review", self._parse_review_queue, lambda offline: offline.review_queue()
        )

    def _parse_review_queue(self, answer: dict[str, Any]) -> ReviewQueue:
        if (controller := answer.get("driven_by")) and not self._as_screen:
            raise controlled_elsewhere_error(self.run, controller)
        return parse_value(ReviewQueue, answer)

    async def decide(self, decision: Decision) -> DecisionResult:
        return await self._command(
            "decide",
            lambda answer: parse_value(DecisionResult, answer),
            lambda offline: offline.decide(decision),
            decision=decision,
        )

    async def preview(self, decision: Decision) -> DecisionPreview:
        return await self._query(
            "lint",
            lambda answer: parse_value(DecisionPreview, answer),
            lambda offline: offline.preview(decision),
            decision=decision,
        )

    async def undo(self, operation_id: str) -> tuple[str, ...]:
        return await self._command(
            "undo",
            lambda answer: tuple(answer["undone"]),
            lambda offline: offline.undo(operation_id),
            operation=operation_id,
        )

    async def propose(self, operation: Operation) -> Operation:
        wanted = replace(operation, id=operation.id or free_operation_id(self.state))
        return await self._command(
            "propose",
            lambda answer: from_dict(Operation, answer["operation"]),
            lambda offline: offline.propose(wanted),
            operation=wanted,
            reviewer=self._who,
        )

    async def resubmit(self, repair_id: str, text: str, reviewer: str) -> Resubmission:
        from engines.core.text.reply import MAX_REPLY_CHARS
        from engines.training_free.resubmit import Resubmission, too_long_reason

        if len(text) > MAX_REPLY_CHARS:  # it might be longer than a request may be
            return Resubmission(problems=(too_long_reason(text),))
        return await self._command(
            "mend",
            lambda answer: parse_value(Resubmission, answer),
            lambda offline: offline.resubmit(repair_id, text, reviewer),
            repair=repair_id,
            text=text,
            reviewer=reviewer,
        )

    async def drop(self, repair_id: str, reason: str, reviewer: str) -> None:
        await self._command(
            "drop",
            lambda _: None,
            lambda offline: offline.drop(repair_id, reason, reviewer),
            repair=repair_id,
            reason=reason,
            reviewer=reviewer,
        )

    async def commit(self) -> str:
        return await self._command(
            "commit",
            lambda answer: str(answer["said"]),
            lambda offline: offline.commit(),
            step=self.state.step,
            reviewer=self._who,
        )

    async def control(self, do: str, **arguments: Any) -> dict[str, Any]:
        if do == "status":
            try:
                return await self._query("status", dict)
            except ConflictError:
                return status_of(self.state)
        return await self._command(
            do, dict, lambda offline: offline.control(do, **arguments), **arguments
        )

    async def take_control(self) -> None:
        self._client.set_controller((await self._query("drive", dict))["driver"])

    async def reattach(self) -> bool:
        """Look whether a process of the run is back, and attach to it; whether one answers."""
        return await self._client.try_reconnect()

    async def release_lock(self) -> str:
        """Release the run's lock, where this session holds it, so that a process can begin."""
        said = ""
        if self._offline is not None:
            self._client.state = self.state
            offline, self._offline = self._offline, None
            said = await offline.close()
        if self._forwarding is not None:
            forwarding, self._forwarding = self._forwarding, None
            await forwarding  # it ends with the session it forwards
        return said

    async def close(self) -> str:
        living = self._client.living
        await self._client.close()
        said = await self.release_lock()
        back = f"come back with: studio attach {quote(self.run.run)}"
        return f"run {self.run.run} goes on; {back}" if living else said or back

    # How requests are sent.

    async def _query(
        self,
        do: str,
        parse: Callable[[dict[str, Any]], T],
        fallback: Callable[[Session], Awaitable[T]] | None = None,
        **arguments: Any,
    ) -> T:
        """Ask what may be asked twice, until it is answered.

        Args:
            do: the request's name.
            parse: reads its answer.
            fallback: asks the session that decides without a process; None: nobody can.
            arguments: of the request.

        Raises:
            ConflictError: the run refuses, or has no process and nobody else answers.
        """
        for _ in range(MOST_SENT):
            connection = await self._find_connection()
            try:
                if connection is None:
                    return await self._ask_fallback(fallback)
                return parse(await connection.ask(do, **arguments))
            except ConnectionLost:
                self._client.mark_lost(connection)
        raise self._connection_lost_error(do)

    async def _command(
        self,
        do: str,
        parse: Callable[[dict[str, Any]], T],
        fallback: Callable[[Session], Awaitable[T]],
        **arguments: Any,
    ) -> T:
        """Ask for something to be done, once; arguments and errors are those of `_query`."""
        async with self._turn:
            await self._client.wait_for_connection()
            since = self.state.events
            resend: dict[str, Any] = {}
            for _ in range(MOST_SENT):
                if (connection := await self._find_connection()) is None:
                    if resend and (done := await self._prior_result(do, arguments, since)):
                        return parse(done)
                    try:
                        return await self._ask_fallback(fallback)
                    except ConnectionLost:
                        continue
                    except ConflictError as error:
                        ended = resend and self._fallback_session() is None
                        raise ended_early_error(self.run) if ended else error from error
                try:
                    return parse(await connection.ask(do, **arguments, since=since, **resend))
                except ConnectionLost:
                    resend = {"again": True}
                    self._client.mark_lost(connection)
            if done := await self._prior_result(do, arguments, since):
                return parse(done)
            raise self._connection_lost_error(do)

    async def _find_connection(self) -> Connection | None:
        """The connection to the run's process; None where there is none after another look."""
        connection = await self._client.wait_for_connection()
        if connection is None and await self._client.try_reconnect():
            connection = await self._client.wait_for_connection()
        return connection

    async def _ask_fallback(self, ask: Callable[[Session], Awaitable[T]] | None) -> T:
        """Ask the session that decides where the run has no process.

        Raises:
            ConnectionLost: a process took the run up just now.
        """
        offline = self._fallback_session()
        if ask is None or offline is None:
            raise self._client.refused or not_running_error(self.run)
        try:
            return await ask(offline)
        except LockedError as error:
            if await self._client.try_reconnect():
                raise ConnectionLost from error
            raise

    async def _prior_result(
        self, do: str, asked: dict[str, Any], since: int
    ) -> dict[str, Any] | None:
        """The answer to what an ended process did before it could say so."""
        events = await asyncio.to_thread(events_since, self.run, since)
        done = prior_result(do, asked, events)
        if done is not None and do == "commit":
            return {"said": f"committed: the library is at v{done['version']}"}
        return done if done is None else done or status_of(self.state)

    def _connection_lost_error(self, do: str) -> ConflictError:
        return ConflictError(
            f"run {self.run.run}",
            f"its process cut the connection each time it was asked to {do}.",
            f"See what it said last in {self.run.log}.",
        )

    def _fallback_session(self) -> Session | None:
        """The session that decides while the run has no process; None where nothing does."""
        client = self._client
        if self._fallback is None or client.refused is not None or client.closed:
            return None
        if client.connection is not None or client.living:
            return None
        if self._offline is None:
            self._offline = self._fallback()
            self._forwarding = asyncio.create_task(self._forward(self._offline))
        return self._offline

    async def _forward(self, offline: Session) -> None:
        with contextlib.suppress(StudioError):  # whoever asks it something is told
            async for message in offline.messages():
                self._client.enqueue(message)
