"""An agent file of Youtu-Agent: experiences at the end of its instructions.

It is composed by Hydra, so `${` stands escaped. Model and endpoint are those of the checkout.
"""

from __future__ import annotations

from pathlib import Path

from engines.core.errors import DataError
from engines.core.library import Library
from engines.record.export import escape_interpolation, unescape_interpolation
from engines.record.formats.card import Card
from engines.record.formats.entries import (
    ForeignLibrary,
    as_object,
    as_text,
    check_entries,
    read_text,
)
from engines.record.formats.own import parse_yaml
from engines.record.formats.prompt import read_lines
from engines.record.yaml_text import dump_yaml

MOVE = "Give an agent file of Youtu-Agent, whose agent.instructions end with experiences."


def write(library: Library, card: Card) -> bytes:
    parts = filter(None, (card.instructions.strip(), library.guidance()))
    agent = {"name": library.name, "instructions": escape_interpolation("\n\n".join(parts))}
    body = {"defaults": ["/model/base@model", "_self_"], "type": "simple", "agent": agent}
    comments = "".join(f"# {line}\n" for line in card.lines())
    return f"# @package _global_\n{comments}{dump_yaml(body)}".encode("utf-8", "replace")


def read(path: Path) -> ForeignLibrary:
    data = parse_yaml(path, read_text(path, MOVE), MOVE)
    while "instructions" not in data:  # mounted as a whole, it stands one level deeper
        if not isinstance(data.get("agent"), dict):
            raise DataError(str(path), "agent.instructions are missing.", MOVE)
        data = as_object(path, data["agent"], ": agent", MOVE)
    text = unescape_interpolation(as_text(path, data["instructions"], ": instructions", MOVE))
    found, losses = read_lines(text)
    name = data.get("name")
    entries = check_entries(path, found, MOVE)
    return ForeignLibrary("youtu", name if isinstance(name, str) else path.stem, entries, losses)
