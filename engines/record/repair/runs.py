"""What is wrong with a run: its journal and records, alone, together, and with its library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from engines.core import events as ev
from engines.core.errors import RecordError, StudioError
from engines.core.library import Library
from engines.core.state.fold import fold
from engines.core.state.run_state import RunState
from engines.core.types import RecordRef
from engines.record import lines
from engines.record.journal import parse_entry
from engines.record.libraries import LibraryFolder
from engines.record.lines import StoredLine
from engines.record.repair.cut import cut_move, mend_by_cut
from engines.record.repair.files import examine, file_troubles
from engines.record.repair.segments import journal_troubles
from engines.record.repair.trouble import Trouble
from engines.record.run_dir import RunDir, Workspace
from engines.record.segments.reading import Place, read_undamaged

_Where = tuple[Path, Place]
"""A line of the journal, and the file that it stands in."""


def run_troubles(run: RunDir, workspace: Workspace) -> Iterator[Trouble]:
    """What is wrong with a run: its journal and records, alone, together, and with its library."""
    yield from journal_troubles(run.journal, run.path)
    for path in sorted(run.records.glob("*.jsonl")):
        try:
            yield from file_troubles(path, chained=False, folder=run.path)
        except RecordError as error:  # a folder, say: there is more to look at
            yield Trouble(error.place, error.cause, error.move)
    told = _Told(workspace)
    try:
        _, damage = read_undamaged(run.journal, told.take)
    except RecordError as error:
        yield Trouble(error.place, error.cause, error.move)
        return
    if damage is not None:
        return
    state = told.state
    now = state.current
    if now is None or now.lesson is not None or now.committed:
        told.set_shown()
    yield from _reference_troubles(run, told.needed)
    yield from _shown_troubles(run, told.shown)
    if state.started is not None:
        yield from _library_mismatches(run, workspace, told)


class _Told:
    """What a run's journal tells of itself that other files can confirm, in one pass."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self.state = RunState()
        self.needed: list[tuple[_Where, RecordRef]] = []  # replies of the step under way
        self.shown: list[RecordRef] = []  # what no resume reads again
        self.versions: tuple[Library, ...] | None = None  # None: the library cannot be read
        # The first event that does not go with them, and how many steps before it do.
        self.mismatch: tuple[_Where, ev.DurableEvent] | None = None
        self.whole = 0

    def take(self, path: Path, place: Place) -> None:
        event = parse_entry(path, place.line).event
        if isinstance(event, ev.RunStarted):
            folder = self._workspace.library(event.library)
            with suppress(StudioError):  # told of where libraries are looked at
                self.versions = folder.versions() if folder.exists() else ()
        elif isinstance(event, ev.StepStarted):
            self.set_shown()
        self.needed += (((path, place), ref) for ref in _record_refs(event))
        if self.versions is not None and self.mismatch is None:
            if isinstance(event, ev.StepFinished):
                self.whole = event.step
            if not _is_consistent(event, self.versions):
                self.mismatch = (path, place), event
        fold(self.state, event)

    def set_shown(self) -> None:
        """The step under way is over."""
        self.shown += (ref for _, ref in self.needed)
        self.needed = []


def _record_refs(event: ev.DurableEvent) -> tuple[RecordRef, ...]:
    match event:
        case ev.RolloutFinished():
            return event.refs
        case ev.RolloutJudged():
            return event.verdict.refs
        case ev.GroupReflected():
            return event.reflection.refs
        case ev.LessonsCompared():
            return tuple(ref for d in event.drafts for one in d.reflections for ref in one.refs)
        case ev.LessonProposed():
            return event.lesson.refs
    return ()


def _shown_troubles(run: RunDir, shown: Sequence[RecordRef]) -> Iterator[Trouble]:
    """Replies that are named and gone, and that a run can be taken up without."""
    for name in sorted({ref.file for ref in shown}):
        refs = [ref for ref in shown if ref.file == name]
        path = run.records / name
        checksums, whole = _checksums(path)
        gone = sum(checksums.get(ref.offset) != ref.digest for ref in refs)
        if gone and whole:  # damage is told of where record files are looked at
            there = "some of it is" if path.exists() else "it is"
            yield Trouble(
                str(path),
                f"{there} gone: {gone} of {len(refs)} replies that the journal names.",
                "The run needs none of them to go on. Restore the file from a copy if they are "
                "to be shown again; nothing else brings them back.",
                damage=False,
            )


def _reference_troubles(
    run: RunDir, needed: Sequence[tuple[_Where, RecordRef]]
) -> Iterator[Trouble]:
    """The first reply that the step under way needs and that is not there, or not for long.

    What stands behind damage goes with the cut of its file: its loss is told of before.
    """
    read_checksums = cache(_checksums)
    for (at, place), ref in needed:
        path = run.records / ref.file
        if read_checksums(path)[0].get(ref.offset) != ref.digest:
            where = ", which is not there."
            if path.exists():
                where = f" at byte {ref.offset} that is not there, or behind damage."
            cause = f"it names a reply in {ref.file}{where}"
            mend = mend_by_cut(run.path, at, place.line.offset)
            move = cut_move(at, place.line.offset)
            yield Trouble(f"{at}:{place.line.number}", cause, move, mend)
            return


def _checksums(path: Path) -> tuple[dict[int, str], bool]:
    """The checksum of each record by its offset up to any damage, and whether there is none."""
    found: dict[int, str] = {}

    def note_checksum(line: StoredLine) -> None:
        found[line.offset] = line.digest

    try:
        lines.read(path, chained=False, visit=note_checksum)
    except RecordError:
        return found, False
    return found, True


def _library_mismatches(run: RunDir, workspace: Workspace, told: _Told) -> Iterator[Trouble]:
    """A run against the versions of its library, after one of the two was cut."""
    state, versions = told.state, told.versions
    assert state.started is not None
    folder = workspace.library(state.started.library)
    if versions is None:
        return
    if told.mismatch is None:
        yield from _untold_version_troubles(run, state, folder)
        return
    (at, place), event = told.mismatch
    again = f"begin a new run with --restart-step {told.whole}"
    again = f"repeat the {state.curates}" if state.curates else again
    mend, move = None, f"Restore the library from a copy, or {again}."
    # A finished run is whole and wants no resume; none goes on with another library.
    is_other = isinstance(event, ev.LessonCommitted) and event.library_version < len(versions)
    is_finished = state.ending == "finished"
    if not (is_other or is_finished or isinstance(event, ev.RunStarted)):
        mend = mend_by_cut(run.path, at, place.line.offset)
        move = cut_move(at, place.line.offset)
    cause = f"it stands on a version that library {folder.name} does not have."
    cause = cause if versions else f"it commits to library {folder.name}, which is gone."
    damage = not (is_finished and versions)
    yield Trouble(f"{at}:{place.line.number}", cause, move, mend, damage)


def _is_consistent(event: ev.DurableEvent, versions: Sequence[Library]) -> bool:
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
    for line in examine(folder.journal_path, chained=True).lines:
        event = parse_entry(folder.journal_path, line).event
        if isinstance(event, ev.LibraryCommitted) and event.version == first:
            move = f"{lines.REPAIR} sets it aside; a resume makes it again."
            mend = mend_by_cut(folder.path, folder.journal_path, line.offset)
            yield Trouble(place, cause, move, mend)
            return
