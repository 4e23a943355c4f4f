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
from engines.core.types import Decision, Flag, Operation, Repair, own_operation_id
from engines.record.run_dir import RunDir
from studio.session.base import Desktop, Message, Objected, Session
from studio.session.client import ended_first, nobody_runs, status_of
from studio.session.connection import Cut, Line
from studio.session.idempotency import done_already, events_since
from studio.session.reconnect import LOOK_S, Following

MOST_SENT = 8
"""How often one request is sent: a line that is cut by each is no bad luck."""

T = TypeVar("T")


class Attached:
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
        self._line = Following(run, who, decides_alone=alone, found=self.let_go, look_s=look_s)
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
    def drives(self) -> bool:
        return self._line.drives

    @property
    def driver(self) -> str:
        return self._line.driver

    @property
    def pace_tokens_per_s(self) -> float | None:
        return self._line.pace_tokens_per_s

    def messages(self) -> AsyncIterator[Message]:
        return self._line.messages()

    def subscribe(self, rollouts: Collection[str]) -> None:
        self._line.subscribe(rollouts)

    async def desktop(self) -> Desktop:
        return await self._asked("review", _desktop, lambda other: other.desktop())

    async def decide(self, decision: Decision) -> tuple[Decision, str]:
        return await self._steered(
            "decide", _decided, lambda other: other.decide(decision), decision=decision
        )

    async def weigh(self, decision: Decision) -> Objected:
        return await self._asked(
            "lint", _objected, lambda other: other.weigh(decision), decision=decision
        )

    async def undo(self, operation_id: str) -> tuple[str, ...]:
        return await self._steered(
            "undo",
            lambda answer: tuple(answer["undone"]),
            lambda other: other.undo(operation_id),
            operation=operation_id,
        )

    async def propose(self, operation: Operation) -> Operation:
        wanted = operation if operation.id else numbered(operation, self.state)
        return await self._steered(
            "propose",
            lambda answer: from_dict(Operation, answer["operation"]),
            lambda other: other.propose(wanted),
            operation=wanted,
            reviewer=self._who,
        )

    async def mend(self, repair_id: str, text: str, reviewer: str) -> tuple[str, ...]:
        from engines.core.text.reply import MAX_REPLY_CHARS
        from engines.training_free.resubmit import too_long

        if len(text) > MAX_REPLY_CHARS:  # it might not even fit the line
            return (too_long(text),)
        return await self._steered(
            "mend",
            lambda answer: tuple(answer["problems"]),
            lambda other: other.mend(repair_id, text, reviewer),
            repair=repair_id,
            text=text,
            reviewer=reviewer,
        )

    async def drop(self, repair_id: str, reason: str, reviewer: str) -> None:
        await self._steered(
            "drop",
            lambda _: None,
            lambda other: other.drop(repair_id, reason, reviewer),
            repair=repair_id,
            reason=reason,
            reviewer=reviewer,
        )

    async def commit(self) -> str:
        return await self._steered(
            "commit",
            lambda answer: str(answer["said"]),
            lambda other: other.commit(),
            step=self.state.step,
            reviewer=self._who,
        )

    async def control(self, do: str, **arguments: Any) -> dict[str, Any]:
        if do == "status":
            try:
                return await self._asked("status", dict)
            except ConflictError:
                return status_of(self.state)
        return await self._steered(
            do, dict, lambda other: other.control(do, **arguments), **arguments
        )

    async def drive(self) -> None:
        self._line.driven((await self._asked("drive", dict))["driver"])

    async def reattach(self) -> bool:
        """Look whether a process of the run is back, and attach to it; whether one answers."""
        return await self._line.look()

    async def let_go(self) -> str:
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
        said = await self.let_go()
        back = f"come back with: studio attach {quote(self.run.run)}"
        return f"run {self.run.run} goes on; {back}" if living else said or back

    # How it is asked.

    async def _asked(
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
            line = await self._found_line()
            try:
                if line is None:
                    return await self._alone(alone)
                return read(await line.ask(do, **arguments))
            except Cut:
                self._line.lost(line)
        raise self._cut_each_time(do)

    async def _steered(
        self,
        do: str,
        read: Callable[[dict[str, Any]], T],
        alone: Callable[[Session], Awaitable[T]],
        **arguments: Any,
    ) -> T:
        """Ask for something to be done, once; arguments and errors are those of `_asked`."""
        async with self._turn:
            await self._line.settled()
            since = self.state.events
            again: dict[str, Any] = {}
            for _ in range(MOST_SENT):
                if (line := await self._found_line()) is None:
                    if again and (done := await self._done(do, arguments, since)) is not None:
                        return read(done)
                    try:
                        return await self._alone(alone)
                    except Cut:
                        continue
                    except ConflictError as error:
                        ended = again and self._other() is None
                        raise ended_first(self.run) if ended else error from error
                try:
                    return read(await line.ask(do, **arguments, since=since, **again))
                except Cut:
                    again = {"again": True}
                    self._line.lost(line)
            if (done := await self._done(do, arguments, since)) is not None:
                return read(done)
            raise self._cut_each_time(do)

    async def _found_line(self) -> Line | None:
        """The line to the run's process; None where there is none, also after another look."""
        line = await self._line.settled()
        if line is None and await self._line.look():
            line = await self._line.settled()
        return line

    async def _alone(self, ask: Callable[[Session], Awaitable[T]] | None) -> T:
        """Ask whoever decides where the run has no process.

        Raises:
            Cut: a process took the run up just now.
        """
        other = self._other()
        if ask is None or other is None:
            raise self._line.refused or nobody_runs(self.run)
        try:
            return await ask(other)
        except LockedError as error:
            if await self._line.look():
                raise Cut from error
            raise

    async def _done(self, do: str, asked: dict[str, Any], since: int) -> dict[str, Any] | None:
        """The answer to what an ended process did before it could say so."""
        events = await asyncio.to_thread(events_since, self.run, since)
        done = done_already(do, asked, events)
        if done is not None and do == "commit":
            return {"said": f"committed: the library is at v{done['version']}"}
        return done if done is None else done or status_of(self.state)

    def _cut_each_time(self, do: str) -> ConflictError:
        return ConflictError(
            f"run {self.run.run}",
            f"its process cut the line each time it was asked to {do}.",
            f"See what it said last in {self.run.log}.",
        )

    def _other(self) -> Session | None:
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
                self._line.say(message)


def numbered(operation: Operation, state: RunState) -> Operation:
    """A person's operation with the next free id, by which it is known if it is sent again."""
    number = 1
    while own_operation_id(state.step, number) in state.own:
        number += 1
    return replace(operation, id=own_operation_id(state.step, number))


def _decided(answer: dict[str, Any]) -> tuple[Decision, str]:
    return from_dict(Decision, answer["decision"]), str(answer["note"])


def _objected(answer: dict[str, Any]) -> Objected:
    flags = tuple(from_dict(Flag, data) for data in answer["flags"])
    return Objected(str(answer["objection"]), flags)


def _desktop(answer: dict[str, Any]) -> Desktop:
    return Desktop(
        tuple(from_dict(Operation, data) for data in answer["open"]),
        tuple(from_dict(Decision, data) for data in answer["decided"]),
        tuple((name, text) for name, text in answer["draft"]),
        answer["stale"],
        tuple(from_dict(Repair, data) for data in answer["repairs"]),
        answer["base_version"],
    )
