"""SKILL.md of agentskills.io: a folder that is called as its skill.

The body holds all that fits below 500 lines; the rest, the card and pins lie in references and
metadata. Its evals are held-out problems.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from engines.core.errors import ConfigError
from engines.core.library import Library
from engines.record.formats.prompt import read_lines
from engines.record.formats.source import Card, ForeignLibrary, Source, dump_json
from engines.record.yaml_text import dump_yaml

MOVE = "Give the folder of a skill, or its SKILL.md with `name` and `description` at its head."
FRONT = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.M | re.S)
NAME = re.compile(r"(?=.{1,64}\Z)[a-z0-9]+(?:-[a-z0-9]+)*")
_MOST = 480
"""Experiences in the body, whose lines must be fewer than 500."""
_UNUSED: dict[str, Any] = {"files": [], "assertions": []}
_REST = "references/experiences.md"


def write(card: Card, folder: Path) -> dict[str, bytes]:
    """The files of the folder, by their path in it. Raises ConfigError: no skill is called so."""
    name = folder.name
    if not NAME.fullmatch(name):
        cause = "a skill is called as its folder: at most 64 of a-z, 0-9 and single hyphens."
        raise ConfigError(f"--to {folder}", cause, f"Write --to {folder.parent / slug(card)}.")
    library, ids = card.library, [e.id for e in card.library.experiences]
    body, rest = library.guidance(shown=ids[:_MOST]), library.guidance(shown=ids[_MOST:])
    more = f"\n\nThere are {len(ids) - _MOST} more: read {_REST}." if rest else ""
    metadata = {
        "source": f"practice studio, library {library.name}@{library.version}",
        "content-hash": library.content_hash,
        **{f"result-{number}": result.text for number, result in enumerate(card.results, 1)},
        **({"pinned": " ".join(library.pinned_ids)} if library.pinned_ids else {}),
    }
    head = {"name": name, "description": _description(library), "metadata": metadata}
    # Its checker ends the head at the first three hyphens, wherever they stand.
    front = re.sub("-{3,}", "--", dump_yaml(head, width=10**6))
    files = {
        "SKILL.md": f"---\n{front}---\n\n{body}{more}\n",
        "references/evaluation.md": _evaluation_page(card),
        **({_REST: f"{rest}\n"} if rest else {}),
    }
    found = {path: text.encode("utf-8", "replace") for path, text in files.items()}
    if card.evals:
        rows = [
            {"id": p.id, "prompt": p.question, "expected_output": p.answer or "", **_UNUSED}
            for p in card.evals
        ]
        found["evals/evals.json"] = dump_json({"skill_name": name, "evals": rows})
    if benchmarks := [result.benchmark for result in card.results if result.benchmark]:
        found["benchmark.json"] = dump_json(benchmarks[0])
    return found


def slug(card: Card) -> str:
    """The name of a folder for the library."""
    return re.sub(r"[^a-z0-9]+", "-", card.library.name.lower())[:64].strip("-") or "library"


def _description(library: Library) -> str:
    topics = "; ".join(e.text.partition(":")[0][:60] for e in library.experiences)
    text = f"Experiences from practice. Use it for tasks like those of {library.name}: {topics}"
    return text if len(text) <= 1024 else f"{text[:1023]}…"


def _evaluation_page(card: Card) -> str:
    rows = [f"| {name} | {worth} |" for name, worth in card.worths().items()]
    table = ["", "| experience | worth and uses |", "|---|---|", *rows] if rows else []
    facts = [f"* {line}" for line in card.lines()[: len(card.results or [0]) + 1]]
    return "\n".join(["# Evaluation", "", *facts, *table, ""])


def read(path: Path) -> ForeignLibrary:
    file = path / "SKILL.md" if path.is_dir() else path
    source = Source(file, MOVE)
    text = source.text()
    front = FRONT.match(text)
    if front is None:
        raise source.error("it does not begin with a head between two lines `---`.")
    head = source.yaml(front[1])
    name = source.string(head.get("name"), ": name")
    found, losses = read_lines(text[front.end() :], text.count("\n", 0, front.end()) + 1)
    rest, said = file.parent / _REST, head.get("metadata")
    metadata = said if isinstance(said, dict) else {}
    pins = metadata.get("pinned")
    pins = pins.split() if isinstance(pins, str) else ()
    if _REST in text and rest.is_file():
        found += read_lines(Source(rest, MOVE).text())[0]
        losses = ()
    pinned = [(at, replace(one, pinned=one.id in pins)) for at, one in found]
    return source.library("skill", pinned, losses, name, metadata.get("source"))
