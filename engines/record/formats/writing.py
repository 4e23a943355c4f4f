"""Writes a version of a library in any format, and says what of it is lost on the way.

What is lost is found by reading back what was written, so no format needs to know its own limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from os.path import realpath
from pathlib import Path
from stat import S_IMODE
from tempfile import TemporaryDirectory

from engines.core.errors import ConfigError, ConflictError, DataError
from engines.core.library import Library
from engines.record.appender import make_folder, write_atomic
from engines.record.formats import ace, agents, dspy, gepa, kayba, own, prompt, skill, youtu
from engines.record.formats.card import Card
from engines.record.formats.reading import read_foreign
from engines.record.run_dir import Workspace

_WRITERS: Mapping[str, Callable[[Card], bytes]] = {
    **{"youtu": youtu.write, "agents": agents.write, "prompt": prompt.write, "ace": ace.write},
    **{"kayba": kayba.write, "dspy": dspy.write, "gepa": gepa.write, "json": own.write},
}
FORMATS = ("skill", *_WRITERS)


def write_foreign(
    card: Card, kind: str, path: Path, workspace: Workspace, *, force: bool = False
) -> tuple[list[Path], list[str]]:
    """The files of it, and the losses. `path` is the file, or the folder of a skill.

    Raises ConflictError: the library is empty, something else stands there and no `force`, or
    the workspace keeps runs or libraries there.
    """
    if not card.library.experiences:
        title = f"library {card.library.name}@{card.library.version}"
        raise ConflictError(title, "it holds no experience.", "Practise first.")
    files = _render(card, kind, path)
    for file, data in files.items():
        if (file.exists() and not file.is_file()) or (path.is_file() and path not in files):
            raise ConflictError(str(file), "a folder or file is in its way.", "Name another --to.")
        move = "Choose another --to, or overwrite it with --force."
        is_ours = (lambda _: True) if force or kind == "agents" else data.__eq__
        workspace.check_overwrite(file, is_ours, move)
        if kind == "agents":
            files[file] = agents.merge(file, data)
    with TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        _write(_render(card, kind, copy))
        losses = list(_losses(card.library, kind, copy))
    _write(files)
    return list(files), losses


def _render(card: Card, kind: str, path: Path) -> dict[Path, bytes]:
    if kind != "skill":
        return {path: _WRITERS[kind](card)}
    if not skill.NAME.fullmatch(path.name):
        cause = "a skill is called as its folder: at most 64 of a-z, 0-9 and single hyphens."
        raise ConfigError(f"--to {path}", cause, f"Write --to {path.parent / skill.slug(card)}.")
    return {path / inside: data for inside, data in skill.write(card, path.name).items()}


def _write(files: Mapping[Path, bytes]) -> None:
    for file, data in files.items():
        target = Path(realpath(file))  # AGENTS.md is often a link
        make_folder(target.parent)
        mode = target.stat().st_mode if target.exists() else 0o600
        write_atomic(target, data)
        target.chmod(S_IMODE(mode))


def _losses(library: Library, kind: str, path: Path) -> Iterator[str]:
    try:
        found = read_foreign(path, kind).entries
    except DataError as error:
        yield f"reading it back: {error.cause}"
        return
    if len(found) != len(library.experiences):
        yield f"{len(library.experiences) - len(found)} experiences"
        return
    both = list(zip(library.experiences, found, strict=True))
    for what, field in (("id", "id"), ("wording", "text"), ("pin", "pinned")):
        if ids := [e.id for e, read in both if getattr(e, field) != getattr(read, field)]:
            yield f"the {what} of {', '.join(ids)}"
    if kind == "prompt":
        yield "its card: results, worth and uses"
    if kind != "json" and any(e.history for e in library.experiences):
        yield "how its experiences came about"
    if library.curated:
        yield "what its reviewers rejected or reworded"
