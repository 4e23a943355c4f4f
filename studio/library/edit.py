"""Changing a library by hand: operations that a person proposes and approves at once.

They are committed under the library's lock and recorded in its journal, as those of practice are.
"""

import time
from collections.abc import Callable, Sequence
from shlex import quote

from engines.core.errors import ConflictError
from engines.core.library import Library, effective_operation
from engines.core.types import Decision, Operation
from engines.pipeline.effect.roll_back import Change
from engines.record.derived.catalogue import refresh_catalogue
from engines.record.libraries import is_label
from engines.record.run_dir import Workspace
from studio.library.references import follow_version


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


def set_label(
    workspace: Workspace, reference: str, label: str, *, person: str, reason: str, remove: bool
) -> str:
    """Journal that a version is called so from now on, or that none is; returns what was done.

    Raises ConflictError: there is no such version, or no such label to remove.
    """
    if not is_label(label):
        cause = "it must be at most 64 letters, digits, '.', '_' or '-', a letter first."
        if label.lower() in ("best", "last", "head"):
            cause = "best, last and head, in any case, name places in a run and are no labels."
        raise ConflictError(f"label {label!r}", cause, "Choose another label.")
    folder, read_version = follow_version(reference, workspace)
    if remove and reference != folder.name:
        raise ConflictError(
            reference,
            "a label is removed from the whole library.",
            f"Write `studio library label {quote(folder.name)} {label} --remove`.",
        )
    with folder.lock_for_commit() as library:
        before = folder.labelled(label) if remove else folder.labels().get(label)
        version, called = None if remove else read_version().version, f"{folder.name}@{label}"
        if version == before:
            return f"{called} is v{version} already" + ("; no reason is recorded" if reason else "")
        library.label(label, version, who=person, why=reason)
    was = "" if before is None else f" (was v{before})"
    return f"{called} is {'removed' if version is None else f'v{version}'}{was}"


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
