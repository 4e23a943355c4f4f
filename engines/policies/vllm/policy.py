"""Rollouts from vLLM servers that answer with the adapter they were given last.

Owns the requests: exact prompt ids out, sampled ids and their log-probabilities back, adapters
in. A server must be started with `--enable-lora` and `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True`, and
must see the folders that adapters are written to.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engines.core.errors import CallFailed, PolicyError
from engines.core.protocols import OnText
from engines.core.types import Completion, Message, Sampling, Usage
from engines.core.waiting.deadline import deadline
from engines.core.waiting.gather import gather_all
from engines.policies.chat.client import PING_S
from engines.policies.chat.endpoint import EndpointFailed, EndpointSettings
from engines.policies.chat.replicas import Replicas
from engines.policies.chat.retry import RetryPolicy, Sleep, retry_call
from engines.policies.vllm.connection import ScoredReply, VLLMServer, parse_reply, parse_top_logprob

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


@dataclass(frozen=True, slots=True)
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
    1, or where servers were started with `--logprobs-mode processed_logprobs`, which is
    measured once. Elsewhere they are left empty, and with them nothing is claimed.

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
        tell: Callable[[str], None],
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.server = server
        self.adapter: str | None = None  # None: the base model answers
        self.name = name
        self._tell, self._sleep = tell, sleep
        own = server.endpoint
        self._servers = [
            VLLMServer(replace(own, base_url=url, replicas=()), LOAD_S)
            for url in (own.base_url, *own.replicas)
        ]
        self._replicas = Replicas(len(self._servers))
        self._base = own.model
        self._awake = asyncio.Event()
        self._awake.set()
        self._under_way = 0
        self._idle = asyncio.Condition()
        self._processed: dict[VLLMServer, bool] = {}  # as far as measured
        self._measuring = asyncio.Lock()  # so that a hundred first calls measure once

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        """Answer once, with retries, within the endpoint's `timeout_s`.

        The reply is not streamed: `on_text` hears it whole.
        """
        ids = self.server.encode(messages, sampling.tools)
        try:
            async with self._while_awake():
                reply, true_to = await self._sample(messages, ids, sampling)
        except CallFailed as failed:
            if failed.kind == "timeout" and not isinstance(failed, EndpointFailed):
                failed.usage = Usage(len(ids), 0, 1)  # the prompt at least was worked on
            raise
        if on_text is not None and reply.text:
            on_text(reply.text)
        usage = Usage(len(ids), len(reply.token_ids), 1)
        return Completion(
            text=reply.text,
            finish=reply.finish,
            usage=replace(usage, cost_usd=self.server.endpoint.cost_usd(usage)),
            model=reply.model or self.adapter or self._base,
            token_ids=reply.token_ids,
            logprobs=reply.logprobs if true_to else (),
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
        await gather_all(self._load(server, name, folder) for server in self._servers)
        self.adapter = name
        if before is not None:
            await gather_all(self._unload(server, before) for server in self._servers)

    @asynccontextmanager
    async def asleep(self) -> AsyncIterator[None]:
        """The servers' memory is free for the time of the block; calls wait until it is over.

        Raises PolicyError: a server cannot sleep.
        """
        self._awake.clear()
        try:
            async with self._idle:
                await self._idle.wait_for(lambda: not self._under_way)
            # Level 1 keeps the weights in the memory of the CPU, the adapters among them.
            await self._switch("sleep?level=1")
            try:
                yield
            finally:
                await self._switch("wake_up")
        finally:
            self._awake.set()

    async def _switch(self, path: str) -> None:
        async def ask(server: VLLMServer) -> None:
            try:
                await server.ask(path, {}, under="")
            except EndpointFailed as failed:
                raise PolicyError(
                    self._place(server),
                    f"it does not do {path.partition('?')[0]} ({_reason_text(failed)}).",
                    "Start it with VLLM_SERVER_DEV_MODE=1 and --enable-sleep-mode, or write "
                    "policy.local.rollouts_sleep: false.",
                ) from None

        await gather_all(ask(server) for server in self._servers)

    @asynccontextmanager
    async def _while_awake(self) -> AsyncIterator[None]:
        await self._awake.wait()
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            async with self._idle:
                self._idle.notify_all()

    async def _load(self, server: VLLMServer, name: str, folder: Path) -> None:
        body = {"lora_name": name, "lora_path": str(folder.resolve())}
        try:
            async with deadline(LOAD_S):
                await server.ask("load_lora_adapter", body)
        except (EndpointFailed, TimeoutError) as failed:
            said = f"{failed} {getattr(failed, 'body', '')}"
            if "already been loaded" not in said:  # by an earlier process, the content the same
                raise PolicyError(
                    self._place(server),
                    f"the server did not take the adapter in {folder} "
                    f"({_reason_text(failed) or f'nothing within {LOAD_S:g} s'}).",
                    _loading_move_text(failed),
                ) from None

    async def _unload(self, server: VLLMServer, name: str) -> None:
        try:
            await server.ask("unload_lora_adapter", {"lora_name": name})
        except EndpointFailed as failed:
            self._tell(f"the adapter {name} stays on the server ({_reason_text(failed)})")

    async def ping(self) -> None:
        """Sample one token, so that what training needs of a reply is known to come back.

        Raises PolicyError: the server does not answer, or not with ids and log-probabilities, or
        these are not the sampling policy's.
        """
        await gather_all(self._ping(server) for server in self._servers)

    async def _ping(self, server: VLLMServer) -> None:
        ids = self.server.encode((Message("user", "Say OK."),), ())
        sampling = Sampling(self.server.temperature, max_tokens=1, seed=1)
        try:
            async with asyncio.timeout(PING_S):
                body = self._request_body(ids, sampling, await self._model_name(server))
                await _try(server, body)
                right = await self._has_policy_scores(server, sampling)
        except (CallFailed, TimeoutError) as failed:
            cause = _reason_text(failed) or f"nothing came within {PING_S:g} s"
            raise PolicyError(self._place(server), f"{cause}.", _move_text(failed)) from None
        if not right:
            raise PolicyError(
                self._place(server),
                "its log-probabilities are those of temperature 1, and practice samples at "
                f"{self.server.temperature:g}.",
                "Start vLLM with --logprobs-mode processed_logprobs, or practise at temperature 1.",
            )

    async def aclose(self) -> None:
        for server in self._servers:
            await server.aclose()

    def _place(self, server: VLLMServer) -> str:
        return f"policy {self.name} at {server.endpoint.url}"

    async def _sample(
        self, messages: Sequence[Message], ids: list[int], sampling: Sampling
    ) -> tuple[ScoredReply, bool]:
        """One reply, and whether its log-probabilities are those of the sampling policy."""
        own = self.server.endpoint

        async def try_once() -> tuple[ScoredReply, bool]:
            with self._replicas.take(messages) as chosen:
                server = self._servers[chosen.place]
                body = self._request_body(ids, sampling, await self._model_name(server))
                return await _try(server, body), await self._has_policy_scores(server, sampling)

        policy = RetryPolicy(
            url=own.url,
            limit_s=own.timeout_s,
            max_retries=own.max_retries,
            seed=sampling.seed or 0,
            about=str(ids[-8:]),
            sleep=self._sleep,
        )
        return await retry_call(try_once, policy)

    async def _has_policy_scores(self, server: VLLMServer, sampling: Sampling) -> bool:
        """Whether the server's log-probabilities are log_softmax(logits / T) without cuts."""
        if sampling.top_p not in (None, 1.0) or not sampling.temperature:
            return False
        if sampling.temperature == 1.0:
            return True
        async with self._measuring:
            if server not in self._processed:
                self._processed[server] = await self._is_temperature_applied(server)
        return self._processed[server]

    async def _is_temperature_applied(self, server: VLLMServer) -> bool:
        """Whether temperature shows in log-probabilities: it never does in vLLM's default mode.

        The likeliest next token is asked for at two temperatures; a doubtful answer (a token
        that is certain at both) counts as the default mode.
        """
        ids = self.server.encode((Message("user", "Name a number."),), ())
        model = await self._model_name(server)

        async def ask(temperature: float) -> float:
            body = self._request_body(ids, Sampling(temperature, max_tokens=1, seed=1), model)
            return parse_top_logprob(await server.ask("completions", body))

        return abs(await ask(1.0) - await ask(3.0)) > SAME

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
            "return_tokens_as_token_ids": True,  # ids from servers that know only this
            **own.extra_body,
        }

    async def _model_name(self, server: VLLMServer) -> str:
        """What requests name: the adapter, else the base model."""
        if self.adapter is None and not self._base:
            listed = (await server.ask("models")).get("data")
            rows = listed if isinstance(listed, list) else []
            named = [row["id"] for row in rows if isinstance(row, dict) and "id" in row]
            if not named:
                raise CallFailed("shape", f"{server.endpoint.url} lists no model")
            self._base = str(named[0])
        return self.adapter or self._base


async def _try(server: VLLMServer, body: Mapping[str, Any]) -> ScoredReply:
    return parse_reply(await server.ask("completions", body), body["prompt"])


def _reason_text(failed: BaseException) -> str:
    """Without the word for its kind and the full stop at its end."""
    text = str(failed)
    return (text.partition(": ")[2] or text).rstrip(".")


def _loading_move_text(failed: BaseException) -> str:
    status = getattr(failed, "status", None)
    if status in (404, 405):
        return START
    if status in (400, 422, 500):
        return (
            "See that --max-lora-rank is at least the adapter's rank and that the server sees the "
            "folder; its log says more."
        )
    return _move_text(failed)


def _move_text(failed: BaseException) -> str:
    kind = str(failed).partition(": ")[0]
    if kind == "status" and getattr(failed, "status", None) == 404:
        return "Check the address, which ends in /v1, and the served model's name."
    moves = {
        "shape": "It must be vLLM 0.10.2 or newer, and rollouts_url must end in /v1.",
        "refused": START,
        "timeout": "See whether the server still loads the model; try again.",
    }
    return moves.get(kind, "Look at the server's log.")
