"""A scripted policy whose replies stream as a model's would, so that they can be watched.

Owns the time between the pieces of a reply. What is said, what it cost and every deadline
are as without it: a run that is watched comes to the same as one that is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from engines.core.protocols import OnText
from engines.core.types import Completion, Message, Sampling
from engines.core.waiting.deadline import pause_deadlines
from engines.policies.limits.wrapped import WrappedPolicy

BEAT_S = 0.1
"""Between two pieces: screens are told no more often."""
CHARS_PER_TOKEN = 4

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class StreamPacedPolicy(WrappedPolicy):
    """Asks at once, and hands the reply on little by little.

    It belongs above whatever reserves, limits or parks calls: who watches holds no money.
    Where nobody listens to the text (`on_text` is None) nothing is paced. `cleared` is waited
    for before each piece, so that a pause on the spot stops the text where it is.
    """

    tokens_per_s: float
    cleared: Callable[[], Awaitable[object]] | None = None
    sleep: Sleep = asyncio.sleep

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        """Answer once; where it is cancelled midway, `lost_to` tells what the reply cost."""
        if on_text is None:
            return await self.inner.complete(messages, sampling)
        said: list[str] = []
        made = await self.inner.complete(messages, sampling, said.append)
        try:
            with pause_deadlines():
                await self._stream_text("".join(said), on_text)
        except asyncio.CancelledError:
            raise asyncio.CancelledError(made.usage) from None
        return made

    async def _stream_text(self, text: str, on_text: OnText) -> None:
        step = CHARS_PER_TOKEN * max(1, int(self.tokens_per_s * BEAT_S))
        for start in range(0, len(text), step):
            if self.cleared is not None:
                await self.cleared()
            piece = text[start : start + step]
            on_text(piece)
            await self.sleep(len(piece) / CHARS_PER_TOKEN / self.tokens_per_s)
