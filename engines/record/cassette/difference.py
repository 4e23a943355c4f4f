"""Where what is asked parts from what was recorded, as a person reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from difflib import unified_diff
from itertools import takewhile
from typing import Any

from engines.core.types import CallKey

_MOST_LINES, _MOST_CHARS = 14, 200


def call_place(key: CallKey | None) -> str:
    """Which reply of a run a call is for, in words that count from 1."""
    if key is None:
        return "a call outside any run"
    parts = [f"step {key.step}"]
    if key.problem:
        parts = [f"held-out problem {key.problem}"]
    elif key.position >= 0:
        parts.append(f"problem {key.position + 1}")
    if key.index >= 0:
        parts.append(f"try {key.index + 1}")
    return ", ".join([*parts, f"turn {key.turn + 1} ({key.purpose})"])


def first_difference(recorded: Sequence[Mapping[str, Any]], asked: Mapping[str, Any]) -> str:
    """The first place, as in a unified diff, where a request differs from the nearest of those."""
    now = _request_lines(asked)

    def shared(before: list[str]) -> int:
        pairs = zip(before, now, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    nearest = max(map(_request_lines, recorded), key=shared)
    found = list(unified_diff(nearest, now, "recorded", "asked", n=1, lineterm=""))
    ends = [at for at, line in enumerate(found) if line.startswith("@@")][1:]
    shown = found[: min([*ends, _MOST_LINES])]
    return "\n".join(line[:_MOST_CHARS] + "…" * (len(line) > _MOST_CHARS) for line in shown)


def _request_lines(asked: Mapping[str, Any]) -> list[str]:
    """A request with its conversation first, since that is what people change."""
    out: list[str] = []
    for message in asked.get("messages", ()):
        rest = {k: v for k, v in message.items() if k not in ("role", "content", "token_ids")}
        out += [f"[{message['role']}]", *str(message.get("content", "")).splitlines()]
        out += [json.dumps(rest, ensure_ascii=False)] if rest else []
    others = {k: v for k, v in asked.items() if k != "messages"}
    return [*out, *json.dumps(others, indent=1, ensure_ascii=False, sort_keys=True).splitlines()]
