"""A server on this machine that speaks what of vLLM's protocol rollouts use.

Its model is a table: which token comes next depends on the adapter, the seed and the place in
the reply, and its log-probabilities are those of a softmax over five logits.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from tests.support.fake_endpoint import Exchange, FakeEndpoint, fake_endpoint

BASE = "tiny-base"
END = 2
WORDS = {10: "one", 11: " two", 12: " three", 13: " four", END: ""}
LOGITS = (2.0, 1.0, 0.5, 0.0, -1.0)
"""Of the tokens in the order of WORDS."""


def logprob(token: int, temperature: float) -> float:
    scaled = [logit / temperature for logit in LOGITS]
    return scaled[list(WORDS).index(token)] - math.log(sum(map(math.exp, scaled)))


@dataclass(slots=True)
class FakeVLLM:
    """The server's flags and its memory."""

    processed: bool = False  # --logprobs-mode processed_logprobs
    runtime_loading: bool = True  # VLLM_ALLOW_RUNTIME_LORA_UPDATING
    gives: str = "ids"  # or "text" (no vLLM at all)
    adapters: dict[str, str] = field(default_factory=dict)
    endpoint: FakeEndpoint = field(default_factory=lambda: FakeEndpoint([]))

    @property
    def url(self) -> str:
        return self.endpoint.base_url

    def asked(self, path: str) -> list[dict[str, Any]]:
        """The bodies of the requests for a path, in order."""
        return [r.body for r in self.endpoint.requests if r.path == f"/v1/{path}"]

    async def answer(self, exchange: Exchange) -> None:
        body = exchange.request.body
        match exchange.request.path:
            case "/v1/models":
                names = [BASE, *self.adapters]
                await _json(exchange, 200, {"data": [{"id": name} for name in names]})
            case "/v1/load_lora_adapter" if self.runtime_loading:
                await self._load(exchange, body["lora_name"], body["lora_path"])
            case "/v1/unload_lora_adapter" if self.runtime_loading:
                del self.adapters[body["lora_name"]]
                await exchange.plain(200, b"Success: LoRA adapter removed successfully.")
            case "/v1/completions" if body["model"] in (BASE, *self.adapters):
                await _json(exchange, 200, self._completion(body))
            case _:
                message = f"{exchange.request.path} of {body.get('model')} does not exist."
                await _refuse(exchange, 404, message)

    async def _load(self, exchange: Exchange, name: str, path: str) -> None:
        if name in self.adapters:
            await _refuse(exchange, 400, f"The lora adapter '{name}' has already been loaded.")
        elif not (Path(path) / "adapter_config.json").is_file():
            await _refuse(exchange, 404, f"No adapter found for {path}")
        else:
            self.adapters[name] = path
            await exchange.plain(200, b"Success: LoRA adapter added successfully.")

    def _completion(self, body: dict[str, Any]) -> dict[str, Any]:
        start = sum(map(ord, body["model"])) + (body["seed"] or 0)
        words = [list(WORDS)[(start + place) % 4] for place in range(3)]
        ids = [*words, END][: body["max_tokens"]]
        seen = body["temperature"] if self.processed else 1.0
        scores: dict[str, Any] = {
            "token_logprobs": [logprob(token, seen) for token in ids],
            "tokens": [WORDS[token] for token in ids],
            "top_logprobs": [{"one": logprob(10, seen), "x": logprob(t, seen)} for t in ids],
        }
        choice: dict[str, Any] = {
            "index": 0,
            "text": "".join(WORDS[token] for token in ids),
            "finish_reason": "stop" if END in ids else "length",
            "logprobs": scores,
        }
        if self.gives == "ids":
            choice |= {"token_ids": ids, "prompt_token_ids": body["prompt"]}
        return {"model": body["model"], "choices": [choice]}


@contextlib.asynccontextmanager
async def fake_vllm(**flags: Any) -> AsyncIterator[FakeVLLM]:
    fake = FakeVLLM(**flags)
    async with fake_endpoint(fake.answer) as endpoint:
        fake.endpoint = endpoint
        yield fake


async def _json(exchange: Exchange, status: int, value: object) -> None:
    await exchange.plain(status, orjson.dumps(value))


async def _refuse(exchange: Exchange, status: int, message: str) -> None:
    await _json(exchange, status, {"error": {"message": message, "code": status}})
