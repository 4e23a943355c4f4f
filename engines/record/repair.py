"""What is wrong with the files of a workspace, and how to mend each of it.

Owns the checks of journals, record files and libraries, alone and against each other, and
their mending. Looking changes nothing; what is cut is always kept beside the file. A cut
journal costs no call: replies are in the records, and a resumed run takes them from there.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from engines.core import events as ev
from engines.core.errors import DamagedError, StudioError
from engines.core.library import Library
from engines.core.state import RunState, fold, fold_library
from engines.core.types import RecordRef
from engines.record import lines
from engines.record.appender import sync_folder, write_whole
from engines.record.journal import Entry, entry_of
from engines.record.libraries import LibraryFolder, version_file, write_version
from engines.record.lines import Contents, Line
from engines.record.lock import is_held, writing
from engines.record.run_dir import RunDir, Workspace

_KIND = re.compile(rb'"kind":"(\w+)"')
_LINE_START = re.compile(rb'\{"n":\d{1,12},"h":"')


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that is not as it should be. `mend` puts it right and says what it did."""

    place: str
    cause: str
    move: str
    mend: Callable[[], str] | None = None  # None: nobody but the user can
    damage: bool = True  # False: it harms nothing


@dataclass(frozen=True, slots=True)
class Examined:
    """A chained or unchained file as far as it can be trusted."""

    lines: tuple[Line, ...]
    contents: Contents | None  # None where a complete line is damaged
    error: DamagedError | None = None

    @property
    def end(self) -> int:
        """Bytes up to the end of the last whole line before any damage."""
        return self.lines[-1].offset + self.lines[-1].length if self.lines else 0


def examined(path: Path, *, chained: bool) -> Examined:
    """Read a file up to its first damaged line."""
    found: list[Line] = []
    try:
        contents = lines.read(path, chained=chained, visit=found.append)
    except DamagedError as error:
        return Examined(tuple(found), None, error)
    return Examined(tuple(found), contents)


def file_troubles(path: Path, *, chained: bool, folder: Path) -> Iterator[Trouble]:
    """Damage and torn ends of one file; `folder` is the one whose lock its writers hold."""
    found = examined(path, chained=chained)
    if found.error is not None:
        mend = _mend_journal if chained else _mend_records

        def mended() -> str:
            with writing(folder):
                return mend(path)

        yield Trouble(found.error.place, found.error.cause, found.error.move, mended)
        return
    contents = found.contents
    assert contents is not None
    if (contents.torn or contents.newline_missing) and not is_held(folder):

        def ended() -> str:
            with writing(folder):
                lines.mend_end(path, lines.read(path, chained=chained))
            return "its last line is whole again" if contents.newline_missing else "cut"

        cause = (
            "its last line lacks its newline."
            if contents.newline_missing
            else f"its last {len(contents.torn)} bytes are a line that was never finished."
        )
        move = "Nothing need be done: whoever writes there next mends it."
        yield Trouble(str(path), cause, move, ended, damage=False)


def library_troubles(folder: LibraryFolder) -> Iterator[Trouble]:
    """What is wrong with a library: its journal, then the version files that follow from it."""
    yield from file_troubles(folder.journal_path, chained=True, folder=folder.path)
    found = examined(folder.journal_path, chained=True)
    versions: list[Library] = []
    for line in found.lines:
        entry = _entry(folder.journal_path, line)
        if isinstance(entry, Trouble):
            yield entry
            return
        try:
            library = fold_library(versions[-1] if versions else None, entry.event)
        except (ValueError, StudioError) as error:
            place = f"{folder.journal_path}:{line.number}"
            mend = _cutting(folder.path, folder.journal_path, line.offset)
            yield Trouble(place, f"{error}.", _CUT_MOVE, mend)
            return
        if isinstance(entry.event, ev.LibraryCurated):
            versions[-1] = library
        else:
            versions.append(library)
    if found.error is None and versions:
        yield from _version_file_troubles(folder, versions)


def run_troubles(run: RunDir, workspace: Workspace) -> Iterator[Trouble]:
    """What is wrong with a run: its journal and records, alone, together, and with its library."""
    yield from file_troubles(run.journal, chained=True, folder=run.path)
    for path in sorted(run.records.glob("*.jsonl")):
        yield from file_troubles(path, chained=False, folder=run.path)
    found = examined(run.journal, chained=True)
    entries: list[Entry] = []
    for line in found.lines:
        entry = _entry(run.journal, line)
        if isinstance(entry, Trouble):
            yield entry
            return
        entries.append(entry)
    if found.error is not None:
        return
    state = RunState()
    steps: list[tuple[int, ev.DurableEvent]] = []  # the step under way, by line
    for at, entry in enumerate(entries):
        if isinstance(entry.event, ev.StepStarted):
            steps.clear()
        steps.append((at, entry.event))
        fold(state, entry.event)
    yield from _reference_troubles(run, state, steps, found.lines)
    if state.started is not None:
        yield from _against_library(run, workspace, state, entries, found.lines)


def cut_aside(path: Path, end: int) -> tuple[Path, str]:
    """Cut a file and keep what was cut in `NAME.damaged-N`; returns that and its events in words.

    Raises:
        RecordError: the rest cannot be kept; nothing is cut then.
    """
    with path.open("rb") as file:
        file.seek(end)
        rest = file.read()
    aside = _aside(path)
    write_whole(aside, rest)
    os.truncate(path, end)
    sync_folder(path.parent)
    kinds = Counter(kind.decode() for kind in _KIND.findall(rest))
    told = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common())
    return aside, told or f"{len(rest)} bytes that hold no event"


_CUT_MOVE = f"Restore it from a copy, or run {lines.REPAIR}: it cuts here and keeps the rest."


def _entry(path: Path, line: Line) -> Entry | Trouble:
    try:
        return entry_of(path, line)
    except StudioError as error:
        return Trouble(error.place, error.cause, error.move)


def _aside(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    return aside


def _cutting(folder: Path, path: Path, end: int) -> Callable[[], str]:
    def mend() -> str:
        with writing(folder):
            aside, told = cut_aside(path, end)
        return f"cut; {aside.name} keeps what was lost: {told}"

    return mend


def _mend_journal(path: Path) -> str:
    """Put back newlines that only were damaged; cut before the first line that is beyond that."""
    newlines = 0
    while True:
        found = examined(path, chained=True)
        if found.error is None:
            assert found.contents is not None
            lines.mend_end(path, found.contents)
            return f"put back {newlines} newline" + ("s" if newlines > 1 else "")
        with path.open("r+b") as file:
            file.seek(found.end)
            raw = lines.first(file.readline())
            if lines.whole(raw, found.lines[-1].digest if found.lines else "") is None:
                break
            file.seek(found.end + len(raw) - 1)
            file.write(b"\n")
            file.flush()
            os.fsync(file.fileno())
        newlines += 1
    aside, told = cut_aside(path, found.end)
    return f"cut before line {len(found.lines) + 1}; {aside.name} keeps what was lost: {told}"


def _mend_records(path: Path) -> str:
    """Write fillers over what is no record, so that all others stay where the journal names them.

    The file as it was is kept beside it.
    """
    data = path.read_bytes()
    made = bytearray()
    lost = 0
    place = 0
    while place < len(data):
        raw = lines.first(data[place : data.find(b"\n", place) + 1 or len(data)])
        if lines.whole(raw) is not None:
            made += raw
            place += len(raw)
            continue
        after = _next_whole(data, place + 1)
        if after - place < lines.SHORTEST_FILLER:  # too short to be filled: the next goes as well
            after = _next_whole(data, place + lines.SHORTEST_FILLER)
        if after == len(data) and not data.endswith(b"\n"):
            break  # a torn end
        made += lines.filler(after - place)
        lost += 1
        place = after
    aside = _aside(path)
    write_whole(aside, data)
    write_whole(path, bytes(made))
    what = f"wrote fillers over {lost} damaged places" if lost else "put back its newlines"
    return f"{what}; {aside.name} is the file as it was"


def _next_whole(data: bytes, start: int) -> int:
    """Where the next whole line begins, or the end."""
    for head in _LINE_START.finditer(data, start):
        end = data.find(b"\n", head.start())
        raw = lines.first(data[head.start() : end + 1 or len(data)])
        if lines.whole(raw) is not None:
            return head.start()
    return len(data)


def _version_file_troubles(folder: LibraryFolder, versions: list[Library]) -> Iterator[Trouble]:
    known = {version_file(folder.path, v.version): v for v in versions}
    for path in sorted(folder.path.glob("v[0-9]*.yaml")):
        library = known.get(path)
        wanted = f"content_hash: {library.content_hash}\n" if library else None
        text = path.read_text("utf-8", "replace").replace("'", "")
        if wanted is None or wanted not in text:
            cause = "it is no version that the library's journal tells of."
            move = f"{lines.REPAIR} moves it aside."
            yield Trouble(str(path), cause, move, _moving(folder, path, library))
    for path, library in known.items():
        if not path.exists():
            cause = "this version's readable file is missing."
            move = f"{lines.REPAIR} writes it again from the journal."
            mend = _writing_version(folder, library)
            yield Trouble(str(path), cause, move, mend, damage=False)


def _moving(folder: LibraryFolder, path: Path, library: Library | None) -> Callable[[], str]:
    def mend() -> str:
        with writing(folder.path):
            aside = _aside(path)
            path.rename(aside)
            if library is not None:
                write_version(folder.path, library, _maker(folder, library.version))
        return f"moved to {aside.name}" + (", and written again" if library else "")

    return mend


def _writing_version(folder: LibraryFolder, library: Library) -> Callable[[], str]:
    def mend() -> str:
        with writing(folder.path):
            write_version(folder.path, library, _maker(folder, library.version))
        return "written again from the journal"

    return mend


def _maker(folder: LibraryFolder, version: int) -> str:
    commit = folder.history()[version][1]
    return commit.run if commit else ""


def _refs(event: ev.DurableEvent) -> tuple[RecordRef, ...]:
    match event:
        case ev.RolloutFinished():
            return event.refs
        case ev.RolloutJudged():
            return event.verdict.refs
        case ev.GroupReflected():
            return event.reflection.refs
        case ev.LessonProposed():
            return event.lesson.refs
    return ()


def _reference_troubles(
    run: RunDir,
    state: RunState,
    steps: list[tuple[int, ev.DurableEvent]],
    found: tuple[Line, ...],
) -> Iterator[Trouble]:
    """Replies that the step under way needs and that are not there."""
    now = state.current
    if now is None or now.lesson is not None or now.committed:
        return  # nothing reads them again but to show them
    for at, event in steps:
        for ref in _refs(event):
            try:
                lines.read_at(run.records / ref.file, ref.offset, ref.length, ref.digest)
                continue
            except FileNotFoundError:
                cause = f"it names a reply in {ref.file}, which is not there."
            except DamagedError:
                cause = f"it names a reply in {ref.file} at byte {ref.offset} that is not there."
            place = f"{run.journal}:{found[at].number}"
            yield Trouble(
                place, cause, _CUT_MOVE, _cutting(run.path, run.journal, found[at].offset)
            )
            return


def _against_library(
    run: RunDir,
    workspace: Workspace,
    state: RunState,
    entries: list[Entry],
    found: tuple[Line, ...],
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
        if _follows(entry.event, [library for library, _ in history]):
            continue
        place = f"{run.journal}:{line.number}"
        cause = f"it stands on a version that library {folder.name} does not have."
        if isinstance(entry.event, ev.RunStarted):
            move = "Restore the library from a copy, or begin a new run with --restart-step 0."
            yield Trouble(place, cause, move)
        else:
            mend = _cutting(run.path, run.journal, line.offset)
            yield Trouble(place, cause, _CUT_MOVE, mend)
        return
    yield from _ahead(run, state, folder)


def _follows(event: ev.DurableEvent, versions: list[Library]) -> bool:
    match event:
        case ev.LessonCommitted(library_version=version):
            known = version < len(versions)
            return known and versions[version].content_hash == event.content_hash
        case ev.RunStarted(library_version=version) | ev.StepStarted(library_version=version):
            return version < len(versions)
        case ev.LessonReturned(head=version) | ev.EvaluationFinished(library_version=version):
            return version < len(versions)
    return True


def _ahead(run: RunDir, state: RunState, folder: LibraryFolder) -> Iterator[Trouble]:
    """Versions this run made in steps that its journal, since it was cut, does not know of."""
    now = state.current
    # The gate recognises the commit of the step under way by itself.
    under_way = now.step if now is not None and not now.committed else 0
    later = [
        (library, commit)
        for library, commit in folder.history()
        if commit is not None and library.version > state.library_version
    ]
    own = [
        commit.version
        for _, commit in later
        if commit is not None and commit.run == run.run and commit.step not in (0, under_way)
    ]
    if not own:
        return
    first = own[0]
    place = f"library {folder.name}@{first}"
    cause = f"run {run.run} made it in a step that its journal no longer tells of."
    others = {c.run for _, c in later if c is not None and c.version > first} - {run.run}
    if others:
        move = (
            f"Versions of others stand on it, so begin a new run: --restart-step 0 "
            f"library.start={folder.name}@{folder.head().version}"
        )
        yield Trouble(place, cause, move)
        return
    chain = examined(folder.journal_path, chained=True).lines
    offset = next(
        line.offset
        for line in chain
        if isinstance(event := entry_of(folder.journal_path, line).event, ev.LibraryCommitted)
        and event.version == first
    )
    mend = _cutting(folder.path, folder.journal_path, offset)
    yield Trouble(place, cause, f"{lines.REPAIR} sets it aside; a resume makes it again.", mend)
