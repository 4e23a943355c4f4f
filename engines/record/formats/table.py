"""The table of formats in which libraries travel: each is two functions, a row and a mark.

What is lost by writing is found by reading back, so no format needs to know its own limits.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from os.path import realpath
from pathlib import Path
from stat import S_IMODE
from tempfile import TemporaryDirectory

from engines.core.errors import ConflictError, DataError, suggest_name
from engines.core.frozen import frozen
from engines.core.library import Library
from engines.record.appender import make_folder, write_atomic
from engines.record.formats import rows, texts
from engines.record.formats.source import Card, ForeignLibrary, Source
from engines.record.run_dir import Workspace


@frozen
class Format:
    """A row of the table."""

    read: Callable[[Source], ForeignLibrary]
    write: Callable[[Card], bytes] | None = None  # one file; None: it is only read, or a skill


TABLE: Mapping[str, Format] = {
    "json": Format(rows.read_json, rows.write_json),
    "kayba": Format(rows.read_kayba, rows.write_kayba),
    "dspy": Format(texts.read_dspy, texts.write_dspy),
    "gepa": Format(texts.read_gepa, texts.write_gepa),
    "studio": Format(rows.read_studio),
    "youtu": Format(texts.read_youtu, texts.write_youtu),
    "skill": Format(texts.read_skill),
    "ace": Format(rows.read_ace, rows.write_ace),
    "agents": Format(texts.read_sections, texts.write_section),
    "prompt": Format(texts.read_prompt, texts.write_prompt),
}
FORMATS = ("skill", *(name for name, row in TABLE.items() if row.write is not None))
"""Those that are written."""
_ACE_LINE = re.compile(r"^[ \t]*\[[^\]\n]*\][ \t]*helpful=", re.M)


def read_foreign(path: Path, format: str | None = None) -> ForeignLibrary:
    """What a file, or a skill's folder, holds. `format` None: it is recognised.

    Raises DataError, with the place inside: it is of no such format, damaged or too big, or an id
    or text in it is none, or an id stands there twice; or it may be any prose.
    """
    if format is not None and format not in TABLE:
        raise Source(path).error(f"{format!r} is no format.", move=suggest_name(format, TABLE))
    kind = format or _recognise(Source(path))
    source = Source(path, kind)
    library = TABLE[kind].read(source)
    if not library.entries and kind != "studio":
        raise source.error("it holds no experience.")
    is_guess = format is None and kind in ("prompt", "agents") and library.exported is None
    if is_guess and not any(entry.id for entry in library.entries):
        raise source.error(
            "it may be any prose: no line of it carries an id.",
            move=f"If it holds experiences, give --format {kind}.",
        )
    return library


def _recognise(source: Source) -> str:
    """Return the format of a file by the first mark that it has; a folder is a skill."""
    path = source.path
    if path.is_dir():
        return "skill"
    text, suffix = source.text(), path.suffix.lower()
    if suffix == ".json" or text.lstrip().startswith("{"):
        data = source.json()
        if "experiences" in data:
            return "json"
        if "skills" in data:
            return "kayba"
        if texts.find_predictors(data):
            return "dspy"
        if texts.is_candidate(data):
            return "gepa"
        raise source.error("it is JSON of no format that is known.")
    if suffix in (".yaml", ".yml") or text.startswith(texts.YOUTU_PACKAGE):
        return "studio" if "experiences" in source.yaml() else "youtu"
    if texts.FRONT.match(text):
        return "skill"
    if texts.HEAD not in text and _ACE_LINE.search(text):
        return "ace"
    if path.name in texts.AGENTS_NAMES or texts.MARKER.search(text):
        return "agents"
    return "prompt"


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
            files[file] = texts.merge_section(file, data)
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
    return {path / inside: data for inside, data in texts.write_skill(card, path).items()}


def _write(files: Mapping[Path, bytes]) -> None:
    for file, data in files.items():
        target = Path(realpath(file))  # AGENTS.md is often a link
        make_folder(target.parent)
        mode = target.stat().st_mode if target.exists() else 0o600
        write_atomic(target, data)
        target.chmod(S_IMODE(mode))


def _losses(library: Library, kind: str, path: Path) -> Iterator[str]:
    try:
        entries = TABLE[kind].read(Source(path, kind)).entries
    except DataError as error:
        yield f"reading it back: {error.cause}"
        return
    if len(entries) != len(library.experiences):
        yield f"{len(library.experiences) - len(entries)} experiences"
        return
    for word, field in (("id", "id"), ("wording", "text"), ("pin", "pinned")):
        ids = [
            experience.id
            for experience, entry in zip(library.experiences, entries, strict=True)
            if getattr(experience, field) != getattr(entry, field)
        ]
        if ids:
            yield f"the {word} of {', '.join(ids)}"
    if kind == "prompt":
        yield "its card: results, worth and uses"
    if kind != "json" and any(experience.history for experience in library.experiences):
        yield "how its experiences came about"
    if library.notes.curated:
        yield "what its reviewers rejected or reworded"
