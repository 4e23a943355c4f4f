"""An engine whose rollouts come from vLLM servers: they are given each new adapter.

Owns when: before the first rollout and after whatever changes the weights. Computes nothing.
"""

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from engines.core.protocols import Engine
from engines.core.types import WeightUpdate
from engines.grpo.checkpoint.contents import EngineState, write_checkpoint

if TYPE_CHECKING:
    from engines.policies.hf_local.model import LocalModel
    from engines.policies.vllm import VLLMRollouts


class VLLMSyncedEngine:
    """Implements `Engine`; what leaves the weights alone is the engine's own.

    The servers must see the same `folder`, from which they read adapters.
    """

    def __init__(
        self, engine: Engine, local: "LocalModel", rollouts: "VLLMRollouts", folder: Path
    ) -> None:
        self.engine = engine
        self.plan, self.reflect = engine.plan, engine.reflect
        self.consolidate, self.save = engine.consolidate, engine.save
        self._local, self._rollouts, self._folder = local, rollouts, folder

    async def apply(self, update: WeightUpdate) -> int:
        """As the engine's own; then rollouts come from the new weights.

        Raises PolicyError: the server does not take them. The update is applied here all the same.
        """
        version = await self.engine.apply(update)
        await self.publish()
        return version

    async def restore(self, folder: Path) -> None:
        await self.engine.restore(folder)
        await self.publish()

    async def publish(self) -> None:
        """Have the server answer with the weights as they are; call it before practice begins.

        Raises:
            PolicyError: the server does not take them.
            RecordError: they cannot be written.
        """
        name = await asyncio.to_thread(self._write_adapter)
        await self._rollouts.serve_adapter(name, self._folder / name)
        for older in self._folder.glob("studio-*"):  # the server has unloaded them
            if older.name != name:
                shutil.rmtree(older, ignore_errors=True)

    def _write_adapter(self) -> str:
        """The adapter's name, which follows from its content, once it is on disk."""
        with self._local.lock:
            name = f"studio-{self._local.weights_digest()[:16]}"
            if not (self._folder / name).is_dir():
                write_checkpoint(
                    self._folder / name, self._local, EngineState(self._local.adapter_state())
                )
        return name
