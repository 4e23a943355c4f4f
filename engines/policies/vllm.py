"""Rollouts from vLLM servers that answer with the adapter they were given last.

Owns the requests: exact prompt ids out, sampled ids and their log-probabilities back, adapters
in. A server must be started with `--enable-lora` and `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True`, and
must see the folders that adapters are written to. Replies are read tolerant of where ids stand,
since versions differ; never of their absence.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, FiniteFloat, ValidationError

from engines.core import protocols, waiting
from engines.core.errors import CallFailed, PolicyError
from engines.core.frozen import frozen
from engines.core.types import Completion, Message, Sampling, Tell, Usage, meaning_of
from engines.policies.chat import client, retry
from engines.policies.chat.endpoint import EndpointClient, EndpointFailed, EndpointSettings

Encode = Callable[[Sequence[Message], Sequence[Mapping[str, Any]]], list[int]]
"""The ids of messages and of the tools on offer, as the policy that is trained is shown them."""

START = (
    "Start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True set and "
    "`vllm serve MODEL --enable-lora --max-lora-rank RANK`."
)
LOAD_S = 300.0
"""Of one adapter; the first one may compile kernels."""
SAME = 1e-4
"""Two log-probabilities of one token nearer than this are taken as one."""


class _Scores(BaseModel):
    token_logprobs: list[FiniteFloat]
    top_logprobs: list[dict[str, FiniteFloat] | None] | None = None


class _Choice(BaseModel):
    text: str
    token_ids: list[int] = Field(min_length=1)
    logprobs: _Scores
    finish_reason: str | None = None
    prompt_token_ids: list[int] | None = None


class ScoredReply(BaseModel):
    """A completion with what training needs of it."""

    choices: list[_Choice] = Field(min_length=1, max_length=1)
    model: str = ""


@frozen
class RolloutServer:
    """A vLLM server, with its replicas, and what of the trained model its requests need.

    `endpoint.model` is the base model's name as the servers have it; "" for the first one that
    they list.
    """

    endpoint: EndpointSettings
    encode: Encode
    window: int | None = None  # positions of the model; None: not limited here
    temperature: float = 1.0  # of practice; `ping` checks that its log-probabilities are right


class VLLMRollouts:
    """A policy whose replies come from vLLM servers, as ids; each of them has every adapter.

    Log-probabilities are kept only where they are those of the sampling policy: at temperature
    1, or where servers were started with `--logprobs-mode processed_logprobs`, which `ping`
    measures. Elsewhere they are left empty, and with them nothing is claimed.

    Every adapter is loaded under a name that follows from its content, and the one before it is
    unloaded. Loading in place under one name let vLLM reuse the prefix cache of the old weights
    (vllm-project/vllm#42125) and read the files again at every step (NovaSky-AI/SkyRL#1606).

    `name` is part of every request's hash; `tell` is told what fails without harm.
    """

    def __init__(
        self,
        server: RolloutServer,
        *,
        name: str,
        tell: Tell,
        sleep: retry.Sleep = asyncio.sleep,
    ) -> None:
        self.server = server
        self.adapter: str | None = None  # None: the base model answers
        self.name = name
        self._tell, self._sleep = tell, sleep
        own = server.endpoint
        # An adapter may take long to load, and the server is silent meanwhile.
        self._servers = [
            EndpointClient(replace(own, base_url=url, idle_s=LOAD_S), name)
            for url in (own.base_url, *own.replicas)
        ]
        self._replicas = client.Replicas(len(self._servers))
        self._base = own.model
        self._processed = False  # measured by `ping` where practice has another temperature

    async def complete(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        on_text: protocols.OnText | None = None,
    ) -> Completion:
        """Answer once, with retries, within the endpoint's `timeout_s`.

        The reply is not streamed: `on_text` hears it whole.
        """
        ids, own = self.server.encode(messages, sampling.tools), self.server.endpoint

        async def try_once() -> ScoredReply:
            with self._replicas.take(messages) as chosen:
                return await self._ask(self._servers[chosen.place], ids, sampling)

        try:
            reply = await retry.retry_call(
                try_once, own, seed=sampling.seed or 0, about=str(ids[-8:]), sleep=self._sleep
            )
        except CallFailed as failed:
            if failed.kind == "timeout" and not isinstance(failed, EndpointFailed):
                failed.usage = Usage(len(ids), 0, 1)  # the prompt at least was worked on
            raise
        (choice,) = reply.choices
        text = choice.text.encode("utf-8", "replace").decode()
        if on_text is not None and text:
            on_text(text)
        usage = Usage(len(ids), len(choice.token_ids), 1)
        scores = choice.logprobs.token_logprobs if self._has_policy_scores(sampling) else ()
        return Completion(
            text=text,
            finish=choice.finish_reason or "stop",
            usage=replace(usage, cost_usd=own.cost_usd(usage)),
            model=reply.model or self.adapter or self._base,
            token_ids=tuple(choice.token_ids),
            logprobs=tuple(scores),
            prompt_ids=tuple(ids),
        )

    async def serve_adapter(self, name: str, folder: Path) -> None:
        """Have every later request answered with an adapter in PEFT's form.

        No other content ever has its name. The folder must stay until another one is served.

        Raises PolicyError: the server does not take it; requests go on naming the one before.
        """
        before = self.adapter
        if name == before:
            return
        await waiting.gather_all(self._load(server, name, folder) for server in self._servers)
        self.adapter = name
        if before is not None:
            await waiting.gather_all(self._unload(server, before) for server in self._servers)

    async def _load(self, server: EndpointClient, name: str, folder: Path) -> None:
        body = {"lora_name": name, "lora_path": str(folder.resolve())}
        try:
            async with waiting.deadline(LOAD_S):
                await server.fetch("load_lora_adapter", body)
        except (EndpointFailed, TimeoutError) as failed:
            said = f"{failed} {getattr(failed, 'body', '')}"
            if "already been loaded" not in said:  # by an earlier process, the content the same
                raise PolicyError(
                    server.place,
                    f"the server did not take the adapter in {folder} ({_reason_text(failed)}).",
                    f"See that --max-lora-rank is at least the adapter's rank and that the server "
                    f"sees the folder; its log says more. {START}",
                ) from None

    async def _unload(self, server: EndpointClient, name: str) -> None:
        try:
            await server.fetch("unload_lora_adapter", {"lora_name": name})
        except EndpointFailed as failed:
            self._tell(f"the adapter {name} stays on the server ({_reason_text(failed)})")

    async def ping(self) -> None:
        """Sample one token, so that what training needs of a reply is known to come back.

        Raises PolicyError: the server does not answer, or not with ids and log-probabilities, or
        these are not the sampling policy's.
        """
        await waiting.gather_all(self._ping(server) for server in self._servers)

    async def _ping(self, server: EndpointClient) -> None:
        ids = self.server.encode((Message("user", "Name a number."),), ())
        temperature = self.server.temperature
        try:
            async with asyncio.timeout(client.PING_S):
                await self._ask(server, ids, Sampling(temperature, max_tokens=1, seed=1))
                self._processed = temperature != 1.0 and await self._is_temperature_applied(
                    server, ids
                )
        except (CallFailed, TimeoutError) as failed:
            raise PolicyError(
                server.place,
                f"{_reason_text(failed)}.",
                f"It must be vLLM 0.10.2 or newer, and rollouts_url must end in /v1. {START}",
            ) from None
        if temperature != 1.0 and not self._processed:
            raise PolicyError(
                server.place,
                f"its log-probabilities are those of temperature 1, and practice samples at "
                f"{temperature:g}.",
                "Start vLLM with --logprobs-mode processed_logprobs, or practise at temperature 1.",
            )

    async def aclose(self) -> None:
        for server in self._servers:
            await server.aclose()

    def _has_policy_scores(self, sampling: Sampling) -> bool:
        """Whether log-probabilities are log_softmax(logits / T) without cuts."""
        if sampling.top_p not in (None, 1.0) or not sampling.temperature:
            return False
        return sampling.temperature == 1.0 or self._processed

    async def _is_temperature_applied(self, server: EndpointClient, ids: list[int]) -> bool:
        """Whether temperature shows in log-probabilities: it never does in vLLM's default mode.

        The likeliest next token is asked for at two temperatures; a doubtful answer (a token
        that is certain at both) counts as the default mode.
        """
        best = []
        for temperature in (1.0, 3.0):
            reply = await self._ask(server, ids, Sampling(temperature, max_tokens=1, seed=1))
            tops = reply.choices[0].logprobs.top_logprobs
            best.append(max((tops[0] or {}).values(), default=0.0) if tops else 0.0)
        return abs(best[0] - best[1]) > SAME

    async def _ask(self, server: EndpointClient, ids: list[int], sampling: Sampling) -> ScoredReply:
        body = self._request_body(ids, sampling, await self._model_name(server))
        return parse_reply(await server.fetch("completions", body), ids)

    def _request_body(self, ids: list[int], sampling: Sampling, model: str) -> dict[str, Any]:
        own, window = self.server.endpoint, self.server.window
        room = None if window is None else window - len(ids)
        limits = [n for n in (sampling.max_tokens or own.max_tokens or None, room) if n is not None]
        limit = min(limits, default=4096)  # vLLM's own default is 16
        if limit < 1:
            raise CallFailed("too long", f"a prompt of {len(ids)} tokens fills the window")
        return {
            "model": model,
            "prompt": ids,
            "max_tokens": limit,
            "temperature": 1.0 if sampling.temperature is None else sampling.temperature,
            "stop": list(sampling.stop),
            "seed": sampling.seed,
            # Whatever is not said here vLLM takes from the model's generation_config.json, and
            # Qwen's cuts at top_k 20: what was sampled would not be the policy's.
            "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "n": 1,
            "stream": False,
            "add_special_tokens": False,
            "logprobs": 1,
            "return_token_ids": True,
            **own.extra_body,
        }

    async def _model_name(self, server: EndpointClient) -> str:
        """What requests name: the adapter, else the base model."""
        if self.adapter is None and not self._base:
            models = client.parse_listing(await server.fetch("models"))
            if not models:
                raise CallFailed("shape", f"{server.settings.url} lists no model")
            self._base = next(iter(models))
        return self.adapter or self._base


def _reason_text(failed: BaseException) -> str:
    """Without the word for its kind and the full stop at its end."""
    text = str(failed) or "nothing came in time"
    return (text.partition(": ")[2] or text).rstrip(".")


def parse_reply(body: bytes, prompt_ids: Sequence[int]) -> ScoredReply:
    """Read a reply with one choice, whose scores are aligned with its ids.

    Raises CallFailed: something is missing or does not fit; the kind is "shape".
    """
    try:
        reply = ScoredReply.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise _shape_failure(f"{place}: {first['msg']}") from None
    (choice,) = reply.choices
    scores = choice.logprobs.token_logprobs
    if len(choice.token_ids) != len(scores):
        raise _shape_failure(f"{len(choice.token_ids)} token ids with {len(scores)} scores")
    if choice.prompt_token_ids not in (None, list(prompt_ids)):
        raise _shape_failure("the model was shown other ids than it was sent")
    if meaning_of(choice.finish_reason or "") == "broken":
        text = f"the server ended the reply with {choice.finish_reason!r}"
        raise EndpointFailed("cut", text, transient=True)
    return reply


def _shape_failure(cause: str) -> EndpointFailed:
    """Not worth another try: the server would answer so again."""
    text = f"the reply lacks ids or log-probabilities that training can use ({cause})"
    return EndpointFailed("shape", text, transient=False)
