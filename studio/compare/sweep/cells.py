"""Carrying a grid out: each cell is `studio headless` in a process of its own.

A process is begun for every cell that is not finished, so that the same command goes on where
another one was killed. Owns no figures: what came of a cell is read from its run.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from engines.record.run_dir import Workspace
from studio import exit_codes
from studio.compare.sweep.grid import Grid
from studio.compare.sweep.table import CellResult, read_results
from studio.process import on_stop_signal
from studio.run.detached import studio_command
from studio.session.control_socket import is_alive

_LOOK_S = 0.5  # between two looks at a run that another process carries out
_SAID = 2_000  # characters of what a refused process said
_CODES = (
    *(exit_codes.BUG, exit_codes.USER_ERROR, exit_codes.INTERRUPTED, exit_codes.BUDGET_REACHED),
    *(exit_codes.OPERATIONS_OPEN, exit_codes.WITH_LOSSES, exit_codes.DONE),
)
"""In their precedence."""


@dataclass(slots=True)
class SweepRun:
    """One command's work at a grid. `budget_usd` is over all that its runs have cost ever."""

    grid: Grid
    workspace: Workspace
    tell: Callable[[str], None]
    jobs: int = 1
    budget_usd: float | None = None
    own_limit_usd: float | None = None  # of each run, as its run file has it
    codes: set[int] = field(default_factory=set)
    _stopping: bool = False  # nothing more is begun
    _too_little_usd: float = 0.0  # with which a run did not come to its end
    _running: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)
    _reserved: dict[str, float] = field(default_factory=dict)  # dollars, at most, of runs under way

    async def carry_out(self) -> int:
        """Run what is not finished, so many at a time; returns the exit code."""
        results = read_results(self.grid, self.workspace)
        waiting = deque(enumerate(results, start=1))
        with on_stop_signal(self._interrupt):
            async with asyncio.TaskGroup() as group:
                for _ in range(self.jobs):
                    group.create_task(self._work(waiting, len(results)))
        return next((code for code in _CODES if code in self.codes), exit_codes.DONE)

    def _interrupt(self, _: str) -> None:
        if not self._stopping:
            self.tell("interrupted: the runs under way end in order; the same command goes on")
        self._stopping = True
        self.codes.add(exit_codes.INTERRUPTED)
        for process in self._running.values():
            if process.returncode is None:
                process.terminate()  # an interrupt while Python itself starts would be a bug's end

    async def _work(self, waiting: deque[tuple[int, CellResult]], total: int) -> None:
        while waiting and not self._stopping:
            number, result = waiting.popleft()
            where = f"run {number} of {total}, {result.cell.name}"
            if result.is_finished:
                self.tell(f"{where}: finished already")
                continue
            await self._wait_for_other(result, where)
            if not self._stopping:
                await self._run(result, where)

    async def _wait_for_other(self, result: CellResult, where: str) -> None:
        """A process that outlived its own sweep is let go on: two cannot write one run."""
        run = self.workspace.newest_run(result.cell.name)
        if run is not None and is_alive(run):
            self.tell(f"{where}: its process is at work, and is waited for")
            while is_alive(run) and not self._stopping:
                await asyncio.sleep(_LOOK_S)

    async def _run(self, result: CellResult, where: str) -> None:
        name, limits = result.cell.name, list[str]()
        if self.budget_usd is not None:
            most = self._reserve(name)
            if most is None:
                left = f"what is left of the budget of ${self.budget_usd:g} would not do"
                self.tell(f"{where}: not begun, {left}")
                self.codes.add(exit_codes.BUDGET_REACHED)
                return
            limits = [f"budget.cost_usd={most:.6f}"]
        self.tell(f"{where}: begins")
        words = [*self.grid.words(result.cell), *limits]
        process = await asyncio.create_subprocess_exec(
            *studio_command(self.workspace.path, "headless", "--name", name),
            *("--restart-step", "null", "--", self.grid.runfile, *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches the sweep alone, which stops its runs
        )
        self._running[name] = process
        if self._stopping:  # meanwhile
            process.terminate()
        _, said = await process.communicate()
        del self._running[name]
        reserved = self._reserved.pop(name, 0.0)
        if process.returncode == exit_codes.BUDGET_REACHED:
            self._too_little_usd = max(self._too_little_usd, reserved)
        self._note_end(process.returncode or 0, where, said.decode("utf-8", "replace"))

    def _note_end(self, code: int, where: str, said: str) -> None:
        if code < 0:  # a signal: what was recorded is kept, as after a kill of the studio itself
            self.tell(f"{where}: its process was ended by signal {-code}")
            code = exit_codes.WITH_LOSSES
        elif code in (exit_codes.BUG, exit_codes.USER_ERROR):
            self._stopping = True
            self.tell(f"{where} ended with code {code}, and no other is begun:")
            self.tell(said.strip()[-_SAID:])
        else:
            self.tell(f"{where}: done" + f" (code {code})" * bool(code))
        self.codes.add(code)

    def _reserve(self, name: str) -> float | None:
        """The most that a run may cost in all; None: others took more than it would be left.

        Runs that may begin at the same time share what is left.
        """
        assert self.budget_usd is not None
        results = [r for r in read_results(self.grid, self.workspace) if r.state is not None]
        cost = {r.cell.name: r.state.total_usage.cost_usd or 0.0 for r in results if r.state}
        whole = [r.cell.name for r in results if r.is_finished and r.cell.name != name]
        spent = sum(usd for one, usd in cost.items() if one not in self._reserved)
        left = self.budget_usd - spent - sum(self._reserved.values())
        most = cost.get(name, 0.0) + left / max(1, self.jobs - len(self._reserved))
        if most <= max(self._too_little_usd, *(cost[one] for one in whole), 0.0) or left <= 0:
            return None
        self._reserved[name] = most
        return most if self.own_limit_usd is None else min(most, self.own_limit_usd)
