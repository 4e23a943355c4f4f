"""What is wrong with the journals, records and version files of a workspace, and its repair.

Looking changes nothing; a file that is cut is always kept beside as it was. A cut journal costs
no call: replies are in the records, and a resumed run takes them from there. A cut record file
costs the replies behind the damage, where the step under way needs them. What is derived from
journals needs no repair: see `derived.store`.
"""

import dataclasses
import itertools
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Literal

from engines.core.errors import DamagedError, RecordError, StudioError
from engines.core.events import LibraryCommitted, LibraryNote
from engines.core.frozen import frozen
from engines.core.library import Library
from engines.core.state.fold import fold, fold_library
from engines.core.state.run_state import RunState
from engines.core.types import RecordRef
from engines.record import appender, libraries, lines, lock, seal
from engines.record.journal import (
    Place,
    closed_files,
    closed_number,
    closed_path,
    parse_entry,
    read_head,
    read_undamaged,
)
from engines.record.run_dir import RunDir, Workspace

Grade = Literal["fix", "note", "ok"]
"""What hinders most first. "fix": it is damaged, or does not work so; "note": worth knowing."""


UNTOLD = {"untold": True}
"""Metadata of a field that is for the doctor alone."""


@frozen
class Finding:
    """One thing that a look at a workspace or a machine found."""

    grade: Grade
    place: str
    cause: str
    move: str = ""  # what to do next; "" where there is nothing to do
    # It says what it did; None: nobody but the user can.
    repair: Callable[[], str] | None = field(default=None, metadata=UNTOLD)
    # Once it is repaired nothing else looks different.
    alone: bool = field(default=False, metadata=UNTOLD)
    repaired: str = ""  # what was done about it; "" where nothing was


# -- cutting, moving and removing files ------------------------------------------------------

_DECISION = re.compile(
    rb'"kind":"(?:OperationDecided|OperationsDecided|OperationProposed|ReplyMended|LibraryLabelled)"'
)
"""Of entries of a journal: what persons have done."""


def cut_with_backup(path: Path, end: int) -> str:
    """Cut a file, keep it as it was in `NAME.damaged-N`, and say so.

    A closed part of a journal becomes the growing one again, since all behind it goes with the cut.
    """
    data, behind = path.read_bytes(), _parts_behind(path)
    lost = _describe(path, data[end:], behind)
    target = behind[-1] if behind else path
    backup = free_name(target)
    appender.write_atomic(backup, target.read_bytes())  # where it cannot be kept, nothing is cut
    names = backup.name
    if behind:
        appender.write_atomic(target, data[:end])
        for part in (path, *behind[:-1]):
            move_aside(part)
        names += " and journal-*.damaged-*"
    else:
        os.truncate(path, end)
        appender.sync_folder(path.parent)
    return f"cut; {names} is the file as it was; cut: {lost}"


def _parts_behind(path: Path) -> list[Path]:
    """Return what follows a closed part of a journal; nothing behind any other file."""
    number = closed_number(path)
    if not number:
        return []
    closed = [part for part in closed_files(path.parent) if closed_number(part) > number]
    return [*closed, path.with_name("journal.jsonl")]


def _describe(path: Path, lost: bytes, behind: Iterable[Path]) -> str:
    """Return in words what a piece of a journal or of a record file amounts to."""
    lost += b"".join(part.read_bytes() for part in behind)
    n = max(1, lost.count(b"\n"))
    if not _is_journal(path):
        return f"replies: {n}"
    decisions = len(_DECISION.findall(lost))
    return f"entries: {n}, decisions of persons among them: {decisions}"


def _is_journal(path: Path) -> bool:
    return path.name == "journal.jsonl" or closed_number(path) > 0


def cut_finding(folder: Path, path: Path, end: int, place: str, cause: str) -> Finding:
    """Damage that a cut of the file repairs; nothing is cut that its move does not tell of.

    `folder` is the one whose lock its writers hold.
    """
    lost = _describe(path, path.read_bytes()[end:], _parts_behind(path))
    after = (
        "a resume makes what it can again, by the recorded replies; an import is to be repeated."
    )
    if not _is_journal(path):
        after = "a resume asks again for those that it still needs."
    elif survivors := libraries.LibraryFolder(path.parent).describe_survivors():
        after = f"before that, {survivors}"
    move = (
        f"Restore it from a copy, or run {lines.REPAIR}: it keeps a copy and cuts here, "
        f"which takes away {lost}; {after}"
    )

    def repair() -> str:
        with lock.write_lock(folder):
            return cut_with_backup(path, end)

    return Finding("fix", place, cause, move, repair)


def free_name(path: Path) -> Path:
    """Return the first `NAME.damaged-N` that is free."""
    names = (path.with_name(f"{path.name}.damaged-{number}") for number in itertools.count(1))
    return next(name for name in names if not os.path.lexists(name))


def move_aside(path: Path) -> str:
    """Make room for a file, whatever stands there: also a folder, or a link to nowhere."""
    return f"moved to {path.rename(free_name(path)).name}"


def remove(path: Path) -> str:
    """Whatever stands there; of a link the link alone."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    return "removed"


def read_written(path: Path) -> tuple[bytes, str]:
    """Return what a file holds, and why it cannot be read: it hides no other from who looks."""
    try:
        if not path.is_file():  # a pipe would never end
            return b"", "it is no file." if os.path.lexists(path) else "it is missing."
        return path.read_bytes(), ""
    except OSError as error:
        return b"", lines.unreadable_error(path, error).cause


def written_finding(folder: Path, path: Path, expected: bytes | None) -> Iterator[Finding]:
    """A file that is not what follows from the journal; None: nothing follows of that name.

    `folder` is the one whose lock its writers hold.
    """
    data, cause = read_written(path)
    if not cause and data == expected:
        return
    is_there = os.path.lexists(path)
    if not cause:
        cause = seal.ALTERED if expected is not None else "the journal tells of no such file."
    writes = "" if expected is None else "writes it again from the journal"
    moves = "moves it aside" if is_there else ""

    def repair() -> str:
        with lock.write_lock(folder):
            done = [move_aside(path)] if is_there else []
            if expected is not None:
                appender.make_folder(path.parent)
                appender.write_atomic(path, expected)
                done.append("written again from the journal")
            return ", and ".join(done)

    yield Finding(
        "fix" if is_there else "note",
        str(path),
        cause,
        f"{lines.REPAIR} {' and '.join(filter(None, (moves, writes)))}.",
        repair,
        alone=True,
    )


# -- one file ---------------------------------------------------------------------------------


def read_whole_lines(
    path: Path, *, chained: bool
) -> tuple[list[lines.StoredLine], lines.Contents | DamagedError]:
    """Return the lines before any damage, and how the file ends or what is damaged."""
    whole: list[lines.StoredLine] = []
    try:
        return whole, lines.read(path, chained=chained, visit=whole.append)
    except DamagedError as error:
        return whole, error


def file_findings(path: Path, *, chained: bool, folder: Path) -> Iterator[Finding]:
    """Damage and torn ends of one file; `folder` is the one whose lock its writers hold."""
    whole, contents = read_whole_lines(path, chained=chained)
    if isinstance(contents, DamagedError):
        end = whole[-1].offset + whole[-1].length if whole else 0
        yield cut_finding(folder, path, end, contents.place, contents.cause)
        return
    if not (contents.torn or contents.newline_missing) or lock.is_held(folder):
        return

    def repair() -> str:
        with lock.write_lock(folder):
            lines.repair_end(path, lines.read(path, chained=chained))
        return "its end is whole again"

    yield Finding(
        "note",
        str(path),
        "its last line was never finished.",
        "Nothing need be done: whoever writes there next mends it.",
        repair,
    )


def journal_findings(journal: Path, folder: Path) -> Iterator[Finding]:
    """Where the damage of a run's journal begins, through all of its parts, or how it ends."""
    closed = [path for path in closed_files(folder) if path.stat().st_size]
    if read_head(journal).segment == 1 and closed and not _begins_with(journal, closed[-1]):
        yield cut_finding(
            folder,
            closed[-1],
            closed[-1].stat().st_size,
            f"{journal}:1",
            "the line that this part begins with fails its check.",
        )
        return
    last, error = read_undamaged(journal, lambda *_: None)
    if error is None or last is None:
        yield from file_findings(journal, chained=True, folder=folder)
        return
    is_growing = last.segment == read_head(journal).segment
    path = journal if is_growing else closed_path(journal, last.segment)
    yield cut_finding(folder, path, last.line.offset + last.line.length, error.place, error.cause)


def _begins_with(journal: Path, path: Path) -> bool:
    """Return whether a closed part is what a kill left of a roll: the journal still holds it."""
    with path.open("rb") as part, journal.open("rb") as whole:
        return part.read() == whole.read(path.stat().st_size)


# -- libraries --------------------------------------------------------------------------------


def library_findings(folder: libraries.LibraryFolder) -> Iterator[Finding]:
    """What is wrong with a library: its journal, then the version files that follow from it."""
    journal = folder.journal_path
    yield from file_findings(journal, chained=True, folder=folder.path)
    whole, contents = read_whole_lines(journal, chained=True)
    versions: list[tuple[Library, str]] = []  # with the run that made it
    for line in whole:
        event = parse_entry(journal, line).event
        try:
            library = fold_library(versions[-1][0] if versions else None, event)
        except (ValueError, StudioError) as error:
            place = f"{journal}:{line.number}"
            yield cut_finding(folder.path, journal, line.offset, place, f"{error}.")
            return
        if isinstance(event, LibraryNote):
            versions[-1] = library, versions[-1][1]
        else:
            versions.append((library, getattr(event, "run", "")))
    if isinstance(contents, DamagedError):
        return
    expected = {
        libraries.version_path(folder.path, made.version): (made, run) for made, run in versions
    }
    survivors = folder.describe_survivors()
    if expected:
        for path in sorted({*folder.path.glob("v[0-9]*.yaml"), *expected}):
            made, run = expected.get(path, (None, ""))
            data = None if made is None else libraries.format_version(made, run)
            yield from written_finding(folder.path, path, data)
    elif survivors or journal.exists():
        yield Finding(
            "note",
            str(journal),
            "it tells of no version.",
            f"Restore it from a copy, or remove it. {survivors}".rstrip(),
        )


# -- runs -------------------------------------------------------------------------------------


def run_findings(run: RunDir, workspace: Workspace) -> Iterator[Finding]:
    """What is wrong with a run: its journal and records, alone, together, and with its library."""
    yield from journal_findings(run.journal, run.path)
    for path in sorted(run.records.glob("*.jsonl")):
        try:
            yield from file_findings(path, chained=False, folder=run.path)
        except RecordError as error:  # a folder, say: there is more to look at
            yield Finding("fix", error.place, error.cause, error.move)
    story = _Story(workspace)
    try:
        _, damage = read_undamaged(run.journal, story.take)
    except RecordError as error:
        yield Finding("fix", error.place, error.cause, error.move)
        return
    if damage is not None:
        return
    yield from _reply_findings(run, story)
    if story.mismatch is not None:
        yield _mismatch_finding(run, story, story.mismatch)
    elif story.versions is not None:
        yield from _untold_version_findings(run, story.state, story.library)


class _Story:
    """What a run's journal tells of itself that other files can confirm, in one pass."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self.state = RunState()
        self.refs: list[tuple[Path, Place, RecordRef]] = []  # where each reply is named
        self._before_step = 0  # of these
        self.versions: tuple[Library, ...] | None = None  # None: the library cannot be read
        self.mismatch: _Mismatch | None = None  # the first line that does not go with them

    @property
    def library(self) -> libraries.LibraryFolder:
        assert self.state.started is not None
        return self._workspace.library(self.state.started.library)

    @property
    def needed_from(self) -> int:
        """Return from which of `refs` on a resume reads them: those of the step under way."""
        step = self.state.current
        is_open = step is not None and step.lesson is None and not step.committed
        return self._before_step if is_open else len(self.refs)

    def take(self, path: Path, place: Place) -> None:
        event = parse_entry(path, place.line).event
        finished, step, started = self.state.steps_finished, self.state.step, self.state.started
        fold(self.state, event)
        if self.state.step != step:
            self._before_step = len(self.refs)
        self.refs += ((path, place, ref) for ref in _find_refs(event))
        if started is None and self.state.started is not None:
            try:
                self.versions = self.library.versions() if self.library.exists() else ()
            except StudioError:  # told of where libraries are looked at
                return
        if self.versions is None or self.mismatch is not None:
            return
        version = self.state.library_version
        is_missing = max(version, self.state.base_version) >= len(self.versions)
        content = "" if is_missing else self.versions[version].content_hash
        if is_missing or self.state.content_hash not in ("", content):
            # A run that begins with another library is none of it, whatever is cut.
            self.mismatch = _Mismatch(path, place, finished, is_missing and started is not None)


@frozen
class _Mismatch:
    """A line of a run's journal that does not go with its library."""

    path: Path
    place: Place
    finished: int  # steps before it
    can_cut: bool  # what is before it does


def _find_refs(value: object) -> Iterator[RecordRef]:
    """The replies that an event names, wherever they stand in it."""
    if isinstance(value, RecordRef):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _find_refs(item)
    elif dataclasses.is_dataclass(value):
        for part in dataclasses.fields(value):
            yield from _find_refs(getattr(value, part.name))


def _reply_findings(run: RunDir, story: _Story) -> Iterator[Finding]:
    """Replies that are named and gone: the first that a resume needs, and how many it does not."""
    read = cache(_read_checksums)
    gone: Counter[str] = Counter()
    for at, (path, place, ref) in enumerate(story.refs):
        file = run.records / ref.file
        if read(file).get(ref.offset) == ref.digest:
            continue
        if at < story.needed_from:
            gone[ref.file] += 1
            continue
        where = f"at byte {ref.offset} that is not there, or behind damage."
        if not file.exists():
            where = "which is not there."
        line = f"{path}:{place.line.number}"
        cause = f"it names a reply in {ref.file}, {where}"
        yield cut_finding(run.path, path, place.line.offset, line, cause)
        break
    for name, n in sorted(gone.items()):
        cause = f"replies that the journal names are gone: {n}."
        yield Finding(
            "note",
            str(run.records / name),
            cause,
            "The run needs none of them to go on. Restore the file from a copy to see them.",
        )


def _read_checksums(path: Path) -> dict[int, str]:
    """Return the checksum of each record by its offset, up to any damage."""
    checksums: dict[int, str] = {}

    def note(line: lines.StoredLine) -> None:
        checksums[line.offset] = line.digest

    with suppress(RecordError):  # told of where files are looked at
        lines.read(path, chained=False, visit=note)
    return checksums


def _mismatch_finding(run: RunDir, story: _Story, mismatch: _Mismatch) -> Finding:
    """A run that stands on a version its library does not have, after one of the two was cut."""
    state, versions, name = story.state, story.versions or (), story.library.name
    path, line = mismatch.path, mismatch.place.line
    where = f"{path}:{line.number}"
    cause = f"it stands on a version that library {name} does not have."
    if not versions:
        cause = f"it commits to library {name}, which is gone."
    # A finished run is whole and wants no resume; none goes on with another library.
    is_finished = state.ending == "finished"
    if mismatch.can_cut and not is_finished:
        return cut_finding(run.path, path, line.offset, where, cause)
    grade: Grade = "note" if is_finished and versions else "fix"
    move = "Restore the library from a copy, or begin a new run with --restart-step "
    return Finding(grade, where, cause, f"{move}{mismatch.finished}.")


def _untold_version_findings(
    run: RunDir, state: RunState, folder: libraries.LibraryFolder
) -> Iterator[Finding]:
    """Versions this run made in steps that its journal, since it was cut, does not know of."""
    step = state.current
    # The gate recognises the commit of the step under way by itself.
    under_way = step.step if step is not None and not step.committed else 0
    later = [
        commit
        for _, commit in folder.history()
        if commit is not None and commit.version > state.library_version
    ]
    own = [c.version for c in later if c.run == run.run and c.step not in (0, under_way)]
    if not own:
        return
    place = f"library {folder.name}@{own[0]}"
    cause = f"run {run.run} made it in a step that its journal no longer tells of."
    if any(commit.version > own[0] and commit.run != run.run for commit in later):
        move = (
            f"Versions of others stand on it, so begin a new run: --restart-step 0 "
            f"library.start={folder.name}@{folder.head().version}"
        )
        yield Finding("fix", place, cause, move)
        return
    journal = folder.journal_path
    for line in read_whole_lines(journal, chained=True)[0]:
        event = parse_entry(journal, line).event
        if isinstance(event, LibraryCommitted) and event.version == own[0]:
            cut = cut_finding(folder.path, journal, line.offset, place, cause)
            move = f"{lines.REPAIR} sets it aside; a resume makes it again."
            yield dataclasses.replace(cut, move=move)
            return


# -- scores -----------------------------------------------------------------------------------


def score_findings(path: Path) -> Iterator[Finding]:
    """Lines that cannot be read: they cost only the money to measure again."""
    content = path.read_bytes().splitlines(keepends=True)
    unread = sum(lines.decode(raw) is None for raw in content)
    if unread:
        yield Finding(
            "note",
            str(path),
            f"lines that cannot be read: {unread}.",
            "Nothing need be done: what is gone with them is measured again when it is needed.",
        )
