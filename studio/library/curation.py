"""Changes of a library that practice did not propose: by hand at once, or in a curation run.

By hand they are decided as they are made, and recorded as those of practice are. Operations from
elsewhere wait for a reviewer in a run of their own. They get there all or none: a kill leaves no
run, and whoever asks again is told what waits already. Such a run practises nothing; `studio
review` decides, and commits on quitting.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from engines.core import events as ev
from engines.core import protocols
from engines.core.errors import ConflictError
from engines.core.frozen import frozen
from engines.core.library import Library, effective_operation
from engines.core.text.sanitize import one_line
from engines.core.text.similarity import Entry, pair_entries
from engines.core.types import (
    CONFLICT,
    Decision,
    Flag,
    Operation,
    OperationKind,
    human_operation_id,
)
from engines.pipeline.gate.draft import Change
from engines.record import appender, libraries, lock, seal, yaml_text
from engines.record.derived.catalogue import refresh_catalogue
from engines.record.formats.source import ForeignEntry, ForeignLibrary
from engines.record.journal import Journal
from engines.record.run_dir import RunDir, Workspace
from engines.training_free.consolidation import flag_repeats
from studio.facts.library import CurationFacts, FoundVersion

Row = Mapping[str, Any]  # a run as the catalogue has it
_LOCK_WAIT_S = 10.0
"""How long another import into the same library is waited for."""


def open_curation(
    workspace: Workspace,
    library: Library,
    operations: Sequence[Operation],
    about: str,
    *,
    person: str,
    linter_of: Callable[[RunDir], protocols.Linter] | None,
) -> CurationFacts:
    """Put operations on the head of a library up for review, in a new run.

    `about` says what they are: "import of FILE" in the run `import-LIBRARY`. They keep their
    flags; `linter_of` gives what adds others. None: only look what would be asked.

    Raises LockedError: another process is opening one and does not end.
    """
    name = f"{about.partition(' ')[0]}-{library.name}"[:100]  # a number has room behind it
    while True:
        # First: one that is opened meanwhile takes this name, and is seen by that.
        run = workspace.new_run_dir(name)
        rows = _rows_of(workspace, library.name)
        fresh, waiting = _split_waiting(workspace, rows, operations)
        if not fresh or linter_of is None:
            return _facts(library, None, fresh, waiting)
        with lock.write_lock(run.path, timeout_s=_LOCK_WAIT_S):
            if workspace.new_run_dir(name) != run:  # whoever held the lock has opened it
                continue
            # Its library's settings and problems hold for the lint, and for trying operations.
            appender.write_atomic(run.run_file, _run_file(workspace, rows))
            named = [
                replace(operation, id=human_operation_id(0, number), proposer=person)
                for number, operation in enumerate(fresh, 1)
            ]
            found = asyncio.run(linter_of(run).flags_of(named, library))
            named = [
                replace(operation, flags=(*operation.flags, *flags))
                for (operation, _), flags in zip(flag_repeats(named, library), found, strict=True)
            ]
            started = ev.RunStarted(
                run=run.run, exp_id=name, seed=0, epochs=0, steps_per_epoch=0, group_size=1,
                library=library.name, library_version=library.version, reviewer="wait",
                rehearsal=False, settings={"curates": about, "policy.model": "none"},
            )  # fmt: skip
            proposed = (ev.OperationProposed(0, operation, person) for operation in named)
            _write_journal(run, workspace, [started, *proposed, ev.RunEnded("finished")])
        refresh_catalogue(workspace)
        return _facts(library, run.run, named, waiting)


def _facts(
    library: Library, run: str | None, operations: Sequence[Operation], waiting: Mapping[str, int]
) -> CurationFacts:
    return CurationFacts(
        run=run,
        library=library.name,
        version=library.version,
        operations=tuple(operations),
        waiting=waiting,
    )


def _split_waiting(
    workspace: Workspace, rows: Sequence[Row], operations: Sequence[Operation]
) -> tuple[list[Operation], Counter[str]]:
    """Those that wait in no run of the library yet, and in which run the others do."""
    where: dict[tuple[str, str | None, str], str] = {}
    for name in (row["run"] for row in rows if row["open"]):
        where |= dict.fromkeys(map(_wish, workspace.run(name).state().open_operations), name)
    fresh = [operation for operation in operations if _wish(operation) not in where]
    return fresh, Counter(where[wish] for wish in map(_wish, operations) if wish in where)


def _wish(operation: Operation) -> tuple[str, str | None, str]:
    return operation.kind, operation.target, operation.text


def _rows_of(workspace: Workspace, library: str) -> list[Row]:
    """The rows of all runs on a library, oldest first; one that is damaged hides no other."""
    if not workspace.runs_folder.is_dir():
        return []
    return [row for row in refresh_catalogue(workspace) if row["library"] == library]


def _run_file(workspace: Workspace, rows: Sequence[Row]) -> bytes:
    """That of the library's newest run, sealed; a minimal one where all are gone or altered."""
    files = (workspace.run(row["run"]).run_file for row in reversed(rows))
    for data in (file.read_bytes() for file in files if file.is_file()):
        if (fits := seal.seal_fits(data)) is not False:
            return data if fits else seal.add_seal(data)
    return seal.add_seal(
        yaml_text.dump_yaml({"exp_id": "curation", "policy": {"model": "none"}}).encode()
    )


def _write_journal(run: RunDir, workspace: Workspace, events: Sequence[ev.DurableEvent]) -> None:
    """Write a journal that takes its place once it is whole."""
    path = run.journal.with_name(f".{run.journal.name}.{os.getpid()}.tmp")
    journal = Journal(path, mask=workspace.mask)

    async def append_all() -> None:  # with one fsync for all that wait together
        await asyncio.gather(*map(journal.append, events))

    try:
        asyncio.run(append_all())
        path.rename(run.journal)
        appender.sync_folder(run.path)
    finally:
        journal.close()
        path.unlink(missing_ok=True)


def target_library(
    workspace: Workspace, name: str, start: FoundVersion | None = None, *, begin: bool
) -> Library:
    """The head of a library; where there is none one begins, empty or as a copy of `start`.

    Without `begin` nothing is written. Raises ConflictError: it cannot be the name of one.
    """
    libraries.check_name(name)
    folder = workspace.library(name)
    copied, label = (start.library, start.label) if start else (None, None)
    if not folder.exists() and not begin:
        return replace(copied or Library(name), name=name, version=0)
    if not folder.exists():
        with lock.write_lock(folder.path.parent, timeout_s=_LOCK_WAIT_S):  # of two one begins it
            if not folder.exists():
                folder.create(copied, label)
                refresh_catalogue(workspace)
    return folder.head()


def version_of(workspace: Workspace, name: str, version: int | None) -> Library | None:
    """A version of a library; None where it has none of that number."""
    folder = workspace.library(name)
    versions = folder.versions() if version is not None and folder.exists() else ()
    return next((library for library in versions if library.version == version), None)


def merge_target(
    workspace: Workspace, ours: FoundVersion, into: str | None, *, begin: bool
) -> Library:
    """The library that a merge is reviewed for, whose head is `ours`.

    Raises ConflictError: it holds something else, or there is none and `into` names none.
    """
    name = ours.library.name if into is None else into
    if into is None and not workspace.library(name).exists():
        raise ConflictError(
            "OURS",
            "it is of no library in this workspace.",
            "Give --into NAME: a library begins as a copy of OURS.",
        )
    head = target_library(workspace, name, ours, begin=begin)
    if head.content_hash != ours.library.content_hash:
        raise ConflictError(
            f"library {head.name}",
            f"its head, v{head.version}, is not what OURS says.",
            f"Give {head.name} as OURS, or a new library by --into.",
        )
    return head


@frozen
class Arrivals:
    """What is to be asked, and why that is less than the file holds."""

    operations: tuple[Operation, ...]  # ids are given later
    already: int  # the library, or the file itself, has the wording
    pinned: tuple[str, ...]  # another wording of these pinned ones is in the file


def import_operations(
    found: ForeignLibrary,
    head: Library,
    base: Library | None,
    source: str,
    reason: str = "",
    mask: Callable[[str], str] = str,
) -> Arrivals:
    """Each entry as an add, or as a modify of the one that it is another wording of.

    Where the file says that it is of this library, its ids mean what they mean here, and what reads
    as in `base`, the version that it was made of, is nothing new.
    """
    is_own = found.exported is not None and found.exported[0] == head.name
    unedited = {(e.id, e.text) for e in base.experiences} if base and is_own else set()
    known = {entry.text for entry in head.experiences}
    operations, pinned = list[Operation](), list[str]()
    for entry in found.entries:
        text, before = mask(entry.text), head.get(entry.id) if is_own else None
        if text in known or (entry.id, text) in unedited:
            continue
        if before is not None and before.pinned:
            pinned.append(before.id)
            continue
        known.add(text)
        why = "; ".join(filter(None, (reason, _origin(found, entry, source))))
        kind: OperationKind = "modify" if before else "add"
        target = before.id if before else None
        operations.append(Operation("", kind, target, text, why))
    already = len(found.entries) - len(operations) - len(pinned)
    return Arrivals(tuple(operations), already, tuple(pinned))


def _origin(found: ForeignLibrary, entry: ForeignEntry, source: str) -> str:
    """`imported from notes.md (ace math-00003, Fractions), helpful=5 harmful=0`."""
    name = ", ".join(filter(None, (f"{found.format} {entry.id}".rstrip(), entry.section)))
    return f"imported from {source} ({name}){f', {entry.note}' if entry.note else ''}"


def merge_operations(
    base: Library, ours: Library, theirs: Library, source: str = "theirs"
) -> tuple[Operation, ...]:
    """What is to be done to `ours`, in the order of the base, additions last; ids are given later.

    Of each entry of the base: what theirs left alone, or changed as ours did, asks nothing; what
    theirs alone changed is a modify or delete; what both changed differently is the same with the
    flag `conflict`, and an add where ours deleted it. Entries new in theirs are adds without an id,
    whatever ours gave theirs to, unless ours has the wording.
    """
    before, mine, other = _entries(base), _entries(ours), _entries(theirs)
    kept, came = dict(pair_entries(before, mine)), dict(pair_entries(before, other))
    changes, adds = list[Operation](), list[Operation]()
    for at, was in enumerate(before):
        own = mine[kept[at]] if at in kept else None
        new = other[came[at]][1] if at in came else None
        if (change := _merge_entry(was, own, new, source)) is not None:
            (adds if change.kind == "add" else changes).append(change)
    new_here = set(range(len(other))) - set(came.values())
    adds += [
        Operation("", "add", text=other[at][1], rationale=f"new in {source} ({other[at][0]})")
        for at in sorted(new_here)
    ]
    # A wording that an operation may take away is offered all the same.
    asked = {change.target for change in changes}
    here = {text for name, text in mine if name not in asked}
    fresh = dict[str, Operation]()
    for add in adds:
        if add.text not in here:
            fresh.setdefault(add.text, add)
    return (*changes, *fresh.values())


def _entries(library: Library) -> list[Entry]:
    """Ids and wordings, each on one line; an entry without words is none."""
    lines = ((entry.id, one_line(entry.text)) for entry in library.experiences)
    return [(name, text) for name, text in lines if text]


def _merge_entry(was: Entry, own: Entry | None, new: str | None, source: str) -> Operation | None:
    """What becomes of one entry of the base; `own` and `new` are None where a side deleted it."""
    name, text = was
    if own is None:
        if new is None or new == text:
            return None
        return _conflict("add", None, new, f"ours deleted {name}, {source} reworded it", was)
    target, kept = own
    if new in (text, kept):
        return None
    kind: OperationKind = "delete" if new is None else "modify"
    did = f"{source} {'deleted' if new is None else 'reworded'} it"
    if kept == text:
        return Operation("", kind, target, new or "", did)
    # What a delete takes away and what an add says is shown anyway.
    others = (f"ours ({target}): {kept}", f"{source}: {new}") if new is not None else ()
    return _conflict(kind, target, new or "", f"ours reworded it, {did}", was, *others)


def _conflict(
    kind: OperationKind, target: str | None, text: str, what: str, was: Entry, *others: str
) -> Operation:
    why = "\n".join((f"base ({was[0]}): {was[1]}", *others))
    return Operation("", kind, target, text, why, flags=(Flag(CONFLICT, detail=what),))


def commit_changes(
    workspace: Workspace,
    name: str,
    changes: Callable[[Library], Sequence[Change]],
    *,
    person: str,
    reason: str,
    clock: Callable[[], float] = time.time,
) -> Library:
    """Commit changes to the head as decided operations; returns the new head.

    An addition with a target brings it back.

    Raises ConflictError: a change does not fit; nothing is committed.
    """
    with workspace.library(name).lock_for_commit() as library:
        draft = head = library.head
        reviewed: list[tuple[Operation, Decision]] = []
        for number, (kind, target, text) in enumerate(changes(head), 1):
            operation = Operation(
                f"edit{head.version + 1}.{number}", kind, target, text, reason, proposer=person
            )
            decision = Decision(operation.id, "approve", reason=reason, reviewer=person, at=clock())
            objection = draft.objection(effective_operation(operation, decision))
            if objection:
                place = f"library {name}" + (f", {target}" if target else "")
                raise ConflictError(place, f"{objection}.", "Nothing was changed.")
            reviewed.append((operation, decision))
            draft = head.commit(reviewed).library
        done = library.commit(reviewed).library
    refresh_catalogue(workspace)
    return done


def requested_change(
    head: Library,
    experience: str | None,
    *,
    text: str | None,
    delete: bool,
    add: str | None,
    edit: Callable[[str], str | None],
) -> Change | None:
    """The one change a command line asks for; None when the editor saved nothing new."""
    place = f"library {head.name}"
    options = [option for option in (text, add, delete or None) if option is not None]
    if len(options) > 1 or (experience is None) == (add is None):
        raise ConflictError(
            place,
            "it takes ID with --text TEXT, ID with --delete, ID alone, or --add TEXT.",
            "Give one of them.",
        )
    if add is not None:
        return "add", None, add
    found = head.get(experience)
    if found is None:
        known = ", ".join(e.id for e in head.experiences) or "it is empty"
        raise ConflictError(place, f"it holds no {experience}.", f"There are: {known}.")
    if delete:
        return "delete", found.id, ""
    wanted = text if text is not None else edit(found.text)
    if wanted is None or " ".join(wanted.split()) == found.text:
        return None
    return "modify", found.id, wanted
