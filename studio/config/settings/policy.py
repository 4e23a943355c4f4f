"""Settings of a model, and of the endpoint or the weights behind it.

Owns what an address, a key and a header may hold.
"""

import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from engines.core.settings import COUNT, MAX_COUNT
from engines.policies.chat.endpoint import EndpointSettings
from engines.policies.hf_local.settings import LocalSettings
from engines.policies.open import is_scripted
from studio.config.settings.base import Float, Int, Settings, as_list, as_section, key, refusal

REFLECTOR_TEMPERATURE = 0.3  # lessons should vary little, but a repair must differ
CHOICE_TEMPERATURE = 1.0  # where one of several is chosen, they must differ
JUDGE_TEMPERATURE = 0.0

WATCHABLE_TOKENS_PER_S = 40.0
"""Pace of scripted replies on a screen: a batch of the rehearsal preset takes about 4 s."""

_ENDPOINT = EndpointSettings()  # its defaults are ours
_PRICE: dict[str, Any] = {"ge": 0, "examples": [0.15]}

Role = Literal["policy", "reflector", "judge"]


def _check_printable(value: SecretStr) -> SecretStr:
    """Refuse what no line of an HTTP request can carry."""
    text = value.get_secret_value()
    if not text.isascii():
        raise ValueError("it holds a character that is not ASCII, which no header can carry")
    if not text.isprintable():
        raise ValueError("it holds a control character, which no header can carry")
    return value


def check_address(value: str) -> str:
    """Refuse what is no address, before a client fails on it."""
    if not value.startswith(("http://", "https://")):
        raise ValueError("it must begin with http:// or https://")
    if not value.isascii() or not value.isprintable() or " " in value:
        raise ValueError("it holds a blank, a control or a character that is not ASCII")
    try:
        parts = urlsplit(value)
        parts.port  # noqa: B018  (raises where it is none)
    except ValueError as error:
        raise ValueError(f"it is no address ({error})") from None
    if not parts.hostname:
        raise ValueError("it names no host")
    return value


_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def check_headers(value: dict[str, SecretStr]) -> dict[str, SecretStr]:
    """Refuse what no request can carry."""
    for name, text in value.items():
        if not _HEADER.fullmatch(name):
            raise ValueError(f"{name!r} cannot be the name of a header")
        try:
            _check_printable(text)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return value


Address = Annotated[str, AfterValidator(check_address)]
Headers = Annotated[dict[str, SecretStr], AfterValidator(check_headers)]
ApiKey = Annotated[SecretStr, AfterValidator(_check_printable)]


class PolicyConfig(Settings):
    """A model and how it is reached. A plain text stands for {model: text}."""

    model: str = Field(
        min_length=1,
        description="rehearsal, openai:MODEL, hf:PATH_OR_NAME (hf:tiny is bundled), replay:FILE "
        "(a log of rollouts) or handoff:DIR (calls wait in a folder for whoever answers them)",
        examples=["openai:gpt-4o-mini"],
    )
    adapter: str | None = key(
        None,
        "folder of a LoRA adapter of hf:…, run:RUN for its newest checkpoint, or run:RUN@STEP",
        min_length=1,
        examples=["run:grpo-tiny"],
    )
    local: Annotated[LocalSettings, as_section(LocalSettings)] = LocalSettings()
    base_url: Address | None = key(
        None,
        "address of openai:MODEL; null: $OPENAI_BASE_URL, else the hosted service",
        examples=["http://localhost:11434/v1"],
    )
    replicas: Annotated[tuple[Address, ...], BeforeValidator(as_list)] = key(
        (),
        "further addresses with the same model and key; a call goes to the least busy one, what "
        "begins alike to the same, and one that fails is left out for a while",
        examples=["'[http://node2:8000/v1, http://node3:8000/v1]'"],
    )
    api_key: ApiKey | None = key(
        None,
        "key of that address, best as ${oc.env:NAME}; null: $OPENAI_API_KEY",
        examples=["'${oc.env:OPENAI_API_KEY}'"],
    )
    temperature: Float | None = key(
        None,
        "how much replies vary; null: practice.temperature for rollouts, "
        f"{REFLECTOR_TEMPERATURE} for the reflector ({CHOICE_TEMPERATURE} where "
        f"practice.proposals is above 1), {JUDGE_TEMPERATURE} for the judge",
        ge=0,
        le=10,
        examples=[0.7],
    )
    top_p: Float | None = key(
        None,
        "share of the likeliest tokens to sample from; null: the endpoint's default",
        gt=0,
        le=1,
        examples=[0.95],
    )
    max_tokens: Int | None = key(
        None, "tokens of one reply at most; null: the endpoint's default", ge=1, examples=[2048]
    )
    timeout_s: Float = key(_ENDPOINT.timeout_s, "deadline of one call, retries included", gt=0)
    max_retries: Int = key(
        _ENDPOINT.max_retries,
        "repeats of a call that failed for a passing reason",
        ge=0,
        le=MAX_COUNT,
    )
    concurrency: Int | None = key(
        None,
        "calls at a time to this role; null: shares practice.concurrency",
        examples=[8],
        **COUNT,
    )
    extra_body: dict[str, Any] = key(
        {}, "further fields of the request", repr=False, examples=["'{reasoning_effort: low}'"]
    )
    headers: Headers = key({}, "further headers of the request", examples=["'{X-Team: practice}'"])
    price_in_usd_per_mtok: Float | None = key(
        None, "US dollars for a million prompt tokens; null: costs are not shown", **_PRICE
    )
    price_out_usd_per_mtok: Float | None = key(
        None, "US dollars for a million reply tokens; null: costs are not shown", **_PRICE
    )
    price_cached_usd_per_mtok: Float | None = key(
        None,
        "US dollars for a million prompt tokens that the endpoint had in a cache; null: as others",
        **_PRICE,
    )
    pace_tokens_per_s: Float | None = key(
        None,
        "tokens a second at which scripted rollouts stream; null: at once, or "
        f"{WATCHABLE_TOKENS_PER_S:g} for a screen",
        gt=0,
        examples=[40],
    )

    @model_validator(mode="after")
    def _validate_pace(self) -> "PolicyConfig":
        if self.pace_tokens_per_s is not None and not is_scripted(self.model):
            raise refusal(
                "pace_tokens_per_s",
                "a real model streams at its own pace",
                "Leave it out; rehearsal and replay:FILE have a pace.",
            )
        return self


class EmbeddingConfig(Settings):
    """A model that places texts by their meaning. A plain text stands for {model: text}."""

    model: str = Field(
        pattern=r"^(rehearsal|openai:.+)$",
        description="openai:MODEL, or rehearsal (offline, by letters)",
        examples=["openai:text-embedding-3-small"],
    )
    base_url: Address | None = key(
        None,
        "address of the model; null with no api_key: address and key of the policy",
        examples=["http://localhost:11434/v1"],
    )
    api_key: ApiKey | None = key(
        None, "key of that address, best as ${oc.env:NAME}", examples=["'${oc.env:OPENAI_API_KEY}'"]
    )
    timeout_s: Float = key(30.0, "deadline of one call, retries included", gt=0)
    price_in_usd_per_mtok: Float | None = key(
        None, "US dollars for a million tokens; null: costs are not shown", **_PRICE
    )
