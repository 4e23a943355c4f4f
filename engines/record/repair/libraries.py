"""What is wrong with a library."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from engines.core import events as ev
from engines.core.errors import StudioError
from engines.core.library import Library
from engines.core.state.fold import fold_library
from engines.record import lines
from engines.record.libraries import LibraryFolder, version_path, write_version
from engines.record.lock import write_lock
from engines.record.repair.cut import cut_move, mend_by_cut, move_aside
from engines.record.repair.files import examine, file_troubles, read_entry, read_written
from engines.record.repair.trouble import Trouble
from engines.record.seal import ALTERED, content_hash_of, must_be_sealed, seal_fits


def library_troubles(folder: LibraryFolder) -> Iterator[Trouble]:
    """What is wrong with a library: its journal, then the version files that follow from it."""
    yield from file_troubles(folder.journal_path, chained=True, folder=folder.path)
    found = examine(folder.journal_path, chained=True)
    versions: list[Library] = []
    sealed: set[int] = set()
    for line in found.lines:
        entry = read_entry(folder.journal_path, line)
        if isinstance(entry, Trouble):
            yield entry
            return
        try:
            library = fold_library(versions[-1] if versions else None, entry.event)
        except (ValueError, StudioError) as error:
            place = f"{folder.journal_path}:{line.number}"
            mend = mend_by_cut(folder.path, folder.journal_path, line.offset)
            yield Trouble(place, f"{error}.", cut_move(folder.journal_path, line.offset), mend)
            return
        if isinstance(entry.event, ev.LibraryNote):
            versions[-1] = library
        else:
            versions.append(library)
            sealed |= {library.version} if must_be_sealed(line.body) else set()
    if found.error is not None:
        return
    if versions:
        yield from _version_file_troubles(folder, versions, sealed)
    elif (survivors := folder.describe_survivors()) or folder.journal_path.exists():
        cause = "it tells of no version, and "
        cause += "files of some are left." if survivors else "nothing of this library is left."
        move = f"Restore it from a copy; {survivors}" if survivors else folder.describe_nothing()
        yield Trouble(str(folder.journal_path), cause, move, damage=False)


def _version_file_troubles(
    folder: LibraryFolder, versions: list[Library], sealed: set[int]
) -> Iterator[Trouble]:
    """`sealed` are the versions whose files must have a seal."""
    known = {version_path(folder.path, v.version): v for v in versions}
    for path in sorted({*folder.path.glob("v[0-9]*.yaml"), *known}):
        library, is_there = known.get(path), os.path.lexists(path)
        move = f"{lines.REPAIR} moves it aside" + (", and writes it again." if library else ".")
        data, cause = read_written(path)
        fits, text = seal_fits(data), data.decode("utf-8", "replace").replace("'", "")
        if not is_there:
            cause = "this version's readable file is missing."
            move = f"{lines.REPAIR} writes it again from the journal."
        elif cause:
            pass
        elif library is None or f"content_hash: {library.content_hash}\n" not in text:
            cause = "it is no version that the library's journal tells of."
        elif not fits and (fits is not None or library.version in sealed):
            cause = ALTERED
        elif content_hash_of(data) != library.content_hash:
            cause = "its experiences are not those of the library's journal."
        if cause:
            mend = partial(_rewrite, folder, path, library)
            yield Trouble(str(path), cause, move, mend, is_there, alone=True)


def _rewrite(folder: LibraryFolder, path: Path, library: Library | None) -> str:
    """Move what is there aside, write the version that belongs there, and say so."""
    done = "written again from the journal"
    with write_lock(folder.path):
        if os.path.lexists(path):
            done = move_aside(path) + (", and written again" if library else "")
        if library is not None:
            commit = folder.history()[library.version][1]
            write_version(folder.path, library, commit.run if commit else "")
    return done
