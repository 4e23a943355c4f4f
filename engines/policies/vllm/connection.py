"""The connection to a vLLM server: JSON out, JSON back, errors in words.

Replies are read tolerant of where ids stand, since versions differ; never of their absence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from engines.core.errors import CallFailed
from engines.core.finish import meaning_of
from engines.policies.chat.endpoint import EndpointFailed, EndpointSettings
from engines.policies.chat.http import CONNECT_S, failure_of, http_client, status_failure
from engines.policies.chat.size_limits import LINE_BYTES, read_capped

if TYPE_CHECKING:
    import httpx2


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


_ID = "token_id:"
"""How a token is written where `return_tokens_as_token_ids` was asked for."""


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
    plain = choice.get("token_ids")
    if isinstance(plain, Sequence) and all(type(one) is int for one in plain):
        return tuple(plain)
    named = _as_mapping(choice.get("logprobs")).get("tokens")
    if not isinstance(named, Sequence):
        return None
    cut = [str(one).removeprefix(_ID) for one in named if str(one).startswith(_ID)]
    return tuple(map(int, cut)) if len(cut) == len(named) and all(map(str.isdigit, cut)) else None


def _as_mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _shape_failure(what: str, why: str) -> EndpointFailed:
    """Not worth another try: the server would answer so again."""
    return EndpointFailed("shape", f"{what} ({why})", transient=False)
