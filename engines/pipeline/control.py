"""Pause, step and stop: what a person can ask of a living run.

Calls under way are never cut by a pause, however short; a stop cancels them.
"""

from __future__ import annotations

import asyncio
from typing import Literal

from engines.core.events import RunContinued, RunPaused
from engines.pipeline.recorder import Recorder


class RunControl:
    """The brakes of one run, used from its event loop."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._open = asyncio.Event()
        self._open.set()
        self._calling = asyncio.Event()  # cleared only while the run is paused on the spot
        self._calling.set()
        self._main: asyncio.Task[object] | None = None
        self.stop_reason = ""
        self.stop_request = ""  # id of the request that asked to stop
        self.ending: Literal["stopped", "failed", "budget"] = "stopped"  # what a stop amounts to
        self.stop_after_step = False
        self.ended = False  # True once the run's ending is being recorded: too late to stop

    def set_main_task(self, main: asyncio.Task[object]) -> None:
        """Name the task that a stop cancels, also one that came before."""
        self._main = main
        if self.stop_reason and not self.stop_after_step:
            main.cancel()

    async def wait_while_paused(self) -> None:
        """Wait while the run is paused; called before anything new is begun."""
        await self._open.wait()

    async def wait_before_call(self) -> None:
        """Wait while the run is paused on the spot; called before each call of a model."""
        await self._calling.wait()

    async def pause(self, now: bool = False) -> None:
        """Begin nothing new; what is under way ends, with `now` only its model calls."""
        if now:
            self._calling.clear()
        if self._open.is_set():
            self._open.clear()
            await self._recorder.record(RunPaused())

    async def resume(self) -> None:
        await self._go_on(None)

    async def step(self) -> None:
        """Go on through the next commit, then pause."""
        await self._go_on(1)

    def stop_soon(self, reason: str, after_step: bool = False) -> None:
        """Stop once whoever asks is answered: stopping closes that very connection."""
        asyncio.get_running_loop().call_soon(self.stop, reason, after_step)

    def stop(self, reason: str, after_step: bool = False) -> None:
        """End the run now, or once the step under way is committed."""
        if self.ended or self.ending != "stopped":
            return
        self.stop_reason, self.stop_request = reason, self._recorder.request
        if after_step:
            self.stop_after_step = True
            self._release_all()
        elif self._main is not None:
            self._main.cancel()

    def give_up(self, how: Literal["failed", "budget"], reason: str) -> None:
        """End the run now, because going on makes no sense or is not allowed.

        The first reason counts: what fails after it fails because of it.
        """
        if self.ended or (self.stop_reason and not self.stop_after_step):
            return
        self.ending, self.stop_reason = how, reason
        self.stop_after_step = False  # the step that was to be the last cannot be finished
        if self._main is not None:
            self._main.cancel()

    async def finish_step(self, step: int) -> bool:
        """Called after each step; True when the run is to end here."""
        hold_after = self._recorder.state.hold_after
        if hold_after is not None and step >= hold_after:
            await self.pause()
        return self.stop_after_step

    async def _go_on(self, steps: int | None) -> None:
        await self._recorder.record(RunContinued(steps))
        self._release_all()

    def _release_all(self) -> None:
        self._open.set()
        self._calling.set()
