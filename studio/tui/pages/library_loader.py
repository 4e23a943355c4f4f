"""Reading what the library page shows: versions, citations, the libraries of a workspace.

Everything here blocks, so it belongs into a thread.
"""

from __future__ import annotations

from typing import Any

from engines.core.errors import RecordError, StudioError
from engines.core.library import Library
from engines.record.appender import write_atomic
from engines.record.libraries import LibraryFolder, version_path
from engines.record.run_dir import Workspace


def list_libraries(workspace: Workspace) -> tuple[dict[str, Any], ...]:
    """Every library as `studio library list` has it; one that cannot be read says why."""
    from studio.library.text import library_row

    found: list[dict[str, Any]] = []
    for folder in workspace.libraries():
        try:
            found.append(library_row(folder))
        except StudioError as error:
            found.append({"library": folder.name, "trouble": str(error)})
    return tuple(found)


def load_history_lines(folder: LibraryFolder, experience: str) -> list[str]:
    """The commits that concern one experience, as `studio library history` prints them."""
    from studio.library.text import history_lines

    return history_lines(folder, experience)


def export_library(workspace: Workspace, folder: LibraryFolder, library: Library) -> str:
    """Copy a version's file into `exports/` of the workspace; returns the path.

    Raises:
        RecordError: it cannot be written, or the version's own file is not there.
    """
    source = version_path(folder.path, library.version)
    try:
        data = source.read_bytes()
    except OSError as error:
        raise RecordError(
            str(source), f"it could not be copied: {error.strerror}.", "Look at `studio doctor`."
        ) from error
    return _write_export(workspace, f"{folder.name}-v{library.version:04d}.yaml", data)


def export_text(workspace: Workspace, name: str, text: str) -> str:
    """Write a text into `exports/` of the workspace, in place of an older one; returns the path.

    Raises:
        RecordError: it cannot be written.
    """
    return _write_export(workspace, name, text.encode("utf-8", "replace"))


def _write_export(workspace: Workspace, name: str, data: bytes) -> str:
    target = workspace.path / "exports" / name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(
            str(target.parent), f"it could not be made: {error.strerror}.", "Make room for it."
        ) from error
    write_atomic(target, data)
    return str(target)
