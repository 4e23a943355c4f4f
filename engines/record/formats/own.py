"""The studio's own files: JSON that holds all of a library, `vNNNN.yaml` and `agent.yaml`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from engines.core.codec import to_dict
from engines.core.errors import DataError
from engines.core.library import Library
from engines.record.export import unescape_interpolation
from engines.record.formats.card import Card
from engines.record.formats.entries import (
    ForeignEntry,
    ForeignLibrary,
    Placed,
    as_object,
    check_entries,
    parse_json,
    read_text,
    wrong_kind,
)
from engines.record.yaml_text import load_yaml

MOVE = "Give an agent.yaml, a vNNNN.yaml, or the JSON of `studio library export`."


def library_data(library: Library) -> dict[str, Any]:
    """All of a version as JSON values."""
    return {
        "library": library.name,
        "version": library.version,
        "content_hash": library.content_hash,
        "tokens_per_call": library.guidance_tokens,
        "experiences": [to_dict(experience) for experience in library.experiences],
        "uses": {name: to_dict(counts) for name, counts in library.uses.items()},
        "effects": {name: to_dict(effect) for name, effect in library.effects.items()},
    }


def write(library: Library, card: Card) -> bytes:
    data = {**library_data(library), "evaluation": card.data()}
    return f"{json.dumps(data, ensure_ascii=False, indent=1)}\n".encode("utf-8", "replace")


def read_json_file(path: Path) -> ForeignLibrary:
    return _read(path, "json", parse_json(path, read_text(path, MOVE), MOVE))


def read_yaml_file(path: Path) -> ForeignLibrary:
    return _read(path, "studio", parse_yaml(path, read_text(path, MOVE), MOVE))


def parse_yaml(path: Path, text: str, move: str) -> dict[str, Any]:
    try:
        found = load_yaml(text)
    except RecursionError as error:
        raise DataError(str(path), "it nests too deep.", move) from error
    except (yaml.YAMLError, ValueError) as error:
        cause = f"its YAML is broken: {' '.join(str(error).split())}."
        raise DataError(str(path), cause, move) from error
    return as_object(path, found, "", move)


def _read(path: Path, kind: str, data: dict[str, Any]) -> ForeignLibrary:
    if "experiences" not in data:
        raise DataError(
            str(path), "it does not hold a list `experiences` of `id` and `text`.", MOVE
        )
    entries = check_entries(path, _rows(path, data), MOVE)
    if without := next((e for e in entries if not e.id), None):
        raise DataError(str(path), f'an experience has no id ("{without.text[:40]}").', MOVE)
    name = data.get("library", data.get("name", path.stem))
    kept = ("uses", "effects") if any(data.get(k) for k in ("uses", "effects")) else ()
    losses = tuple(f"{what} of its experiences" for what in kept if data.get(what))
    return ForeignLibrary(kind, name if isinstance(name, str) else path.stem, entries, losses)


def _rows(path: Path, data: dict[str, Any]) -> Placed:
    rows = data["experiences"]
    if not isinstance(rows, list):
        raise wrong_kind(path, rows, ": experiences", "a list", MOVE)
    # An agent file is written to be composed: `${` stands escaped in it.
    unescape = unescape_interpolation if "instructions" in data else str
    for at, row in enumerate(rows):
        inside = f": experiences[{at}]"
        as_object(path, row, inside, MOVE)
        for field in ("id", "text"):
            if field not in row:
                raise DataError(f"{path}{inside}", f'"{field}" is missing.', MOVE)
            if not isinstance(row[field], str | int) or isinstance(row[field], bool):
                raise wrong_kind(path, row[field], f"{inside}.{field}", "text", MOVE)
        pinned = row.get("pinned") is True
        note = str(row["worth"]) if isinstance(row.get("worth"), str) else ""
        text = unescape(str(row["text"]))
        yield inside, ForeignEntry(str(row["id"]), text, note=note, pinned=pinned)
