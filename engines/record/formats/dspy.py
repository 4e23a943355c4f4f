"""State of a DSPy program, as `program.save("x.json")` writes it: the instructions of predictors.

The predictor is called `predict`, as that of ChainOfThought; a program finds its own by name.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.record.formats.prompt import read_texts
from engines.record.formats.source import Card, ForeignLibrary, Source, dump_json

MOVE = 'Give the state of a DSPy program: JSON whose predictors hold "signature"."instructions".'


def write(card: Card) -> bytes:
    signature = {"instructions": card.library.guidance(), "fields": []}
    empty: dict[str, Any] = {"traces": [], "train": [], "demos": [], "lm": None}
    # DSPy compares the versions named there with its own, and reads nothing else of it.
    metadata = {"dependency_versions": {}, "evaluation": card.data()}
    return dump_json({"predict": {**empty, "signature": signature}, "metadata": metadata})


def find_signatures(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the predictors of a state."""
    return {n: v for n, v in data.items() if isinstance(v, dict) and "signature" in v}


def read(path: Path) -> ForeignLibrary:
    source, texts, lost = Source(path, MOVE), {}, []
    data = source.json()
    for name, value in find_signatures(data).items():
        inside = f": {name[:60]}.signature"
        text = source.mapping(value["signature"], inside).get("instructions")
        texts[f"{inside}.instructions"] = source.string(text, f"{inside}.instructions")
        lost += [f"{name}: its {what}" for what in ("demos", "lm") if value.get(what)]
    if not texts:
        raise source.error("no predictor in it has instructions.")
    found, losses = read_texts(texts)
    metadata = data.get("metadata")
    card = metadata.get("evaluation") if isinstance(metadata, dict) else None
    return source.library("dspy", found, [*losses, *lost], card=card)
