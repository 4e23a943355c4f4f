"""The queue: operations that wait for a decision, and what people add to them.

People propose their own, and mend or drop replies. Decisions are the gate's.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from engines.core import events as ev
from engines.core.errors import ConflictError
from engines.core.types import (
    Operation,
    ProposalFate,
    UnparsedReply,
    human_operation_id,
)
from engines.pipeline.gate.draft import Draft
from engines.pipeline.recorder import Recorder


@dataclass(frozen=True, slots=True)
class OperationQueue:
    """The open operations of a run, and the replies from which more may come."""

    recorder: Recorder
    draft: Draft
    lock: asyncio.Lock  # under which the gate decides
    notify: Callable[[], None]  # called after each change

    def open_operation(self, operation_id: str) -> Operation:
        """Raises ConflictError where no operation of that id is open."""
        state = self.recorder.state
        operation = state.operations.get(operation_id)
        if operation is None:
            listed = ", ".join(op.id for op in state.open_operations) or "none"
            where, cause = f"operation {operation_id}", "it is not open in this run."
            raise ConflictError(where, cause, f"Open are: {listed}.")
        return operation

    async def propose(self, operation: Operation, reviewer: str) -> Operation:
        """Journal a person's own operation, linted, to be decided like all others.

        Raises ConflictError: it does not fit the library as the standing decisions would leave it.
        """
        async with self.lock:
            objection = self.draft.objection(operation)
            if objection:
                what = f"{operation.kind} {operation.target or ''}".rstrip()
                move = "Change it, or leave it out."
                raise ConflictError(f"proposal ({what})", f"{objection}.", move)
            state = self.recorder.state
            ids = (human_operation_id(state.step, number) for number in itertools.count(1))
            wanted = replace(
                operation,
                id=next(name for name in ids if name not in state.own),
                proposer=reviewer,
                prompt_hash="",
                flags=(),  # they are the gate's to find
            )
            (flags,) = await self.draft.lint((wanted,))
            wanted = replace(wanted, flags=flags)
            usage = self.draft.take_lint_usage()
            await self.recorder.record(ev.OperationProposed(state.step, wanted, reviewer, usage))
            self.notify()
            return state.operations[wanted.id]

    def unparsed_reply(self, repair_id: str) -> UnparsedReply:
        """Raises ConflictError where no reply of that id waits to be mended."""
        state = self.recorder.state
        found = state.repairs.get(repair_id)
        if found is None:
            done = state.repaired.get(repair_id)
            cause = f"it was {done} already." if done else "no such reply is open."
            move = f"Open are: {', '.join(state.repairs) or 'none'}."
            raise ConflictError(f"reply {repair_id}", cause, move)
        return found

    async def resubmit(
        self,
        repair_id: str,
        operations: Sequence[Operation],
        reviewer: str,
        fates: Sequence[ProposalFate] = (),
    ) -> tuple[Operation, ...]:
        """Journal the operations of a mended reply, linted, to be decided like all others."""
        async with self.lock:
            self.unparsed_reply(repair_id)
            found = await self.draft.lint(operations)
            linted = tuple(
                replace(operation, flags=(*operation.flags, *flags))
                for operation, flags in zip(operations, found, strict=True)
            )
            state, usage = self.recorder.state, self.draft.take_lint_usage()
            await self.recorder.record(
                ev.ReplyMended(state.step, repair_id, linted, reviewer, usage, tuple(fates))
            )
            self.notify()
            return tuple(state.operations[operation.id] for operation in linted)

    async def drop(self, repair_id: str, reason: str, reviewer: str) -> None:
        """Give up a reply that could not be understood; what it held stays lost."""
        async with self.lock:
            self.unparsed_reply(repair_id)
            step = self.recorder.state.step
            await self.recorder.record(ev.ReplyDropped(step, repair_id, reason, reviewer))
