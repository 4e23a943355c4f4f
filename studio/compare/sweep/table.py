"""What a sweep came to: each run before and after, and which key its gain depends on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engines.core.codec import fields_of
from engines.core.state.run_state import RunState
from engines.pipeline.effect.paired import standard_error
from engines.pipeline.evaluation.comparison import paired_changes
from engines.pipeline.evaluation.intervals import SAME
from engines.record.run_dir import Workspace
from studio.compare.report import Block
from studio.compare.sweep.grid import Cell, Grid
from studio.compare.sweep.spread import Gain, Spread, decompose
from studio.facts.evaluation import RateChange, change_facts, question_rewards, rate_changes
from studio.render.words import difference_text

CAPTIONS = {"Runs": "Each run before and after practice", "Spread": "What the gain depends on"}


@dataclass(frozen=True, slots=True)
class CellResult:
    """A cell and its run as it stands; `state` None: it has not begun."""

    cell: Cell
    run: str
    state: RunState | None

    @property
    def is_finished(self) -> bool:
        return self.state is not None and self.state.ending == "finished"

    @property
    def changes(self) -> list[RateChange]:
        return rate_changes(self.state.evaluations) if self.state and self.is_finished else []

    @property
    def status(self) -> str:
        return "not begun" if self.state is None else self.state.ending or "not finished"


def read_results(grid: Grid, workspace: Workspace) -> list[CellResult]:
    """Every cell, by the newest run of its name."""
    found = []
    for cell in grid.cells:
        run = workspace.newest_run(cell.name)
        found.append(CellResult(cell, run.run if run else cell.name, run.state() if run else None))
    return found


def spreads_of(results: Sequence[CellResult]) -> dict[str, Spread | str]:
    """By held-out set: how its gains spread, or why that cannot be said."""
    found: dict[str, Spread | str] = {}
    for name in dict.fromkeys(c.last.data for result in results for c in result.changes):
        gains = [_gain(r, c) for r in results for c in r.changes if c.last.data == name]
        if len(gains) < len(results):
            found[name] = f"{len(gains)} of {len(results)} runs have a gain: all are needed"
        else:
            found[name] = decompose(gains) or "all runs gained the same"
    return found


def _gain(result: CellResult, change: RateChange) -> Gain:
    changes = paired_changes(question_rewards(change.first), question_rewards(change.last))
    varies = max(changes) - min(changes) > SAME
    error = standard_error(changes) if varies else None
    done = change.comparison
    return Gain(result.cell.shown, done.difference, error, done.questions)


def sweep_blocks(grid: Grid, results: Sequence[CellResult]) -> list[Block]:
    keys, rows = list(grid.keys), []
    for result in results:
        usage = result.state.total_usage if result.state else None
        cost = "-" if usage is None or usage.cost_usd is None else f"{usage.cost_usd:.4f}"
        tokens = "-" if usage is None else f"{usage.tokens:,}"
        own = [result.cell.shown[key] for key in keys]
        figures = [_figures(change) for change in result.changes]
        figures = figures or [["-", "-", "-", "-", result.status]]
        rows += [[*own, *one, tokens, cost] for one in figures]
    headings = [key.rpartition(".")[2].upper() for key in keys]
    headings += ["SET", "BEFORE", "AFTER", "GAIN", "VERDICT", "TOKENS", "$"]
    done = sum(result.is_finished for result in results)
    head = [f"{done} of {len(results)} runs are finished; TOKENS and $ are what each paid itself"]
    if any(result.changes for result in results):
        head[0] += ", and what another run had measured was not paid again"
    return [Block("Runs", head, headings, rows), *_spread_blocks(results)]


def _figures(change: RateChange) -> list[str]:
    means = [f"{one.mean:.3f} (n={one.n})" for one in (change.first, change.last)]
    done = change.comparison
    return [change.last.data, *means, difference_text(done), done.verdict]


def _spread_blocks(results: Sequence[CellResult]) -> list[Block]:
    lines, rows = [], []
    for name, spread in spreads_of(results).items():
        if isinstance(spread, str):
            lines.append(f"{name}: {spread}")
            continue
        for one in spread.keys:
            means = ", ".join(f"{value} {mean:+.3f}" for value, mean in one.means.items())
            p = "<0.001" if one.p < 0.0005 else f"{one.p:.3f}"
            share = f"{one.share:.0%}"
            rows.append([name, one.key, share, f"{one.deviation:.3f}", p, one.verdict, means])
        by = "the noise of measuring" if spread.by_noise else "these"
        lines.append(
            f"{name}: {spread.rest:.0%} of the differences follow from no key alone; "
            f"P is of a key's differences against {by}"
        )
    headings = ("SET", "KEY", "SHARE", "SD", "P", "VERDICT", "MEAN GAIN")
    return [Block("Spread", lines, headings, rows)] if lines else []


def sweep_data(grid: Grid, results: Sequence[CellResult]) -> dict[str, Any]:
    runs = [
        {
            "run": result.run,
            "settings": result.cell.shown,
            "status": result.status,
            "held_out": [change_facts(change) for change in result.changes],
            "tokens": result.state.total_usage.tokens if result.state else 0,
            "cost_usd": result.state.total_usage.cost_usd if result.state else None,
        }
        for result in results
    ]
    told = ("share", "deviation", "p", "verdict", "means")
    spreads = {
        name: {"unknown": spread}
        if isinstance(spread, str)
        else fields_of(spread, "rest", "by_noise")
        | {"keys": {one.key: fields_of(one, *told) for one in spread.keys}}
        for name, spread in spreads_of(results).items()
    }
    return {"kind": "Sweep", "sweep": grid.name, "runs": runs, "spread": spreads}
