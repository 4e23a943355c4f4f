"""Rollouts from vLLM servers that answer with the adapter they were given last.

Owns the requests: exact prompt ids out, sampled ids and their log-probabilities back, adapters
in. A server must be started with `--enable-lora` and `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True`, and
must see the folders that adapters are written to. Replies are read tolerant of where ids stand,
since versions differ; never of their absence.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from engines.core.errors import CallFailed, PolicyError
from engines.core.protocols import OnText
from engines.core.types import Completion, Message, Sampling, Usage, meaning_of
from engines.core.waiting import deadline, gather_all
from engines.policies.chat.client import PING_S, Replicas
from engines.policies.chat.endpoint import (
    CONNECT_S,
    LINE_BYTES,
    EndpointFailed,
    EndpointSettings,
    failure_of,
    http_client,
    read_capped,
    status_failure,
)
from engines.policies.chat.retry import RetryPolicy, Sleep, retry_call

if TYPE_CHECKING:
    import httpx2


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


class VLLMServer:
    """One server over one client. `silence_s` is the longest wait for its next byte."""

    def __init__(self, endpoint: EndpointSettings, silence_s: float) -> None:
        self.endpoint = endpoint
        self._silence_s = silence_s
        self._client: httpx2.AsyncClient | None = None

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def ask(
        self, path: str, body: Mapping[str, Any] | None = None, *, under: str = "/v1"
    ) -> dict[str, Any]:
        """The JSON object of the reply; {} where it is another text, as that of loading is.

        With `under` empty the path is one of the server's own, beside those of OpenAI's protocol.

        Raises EndpointFailed: no reply came, or an error status.
        """
        import httpx2

        own = self.endpoint
        address = own.address.rstrip("/")
        url = f"{address if under else address.removesuffix('/v1')}/{path}"
        method, content = ("GET", None) if body is None else ("POST", orjson.dumps(body))
        try:
            async with self._open_client().stream(method, url, content=content) as response:
                whole = await read_capped(response.aiter_bytes(), LINE_BYTES)
        except httpx2.HTTPError as error:
            raise failure_of(own, error) from None
        if not response.is_success:
            said = whole.decode("utf-8", "replace")
            raise status_failure(own, response, _error_message(said), said)
        with suppress(orjson.JSONDecodeError):
            read = orjson.loads(whole)
            if isinstance(read, dict):
                return read
        return {}

    def _open_client(self) -> httpx2.AsyncClient:
        """The client, made at first use: importing it takes a while."""
        if self._client is None:
            import httpx2

            own = self.endpoint
            headers = {"content-type": "application/json", **own.headers}
            if own.api_key:
                headers["authorization"] = f"Bearer {own.api_key}"
            timeout = httpx2.Timeout(self._silence_s, connect=CONNECT_S, pool=None)
            self._client = http_client(own, timeout, headers=headers)
        return self._client


def _error_message(said: str) -> str:
    """Of an error: `{"error": {"message": …}}`, in older versions `{"message": …}`."""
    try:
        read = orjson.loads(said)
    except orjson.JSONDecodeError:
        return said
    inner = read.get("error", read) if isinstance(read, dict) else None
    message = inner.get("message") if isinstance(inner, dict) else inner
    return message if isinstance(message, str) else said


@dataclass(frozen=True, slots=True)
class ScoredReply:
    """`logprobs` are aligned with `token_ids`, the end-of-turn token among them."""

    text: str
    finish: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    model: str = ""


def parse_reply(body: Mapping[str, Any], prompt_ids: Sequence[int]) -> ScoredReply:
    """Read the one choice of a reply.

    Raises CallFailed: something is missing or does not fit; the kind is "shape".
    """
    choice = _parse_choice(body)
    ids = _parse_ids(choice)
    scores = _as_mapping(choice.get("logprobs")).get("token_logprobs")
    if ids is None:
        raise _shape_failure("no token ids came back", "return_token_ids is not honoured")
    if not isinstance(scores, Sequence) or not all(_is_finite(score) for score in scores):
        raise _shape_failure("no log-probabilities came back", "the field logprobs is not honoured")
    if len(ids) != len(scores):
        raise _shape_failure(
            f"{len(ids)} token ids came back", f"with {len(scores)} log-probabilities"
        )
    shown = choice.get("prompt_token_ids", body.get("prompt_token_ids"))
    if shown is not None and list(shown) != list(prompt_ids):
        raise _shape_failure("the model was shown other ids than it was sent", "tokenizers differ")
    text, finish = choice.get("text"), choice.get("finish_reason")
    if not isinstance(text, str):
        raise _shape_failure("no text came back", "this is no completion")
    if not ids:
        raise CallFailed("shape", "the reply is empty")
    if meaning_of(str(finish or "")) == "broken":
        raise EndpointFailed("cut", f"the server ended the reply with {finish!r}", transient=True)
    return ScoredReply(
        text=text.encode("utf-8", "replace").decode(),
        finish=str(finish or "stop"),
        token_ids=ids,
        logprobs=tuple(float(score) for score in scores),
        model=str(body.get("model") or ""),
    )


def parse_top_logprob(body: Mapping[str, Any]) -> float:
    """The log-probability of the likeliest first token. Raises CallFailed: it is not there."""
    tops = _as_mapping(_parse_choice(body).get("logprobs")).get("top_logprobs")
    first = _as_mapping(tops[0]) if isinstance(tops, Sequence) and tops else {}
    known = [value for value in first.values() if _is_finite(value)]
    if not known:
        raise _shape_failure("no log-probabilities came back", "the field logprobs is not honoured")
    return float(max(known))


def _parse_choice(body: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = body.get("choices")
    if not isinstance(choices, Sequence) or len(choices) != 1:
        raise _shape_failure("no choice came back", "this is no completion")
    return _as_mapping(choices[0])


def _parse_ids(choice: Mapping[str, Any]) -> tuple[int, ...] | None:
    ids = choice.get("token_ids")
    if isinstance(ids, Sequence) and all(type(token) is int for token in ids):
        return tuple(ids)
    return None


def _as_mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _shape_failure(what: str, why: str) -> EndpointFailed:
    """Not worth another try: the server would answer so again."""
    return EndpointFailed("shape", f"{what} ({why})", transient=False)
