"""Whoever answers the calls of a handoff: here the rehearsal model, through the files alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from engines.core.types import Message, Sampling
from engines.policies.open import open_policy


def pending_calls(folder: Path) -> list[dict[str, Any]]:
    """The calls that have no answer, by name."""
    paths = sorted(folder.glob("*.call.json"))
    calls = [orjson.loads(path.read_bytes()) for path in paths]
    return [call for call in calls if not list(folder.glob(f"{call['id']}.answer.*"))]


async def answer_calls(
    folder: Path,
    order: random.Random,
    chosen: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] = lambda calls: calls,
) -> int:
    """Answer the chosen of the pending calls in a random order; returns how many."""
    policy = open_policy("rehearsal")
    calls = chosen(order.sample(waiting := pending_calls(folder), len(waiting)))
    for call in calls:
        asked = call["request"]
        messages = [Message(m["role"], m["content"]) for m in asked["messages"]]
        sampling = Sampling(asked["temperature"], None, asked["max_tokens"], seed=asked["seed"])
        made = await policy.complete(messages, sampling)
        counts = {
            "prompt_tokens": made.usage.prompt_tokens,
            "completion_tokens": made.usage.completion_tokens,
        }
        answer = {"id": call["id"], "text": made.text, "model": made.model, "usage": counts}
        (folder / f"{call['id']}.answer.json").write_bytes(orjson.dumps(answer))
    await policy.aclose()
    return len(calls)
