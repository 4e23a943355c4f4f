"""What is wrong with a library."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import yaml

from engines.core import events as ev
from engines.core.errors import StudioError
from engines.core.library import Experience, Library
from engines.core.state.fold import fold_library
from engines.record import lines
from engines.record.libraries import LibraryFolder, version_path, write_version
from engines.record.lock import write_lock
from engines.record.repair.cut import cut_move, free_name, mend_by_cut
from engines.record.repair.files import examine, file_troubles, read_entry
from engines.record.repair.trouble import Trouble
from engines.record.seal import ALTERED, must_be_sealed, seal_fits
from engines.record.yaml_text import load_yaml


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
    if found.error is None and versions:
        yield from _version_file_troubles(folder, versions, sealed)


def _version_file_troubles(
    folder: LibraryFolder, versions: list[Library], sealed: set[int]
) -> Iterator[Trouble]:
    """`sealed` are the versions whose files must have a seal."""
    known = {version_path(folder.path, v.version): v for v in versions}
    for path in sorted(folder.path.glob("v[0-9]*.yaml")):
        library = known.get(path)
        data = path.read_bytes()
        fits, text = seal_fits(data), data.decode("utf-8", "replace").replace("'", "")
        cause = ""
        if library is None or f"content_hash: {library.content_hash}\n" not in text:
            cause = "it is no version that the library's journal tells of."
        elif not fits and (fits is not None or library.version in sealed):
            cause = ALTERED
        elif fits is None and _hash_of(data) != library.content_hash:
            cause = "its experiences are not those of the library's journal."
        if cause:
            move = f"{lines.REPAIR} moves it aside" + (", and writes it again." if library else ".")
            mend = partial(_rewrite, folder, path, library)
            yield Trouble(str(path), cause, move, mend, alone=True)
    for path, library in known.items():
        if not path.exists():
            cause = "this version's readable file is missing."
            move = f"{lines.REPAIR} writes it again from the journal."
            mend = partial(_rewrite, folder, path, library)
            yield Trouble(str(path), cause, move, mend, damage=False, alone=True)


def _hash_of(data: bytes) -> str:
    """Of the experiences in a version's file; "" where it holds none."""
    try:
        rows = load_yaml(data.decode())["experiences"]
        entries = tuple(Experience(row["id"], row["text"]) for row in rows)
        return Library("", 0, entries).content_hash
    except (ValueError, TypeError, KeyError, yaml.YAMLError, RecursionError):
        return ""


def _rewrite(folder: LibraryFolder, path: Path, library: Library | None) -> str:
    """Move what is there aside, write the version that belongs there, and say so."""
    done = "written again from the journal"
    with write_lock(folder.path):
        if path.exists():
            moved = free_name(path)
            path.rename(moved)
            done = f"moved to {moved.name}" + (", and written again" if library else "")
        if library is not None:
            commit = folder.history()[library.version][1]
            write_version(folder.path, library, commit.run if commit else "")
    return done
