"""Reads a library of any format, and recognises which one it is.

Owns the choice alone; what a format holds is its module's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from engines.core.errors import DataError, suggest_name
from engines.record.formats import ace, agents, dspy, gepa, kayba, own, prompt, skill, youtu
from engines.record.formats.entries import ForeignEntry, ForeignLibrary, parse_json, read_text

__all__ = ["READERS", "ForeignEntry", "ForeignLibrary", "read_foreign"]

READERS: Mapping[str, Callable[[Path], ForeignLibrary]] = {
    "youtu": youtu.read,
    "skill": skill.read,
    "agents": agents.read,
    "prompt": prompt.read,
    "ace": ace.read,
    "kayba": kayba.read,
    "dspy": dspy.read,
    "gepa": gepa.read,
    "json": own.read_json_file,
    "studio": own.read_yaml_file,
}
_MOVE = f"Give a file of one of these formats, or name it: {', '.join(READERS)}."
_ACE_LINE = re.compile(r"^\s*\[[^\]\n]*\]\s*helpful=", re.M)


def read_foreign(path: Path, format: str | None = None) -> ForeignLibrary:
    """What a file, or a skill's folder, holds. `format` None: it is recognised.

    Raises DataError, with the place inside: it is of no such format, damaged or too big, or an id
    or text in it is none, or stands there twice.
    """
    if format is not None and format not in READERS:
        raise DataError(
            f"format {format!r}", "there is no such format.", suggest_name(format, READERS)
        )
    kind = format or _recognise(path)
    found = READERS[kind](path)
    if not found.entries and kind != "studio":
        raise DataError(str(path), "it holds no experience.", _MOVE)
    return found


def _recognise(path: Path) -> str:
    if path.is_dir():
        if (path / "SKILL.md").is_file():
            return "skill"
        raise DataError(str(path), "it is a folder without SKILL.md.", _MOVE)
    text = read_text(path, _MOVE)
    suffix = path.suffix.lower()
    if suffix == ".json" or text.lstrip()[:1] == "{":
        return _recognise_json(path, text)
    if suffix in (".yaml", ".yml"):
        return "studio" if "experiences" in own.parse_yaml(path, text, _MOVE) else "youtu"
    if skill.FRONT.match(text) and re.search(r"^name:", text, re.M):
        return "skill"
    if _ACE_LINE.search(text):
        return "ace"
    return (
        "agents"
        if path.name in ("AGENTS.md", "CLAUDE.md") or agents.has_markers(text)
        else "prompt"
    )


def _recognise_json(path: Path, text: str) -> str:
    data = parse_json(path, text, _MOVE)
    if "experiences" in data:
        return "json"
    if "skills" in data:
        return "kayba"
    if any(isinstance(value, dict) and "signature" in value for value in data.values()):
        return "dspy"
    if data.keys() & {"best_candidate", "candidates"} or (
        data and all(isinstance(value, str) for value in data.values())
    ):
        return "gepa"
    raise DataError(str(path), "it is JSON of no format that is known.", _MOVE)
