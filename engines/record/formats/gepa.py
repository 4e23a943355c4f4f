"""GEPA: the best candidate, a text for each component of a system."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engines.core.errors import DataError
from engines.core.library import Library
from engines.record.formats.card import Card
from engines.record.formats.entries import (
    ForeignLibrary,
    as_object,
    as_text,
    check_entries,
    parse_json,
    read_text,
)
from engines.record.formats.prompt import read_lines

MOVE = 'Give GEPA\'s result as JSON, or {"best_candidate": {"system_prompt": "…"}}.'


def write(library: Library, card: Card) -> bytes:
    data = {"best_candidate": {"system_prompt": library.guidance()}, "evaluation": card.data()}
    return f"{json.dumps(data, ensure_ascii=False, indent=2)}\n".encode("utf-8", "replace")


def read(path: Path) -> ForeignLibrary:
    data = parse_json(path, read_text(path, MOVE), MOVE)
    found, losses = [], []
    for name, value in _best_candidate(path, data).items():
        inside = f": {name[:60]}"
        entries, left = read_lines(as_text(path, value, inside, MOVE))
        found += [(inside, entry) for _, entry in entries]
        losses += [f"{name}: {loss}" for loss in left]
    if len(data.get("candidates") or ()) > 1:
        losses.append(f"{len(data['candidates']) - 1} other candidates")
    return ForeignLibrary("gepa", path.stem, check_entries(path, found, MOVE), tuple(losses))


def _best_candidate(path: Path, data: dict[str, Any]) -> dict[str, Any]:
    best: Any = data.get("best_candidate")
    if best is None and "candidates" in data:  # a whole result names it by its place
        candidates, at = data["candidates"], data.get("best_idx")
        if not isinstance(candidates, list) or not isinstance(at, int):
            raise DataError(str(path), "it does not say which candidate is best.", MOVE)
        if not 0 <= at < len(candidates):
            raise DataError(str(path), f"it has no candidate {at}.", MOVE)
        best = candidates[at]
    elif best is None:
        best = data  # the candidate alone
    best = {"prompt": best} if isinstance(best, str) else best
    return as_object(path, best, ": best_candidate", MOVE)
