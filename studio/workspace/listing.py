"""The runs of a workspace as `studio`, `runs list` and `runs show` name them.

Reads; changes nothing but the catalogue's cache.
"""

from collections.abc import Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any

from engines.core.codec import JsonMapping, from_dict
from engines.core.frozen import frozen
from engines.record.derived.catalogue import refresh_catalogue
from engines.record.run_dir import RunDir, Workspace
from studio.facts.next_command import RunStatus, status_of_row
from studio.presets import list_presets
from studio.render import training_lines, words
from studio.render.lines import COLUMNS, indent_text, table
from studio.secrets.sanitize import sanitize
from studio.session.control_socket import is_alive

if TYPE_CHECKING:
    pass


@frozen
class ListedRun:
    """One line of a list: the catalogue's row and the status as it is shown."""

    row: JsonMapping
    shown: RunStatus

    @property
    def data(self) -> dict[str, Any]:
        shown = self.shown
        return {**self.row, "status": shown.status, "alive": shown.alive, "next": shown.next}


@frozen
class MeasuredSet:
    """A held-out set: the mean reward before practice (or first known) and the newest."""

    data: str
    first: float
    last: float
    n: int  # rollouts with a known reward, of the newest
    first_n: int | None = None  # the same of the first; None: it was measured once


@frozen
class Background:
    """What a run practises, as its journal says."""

    model: str
    data: str
    verifier: str
    reviewer: str
    seed: int
    batch_size: int
    group_size: int
    steps: int  # of the whole run
    measured: tuple[MeasuredSet, ...] = ()
    step: int = 0  # the last one that began


@frozen
class KnownRun:
    """A line of a list and what stands behind it; None where its journal cannot be read."""

    listed: ListedRun
    background: Background | None

    @property
    def run(self) -> str:
        return str(self.listed.row["run"])


def known_runs(workspace: Workspace) -> tuple[KnownRun, ...]:
    """Every run of a workspace with what it practises, newest first."""
    return tuple(
        KnownRun(found, from_dict(Background, practised) if practised else None)
        for found in listed_runs(workspace)
        for practised in [found.row.get("practises")]
    )


def listed_runs(workspace: Workspace) -> tuple[ListedRun, ...]:
    """Every run of a workspace, newest first."""
    if not workspace.runs_folder.is_dir():
        return ()  # asking must not create a workspace
    rows = reversed(refresh_catalogue(workspace))
    here = (_listed_run(RunDir(workspace.runs_folder / str(row["run"])), row) for row in rows)
    if not workspace.archives.is_dir():
        return tuple(here)
    from studio.workspace.archive import archived_runs  # most workspaces have none

    moves = (
        (run, f"bring it back: studio runs restore {quote(run.run)}")
        for run in archived_runs(workspace)
    )
    archived = (
        ListedRun({**run.row, "archive": run.file}, RunStatus("archived", False, move))
        for run, move in moves
    )
    return (*here, *archived)


def runs_table(runs: Sequence[ListedRun]) -> str:
    """One line a run, and below the table what waits."""
    rows = [
        (
            str(run.row["run"]),
            "curation" if run.shown.curation_status else run.shown.status,
            "-" if run.shown.curation_status else f"{run.row['epoch']}/{run.row['epochs']}",
            _reward_text(run.row),
            training_lines.row_curve(run.row["curve"], 8) or "-",
            training_lines.learned_text(run.row),
            words.to_decide_text(run.row["open"], run.row.get("later", 0), "").replace(" ,", ","),
            str(run.row["losses"]),
        )
        for run in runs
    ]
    headings = ("RUN", "STATUS", "EPOCH", "REWARD", "BY STEP", "LIBRARY", "OPEN", "LOST")
    lines = [table(headings, rows)]
    if any(run.row["rehearsal"] for run in runs):
        lines.append("~ rehearsal: scripted replies took part, so this says little about a model")
    lines += [f"{run.row['run']}: {run.shown.text}" for run in runs if run.shown.next]
    return "\n".join(lines)


def row_text(run: ListedRun) -> str:
    """`finished, epoch 2/3, 0.630 (n=40), lib@3`: a run in a few words, to choose it by."""
    row = run.row
    if run.shown.curation_status:
        return f"{run.shown.curation_status}, {training_lines.learned_text(row)}"
    reward = _reward_text(row)
    parts = (f"epoch {row['epoch']}/{row['epochs']}", reward if reward != "-" else "no reward yet")
    return ", ".join((run.shown.status, *parts, training_lines.learned_text(row)))


SHOWN_AT_HOME = 10


def home_text(runs: Sequence[ListedRun], workspace: Workspace) -> str:
    """The home page: runs, presets, and what one would do next."""
    shown = runs_table(runs[:SHOWN_AT_HOME]) if runs else "none yet"
    if len(runs) > SHOWN_AT_HOME:
        shown += f"\n… and {len(runs) - SHOWN_AT_HOME} more: studio runs list"
    presets = table(("PRESET", "WHAT IT IS"), list_presets(), fold=1, columns=COLUMNS - 2)
    lines = [f"runs in {sanitize(str(workspace.path))}", indent_text(shown)]
    lines += ["", "presets", indent_text(presets), "", "next"]
    lines += [f"  {command:<44}{what}".rstrip() for command, what in _next_commands(runs)]
    return "\n".join(lines)


def _next_commands(every: Sequence[ListedRun]) -> list[tuple[str, str]]:
    runs = [run for run in every if run.shown.status != "archived"]
    if not runs:
        return [
            ("studio headless rehearsal", "practise offline, no key needed"),
            ("studio try rehearsal", "one problem, prompt to verdict"),
            ("studio init api --to mine.yaml", "a run file of your own"),
        ]
    newest = runs[0]
    name = quote(str(newest.row["run"]))
    library = quote(str(newest.row["library"]))
    waiting = [run.shown.next.partition(": ")[2] for run in runs if run.shown.next][:3]
    moves = [(command, "waits") for command in waiting]
    moves.append((f"studio runs show {name}", "how the newest run went"))
    if newest.row["version"]:
        moves.append((f"studio diff {library}@0 {library}@{newest.row['version']}", "what changed"))
    return [*moves, ("studio --help", "every command")]


def _listed_run(run: RunDir, row: JsonMapping) -> ListedRun:
    if "error" in row:
        return ListedRun(row, RunStatus("damaged", is_alive(run), str(row["error"])))
    return ListedRun(row, status_of_row(run.run, row, alive=is_alive(run)))


def _reward_text(row: JsonMapping) -> str:
    """The newest epoch's mean practice reward with its n; `~` marks scripted replies."""
    known = [pooled for pooled in row["rewards"].values() if pooled["n"]]
    if not known:
        return "-"
    scripted = "~" if row["rehearsal"] else ""
    return f"{scripted}{known[-1]['mean']:.3f} (n={known[-1]['n']})"
