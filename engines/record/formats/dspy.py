"""State of a DSPy program, as `program.save("x.json")` writes it: the instructions of predictors.

The predictor is called `predict`, as that of ChainOfThought; a program finds its own by name.
"""

from __future__ import annotations

import json
from pathlib import Path

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

MOVE = 'Give the state of a DSPy program: JSON whose predictors hold "signature"."instructions".'


def write(library: Library, card: Card) -> bytes:
    signature = {"instructions": library.guidance(), "fields": []}
    predictor = {"traces": [], "train": [], "demos": [], "signature": signature, "lm": None}
    # DSPy compares the versions named there with its own, and reads nothing else of it.
    metadata = {"dependency_versions": {}, "evaluation": card.data()}
    data = {"predict": predictor, "metadata": metadata}
    return f"{json.dumps(data, ensure_ascii=False, indent=2)}\n".encode("utf-8", "replace")


def read(path: Path) -> ForeignLibrary:
    data = parse_json(path, read_text(path, MOVE), MOVE)
    found, losses = [], []
    for name, value in data.items():
        if name == "metadata" or not isinstance(value, dict) or "signature" not in value:
            continue
        inside = f": {name[:60]}.signature"
        signature = as_object(path, value["signature"], inside, MOVE)
        text = as_text(path, signature.get("instructions"), f"{inside}.instructions", MOVE)
        entries, left = read_lines(text)
        found += [(f"{inside}.instructions", entry) for _, entry in entries]
        losses += [f"{name}: {loss}" for loss in left]
        if demos := value.get("demos"):
            losses.append(f"{name}: {len(demos)} demonstrations")
        if value.get("lm"):
            losses.append(f"{name}: its model")
    if not found:
        raise DataError(str(path), "no predictor in it has instructions.", MOVE)
    return ForeignLibrary("dspy", path.stem, check_entries(path, found, MOVE), tuple(losses))
