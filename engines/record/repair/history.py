"""A run against the versions of its library, after one of the two was cut."""

from __future__ import annotations

from collections.abc import Iterator

from engines.core import events as ev
from engines.core.errors import StudioError
from engines.core.library import Library
from engines.core.state.run_state import RunState
from engines.record import lines
from engines.record.journal import Entry, parse_entry
from engines.record.libraries import LibraryFolder
from engines.record.lines import StoredLine
from engines.record.repair.cut import cut_move, mend_by_cut
from engines.record.repair.files import examine
from engines.record.repair.trouble import Trouble
from engines.record.run_dir import RunDir, Workspace


def library_mismatches(
    run: RunDir,
    workspace: Workspace,
    state: RunState,
    entries: list[Entry],
    found: tuple[StoredLine, ...],
) -> Iterator[Trouble]:
    assert state.started is not None
    folder = workspace.library(state.started.library)
    if not folder.exists():
        yield Trouble(
            str(run.journal),
            f"it commits to library {folder.name}, which is gone.",
            f"Restore {folder.path} from a copy, or begin a new run with --restart-step 0.",
        )
        return
    try:
        history = folder.history()
    except StudioError:
        return  # told of where libraries are looked at
    for entry, line in zip(entries, found, strict=True):
        if _is_consistent(entry.event, [library for library, _ in history]):
            continue
        place = f"{run.journal}:{line.number}"
        cause = f"it stands on a version that library {folder.name} does not have."
        if isinstance(entry.event, ev.RunStarted):
            move = "Restore the library from a copy, or begin a new run with --restart-step 0."
            yield Trouble(place, cause, move)
        else:
            mend = mend_by_cut(run.path, run.journal, line.offset)
            yield Trouble(place, cause, cut_move(run.journal, line.offset), mend)
        return
    yield from _untold_version_troubles(run, state, folder)


def _is_consistent(event: ev.DurableEvent, versions: list[Library]) -> bool:
    match event:
        case ev.LessonCommitted(library_version=version):
            known = version < len(versions)
            return known and versions[version].content_hash == event.content_hash
        case ev.RunStarted(library_version=version) | ev.StepStarted(library_version=version):
            return version < len(versions)
        case ev.LessonReturned(head=version) | ev.EvaluationFinished(library_version=version):
            return version < len(versions)
    return True


def _untold_version_troubles(
    run: RunDir, state: RunState, folder: LibraryFolder
) -> Iterator[Trouble]:
    """Versions this run made in steps that its journal, since it was cut, does not know of."""
    now = state.current
    # The gate recognises the commit of the step under way by itself.
    under_way = now.step if now is not None and not now.committed else 0
    commits = (commit for _, commit in folder.history() if commit is not None)
    later = [commit for commit in commits if commit.version > state.library_version]
    own = (c.version for c in later if c.run == run.run and c.step not in (0, under_way))
    first = next(own, None)
    if first is None:
        return
    place = f"library {folder.name}@{first}"
    cause = f"run {run.run} made it in a step that its journal no longer tells of."
    if any(commit.version > first and commit.run != run.run for commit in later):
        move = (
            f"Versions of others stand on it, so begin a new run: --restart-step 0 "
            f"library.start={folder.name}@{folder.head().version}"
        )
        yield Trouble(place, cause, move)
        return
    chain = examine(folder.journal_path, chained=True).lines
    offset = next(
        line.offset
        for line in chain
        if isinstance(event := parse_entry(folder.journal_path, line).event, ev.LibraryCommitted)
        and event.version == first
    )
    mend = mend_by_cut(folder.path, folder.journal_path, offset)
    yield Trouble(place, cause, f"{lines.REPAIR} sets it aside; a resume makes it again.", mend)
