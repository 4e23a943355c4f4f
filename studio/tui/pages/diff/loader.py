"""What can be compared in a workspace, and the comparison of two references. Blocks.

References and how the difference is told are those of `studio diff`.
"""

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import partial

from engines.core.errors import StudioError
from engines.core.state.run_state import RunState
from engines.record.libraries import LibraryFolder
from engines.record.run_dir import Workspace
from studio.facts.library import difference
from studio.library.references import find_version
from studio.render.words import mean_reward_text
from studio.tui.pages.diff.view import ARROW, Choice, Compared, compare_references


def compare(base: str, target: str, workspace: Workspace) -> Compared:
    """Resolve both and compare them.

    Raises StudioError: a reference means nothing; see `studio.library.references.find_version`.
    """
    older = find_version(base, workspace)
    newer = older if base == target else find_version(target, workspace)
    return compare_references(base, target, difference(older, newer))


def default_references(workspace: Workspace, run: str | None) -> tuple[str, str] | None:
    """What is compared where nobody asked: a run's start and the head.

    Without a run, the library that was changed last. None where there is nothing yet.

    Raises StudioError: the run's journal or its library cannot be read.
    """
    if run is None:
        folders = sorted(
            workspace.libraries(), key=lambda folder: folder.journal_path.stat().st_mtime
        )
        return (f"{folders[-1].name}@0", folders[-1].name) if folders else None
    state = workspace.run(run).state()
    if state.started is None:
        return None
    name, last = state.started.library, f"{run}@last"
    head = workspace.library(name).head()
    # Evaluations belong to steps of a run, so its end is called by its step where it is the head.
    left = find_version(last, workspace).library
    same = (left.version, left.content_hash) == (head.version, head.content_hash)
    return f"{run}@epoch:0", last if same else name


def load_choices(workspace: Workspace, run: str | None) -> tuple[Choice, ...]:
    """Everything that can be compared, the open run's first; a damaged part says so."""
    parts: list[tuple[str, Callable[[], list[Choice]]]] = []
    if run is not None:
        parts.append((f"run {run}", lambda: _run_choices(run, workspace.run(run).state())))
    for folder in workspace.libraries():
        parts.append((f"library {folder.name}", partial(_library_choices, folder)))
    others = [other.run for other in workspace.runs() if other.run != run]
    found: list[Choice] = []
    if run is not None:
        found.append(Choice("", "both sides at once"))
        with suppress(StudioError):  # the run's own part says what is wrong with it
            found += _epoch_pairs(run, workspace.run(run).state())
        ended = (f"{other}@last" for other in others[:-4:-1])
        found += [
            Choice(f"{other}{ARROW}{run}@last", "another run, then this one") for other in ended
        ]
    for heading, read in parts:
        found.append(Choice("", heading))
        try:
            found += read()
        except StudioError as error:
            found.append(Choice("", str(error)))
    if others:
        found.append(Choice("", "other runs"))
        found += [Choice(f"{other}@last", "as it ended") for other in reversed(others)]
    return tuple(found)


def _epoch_pairs(run: str, state: RunState) -> list[Choice]:
    """Each epoch that is through beside the one before, the newest first."""
    steps = state.started.steps_per_epoch if state.started is not None else 0
    through = state.steps_finished // steps if steps else 0
    return [
        Choice(
            f"{run}@epoch:{epoch - 1}{ARROW}{run}@epoch:{epoch}",
            f"{f'epoch {epoch - 1}' if epoch > 1 else 'the start'} -> epoch {epoch} of this run",
        )
        for epoch in range(through, max(0, through - 5), -1)
    ]


def _run_choices(run: str, state: RunState) -> list[Choice]:
    started = state.started
    if started is None:
        return [Choice("", "it has not begun")]
    first, last = f"v{started.library_version}", f"v{state.library_version}"
    if state.trains_weights:
        first, last = "policy v0", f"policy v{state.policy_version}"
    found = [Choice(f"{run}@last", f"after step {state.steps_finished}, {last}")]
    if state.best_step is not None:
        found.append(Choice(f"{run}@best", f"after step {state.best_step}, on its held-out sets"))
    found.append(Choice(f"{run}@epoch:0", f"before it began, {first}"))
    for number, step in sorted(state.steps.items()):
        if step.committed_version is None:
            continue
        left = f"v{step.committed_version}"
        if state.trains_weights:
            left = f"reward {mean_reward_text(step.rewards)}"
        about = f"epoch {step.epoch}, {left}"
        if number % started.steps_per_epoch == 0:
            epoch = number // started.steps_per_epoch
            found.append(Choice(f"{run}@epoch:{epoch}", f"after step {number}, {about}"))
        found.append(Choice(f"{run}@step:{number}", about))
    return found


def _library_choices(folder: LibraryFolder) -> list[Choice]:
    found = []
    for library, commit in reversed(folder.history()):
        made = "begun" if commit is None else "by hand"
        if commit is not None and commit.run:
            made = f"step {commit.step} of {commit.run}"
        at = max((decision.at for _, decision in commit.reviewed), default=0.0) if commit else 0.0
        when = datetime.fromtimestamp(at).strftime(", %Y-%m-%d %H:%M") if at else ""
        n = len(library.experiences)
        about = f"{n} experience{'s' * (n != 1)}, {made}{when}"
        found.append(Choice(f"{folder.name}@{library.version}", about))
    return found
