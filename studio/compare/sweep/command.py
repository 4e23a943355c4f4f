"""`studio sweep` from its words to its table."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from engines.core.errors import ConfigError, ConflictError
from engines.record.run_dir import Workspace
from studio.compare.report import print_blocks
from studio.compare.sweep.cells import SweepRun
from studio.compare.sweep.grid import Grid, parse_grid, remember_grid, runfile_words
from studio.compare.sweep.table import CAPTIONS, read_results, sweep_blocks, sweep_data
from studio.config.loading import LoadedRun, load_run
from studio.config.source import Source, find_run_file
from studio.render.json import print_json
from studio.render.lines import to_stderr
from studio.run.budget import check_budget
from studio.run.new_or_resume import RunRequest, check_run_name, plan_run


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
        check_run_name(name)
    fixed, keys = parse_grid(runfile, words)
    grid = Grid("sweep", runfile_words(runfile), fixed, keys)
    loaded = _load_all(grid, workspace, budget_usd)
    library = loaded.config.library.name is not None
    grid = replace(grid, name=loaded.config.exp_id if name is None else name, own_library=library)
    _check_begun(grid, workspace)
    remember_grid(grid, workspace)
    to_stderr(f"sweep {grid.name}: {len(grid.cells)} runs, {jobs} at a time")
    if not (loaded.config.evaluation.do_eval and loaded.config.evaluation.data):
        to_stderr("note: nothing is held out, so no gain is measured: set evaluation.data")
    own_usd = loaded.config.budget.cost_usd
    work = SweepRun(grid, workspace, to_stderr, jobs, budget_usd, own_usd)
    code = asyncio.run(work.carry_out())
    results = read_results(grid, workspace)
    if form == "json":
        print_json(sweep_data(grid, results))
    else:
        print_blocks(f"studio sweep {grid.name}", sweep_blocks(grid, results), form, CAPTIONS)
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
            check_budget(loaded, loaded.config.model_copy(update={"budget": budget}))
        first = first or loaded
    assert first is not None
    return first


def _check_begun(grid: Grid, workspace: Workspace) -> None:
    """Refuse runs that began with other settings: their figures are none of this grid's."""
    for at, cell in enumerate(grid.cells):
        source = Source(tuple(grid.words(cell)), runfile=grid.runfile)
        request = RunRequest(workspace=workspace, source=source, name=cell.name)
        if at == 0:
            request.load()  # its name is a run's, too
        if workspace.newest_run(cell.name) is None:
            continue
        try:
            plan_run(replace(request, restart_step="null"), request.load(), tell=lambda _: None)
        except ConfigError as error:
            move = "Undo that, or name this sweep anew: --name NAME."
            raise ConflictError(error.place, error.cause, move) from error
