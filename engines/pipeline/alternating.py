"""Learns words in some steps and weights in the others: two engines, of which each step asks one.

Source: the order of the steps is ours; that prompts and weights learn together in fewer steps and
nearer to the first weights was reported for evolved prompts with reinforcement learning.
"""

from collections.abc import Callable, Sequence

from engines.core.library import Library
from engines.core.protocols import Earlier, Engine
from engines.core.types import Group, Learns, Lesson, Reflection


class AlternatingEngine:
    """Implements `engines.core.protocols.Engine`; only weights have a state to be kept.

    `learns` says what a step that has begun learns, `library_steps` how many of the first so many
    learn the library: the schedule of the weights spans the others.
    """

    def __init__(
        self,
        library: Engine,
        weights: Engine,
        learns: Callable[[int], Learns],
        library_steps: Callable[[int], int],
    ) -> None:
        self._library, self._weights = library, weights
        self._learns, self._library_steps = learns, library_steps
        self.apply, self.save, self.restore = weights.apply, weights.save, weights.restore

    def plan(self, total_steps: int) -> str:
        return self._weights.plan(total_steps - self._library_steps(total_steps))

    async def reflect(self, group: Group, library: Library, earlier: Earlier = ()) -> Reflection:
        return await self._engine_of(group.step).reflect(group, library, earlier)

    async def consolidate(
        self, batch: Sequence[Group], reflections: Sequence[Reflection], library: Library
    ) -> Lesson:
        return await self._engine_of(batch[0].step).consolidate(batch, reflections, library)

    def _engine_of(self, step: int) -> Engine:
        return self._library if self._learns(step) == "library" else self._weights
