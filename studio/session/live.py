"""A screen at a run: what it may ask, of the run's process or of who decides without one.

Keeps the protocol `studio.session.base.Session`. What is asked while the line is cut is asked
again, and never done twice. The line itself is `studio.session.reconnect`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import replace
from shlex import quote
from typing import Any, TypeVar

from engines.core.codec import from_dict
from engines.core.errors import ConflictError, LockedError, StudioError
from engines.core.state.run_state import RunState
from engines.core.types import Decision, Flag, Operation, UnparsedReply, human_operation_id
from engines.record.run_dir import RunDir
from studio.session.base import DecisionPreview, Message, Session, VersionedReviewQueue
from studio.session.client import ended_early_error, not_running_error, status_of
from studio.session.connection import Connection, ConnectionLost
from studio.session.idempotency import events_since, prior_result
from studio.session.reconnect import LOOK_S, ReconnectingClient

MOST_SENT = 8
"""How often one request is sent: a line that is cut by each is no bad luck."""

T = TypeVar("T")


class LiveSession:
    """One screen at one run. Used from one event loop.

    Args:
        run: the run.
        who: sits here.
        fallback: opens the session that decides once the run has no process; None: then
            nothing is decided.
        look_s: see `studio.session.reconnect.LOOK_S`.
    """

    def __init__(
        self,
        run: RunDir,
        who: str,
        *,
        fallback: Callable[[], Session] | None = None,
        look_s: float = LOOK_S,
    ) -> None:
        self.run = run
        self._who, self._fallback = who, fallback
        alone = fallback is not None
        self._line = ReconnectingClient(
            run, who, decides_alone=alone, found=self.release_lock, look_s=look_s
        )
        self._turn = asyncio.Lock()  # one decision at a time is under way
        self._stored: Session | None = None
        self._forwarding: asyncio.Task[None] | None = None

    @property
    def state(self) -> RunState:
        """Where the run stands; the fallback's, where that decides."""
        stored = self._stored
        return stored.state if stored is not None and stored.state.events else self._line.state

    @property
    def living(self) -> bool:
        return self._line.living

    @property
    def controls(self) -> bool:
        return self._line.drives

    @property
    def controller(self) -> str:
        return self._line.driver

    @property
    def pace_tokens_per_s(self) -> float | None:
        return self._line.pace_tokens_per_s

    def messages(self) -> AsyncIterator[Message]:
        return self._line.messages()

    def subscribe(self, rollouts: Collection[str]) -> None:
        self._line.subscribe(rollouts)

    async def review_queue(self) -> VersionedReviewQueue:
        return await self._query("review", _parse_review_queue, lambda other: other.review_queue())

    async def decide(self, decision: Decision) -> tuple[Decision, str]:
        return await self._command(
            "decide", _parse_decision, lambda other: other.decide(decision), decision=decision
        )

    async def preview(self, decision: Decision) -> DecisionPreview:
        return await self._query(
            "lint", _parse_preview, lambda other: other.preview(decision), decision=decision
        )

    async def undo(self, operation_id: str) -> tuple[str, ...]:
        return await self._command(
            "undo",
            lambda answer: tuple(answer["undone"]),
            lambda other: other.undo(operation_id),
            operation=operation_id,
        )

    async def propose(self, operation: Operation) -> Operation:
        wanted = operation if operation.id else assign_id(operation, self.state)
        return await self._command(
            "propose",
            lambda answer: from_dict(Operation, answer["operation"]),
            lambda other: other.propose(wanted),
            operation=wanted,
            reviewer=self._who,
        )

    async def resubmit(self, repair_id: str, text: str, reviewer: str) -> tuple[str, ...]:
        from engines.core.text.reply import MAX_REPLY_CHARS
        from engines.training_free.resubmit import too_long_reason

        if len(text) > MAX_REPLY_CHARS:  # it might not even fit the line
            return (too_long_reason(text),)
        return await self._command(
            "mend",
            lambda answer: tuple(answer["problems"]),
            lambda other: other.resubmit(repair_id, text, reviewer),
            repair=repair_id,
            text=text,
            reviewer=reviewer,
        )

    async def drop(self, repair_id: str, reason: str, reviewer: str) -> None:
        await self._command(
            "drop",
            lambda _: None,
            lambda other: other.drop(repair_id, reason, reviewer),
            repair=repair_id,
            reason=reason,
            reviewer=reviewer,
        )

    async def commit(self) -> str:
        return await self._command(
            "commit",
            lambda answer: str(answer["said"]),
            lambda other: other.commit(),
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
            do, dict, lambda other: other.control(do, **arguments), **arguments
        )

    async def take_control(self) -> None:
        self._line.set_controller((await self._query("drive", dict))["driver"])

    async def reattach(self) -> bool:
        """Look whether a process of the run is back, and attach to it; whether one answers."""
        return await self._line.try_reconnect()

    async def release_lock(self) -> str:
        """Release the run's lock, where this session holds it, so that a process can begin."""
        said = ""
        if self._stored is not None:
            self._line.state = self.state
            stored, self._stored = self._stored, None
            said = await stored.close()
        if self._forwarding is not None:
            forwarding, self._forwarding = self._forwarding, None
            await forwarding  # it ends with the session it forwards
        return said

    async def close(self) -> str:
        living = self._line.living
        await self._line.close()
        said = await self.release_lock()
        back = f"come back with: studio attach {quote(self.run.run)}"
        return f"run {self.run.run} goes on; {back}" if living else said or back

    # How it is asked.

    async def _query(
        self,
        do: str,
        read: Callable[[dict[str, Any]], T],
        alone: Callable[[Session], Awaitable[T]] | None = None,
        **arguments: Any,
    ) -> T:
        """Ask what may be asked twice, until it is answered.

        Args:
            do: what.
            read: what its answer says.
            alone: asks the session that decides without a process; None: nobody can.
            arguments: of the request.

        Raises:
            ConflictError: the run refuses, or has no process and nobody else answers.
        """
        for _ in range(MOST_SENT):
            line = await self._find_connection()
            try:
                if line is None:
                    return await self._ask_fallback(alone)
                return read(await line.ask(do, **arguments))
            except ConnectionLost:
                self._line.mark_lost(line)
        raise self._connection_lost_error(do)

    async def _command(
        self,
        do: str,
        read: Callable[[dict[str, Any]], T],
        alone: Callable[[Session], Awaitable[T]],
        **arguments: Any,
    ) -> T:
        """Ask for something to be done, once; arguments and errors are those of `_query`."""
        async with self._turn:
            await self._line.wait_for_connection()
            since = self.state.events
            again: dict[str, Any] = {}
            for _ in range(MOST_SENT):
                if (line := await self._find_connection()) is None:
                    if (
                        again
                        and (done := await self._prior_result(do, arguments, since)) is not None
                    ):
                        return read(done)
                    try:
                        return await self._ask_fallback(alone)
                    except ConnectionLost:
                        continue
                    except ConflictError as error:
                        ended = again and self._fallback_session() is None
                        raise ended_early_error(self.run) if ended else error from error
                try:
                    return read(await line.ask(do, **arguments, since=since, **again))
                except ConnectionLost:
                    again = {"again": True}
                    self._line.mark_lost(line)
            if (done := await self._prior_result(do, arguments, since)) is not None:
                return read(done)
            raise self._connection_lost_error(do)

    async def _find_connection(self) -> Connection | None:
        """The line to the run's process; None where there is none, also after another look."""
        line = await self._line.wait_for_connection()
        if line is None and await self._line.try_reconnect():
            line = await self._line.wait_for_connection()
        return line

    async def _ask_fallback(self, ask: Callable[[Session], Awaitable[T]] | None) -> T:
        """Ask whoever decides where the run has no process.

        Raises:
            Cut: a process took the run up just now.
        """
        other = self._fallback_session()
        if ask is None or other is None:
            raise self._line.refused or not_running_error(self.run)
        try:
            return await ask(other)
        except LockedError as error:
            if await self._line.try_reconnect():
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
            f"its process cut the line each time it was asked to {do}.",
            f"See what it said last in {self.run.log}.",
        )

    def _fallback_session(self) -> Session | None:
        """Who decides where the run has no process."""
        line = self._line
        if self._fallback is None or line.refused is not None or line.closed:
            return None
        if line.line is not None or line.living:
            return None
        if self._stored is None:
            self._stored = self._fallback()
            self._forwarding = asyncio.create_task(self._forward(self._stored))
        return self._stored

    async def _forward(self, stored: Session) -> None:
        with contextlib.suppress(StudioError):  # whoever asks it something is told
            async for message in stored.messages():
                self._line.enqueue(message)


def assign_id(operation: Operation, state: RunState) -> Operation:
    """A person's operation with the next free id, by which it is known if it is sent again."""
    number = 1
    while human_operation_id(state.step, number) in state.own:
        number += 1
    return replace(operation, id=human_operation_id(state.step, number))


def _parse_decision(answer: dict[str, Any]) -> tuple[Decision, str]:
    return from_dict(Decision, answer["decision"]), str(answer["note"])


def _parse_preview(answer: dict[str, Any]) -> DecisionPreview:
    flags = tuple(from_dict(Flag, data) for data in answer["flags"])
    return DecisionPreview(str(answer["objection"]), flags)


def _parse_review_queue(answer: dict[str, Any]) -> VersionedReviewQueue:
    return VersionedReviewQueue(
        tuple(from_dict(Operation, data) for data in answer["open"]),
        tuple(from_dict(Decision, data) for data in answer["decided"]),
        tuple((name, text) for name, text in answer["draft"]),
        answer["stale"],
        tuple(from_dict(UnparsedReply, data) for data in answer["repairs"]),
        answer["base_version"],
    )
