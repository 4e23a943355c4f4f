"""`studio sweep`: a grid of runs, the file that remembers it, and how it is carried out.

Each run of the grid, a cell, is `studio headless` in a process of its own. A process is begun for
every cell that is not finished, so that the same command goes on where another one was killed.
Owns no figures: what came of a cell is read from its run.
"""

import asyncio
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from math import prod
from pathlib import Path
from typing import Any

import orjson

from engines.core.codec import digest
from engines.core.errors import ConfigError, ConflictError
from engines.core.frozen import frozen
from engines.core.state.run_state import RunState
from engines.core.types import Names, Tell
from engines.pipeline.evaluation import statistics, verdict
from engines.record import appender, seal
from engines.record.run_dir import Workspace
from studio import exit_codes
from studio.config.loading import LoadedRun, load_run
from studio.config.settings.base import NAME_LENGTH
from studio.config.source import Source, find_run_file
from studio.facts.evaluation import RateChange, question_rewards, rate_changes
from studio.facts.sweep import Gain, SweepFacts, SweptRun
from studio.process import on_stop_signal
from studio.render import comparison_page, lines, page
from studio.run import detached, models, new_or_resume
from studio.session.control_socket import is_alive

MOST_CELLS = 1_000
_READABLE = 40  # characters of a cell's name where it cannot tell all
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@frozen
class Cell:
    """One run of the grid: its name, and the swept keys with its values as they were written."""

    name: str
    settings: Mapping[str, str]

    @property
    def overrides(self) -> list[str]:
        return [f"{key}={value}" for key, value in self.settings.items()]

    @property
    def shown(self) -> dict[str, str]:
        """The settings as people read them: without what the parser of overrides escapes."""
        return {key: re.sub(r"\\(.)", r"\1", value) for key, value in self.settings.items()}


@frozen
class Grid:
    """`fixed` are the overrides that all cells share."""

    name: str
    runfile: str
    fixed: Names
    keys: Mapping[str, Names]
    own_library: bool = False  # the run file names a library, which the runs must not share

    @property
    def cells(self) -> list[Cell]:
        rows = [dict(zip(self.keys, row, strict=True)) for row in product(*self.keys.values())]
        last = [key.rpartition(".")[2] for key in self.keys]
        short = {k: e if last.count(e) == 1 else k for k, e in zip(self.keys, last, strict=True)}
        return [Cell(f"{self.name}-{self._cell_name(row, short)}", row) for row in rows]

    def _cell_name(self, row: Mapping[str, str], short: Mapping[str, str]) -> str:
        """By its own settings alone: another order of values, or more of them, changes no name."""
        name = ".".join(f"{short[key]}_{_UNSAFE.sub('_', value)}" for key, value in row.items())
        is_whole = len(self.name) + len(name) < NAME_LENGTH
        if is_whole and not any(map(_UNSAFE.search, row.values())):
            return name
        return f"{name[:_READABLE]}.{digest(row, 6)}"

    def words(self, cell: Cell) -> list[str]:
        """The overrides of a cell's run, but for its name."""
        library = [f"library.name={cell.name}"] if self.own_library else []
        return [*self.fixed, *cell.overrides, *library]


def parse_grid(runfile: str, words: Sequence[str]) -> tuple[Names, dict[str, Names]]:
    """The overrides that all cells share, and the values of each key that is swept.

    A value with commas outside of quotes and brackets is several, as Hydra's own sweeps read it;
    so are `range(1,4)` and `choice(a,b)`.

    Raises ConfigError: a word cannot be read, no key has several values, or there are too many.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser, fixed = OverridesParser.create(), list[str]()
    keys: dict[str, Names] = {}
    seen = set[str]()
    for word in words:
        try:
            override = parser.parse_override(word)
            values: Names = ()
            if override.is_sweep_override():
                # A range may have more values than anybody waits for.
                every = islice(override.sweep_string_iterator(), MOST_CELLS + 1)
                values = tuple(map(str, every))
        except HydraException as error:
            raise ConfigError(
                word,
                f"it cannot be read ({str(error).splitlines()[0][:120]}).",
                "Write KEY=A,B; a value with a comma in quotes.",
            ) from error
        if (key := override.key_or_group) in seen:
            raise ConfigError(word, f"{key} is there already.", "Give all its values in one word.")
        seen.add(key)
        if override.is_sweep_override():
            keys[word.partition("=")[0]] = values
        else:
            fixed.append(word)
    count = prod(map(len, keys.values()))
    if not keys or not count:
        raise ConfigError(
            "studio sweep",
            "no key has several values.",
            f"Give several values: `studio sweep {runfile} seed=1,2,3`.",
        )
    if count > MOST_CELLS:
        raise ConfigError(
            "studio sweep",
            f"the grid has {count:,} runs or more, and at most {MOST_CELLS:,} are possible.",
            "Sweep fewer values at a time.",
        )
    return tuple(fixed), keys


def remember_grid(grid: Grid, workspace: Workspace) -> None:
    """Write the grid to the workspace, or go on with the one of its name, which may have grown.

    Raises ConflictError: that one is of other runs.
    """
    path = workspace.path / "sweeps" / f"{grid.name}.json"
    data: dict[str, Any] = {
        "sweep": grid.name,
        "runfile": grid.runfile,
        "overrides": list(grid.fixed),
        "keys": {key: list(values) for key, values in grid.keys.items()},
        "runs": {cell.name: dict(cell.settings) for cell in grid.cells},
    }
    if path.exists():
        seal.refuse_altered(path)
        try:
            known = orjson.loads(path.read_bytes())
        except ValueError as error:
            raise ConflictError(str(path), "it is no file of a sweep.", "Move it away.") from error
        alike = all(known.get(part) == data[part] for part in ("runfile", "overrides"))
        if not alike or data["runs"] | known["runs"] != data["runs"]:
            raise ConflictError(
                f"sweep {grid.name}",
                "there is another one of this name, with other settings.",
                "Name this one: --name NAME.",
            )
    appender.make_folder(path.parent)
    appender.write_atomic(path, seal.add_seal(orjson.dumps(data)))


@frozen
class CellResult:
    """A cell and its run as it stands."""

    cell: Cell
    run: str
    state: RunState | None  # None: it has not begun

    @property
    def is_finished(self) -> bool:
        return self.state is not None and self.state.ending == "finished"

    @property
    def cost_usd(self) -> float:
        return (self.state.total_usage.cost_usd or 0.0) if self.state else 0.0


def read_results(grid: Grid, workspace: Workspace) -> list[CellResult]:
    """Return every cell with the newest run of its name."""
    results = []
    for cell in grid.cells:
        run = workspace.newest_run(cell.name)
        state = run.state() if run else None
        results.append(CellResult(cell, run.run if run else cell.name, state))
    return results


def sweep_facts(grid: Grid, workspace: Workspace) -> SweepFacts:
    runs = [_swept_run(result) for result in read_results(grid, workspace)]
    return SweepFacts(grid.name, tuple(grid.keys), tuple(runs))


def _swept_run(result: CellResult) -> SweptRun:
    state = result.state
    gains: tuple[Gain, ...] = ()
    if state is not None and result.is_finished:
        gains = tuple(_gain(change) for change in rate_changes(state.evaluations))
    return SweptRun(
        run=result.run,
        settings=result.cell.shown,
        status="not begun" if state is None else state.ending or "not finished",
        is_finished=result.is_finished,
        held_out=gains,
        tokens=state.total_usage.tokens if state else None,
        cost_usd=state.total_usage.cost_usd if state else None,
    )


def _gain(change: RateChange) -> Gain:
    first, last = change.first, change.last
    changes = verdict.paired_changes(question_rewards(first), question_rewards(last))
    varies = max(changes) - min(changes) > statistics.SAME
    return Gain(
        data=last.data,
        from_step=first.step,
        to_step=last.step,
        means=(first.mean or 0.0, last.mean or 0.0),
        n=(first.n, last.n),
        error=statistics.standard_error(changes) if varies else None,
        comparison=change.comparison,
    )


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
    tell: Tell
    jobs: int = 1
    budget_usd: float | None = None
    own_limit_usd: float | None = None  # of each run, as its run file has it
    codes: set[int] = field(default_factory=set)
    _stopping: bool = False  # nothing more is begun
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
                left = f"too little is left of the budget of ${self.budget_usd:g}"
                self.tell(f"{where}: not begun, {left}")
                self.codes.add(exit_codes.BUDGET_REACHED)
                return
            limits = [f"budget.cost_usd={most:.6f}"]
        self.tell(f"{where}: begins")
        words = [*self.grid.words(result.cell), *limits]
        process = await asyncio.create_subprocess_exec(
            *detached.studio_command(self.workspace.path, "headless", "--name", name),
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
        self._reserved.pop(name, None)
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
        """The most that a run may cost in all; None: nothing is left, or not enough for another.

        Runs that may begin at the same time share what is left.
        """
        assert self.budget_usd is not None
        spent = {r.cell.name: r.cost_usd for r in read_results(self.grid, self.workspace)}
        others = sum(usd for cell, usd in spent.items() if cell not in (name, *self._reserved))
        left = self.budget_usd - spent[name] - others - sum(self._reserved.values())
        if left <= 0 or exit_codes.BUDGET_REACHED in self.codes:
            return None
        most = spent[name] + left / max(1, self.jobs - len(self._reserved))
        self._reserved[name] = most
        return most if self.own_limit_usd is None else min(most, self.own_limit_usd)


def sweep(
    workspace: Workspace,
    runfile: str,
    words: Sequence[str],
    *,
    name: str | None,
    jobs: int,
    budget_usd: float | None,
    form: str,
) -> int:
    """Carry a grid out, or go on with it, and print its table; returns the exit code.

    Raises StudioError: the words, or the settings of any run, are wrong; nothing was begun.
    """
    find_run_file(runfile)
    if name is not None:
        new_or_resume.check_run_name(name)
    fixed, keys = parse_grid(runfile, words)
    file = Path(runfile).expanduser()
    # As every cell finds it, wherever it is begun.
    grid = Grid("sweep", str(file.resolve()) if file.is_file() else runfile, fixed, keys)
    loaded = _load_all(grid, workspace, budget_usd)
    library = loaded.config.library.name is not None
    grid = replace(grid, name=loaded.config.exp_id if name is None else name, own_library=library)
    _check_begun(grid, workspace)
    remember_grid(grid, workspace)
    lines.to_stderr(f"sweep {grid.name}: {len(grid.cells)} runs, {jobs} at a time")
    if not (loaded.config.evaluation.do_eval and loaded.config.evaluation.data):
        lines.to_stderr("note: nothing is held out, so no gain is measured: set evaluation.data")
    own_usd = loaded.config.budget.cost_usd
    work = SweepRun(grid, workspace, lines.to_stderr, jobs, budget_usd, own_usd)
    code = asyncio.run(work.carry_out())
    facts = sweep_facts(grid, workspace)
    page.print_facts(facts, comparison_page.sweep_page(facts), form)
    return code


def _load_all(grid: Grid, workspace: Workspace, budget_usd: float | None) -> LoadedRun:
    """Check the settings of every run before the first is begun; gives those of the first."""
    seen: dict[str, str] = {}
    first: LoadedRun | None = None
    for cell in grid.cells:
        loaded = load_run(grid.runfile, grid.words(cell), workspace.path)
        shown = " ".join(cell.overrides)
        if (same := seen.setdefault(loaded.config.model_dump_json(), shown)) != shown:
            raise ConfigError(shown, f"this is the run of {same}.", "Give each value once.")
        if budget_usd is not None:
            budget = loaded.config.budget.model_copy(update={"cost_usd": budget_usd})
            models.check_budget(loaded, loaded.config.model_copy(update={"budget": budget}))
        first = first or loaded
    assert first is not None
    return first


def _check_begun(grid: Grid, workspace: Workspace) -> None:
    """Refuse runs that began with other settings: their figures are none of this grid's."""
    for at, cell in enumerate(grid.cells):
        source = Source(tuple(grid.words(cell)), runfile=grid.runfile)
        request = new_or_resume.RunRequest(workspace=workspace, source=source, name=cell.name)
        if at == 0:
            request.load()  # its name is a run's, too
        if workspace.newest_run(cell.name) is None:
            continue
        try:
            new_or_resume.plan_run(
                replace(request, restart_step="null"), request.load(), tell=lambda _: None
            )
        except ConfigError as error:
            raise ConflictError(
                error.place, error.cause, "Undo that, or name this sweep anew: --name NAME."
            ) from error
