"""What an endpoint says of the models that it offers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

_WINDOWS = (
    *("max_model_len", "context_length", "context_window", "max_context_length", "n_ctx"),
    "n_ctx_train",
)
"""vLLM and SGLang; OpenRouter and Together; Groq; Mistral and LM Studio; llama.cpp."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Models by name with their context in tokens, None where it is not told."""

    contexts: Mapping[str, int | None] = field(default_factory=dict)


def parse_listing(body: bytes) -> dict[str, int | None]:
    """The models of a reply to `GET /models`; none where it is no list of them."""
    try:
        whole = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    rows = whole.get("data") if isinstance(whole, dict) else None
    named = rows if isinstance(rows, list) else []
    return {str(row["id"]): _window(row) for row in named if isinstance(row, dict) and "id" in row}


def _window(row: Mapping[str, Any]) -> int | None:
    inner = row.get("meta")
    places = [row, inner] if isinstance(inner, dict) else [row]
    told = (place.get(name) for name in _WINDOWS for place in places)
    return next((n for n in told if isinstance(n, int) and n > 0), None)
