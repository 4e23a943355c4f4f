"""The connection to a vLLM server: JSON out, JSON back, errors in words."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson

from engines.policies.chat.endpoint import EndpointFailed, EndpointSettings, is_transient
from engines.policies.chat.http import CONNECT_S, ssl_context
from engines.policies.chat.retry import retry_after_s
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

    async def ask(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The JSON object of the reply; {} where it is another text, as that of loading is.

        Raises EndpointFailed: no reply came, or an error status.
        """
        import httpx2

        own = self.endpoint
        url = f"{own.address.rstrip('/')}/{path}"
        method, content = ("GET", None) if body is None else ("POST", orjson.dumps(body))
        try:
            async with self._open_client().stream(method, url, content=content) as response:
                whole = await read_capped(response.aiter_bytes(), LINE_BYTES)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            text = f"no connection to {own.url}: {own.redact(str(error))}"
            raise EndpointFailed("refused", text, transient=True) from None
        except httpx2.TimeoutException:
            raise EndpointFailed("timeout", f"{own.url} fell silent", transient=True) from None
        except httpx2.HTTPError as error:
            text = f"the reply of {own.url} was cut: {own.redact(str(error))}"
            raise EndpointFailed("cut", text, transient=True) from None
        if not response.is_success:
            said = whole.decode("utf-8", "replace")
            raise EndpointFailed(
                "status",
                f"{response.status_code} from {own.url}: {own.redact(_error_message(said))}",
                transient=is_transient(response.status_code),
                status=response.status_code,
                wait_s=retry_after_s(response.headers, datetime.now(UTC)),
                body=said,
            )
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
            trust_env = not own.is_local  # no proxy stands between a machine and itself
            headers = {"content-type": "application/json", **own.headers}
            if own.api_key:
                headers["authorization"] = f"Bearer {own.api_key}"
            self._client = httpx2.AsyncClient(
                headers=headers,
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=256),
                timeout=httpx2.Timeout(self._silence_s, connect=CONNECT_S, pool=None),
                trust_env=trust_env,
                verify=ssl_context(trust_env),
            )
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
