"""Reads a library of any format, and recognises which one it is.

Owns the choice alone; what a format holds is its module's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from engines.core.errors import suggest_name
from engines.record.formats import ace, agents, dspy, gepa, kayba, own, prompt, skill, youtu
from engines.record.formats.source import ForeignLibrary, Source

READERS: Mapping[str, Callable[[Path], ForeignLibrary]] = {
    **{"youtu": youtu.read, "skill": skill.read, "agents": agents.read, "prompt": prompt.read},
    **{"ace": ace.read, "kayba": kayba.read, "dspy": dspy.read, "gepa": gepa.read},
    **{kind: partial(own.read, kind=kind) for kind in ("json", "studio")},
}
_MOVE = f"Give a file of one of these formats, or name it: {', '.join(READERS)}."
_ACE_LINE = re.compile(r"^[ \t]*\[[^\]\n]*\][ \t]*helpful=", re.M)


def read_foreign(path: Path, format: str | None = None) -> ForeignLibrary:
    """What a file, or a skill's folder, holds. `format` None: it is recognised.

    Raises DataError, with the place inside: it is of no such format, damaged or too big, or an id
    or text in it is none, or an id stands there twice; or it may be any prose.
    """
    source = Source(path, _MOVE)
    if format is not None and format not in READERS:
        raise source.error(f"{format!r} is no format.", move=suggest_name(format, READERS))
    kind = format or _recognise(source)
    found = READERS[kind](path)
    if not found.entries and kind != "studio":
        raise source.error("it holds no experience.")
    is_guess = format is None and kind in ("prompt", "agents") and found.exported is None
    if is_guess and not any(entry.id for entry in found.entries):
        cause = "it may be any prose: no line of it carries an id."
        raise source.error(cause, move=f"If it holds experiences, give --format {kind}.")
    return found


def _recognise(source: Source) -> str:
    if source.path.is_dir():
        return "skill"
    text, suffix = source.text(), source.path.suffix.lower()
    if suffix == ".json" or text.lstrip()[:1] == "{":
        return _recognise_json(source)
    if suffix in (".yaml", ".yml") or text.startswith(youtu.PACKAGE):
        return "studio" if "experiences" in source.yaml(text) else "youtu"
    if skill.FRONT.match(text):
        return "skill"
    if prompt.HEAD not in text and _ACE_LINE.search(text):
        return "ace"
    is_agents = source.path.name in ("AGENTS.md", "CLAUDE.md") or agents.MARKER.search(text)
    return "agents" if is_agents else "prompt"


def _recognise_json(source: Source) -> str:
    data = source.json()
    if "experiences" in data or "skills" in data:
        return "json" if "experiences" in data else "kayba"
    if any(isinstance(value, dict) and "signature" in value for value in data.values()):
        return "dspy"
    is_candidate = data and all(isinstance(value, str) for value in data.values())
    if is_candidate or data.keys() & {"best_candidate", "candidates"}:
        return "gepa"
    raise source.error("it is JSON of no format that is known.")
