"""The studio's own files: JSON that holds all of a version, `vNNNN.yaml` and `agent.yaml`."""

import re
from pathlib import Path
from typing import Any

from engines.core.codec import to_dict
from engines.core.library import Experience, Library
from engines.record.formats.source import Card, ForeignEntry, ForeignLibrary, Source, dump_json
from engines.record.yaml_text import unescape_interpolation

MOVE = "Give an agent.yaml or a vNNNN.yaml, with a list `experiences` of `id` and `text`."
_NO_LIST = "it does not hold a list `experiences` of `id` and `text`."


def library_data(library: Library) -> dict[str, Any]:
    return {
        "library": library.name,
        "version": library.version,
        "content_hash": library.content_hash,
        "tokens_per_call": library.guidance_tokens,
        "experiences": [to_dict(experience) for experience in library.experiences],
        "uses": {name: to_dict(counts) for name, counts in library.notes.uses.items()},
        "effects": {name: to_dict(effect) for name, effect in library.notes.effects.items()},
    }


def write(card: Card) -> bytes:
    return dump_json({**library_data(card.library), "evaluation": card.data()})


def load_library(path: Path) -> Library:
    """A version as one of our files holds it. Raises DataError where it is none."""
    source = Source(path, f"{MOVE} `studio library import` reads other formats.")
    if not re.search(r"\bexperiences[\"']?\s*:", source.text()):
        raise source.error(_NO_LIST)
    data = source.yaml()  # JSON is YAML, too
    found, version = _read(source, "studio", data), data.get("version")
    entries = tuple(Experience(e.id, e.text, pinned=e.pinned) for e in found.entries)
    last = max((int(e.id[1:]) for e in entries if e.id[1:].isdecimal()), default=0)
    return Library(found.name, version if isinstance(version, int) else 0, entries, last + 1)


def read_json(path: Path) -> ForeignLibrary:
    source = Source(path, MOVE)
    return _read(source, "json", source.json())


def read_yaml(path: Path) -> ForeignLibrary:
    source = Source(path, MOVE)
    return _read(source, "studio", source.yaml())


def _read(source: Source, kind: str, data: dict[str, Any]) -> ForeignLibrary:
    rows = data.get("experiences")
    if not isinstance(rows, list):
        raise source.error(_NO_LIST)
    # An agent file is written to be composed: `${` stands escaped in it.
    unescape = unescape_interpolation if "instructions" in data else str
    found = []
    for at, row in enumerate(rows):
        inside = f": experiences[{at}]"
        fields = source.mapping(row, inside)
        name, text = (source.string(fields.get(f), f"{inside}.{f}") for f in ("id", "text"))
        if not name:
            raise source.error("its id is empty.", inside)
        worth, pinned = fields.get("worth"), fields.get("pinned") is True
        note = worth if isinstance(worth, str) else ""
        found.append((inside, ForeignEntry(name, unescape(text), note=note, pinned=pinned)))
    held = tuple(Experience(entry.id, entry.text) for _, entry in found)
    if data.get("content_hash") not in (None, Library("", 0, held).content_hash):
        move = "Delete its content_hash to use it as your own, or restore it from a copy."
        raise source.error("its experiences do not give the content_hash it holds.", move=move)
    losses = [f"the {what} of its experiences" for what in ("uses", "effects") if data.get(what)]
    card = data if "library" in data else source.first_line("# Experiences (")  # of an agent.yaml
    return source.library(kind, found, losses, data.get("library"), card)
