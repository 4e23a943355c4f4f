"""The queue: operations that wait for a decision, and how people add to them.

Owns a person's own proposals and replies that a person mended or dropped. Decisions are the
gate's.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from engines.core import events as ev
from engines.core.errors import ConflictError
from engines.core.types import Operation, UnparsedReply, human_operation_id
from engines.pipeline.gate.draft import Draft
from engines.pipeline.recorder import Recorder

_HUMAN_ID = re.compile(r"op(\d{1,9})\.h\d{1,9}")
"""What a client may call an operation that a person proposes."""


class OperationQueue:
    """The open operations of a run, and the replies from which more may come."""

    def __init__(
        self, recorder: Recorder, draft: Draft, lock: asyncio.Lock, notify: Callable[[], None]
    ) -> None:
        """`lock` is the one under which the gate decides; `notify` is called after each change."""
        self._recorder = recorder
        self._draft = draft
        self._lock = lock
        self._notify = notify

    def open_operation(self, operation_id: str) -> Operation:
        """An open operation.

        Raises:
            ConflictError: none of that id is.
        """
        state = self._recorder.state
        operation = state.operations.get(operation_id)
        if operation is None:
            raise ConflictError(
                f"operation {operation_id}",
                "it is not open in this run.",
                f"Open are: {', '.join(op.id for op in state.open_operations) or 'none'}.",
            )
        return operation

    def is_decided(self, operation: Operation) -> bool:
        state = self._recorder.state
        return operation.id in state.decisions or operation.id not in state.operations

    async def propose(self, operation: Operation, reviewer: str) -> Operation:
        """Journal a person's own operation, linted, to be decided like all others.

        Args:
            operation: its id is kept where it is of the form `op2.h1`, of a step that has
                begun and free, so that one that is sent again can be recognised; else it gets
                the next such id.
            reviewer: who proposes it.

        Returns:
            The operation as it was journalled.

        Raises:
            ConflictError: it does not fit the library as the standing decisions would leave it.
        """
        async with self._lock:
            objection = self._draft.objection(operation)
            if objection:
                what = f"{operation.kind} {operation.target or ''}".rstrip()
                raise ConflictError(
                    f"proposal ({what})", f"{objection}.", "Change it, or leave it out."
                )
            wanted = replace(
                operation,
                id=self._human_operation_id(operation.id),
                proposer=reviewer,
                prompt_hash="",
                flags=(),  # they are the gate's to find
            )
            wanted = replace(wanted, flags=await self._draft.lint(wanted))
            state, usage = self._recorder.state, self._draft.take_lint_usage()
            await self._recorder.record(ev.OperationProposed(state.step, wanted, reviewer, usage))
            self._notify()
            return state.operations[wanted.id]

    def _human_operation_id(self, wished: str) -> str:
        state = self._recorder.state
        match = _HUMAN_ID.fullmatch(wished)
        if match and int(match[1]) <= state.step and wished not in state.own:
            return wished
        number = 1
        while human_operation_id(state.step, number) in state.own:
            number += 1
        return human_operation_id(state.step, number)

    def unparsed_reply(self, repair_id: str) -> UnparsedReply:
        """A reply that waits to be mended.

        Raises:
            ConflictError: none of that id does.
        """
        state = self._recorder.state
        found = state.repairs.get(repair_id)
        if found is None:
            done = state.repaired.get(repair_id)
            raise ConflictError(
                f"reply {repair_id}",
                f"it was {done} already." if done else "no such reply waits to be mended.",
                f"Waiting are: {', '.join(state.repairs) or 'none'}.",
            )
        return found

    async def resubmit(
        self, repair_id: str, operations: Sequence[Operation], reviewer: str
    ) -> tuple[Operation, ...]:
        """Journal the operations of a mended reply, linted, to be decided like all others.

        Raises:
            ConflictError: no such reply waits.
        """
        async with self._lock:
            self.unparsed_reply(repair_id)
            linted = []
            for operation in operations:
                beside = [other for other in operations if other.id != operation.id]
                flags = await self._draft.lint(operation, beside=beside)
                linted.append(replace(operation, flags=(*operation.flags, *flags)))
            state, usage = self._recorder.state, self._draft.take_lint_usage()
            await self._recorder.record(
                ev.ReplyMended(state.step, repair_id, tuple(linted), reviewer, usage)
            )
            self._notify()
            return tuple(state.operations[operation.id] for operation in linted)

    async def drop(self, repair_id: str, reason: str, reviewer: str) -> None:
        """Give up a reply that could not be understood; what it held stays lost.

        Raises:
            ConflictError: no such reply waits.
        """
        async with self._lock:
            self.unparsed_reply(repair_id)
            step = self._recorder.state.step
            await self._recorder.record(ev.ReplyDropped(step, repair_id, reason, reviewer))
