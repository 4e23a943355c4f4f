"""The table of formats in which libraries travel: each is a file here and a row.

What is lost by writing is found by reading back, so no format needs to know its own limits.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from os.path import realpath
from pathlib import Path
from stat import S_IMODE
from tempfile import TemporaryDirectory
from typing import Any

from engines.core.errors import ConflictError, DataError, suggest_name
from engines.core.library import Library
from engines.record.appender import make_folder, write_atomic
from engines.record.formats import ace, agents, dspy, gepa, kayba, own, prompt, skill, youtu
from engines.record.formats.source import Card, ForeignLibrary, Source
from engines.record.run_dir import Workspace

_ACE_LINE = re.compile(r"^[ \t]*\[[^\]\n]*\][ \t]*helpful=", re.M)


@dataclass(frozen=True, slots=True)
class Sample:
    """A file whose format is to be recognised, and what it holds where it is JSON or YAML."""

    name: str
    text: str
    json: Mapping[str, Any] = field(default_factory=dict)
    yaml: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Format:
    """A row of the table. A file is of the first that recognises it; a folder is a skill."""

    read: Callable[[Path], ForeignLibrary]
    recognise: Callable[[Sample], object]
    write: Callable[[Card], bytes] | None = None  # one file; None: it is only read, or a skill


TABLE: Mapping[str, Format] = {
    "json": Format(own.read_json, lambda file: "experiences" in file.json, own.write),
    "kayba": Format(kayba.read, lambda file: "skills" in file.json, kayba.write),
    "dspy": Format(dspy.read, lambda file: dspy.find_signatures(file.json), dspy.write),
    "gepa": Format(gepa.read, lambda file: gepa.is_candidate(file.json), gepa.write),
    "studio": Format(own.read_yaml, lambda file: "experiences" in file.yaml),
    "youtu": Format(youtu.read, lambda file: file.yaml, youtu.write),
    "skill": Format(skill.read, lambda file: skill.FRONT.match(file.text)),
    "ace": Format(
        ace.read,
        lambda file: prompt.HEAD not in file.text and _ACE_LINE.search(file.text),
        ace.write,
    ),
    "agents": Format(
        agents.read,
        lambda file: file.name in agents.NAMES or agents.MARKER.search(file.text),
        agents.write,
    ),
    "prompt": Format(prompt.read, lambda file: not file.json, prompt.write),
}
FORMATS = ("skill", *(name for name, row in TABLE.items() if row.write is not None))
"""Those that are written."""
_MOVE = f"Give a file of one of these formats, or name it: {', '.join(TABLE)}."


def read_foreign(path: Path, format: str | None = None) -> ForeignLibrary:
    """What a file, or a skill's folder, holds. `format` None: it is recognised.

    Raises DataError, with the place inside: it is of no such format, damaged or too big, or an id
    or text in it is none, or an id stands there twice; or it may be any prose.
    """
    source = Source(path, _MOVE)
    if format is not None and format not in TABLE:
        raise source.error(f"{format!r} is no format.", move=suggest_name(format, TABLE))
    kind = format or _recognise(source)
    library = TABLE[kind].read(path)
    if not library.entries and kind != "studio":
        raise source.error("it holds no experience.")
    is_guess = format is None and kind in ("prompt", "agents") and library.exported is None
    if is_guess and not any(entry.id for entry in library.entries):
        cause = "it may be any prose: no line of it carries an id."
        raise source.error(cause, move=f"If it holds experiences, give --format {kind}.")
    return library


def _recognise(source: Source) -> str:
    if source.path.is_dir():
        return "skill"
    text, suffix = source.text(), source.path.suffix.lower()
    file = Sample(source.path.name, text)
    if suffix == ".json" or text.lstrip()[:1] == "{":
        file = Sample(source.path.name, "", json=source.json())
    elif suffix in (".yaml", ".yml") or text.startswith(youtu.PACKAGE):
        file = Sample(source.path.name, "", yaml=source.yaml())
    for name, row in TABLE.items():
        if row.recognise(file):
            return name
    raise source.error("it is JSON of no format that is known.")


def write_foreign(
    card: Card, kind: str, path: Path, workspace: Workspace, *, force: bool = False
) -> tuple[list[Path], list[str]]:
    """The files of it, and the losses. `path` is the file, or the folder of a skill.

    Raises ConflictError: the library is empty, something else stands there and no `force`, or
    the workspace keeps runs or libraries there.
    """
    library = card.library
    if not library.experiences:
        title = f"library {library.name}@{library.version}"
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
        losses = list(_losses(library, kind, copy))
    _write(files)
    return list(files), losses


def _render(card: Card, kind: str, path: Path) -> dict[Path, bytes]:
    write = TABLE[kind].write
    if write is not None:
        return {path: write(card)}
    return {path / inside: data for inside, data in skill.write(card, path).items()}


def _write(files: Mapping[Path, bytes]) -> None:
    for file, data in files.items():
        target = Path(realpath(file))  # AGENTS.md is often a link
        make_folder(target.parent)
        mode = target.stat().st_mode if target.exists() else 0o600
        write_atomic(target, data)
        target.chmod(S_IMODE(mode))


def _losses(library: Library, kind: str, path: Path) -> Iterator[str]:
    try:
        entries = TABLE[kind].read(path).entries
    except DataError as error:
        yield f"reading it back: {error.cause}"
        return
    if len(entries) != len(library.experiences):
        yield f"{len(library.experiences) - len(entries)} experiences"
        return
    both = list(zip(library.experiences, entries, strict=True))
    for what, name in (("id", "id"), ("wording", "text"), ("pin", "pinned")):
        if ids := [e.id for e, read in both if getattr(e, name) != getattr(read, name)]:
            yield f"the {what} of {', '.join(ids)}"
    if kind == "prompt":
        yield "its card: results, worth and uses"
    if kind != "json" and any(experience.history for experience in library.experiences):
        yield "how its experiences came about"
    if library.notes.curated:
        yield "what its reviewers rejected or reworded"
