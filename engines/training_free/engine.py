"""Training-Free GRPO: lessons in words from where winners and losers part.

Two questions are put to the reflector: what a group shows (`reflection`) and what the batch as a
whole should change (`consolidation`). Changes nothing: operations go to the gate. Beyond the
paper, a group in which no try was good is read for what the verifier says of all of them.

Source: arXiv:2510.08191, Training-Free Group Relative Policy Optimization, section 2.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from engines.core.library import Library
from engines.core.protocols import Earlier, Ledger, Policy
from engines.core.types import Group, Lesson, Operation, Reflection, WeightUpdate
from engines.training_free.consolidation import Consolidator
from engines.training_free.lint import OperationLinter
from engines.training_free.reading import GroupReader, Reflector
from engines.training_free.settings import TrainingFreeSettings


class TrainingFreeEngine:
    """Implements `engines.core.protocols.Engine` with a frozen model that reads."""

    def __init__(
        self,
        settings: TrainingFreeSettings,
        reflector: Policy,
        ledger: Ledger,
        linter: OperationLinter | None = None,
        put_off: Callable[[], Sequence[Operation]] = lambda: (),
        draft: int = 0,
    ) -> None:
        self._more = (linter or OperationLinter(), put_off)
        self.reflector = Reflector(settings, reflector, ledger, draft)
        self._reader = GroupReader(self.reflector)
        self._consolidator = Consolidator(self.reflector, *self._more)

    def with_draft(self, draft: int) -> "TrainingFreeEngine":
        """The same engine, whose questions about a batch are asked with seeds of their own."""
        now = self.reflector
        return TrainingFreeEngine(now.settings, now.policy, now.ledger, *self._more, draft)

    def plan(self, total_steps: int) -> str:
        """Nothing here follows from how long a run is."""
        return ""

    async def reflect(self, group: Group, library: Library, earlier: Earlier = ()) -> Reflection:
        return await self._reader.reflect(group, library, earlier)

    async def consolidate(
        self, batch: Sequence[Group], reflections: Sequence[Reflection], library: Library
    ) -> Lesson:
        return await self._consolidator.consolidate(batch, reflections, library)

    async def apply(self, update: WeightUpdate) -> int:
        raise ValueError("a frozen model has no weights to update")

    async def save(self, folder: Path) -> str:
        """The library is the only state, and it is not the engine's."""
        return ""

    async def restore(self, folder: Path) -> None:
        """See `save`."""
