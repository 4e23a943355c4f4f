"""GEPA: the best candidate, a text for each component of a system."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.record.formats.prompt import read_texts
from engines.record.formats.source import Card, ForeignLibrary, Source, dump_json

MOVE = 'Give GEPA\'s result as JSON, or {"best_candidate": {"system_prompt": "…"}}.'


def write(card: Card) -> bytes:
    best = {"system_prompt": card.library.guidance()}
    return dump_json({"best_candidate": best, "evaluation": card.data()})


def is_candidate(data: Mapping[str, Any]) -> bool:
    is_one = bool(data) and all(isinstance(value, str) for value in data.values())
    return is_one or bool(data.keys() & {"best_candidate", "candidates"})


def read(path: Path) -> ForeignLibrary:
    source = Source(path, MOVE)
    data = source.json()
    others = data.get("candidates")
    best: Any = data.get("best_candidate", data if others is None else None)
    if best is None:  # a whole result names it by its place
        at = data.get("best_idx")
        if not isinstance(others, list) or not isinstance(at, int) or not 0 <= at < len(others):
            raise source.error("it does not say which of its candidates is best.")
        best = others[at]
    parts = {"prompt": best} if isinstance(best, str) else source.mapping(best, ": best_candidate")
    texts = {f": {name[:60]}": source.string(one, f": {name[:60]}") for name, one in parts.items()}
    found, losses = read_texts(texts)
    if isinstance(others, list) and len(others) > 1:
        losses.append(f"{len(others) - 1} other candidates")
    return source.library("gepa", found, losses, card=data.get("evaluation"))
