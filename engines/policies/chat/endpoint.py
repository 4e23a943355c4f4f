"""An endpoint: where a model answers, on what terms, and how a call to it can fail."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from engines.core.errors import CallFailed
from engines.core.text.masking import MASK, Mask
from engines.core.types import Usage

HOSTED = "https://api.openai.com/v1"
EXCERPT = 500
"""Characters of what an endpoint said that are worth showing."""


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """Where a model answers, and on what terms.

    Prices are US dollars for a million tokens; without both of them the cost of a call
    is unknown. `max_tokens` holds where a call sets no limit of its own.
    """

    model: str = ""
    base_url: str | None = None  # None: the hosted service
    api_key: str | None = field(default=None, repr=False)  # None: the endpoint wants none
    timeout_s: float = 120.0  # of a call, its retries included
    idle_s: float | None = None  # longest silence before a retry; None: only timeout_s
    max_retries: int = 4  # of a call that failed for a passing reason
    max_tokens: int | None = 4096
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    price_in_usd_per_mtok: float | None = None
    price_out_usd_per_mtok: float | None = None
    price_cached_usd_per_mtok: float | None = None  # of prompt tokens in a cache; None: as others
    replicas: tuple[str, ...] = ()  # further addresses of the same model

    @property
    def address(self) -> str:
        return self.base_url or HOSTED

    @property
    def url(self) -> str:
        """The address as it may be shown: without user, password and query."""
        parts = urlsplit(self.address)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")

    @property
    def is_local(self) -> bool:
        return urlsplit(self.address).hostname in ("localhost", "127.0.0.1", "::1")

    def redact(self, text: str) -> str:
        """Take out secrets, since some endpoints quote the key they refuse, and shorten."""
        text = text.encode("utf-8", "replace").decode()  # no journal takes lone surrogates
        parts = urlsplit(self.address)
        user, _, password = parts.netloc.rpartition("@")[0].partition(":")
        given = (self.api_key, *self.headers.values(), password or user, parts.query)
        text = Mask(secret for secret in given if secret)(text)
        for secret in given:
            if secret and len(secret) > 3:  # in what an endpoint says of a key, also short ones
                text = text.replace(secret, MASK)
        # Some show a key half hidden, as `sk-ab***yz`.
        return re.sub(r"\b(sk|pk)-[\w*.-]{12,}", r"\1-***", text)[:EXCERPT]

    def cost_usd(self, usage: Usage) -> float | None:
        price_in, price_out = self.price_in_usd_per_mtok, self.price_out_usd_per_mtok
        if price_in is None or price_out is None:
            return None
        cached = usage.cached_tokens if self.price_cached_usd_per_mtok is not None else 0
        paid = (usage.prompt_tokens - cached) * price_in + usage.completion_tokens * price_out
        return (paid + cached * (self.price_cached_usd_per_mtok or 0.0)) / 1e6


class EndpointFailed(CallFailed):
    """A failed call with what decides whether another try makes sense."""

    def __init__(
        self,
        kind: str,
        text: str,
        *,
        transient: bool,
        status: int | None = None,
        wait_s: float | None = None,
        body: str = "",
    ) -> None:
        super().__init__(kind, text)
        self.text = text
        self.transient = transient
        self.status = status
        self.wait_s = wait_s  # what the endpoint asked for; None: it named none
        self.body = body  # all it said


def is_transient(status: int) -> bool:
    """True for a status that another try may cure."""
    return status in (408, 409, 429) or status >= 500
