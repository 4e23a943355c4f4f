"""Finds the version of a library that a person names.

`NAME@V`, `NAME@LABEL`, `NAME` (its head), `RUN@epoch:N`, `RUN@step:N`, `RUN@last`, `RUN@best` (on
the held-out sets), a file that holds experiences (`agent.yaml`, `vNNNN.yaml`), or a bundled one.
"""

from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from engines.core.errors import ConflictError, did_you_mean, suggest_name
from engines.core.events import EvaluationFinished
from engines.core.library import Library
from engines.core.state.run_state import RunState
from engines.record.formats.rows import load_library
from engines.record.libraries import LibraryFolder, check_name, is_label
from engines.record.run_dir import RunDir, Workspace
from studio.facts.library import FoundVersion
from studio.facts.training import trained_step
from studio.render.training_lines import figures_text


def find_version(reference: str, workspace: Workspace) -> FoundVersion:
    """The version that a reference names; ConflictError or DataError where it names none."""
    name, at, rest = reference.rpartition("@")
    if at and rest.isdecimal():
        return _find_named(reference, workspace)
    kind, colon, number = rest.partition(":")
    if at and colon and kind in ("epoch", "step"):
        return _find_in_run(workspace.run(name), kind, number, workspace, reference)
    if at and rest in ("best", "last"):
        return _find_run_end(workspace.run(name), rest, workspace, reference)
    libraries = {folder.name: folder for folder in workspace.libraries()}
    labels = libraries[name].labels() if name in libraries and is_label(rest) else None
    if _is_file(reference) and rest not in (labels or ()):
        return FoundVersion(reference, load_library(Path(reference)))
    if reference in libraries or labels is not None:
        return _find_named(reference, workspace)
    if (bundled := _find_bundled(reference)) is not None:
        return FoundVersion(f"{reference} (bundled)", load_library(bundled))
    move = suggest_name(reference, (), workspace=workspace.path)
    if libraries:
        move = f"{did_you_mean(name or reference, libraries)}Libraries: {', '.join(libraries)}."
    forms = "Write NAME@V, NAME@LABEL, RUN@epoch:N, RUN@step:N, RUN@best, RUN@last or a file."
    cause = "it is no library, no run's epoch or step, and no file."
    begun = {path.parent.name for path in workspace.path.glob("libraries/*/journal.jsonl")}
    if (name or reference) in begun and not libraries.get(name or reference):
        emptied = workspace.library(name or reference)
        raise ConflictError(
            str(emptied.journal_path),
            "its journal tells of no version.",
            f"Restore it from a copy, or remove it. {emptied.describe_survivors()}".rstrip(),
        )
    raise ConflictError(reference, cause, f"{forms} {move}")


def library_folder(name: str, workspace: Workspace) -> LibraryFolder:
    check_name(name)
    return workspace.library(name)


def follow_version(
    reference: str, workspace: Workspace
) -> tuple[LibraryFolder, Callable[[], Library]]:
    """The library of `NAME`, `NAME@V` or `NAME@LABEL`, and what gives its version as of now.

    That reads only what is new. Raises ConflictError where there is no such version.
    """
    name, at, version = reference.rpartition("@")
    if at and not (is_label(version) or (version.isdecimal() and len(version) <= 18)):
        raise ConflictError(
            reference, "it is not NAME, NAME@V or NAME@LABEL.", "See `studio library history NAME`."
        )
    folder = library_folder(name if at else reference, workspace)

    def read_version() -> Library:
        if not at:
            return folder.head()
        return folder.at(int(version) if version.isdecimal() else folder.labelled(version))

    read_version()  # refuses what is not there
    return folder, read_version


def version_at(state: RunState, step: int) -> int:
    """The library version a run's step left behind; step 0 is before the first."""
    assert state.started is not None
    if step <= state.started.forked_steps:
        return state.started.library_version
    found = state.steps.get(step)
    if found is None or found.committed_version is None:
        last = max((number for number, s in state.steps.items() if s.committed), default=0)
        raise ConflictError(
            f"run {state.started.run}, step {step}",
            "it has not committed that step.",
            f"Choose 0 to {last}.",
        )
    return found.committed_version


def _find_named(reference: str, workspace: Workspace) -> FoundVersion:
    """A version with what runs measured of its content: those that made it, and the next one."""
    folder, read_version = follow_version(reference, workspace)
    library = read_version()
    version, label = library.version, f"{folder.name}@{library.version}"
    if reference not in (folder.name, label):
        label = f"{reference} ({label})"
    same = {a.version for a in folder.versions() if a.content_hash == library.content_hash}
    runs = {c.run for _, c in folder.history() if c and {c.version, c.version - 1} & same}
    measured: dict[str, EvaluationFinished] = {}
    for run in (run for run in workspace.runs() if run.run in runs):
        state = run.state()
        if state.started is not None and state.started.library == folder.name:
            found = (e for e in state.evaluations if e.library_version in same)
            measured |= {e.data: e for e in found if e.mean is not None}
    labels = tuple(called for called, number in folder.labels().items() if number == version)
    known = tuple(measured.values())
    return FoundVersion(_label(label, library), library, known, labels, folder.copied_from())


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
        return FoundVersion(label, library, measured, weights=_weights_text(state, step))
    label = _label(f"{started.library}@{version}", library)
    return FoundVersion(f"{reference} ({label})", library, measured)


def _weights_text(state: RunState, step: int) -> str:
    found = trained_step(state, step)
    if found is None:
        return "the weights as they were loaded, before the first step"
    return f"step {step}: {figures_text(found)}; its update: {found.update}"


def _find_run_end(run: RunDir, which: str, workspace: Workspace, reference: str) -> FoundVersion:
    """The version a run left behind, or the one that did best on its held-out sets."""
    state = run.state()
    if which == "last" and state.curates and state.started:
        named = f"{state.started.library}@{state.library_version}"
        return replace(_find_named(named, workspace), label=f"{run.run}@last ({named})")
    step = state.steps_finished if which == "last" else state.best_step
    if step is None:
        raise ConflictError(
            reference,
            "the run has no whole evaluation to be best in.",
            f"Evaluate while practising (evaluation.do_eval=true), or write {run.run}@last.",
        )
    return _find_in_run(run, "step", str(step), workspace, reference)
