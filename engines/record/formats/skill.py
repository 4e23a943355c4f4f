"""SKILL.md of agentskills.io: a folder that is called as its skill."""

from __future__ import annotations

import re
from pathlib import Path

from engines.core.errors import DataError
from engines.record.formats.entries import ForeignLibrary, check_entries, read_text
from engines.record.formats.own import parse_yaml
from engines.record.formats.prompt import read_lines

MOVE = "Give the folder of a skill, or its SKILL.md with `name` and `description` at its head."
FRONT = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*$\n?", re.M | re.S)


def read(path: Path) -> ForeignLibrary:
    file = path / "SKILL.md" if path.is_dir() else path
    text = read_text(file, MOVE)
    front = FRONT.match(text)
    if front is None:
        raise DataError(str(file), "it does not begin with a head between two lines `---`.", MOVE)
    head = parse_yaml(file, front[1], MOVE)
    name = head.get("name")
    if not isinstance(name, str):
        raise DataError(str(file), "its head holds no `name`.", MOVE)
    number = text.count("\n", 0, front.end()) + 1
    found, losses = read_lines(text[front.end() :], number)
    return ForeignLibrary("skill", name, check_entries(file, found, MOVE), losses)
