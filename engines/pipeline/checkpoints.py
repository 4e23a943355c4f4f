"""Checkpoints of an engine: when a `global_step_N` folder is written, and which are kept."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from engines.core import events as ev
from engines.core.state.run_state import RunState
from engines.pipeline.recorder import Recorder


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Where checkpoints go, how often, and how many stay."""

    root: Path  # the run's folder
    folder: Path  # below it
    save: Callable[[Path], Awaitable[str]]  # the engine's whole state, atomically; its digest
    every_steps: int | None = None  # None: at the end of each epoch
    keep: int = 3
    tell: Callable[[str], None] = lambda _: None

    def is_due(self, step: int, *, ends_epoch: bool, last: bool) -> bool:
        return last or (ends_epoch if self.every_steps is None else step % self.every_steps == 0)

    async def write(self, recorder: Recorder, step: int) -> None:
        """Save the state after a step, journal it, and remove what is not to be kept."""
        if any(saved.step == step for saved in recorder.state.checkpoints):
            return
        place = self.folder / f"global_step_{step}"
        digest = await self.save(place)
        relative = place.relative_to(self.root).as_posix()
        version = recorder.state.policy_version
        await recorder.record(ev.CheckpointSaved(step, relative, version, digest))
        for saved in self.removable_checkpoints(recorder.state):
            await asyncio.to_thread(self._remove, self.root / saved.folder)

    def removable_checkpoints(self, state: RunState) -> tuple[ev.CheckpointSaved, ...]:
        """All but the newest `keep`, at least one, and that of the best step so far."""
        older = state.checkpoints[: -max(1, self.keep)]
        return tuple(saved for saved in older if saved.step != state.best_step)

    def _remove(self, folder: Path) -> None:
        if not folder.exists():
            return
        try:
            shutil.rmtree(folder)
        except OSError as error:
            self.tell(f"{folder}: an old checkpoint could not be removed ({error.strerror})")
