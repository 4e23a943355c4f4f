"""Finds the version of a library that a person names.

`NAME@V`, `NAME` (its head), `RUN@epoch:N`, `RUN@step:N`, `RUN@last`, `RUN@best` (on the
held-out sets), a file that holds experiences (`agent.yaml`, `vNNNN.yaml`), or a bundled one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

from engines.core.errors import ConflictError, did_you_mean, suggest_name
from engines.core.events import EvaluationFinished
from engines.core.library import Library
from engines.core.state.run_state import RunState
from engines.record.formats.own import load_library
from engines.record.libraries import LibraryFolder, check_name
from engines.record.run_dir import RunDir, Workspace
from studio.report.rates import evaluation_text
from studio.report.training import figures_text, trained_step


@dataclass(frozen=True, slots=True)
class FoundVersion:
    """A version, what to call it, and the held-out results that belong to it."""

    label: str
    library: Library
    measured: tuple[EvaluationFinished, ...] = ()
    weights: str = ""  # of a step of a training run: its figures, for the library stays as it is

    @property
    def evaluations(self) -> tuple[str, ...]:
        """The results in words."""
        return tuple(f"{e.data}: mean reward {evaluation_text(e)}" for e in self.measured)


def find_version(reference: str, workspace: Workspace) -> FoundVersion:
    """The version that a reference names; ConflictError or DataError where it names none."""
    name, at, rest = reference.rpartition("@")
    if at and rest.isdecimal() and len(rest) > 18:
        raise ConflictError(reference, "no library has so many versions.", "Write NAME@V.")
    if at and rest.isdecimal():
        return _find_in_library(library_folder(name, workspace), int(rest), workspace, reference)
    kind, colon, number = rest.partition(":")
    if at and colon and kind in ("epoch", "step"):
        return _find_in_run(workspace.run(name), kind, number, workspace, reference)
    if at and rest in ("best", "last"):
        return _find_run_end(workspace.run(name), rest, workspace, reference)
    if _is_file(reference):
        return FoundVersion(reference, load_library(Path(reference)))
    libraries = {folder.name: folder for folder in workspace.libraries()}
    if reference in libraries:
        version = libraries[reference].head().version
        return _find_in_library(libraries[reference], version, workspace, f"{reference}@{version}")
    if (bundled := _find_bundled(reference)) is not None:
        return FoundVersion(f"{reference} (bundled)", load_library(bundled))
    move = suggest_name(reference, (), workspace=workspace.path)
    if libraries:
        move = f"{did_you_mean(name or reference, libraries)}Libraries: {', '.join(libraries)}."
    forms = "Write NAME@V, RUN@epoch:N, RUN@step:N, RUN@best, RUN@last or a file."
    cause = "it is no library, no run's epoch or step, and no file."
    raise ConflictError(reference, cause, f"{forms} {move}")


def library_folder(name: str, workspace: Workspace) -> LibraryFolder:
    check_name(name)
    return workspace.library(name)


def follow_library(reference: str, workspace: Workspace) -> Callable[[], Library]:
    """Gives what `NAME@V` or `NAME` stands for as of now; it reads only what is new."""
    name, at, version = reference.rpartition("@")
    if at and not (version.isdecimal() and len(version) <= 18):
        raise ConflictError(reference, "it is not NAME or NAME@V.", "Leave @… out, or name V.")
    folder = library_folder(name if at else reference, workspace)

    def read_version() -> Library:
        return folder.at(int(version)) if at else folder.head()

    read_version()  # refuses what is not there
    return read_version


def version_at(state: RunState, step: int) -> int:
    """The library version a run's step left behind; step 0 is before the first."""
    assert state.started is not None
    if step <= state.started.forked_steps:
        return state.started.library_version
    found = state.steps.get(step)
    if found is None or found.committed_version is None:
        done = [number for number, s in state.steps.items() if s.committed]
        raise ConflictError(
            f"run {state.started.run}, step {step}",
            "it has not committed that step.",
            f"Choose 0 to {max(done, default=0)}.",
        )
    return found.committed_version


def _find_in_library(
    folder: LibraryFolder, version: int, workspace: Workspace, label: str
) -> FoundVersion:
    """A version with what the runs around it measured of it: that made it, and the next one."""
    runs = {c.run for _, c in folder.history() if c and c.version in (version, version + 1)}
    measured: dict[str, EvaluationFinished] = {}
    for run in (run for run in workspace.runs() if run.run in runs):
        state = run.state()
        if state.started is not None and state.started.library == folder.name:
            found = (e for e in state.evaluations if e.library_version == version)
            measured |= {e.data: e for e in found if e.mean is not None}
    library = folder.at(version)
    return FoundVersion(_label(label, library), library, tuple(measured.values()))


def _label(called: str, library: Library) -> str:
    """A library that began with experiences, as that of a fork, says so: it is no empty v0."""
    n = len(library.experiences)
    return called if library.version or not n else f"{called}, begun with {n}"


def _find_bundled(name: str) -> Path | None:
    """A library that ships with the studio; the workspace's own go before it."""
    path = Path(str(files("sample_data"))) / f"{name}.yaml"
    return path if Path(name).name == name and _is_file(str(path)) else None


def _is_file(reference: str) -> bool:
    try:
        return Path(reference).is_file()
    except OSError:  # too long for a path: then it is none
        return False


def _find_in_run(
    run: RunDir, kind: str, number: str, workspace: Workspace, reference: str
) -> FoundVersion:
    state = run.state()
    started = state.started
    if not number.isdecimal() or len(number) > 18 or started is None:
        raise ConflictError(reference, f"{number!r} is no number.", f"Write RUN@{kind}:2, say.")
    step = int(number)
    if kind == "epoch":
        step = min(step * started.steps_per_epoch, started.steps_per_epoch * state.epochs)
        if int(number) > state.epochs:
            raise ConflictError(
                reference, f"the run has {state.epochs} epochs.", f"Choose 0 to {state.epochs}."
            )
    if step < started.forked_steps and started.forked_from is not None:
        parent = workspace.run(started.forked_from)
        adopted = _find_in_run(parent, "step", str(step), workspace, reference)
        return replace(adopted, label=f"{reference} ({adopted.label})")
    version = version_at(state, step)
    library = workspace.library(started.library).at(version)
    known = {  # a library that no later step changed was measured where it came about
        e.data: e
        for e in state.evaluations
        if e.mean is not None
        and (e.step == step or (e.library_version == version and not state.trains_weights))
    }
    measured = tuple(known.values())
    if state.trains_weights:
        label = f"{reference} (weights after step {step})"
        return FoundVersion(label, library, measured, _weights_text(state, step))
    label = _label(f"{started.library}@{version}", library)
    return FoundVersion(f"{reference} ({label})", library, measured)


def _weights_text(state: RunState, step: int) -> str:
    found = trained_step(state, step)
    if found is None:
        return "the weights as they were loaded, before the first step"
    return f"step {step}: {figures_text(found)}; its update: {found.became}"


def _find_run_end(run: RunDir, which: str, workspace: Workspace, reference: str) -> FoundVersion:
    """The version a run left behind, or the one that did best on its held-out sets."""
    state = run.state()
    if which == "last" and state.curates and state.started:
        name, version = state.started.library, state.library_version
        label = f"{run.run}@last ({name}@{version})"
        return _find_in_library(workspace.library(name), version, workspace, label)
    step = state.steps_finished if which == "last" else state.best_step
    if step is None:
        raise ConflictError(
            reference,
            "the run has no whole evaluation to be best in.",
            f"Evaluate while practising (evaluation.do_eval=true), or write {run.run}@last.",
        )
    return _find_in_run(run, "step", str(step), workspace, reference)
