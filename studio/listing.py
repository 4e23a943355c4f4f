"""The runs of a workspace as `studio`, `runs list` and `runs show` name them.

Owns what a run's status is called, given its journal and whether its process lives, and
what waits for a person. Reads; changes nothing but the catalogue's cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any

from engines.core.errors import StudioError
from engines.record.catalogue import run_row, run_rows
from engines.record.run_dir import RunDir, Workspace
from studio.inert import inert
from studio.link import is_alive
from studio.presets import list_presets
from studio.printing import COLUMNS, indented, table
from studio.summary import raised

_LIVING = ("new", "running", "reviewing", "paused")
"""What a journal says of a run whose process did not say that it let go."""

_HEADINGS = ("RUN", "STATUS", "EPOCH", "REWARD", "LIBRARY", "OPEN", "LOST")


@dataclass(frozen=True, slots=True)
class ShownStatus:
    """A status as people read it, and the command that goes on from there ("": none)."""

    word: str
    alive: bool
    move: str = ""

    @property
    def text(self) -> str:
        return f"{self.word} ({self.move})" if self.move else self.word


@dataclass(frozen=True, slots=True)
class ListedRun:
    """One line of a list: the catalogue's row and the status as it is shown."""

    row: Mapping[str, Any]
    shown: ShownStatus

    @property
    def data(self) -> dict[str, Any]:
        return {
            **self.row,
            "status": self.shown.word,
            "alive": self.shown.alive,
            "next": self.shown.move,
        }


def shown_status(run: RunDir, row: Mapping[str, Any]) -> ShownStatus:
    """What to call a run's status.

    Args:
        run: the run; its socket tells whether a process is alive.
        row: `status`, `open` (a number), `ending` and `reason` as the journal has them.
    """
    status, alive, name = str(row["status"]), is_alive(run), quote(run.run)
    if status in _LIVING and not alive:
        return ShownStatus("interrupted", False, f"resume: studio headless --resume {name}")
    if row.get("ending") == "budget":
        move = f"budget reached: studio headless --resume {name} {raised(str(row['reason']))}"
        return ShownStatus(status, alive, move)
    if status == "paused":
        return ShownStatus(status, alive, f"go on: studio ctl resume {name}")
    if row["open"] and (status in ("reviewing", "held", "finished")):
        return ShownStatus(status, alive, f"decide: studio review {name}")
    if status in ("stopped", "held", "failed"):
        return ShownStatus(status, alive, f"resume: studio headless --resume {name}")
    return ShownStatus(status, alive)


def listed_runs(workspace: Workspace) -> tuple[ListedRun, ...]:
    """Every run of a workspace, newest first."""
    if not workspace.runs_folder.is_dir():
        return ()  # asking must not create a workspace
    found = [_listed(workspace.run(str(row["run"])), row) for row in _rows(workspace)]
    return tuple(reversed(found))


def runs_table(runs: Sequence[ListedRun]) -> str:
    """One line a run, and below the table what waits."""
    rows = [
        (
            str(run.row["run"]),
            run.shown.word,
            f"{run.row['epoch']}/{run.row['epochs']}",
            _reward(run.row),
            f"{run.row['library']}@{run.row['version']}",
            str(run.row["open"]),
            str(run.row["losses"]),
        )
        for run in runs
    ]
    lines = [table(_HEADINGS, rows)]
    if any(run.row["rehearsal"] for run in runs):
        lines.append("~ rehearsal: replies were scripted, this says nothing about a model")
    lines += [f"{run.row['run']}: {run.shown.text}" for run in runs if run.shown.move]
    return "\n".join(lines)


def home_text(runs: Sequence[ListedRun], workspace: Workspace, limit: int = 10) -> str:
    """The home page: runs, presets, and what one would do next."""
    shown = runs_table(runs[:limit]) if runs else "none yet"
    more = [f"… and {len(runs) - limit} more: studio runs list"] if len(runs) > limit else []
    presets = table(("PRESET", "WHAT IT IS"), list_presets(), fold=1, columns=COLUMNS - 2)
    return "\n".join(
        [
            f"runs in {inert(str(workspace.path))}",
            indented("\n".join([shown, *more])),
            "",
            "presets",
            indented(presets),
            "",
            "next",
            *(f"  {command:<44}{what}".rstrip() for command, what in _moves(runs)),
        ]
    )


def _moves(runs: Sequence[ListedRun]) -> list[tuple[str, str]]:
    if not runs:
        return [
            ("studio headless rehearsal", "practise offline, no key needed"),
            ("studio try rehearsal", "one problem, prompt to verdict"),
            ("studio init api --to mine.yaml", "a run file of your own"),
        ]
    newest = runs[0]
    name = quote(str(newest.row["run"]))
    library = quote(str(newest.row["library"]))
    waiting = [run.shown.move.partition(": ")[2] for run in runs if run.shown.move][:3]
    moves = [(command, "waits") for command in waiting]
    moves.append((f"studio runs show {name}", "how the newest run went"))
    if newest.row["version"]:
        moves.append((f"studio diff {library}@0 {library}@{newest.row['version']}", "what changed"))
    return [*moves, ("studio --help", "every command")]


def _rows(workspace: Workspace) -> list[dict[str, Any]]:
    try:
        return run_rows(workspace)
    except StudioError:
        # One damaged journal must not hide the other runs, nor itself.
        return [_row(run) for run in workspace.runs()]


def _row(run: RunDir) -> dict[str, Any]:
    try:
        return run_row(run)
    except StudioError as error:
        empty = dict.fromkeys(
            ("epoch", "epochs", "steps", "version", "open", "tokens", "losses"), 0
        )
        return {
            **empty,
            "run": run.run,
            "exp_id": run.run,
            "status": "damaged",
            "library": "",
            "rewards": {},
            "rehearsal": False,
            "error": str(error),
        }


def _listed(run: RunDir, row: Mapping[str, Any]) -> ListedRun:
    if "error" in row:
        return ListedRun(row, ShownStatus("damaged", is_alive(run), str(row["error"])))
    return ListedRun(row, shown_status(run, row))


def _reward(row: Mapping[str, Any]) -> str:
    """The newest epoch's mean practice reward with its n; `~` marks scripted replies."""
    known = [pooled for pooled in row["rewards"].values() if pooled["n"]]
    if not known:
        return "-"
    scripted = "~" if row["rehearsal"] else ""
    return f"{scripted}{known[-1]['mean']:.3f} (n={known[-1]['n']})"
