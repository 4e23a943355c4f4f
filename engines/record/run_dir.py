"""The folder of a run and the workspace around it: where things lie, by name."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engines.core.errors import ConflictError, RecordError, suggest_name
from engines.core.frozen import frozen
from engines.core.state.run_state import RunState
from engines.record.derived.run_state import read_run
from engines.record.journal import Entry, first_line, read_journal, started_at
from engines.record.libraries import LibraryFolder, check_name
from engines.secrets.mask import NO_SECRETS, Mask


@frozen
class Below:
    """An attribute: the path of this name below the `path` of the object that has it."""

    name: str

    def __get__(self, owner: Any, _: object) -> Path:
        folder: Path = owner.path
        return folder / self.name


@frozen
class RunDir:
    """`runs/<run-id>` of a workspace."""

    path: Path
    journal = Below("journal.jsonl")
    records = Below("records")
    run_file = Below("run.yaml")
    agent_file = Below("agent.yaml")
    # The agent as it did best on the held-out sets; only where some were measured.
    best_agent_file = Below("agent-best.yaml")
    log = Below("studio.log")
    socket = Below("control.sock")

    @property
    def run(self) -> str:
        return self.path.name

    def started_at(self) -> float:
        """When the run started: the time stamp of its first entry, cheaply; 0.0 without one."""
        return started_at(self.journal) if self.journal.exists() else 0.0

    @property
    def account(self) -> str:
        """What it pays under: its own also among runs of one name."""
        return f"{self.run} of {self.started_at():.3f}"

    def entries(self, since: int = 0) -> tuple[Entry, ...]:
        """Those behind the first so many; of a long run `read_journal` holds a part at a time."""
        return tuple(read_journal(self.journal, since=since))

    def state(self, tell: Callable[[str], None] = lambda _: None) -> RunState:
        """What the journal adds up to right now, also while the run goes on.

        `tell` is told where all of a long one has to be read.
        """
        return read_run(self.journal, tell=tell).state


@frozen
class Workspace:
    """Everything of one practice folder. `mask` takes secrets out of what libraries write."""

    path: Path
    mask: Mask = NO_SECRETS
    runs_folder = Below("runs")
    datasets = Below("datasets")
    configs = Below("configs")
    evaluations = Below("evaluations")
    verifiers = Below("verifiers")
    archives = Below("archives")  # runs packed into a file each, and notes on those only there
    catalogue = Below("catalogue.json")

    def library(self, name: str) -> LibraryFolder:
        return LibraryFolder(self.path / "libraries" / name, self.mask)

    def libraries(self) -> tuple[LibraryFolder, ...]:
        found = sorted((self.path / "libraries").glob("*/journal.jsonl"))
        folders = (LibraryFolder(path.parent, self.mask) for path in found)
        return tuple(folder for folder in folders if folder.exists())

    def runs(self) -> tuple[RunDir, ...]:
        """Return every run that has a journal, oldest first."""
        placed: list[tuple[float, str, int, Path]] = []
        for path in self.runs_folder.iterdir() if self.runs_folder.is_dir() else ():
            if not _holds_journal(path):
                continue
            try:
                began = started_at(path / "journal.jsonl")
            except RecordError:  # told by whoever reads more of it; it hides no other
                began = 0.0
            placed.append((began, *_name_and_number(path.name), path))
        return tuple(RunDir(path) for *_, path in sorted(placed))

    def run(self, run: str) -> RunDir:
        """Raises ConflictError where there is none of that id, or it cannot be the name of one."""
        check_name(run)
        folder = RunDir(self.runs_folder / run)
        if not (os.path.exists(folder.journal) or _holds_journal(folder.path)):
            if (self.archives / f"{run}.json").exists():
                raise ConflictError(
                    f"run {run}", "it is archived.", f"Bring it back: studio runs restore {run}"
                )
            newest_first = [found.run for found in reversed(self.runs())]
            move = suggest_name(run, newest_first, workspace=self.path)
            move += " A new run appears once its process has opened it."
            raise ConflictError(f"run {run}", f"there is none in {self.path}.", move)
        return folder

    def check_overwrite(self, path: Path, is_ours: Callable[[bytes], bool], move: str) -> None:
        """Raises ConflictError: the folders of runs or libraries hold it, or it is not ours."""
        target = path.resolve()
        if any(target.is_relative_to((self.path / at).resolve()) for at in ("runs", "libraries")):
            cause, move = "only the studio itself writes there.", "Choose another place."
        elif not target.is_file() or is_ours(target.read_bytes()):
            return
        else:
            cause = "it exists and holds something else."
        raise ConflictError(str(path), cause, move)

    def newest_run(self, exp_id: str) -> RunDir | None:
        """The newest of `exp_id`, `exp_id-2` and so on.

        A run of an experiment that is itself called `exp_id-2` is not one of them.
        """
        numbered = {
            number: run
            for number, run in self._run_ids_by_number(exp_id).items()
            if _exp_id(self.runs_folder / run) in (exp_id, None)
        }
        return RunDir(self.runs_folder / numbered[max(numbered)]) if numbered else None

    def new_run_dir(self, exp_id: str) -> RunDir:
        """A folder for a new run of that name; nothing is created yet."""
        check_name(exp_id)
        taken = {*self._run_ids_by_number(exp_id)}
        for path in self.archives.glob(f"{exp_id}*.json"):  # it may come back
            name, number = _name_and_number(path.stem)
            taken |= {number} if name == exp_id else {1} if path.stem == exp_id else set()
        name = f"{exp_id}-{max(taken) + 1}" if taken else exp_id
        return RunDir(self.runs_folder / name)

    def _run_ids_by_number(self, exp_id: str) -> dict[int, str]:
        pattern = re.compile(re.escape(exp_id) + r"(?:-(\d+))?")
        found = {}
        for path in self.runs_folder.glob(f"{exp_id}*/journal.jsonl"):
            match = pattern.fullmatch(path.parent.name)
            if match and path.stat().st_size:
                found[int(match[1] or 1)] = path.parent.name
        return found


def _holds_journal(folder: Path) -> bool:
    """Also of a run that this user may not read: whoever reads it says so."""
    try:
        return not folder.name.startswith(".") and (folder / "journal.jsonl").is_file()
    except PermissionError:
        return True


def _name_and_number(run: str) -> tuple[str, int]:
    """The name and the number of a run-id: `exp-3` is the third of `exp`."""
    name, dash, number = run.rpartition("-")
    return (name, int(number)) if dash and number.isdecimal() else (run, 1)


def _exp_id(folder: Path) -> str | None:
    """The experiment of a run from its first entry, cheaply; None where it cannot be told."""
    match = re.search(rb'"exp_id":"([^"\\]*)"', first_line(folder / "journal.jsonl"))
    return match[1].decode("utf-8", "replace") if match else None
