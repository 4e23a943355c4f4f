"""Labels of a library: naming a version, moving the name to another, and taking it away."""

from shlex import quote

from engines.core.errors import ConflictError
from engines.record.libraries import is_label
from engines.record.run_dir import Workspace
from studio.library.references import follow_version


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
