"""What is wrong with the files of a workspace, and how to mend each of it.

Owns the checks of journals, record files and libraries, alone and against each other, and
their mending. Looking changes nothing; a file that is cut is always kept beside as it was. A cut
journal costs no call: replies are in the records, and a resumed run takes them from there. A cut
record file costs the replies behind the damage, where the step under way needs them.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from engines.core import events as ev
from engines.core.errors import DamagedError, RecordError, StudioError
from engines.core.library import Library
from engines.core.run_state import RunState
from engines.core.state import fold, fold_library
from engines.core.types import RecordRef
from engines.record import lines
from engines.record.appender import sync_folder, write_whole
from engines.record.journal import Entry, entry_of
from engines.record.libraries import LibraryFolder, version_file, write_version
from engines.record.lines import Contents, Line
from engines.record.lock import is_held, writing
from engines.record.run_dir import RunDir, Workspace

_WORDS = {
    "OperationDecided": "decision",
    "LessonCommitted": "commit",
    "LibraryCommitted": "version",
    "LibraryCurated": "remembered rejection",
    "LessonProposed": "lesson",
    "ReplyMended": "mended reply",
    "OperationProposed": "operation of a person",
    "EvaluationFinished": "evaluation",
    "GroupReflected": "reflection",
    "RolloutJudged": "verdict",
    "RolloutFinished": "rollout",
}
_KIND = re.compile(rb'"kind":"(\w+)"')


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that is not as it should be. `mend` puts it right and says what it did."""

    place: str
    cause: str
    move: str
    mend: Callable[[], str] | None = None  # None: nobody but the user can
    damage: bool = True  # False: it harms nothing
    alone: bool = False  # once it is mended nothing else looks different


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
        mend = _cutting(folder, path, found.end)
        yield Trouble(found.error.place, found.error.cause, _cut_move(path, found.end), mend)
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
            yield Trouble(place, f"{error}.", _cut_move(folder.journal_path, line.offset), mend)
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
        try:
            yield from file_troubles(path, chained=False, folder=run.path)
        except RecordError as error:  # a folder, say: there is more to look at
            yield Trouble(error.place, error.cause, error.move)
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
    shown: dict[str, list[RecordRef]] = {}  # what no resume reads again, by file
    for at, entry in enumerate(entries):
        if isinstance(entry.event, ev.StepStarted):
            _show(shown, steps)
        steps.append((at, entry.event))
        fold(state, entry.event)
    if _is_through(state):
        _show(shown, steps)
    yield from _reference_troubles(run, steps, found.lines)
    yield from _shown_troubles(run, shown)
    if state.started is not None:
        yield from _against_library(run, workspace, state, entries, found.lines)


def cut_aside(path: Path, end: int) -> tuple[Path, str]:
    """Cut a file and keep it as it was in `NAME.damaged-N`; returns that and what was cut.

    Raises:
        RecordError: it cannot be kept; nothing is cut then.
    """
    data = path.read_bytes()
    rest = data[end:]
    aside = _aside(path)
    write_whole(aside, data)
    os.truncate(path, end)
    sync_folder(path.parent)
    return aside, _in_words(path, rest)


def _in_words(path: Path, rest: bytes) -> str:
    """What a piece of a journal or of a record file amounts to."""
    if not _is_journal(path):
        replies = max(1, rest.count(b"\n"))
        return "1 reply" if replies == 1 else f"{replies} replies"
    kinds = Counter(_WORDS.get(kind.decode()) for kind in _KIND.findall(rest))
    told = ", ".join(_counted(kinds[word], word) for word in _WORDS.values() if kinds[word])
    return told or f"{len(rest)} bytes that hold nothing of weight"


def _cut_move(path: Path, end: int) -> str:
    """What a repair would do: nothing is cut that was not told of before."""
    with path.open("rb") as file:
        file.seek(end)
        told = _in_words(path, file.read())
    after = "a resume makes what it can again from the recorded replies."
    if not _is_journal(path):
        after = "a resume asks again for those that it still needs."
    return (
        f"Restore it from a copy, or run {lines.REPAIR}: it keeps a copy and cuts here, "
        f"which takes away {told}; {after}"
    )


def _is_journal(path: Path) -> bool:
    return path.name == "journal.jsonl"


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
        return f"cut; {aside.name} is the file as it was; cut: {told}"

    return mend


def _counted(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _version_file_troubles(folder: LibraryFolder, versions: list[Library]) -> Iterator[Trouble]:
    known = {version_file(folder.path, v.version): v for v in versions}
    for path in sorted(folder.path.glob("v[0-9]*.yaml")):
        library = known.get(path)
        wanted = f"content_hash: {library.content_hash}\n" if library else None
        text = path.read_text("utf-8", "replace").replace("'", "")
        if wanted is None or wanted not in text:
            cause = "it is no version that the library's journal tells of."
            move = f"{lines.REPAIR} moves it aside."
            yield Trouble(str(path), cause, move, _moving(folder, path, library), alone=True)
    for path, library in known.items():
        if not path.exists():
            cause = "this version's readable file is missing."
            move = f"{lines.REPAIR} writes it again from the journal."
            mend = _writing_version(folder, library)
            yield Trouble(str(path), cause, move, mend, damage=False, alone=True)


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


def _is_through(state: RunState) -> bool:
    """Whether nothing reads the replies of the newest step again but to show them."""
    now = state.current
    return now is None or now.lesson is not None or now.committed


def _show(shown: dict[str, list[RecordRef]], steps: list[tuple[int, ev.DurableEvent]]) -> None:
    for _, event in steps:
        for ref in _refs(event):
            shown.setdefault(ref.file, []).append(ref)
    steps.clear()


def _shown_troubles(run: RunDir, shown: Mapping[str, list[RecordRef]]) -> Iterator[Trouble]:
    """Replies that are named and gone, and that a run can be taken up without."""
    for name, refs in sorted(shown.items()):
        path = run.records / name
        held: dict[int, str] = {}

        def hold(line: Line, held: dict[int, str] = held) -> None:
            held[line.offset] = line.digest

        try:
            lines.read(path, chained=False, visit=hold)
        except RecordError:
            continue  # told of where record files are looked at
        gone = sum(held.get(ref.offset) != ref.digest for ref in refs)
        if gone:
            there = "some of it is" if path.exists() else "it is"
            yield Trouble(
                str(path),
                f"{there} gone: {gone} of {len(refs)} replies that the journal names.",
                "The run needs none of them to go on. Restore the file from a copy if they are "
                "to be shown again; nothing else brings them back.",
                damage=False,
            )


def _reference_troubles(
    run: RunDir, steps: list[tuple[int, ev.DurableEvent]], found: tuple[Line, ...]
) -> Iterator[Trouble]:
    """The first reply that the step under way needs and that is not there, or not for long.

    What stands behind damage goes with the cut of its file: its loss is told of before.
    """
    held: dict[str, dict[int, str]] = {}  # checksums by offset, by file
    for at, event in steps:
        for ref in _refs(event):
            path = run.records / ref.file
            if ref.file not in held:
                held[ref.file] = _checksums(path)
            if held[ref.file].get(ref.offset) == ref.digest:
                continue
            what = f"at byte {ref.offset} that is not there, or behind damage."
            yield Trouble(
                f"{run.journal}:{found[at].number}",
                f"it names a reply in {ref.file}"
                + (f" {what}" if path.exists() else ", which is not there."),
                _cut_move(run.journal, found[at].offset),
                _cutting(run.path, run.journal, found[at].offset),
            )
            return


def _checksums(path: Path) -> dict[int, str]:
    """The checksum of each record by its offset, up to the first that is damaged."""
    held: dict[int, str] = {}

    def hold(line: Line) -> None:
        held[line.offset] = line.digest

    # The damage itself is told of where record files are looked at.
    with suppress(RecordError):
        lines.read(path, chained=False, visit=hold)
    return held


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
            yield Trouble(place, cause, _cut_move(run.journal, line.offset), mend)
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
