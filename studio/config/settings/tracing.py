"""Where the spans of a run go, by its run file or by the usual variables of the environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from studio.config.settings.base import Settings, key
from studio.config.settings.policy import Address, check_address

PHOENIX = ("PHOENIX_ENDPOINT", "PHOENIX_COLLECTOR_ENDPOINT")
OTLP = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_HEADERS = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
PATH = "/v1/traces"
PROJECT = "practice-studio"


class TracingConfig(Settings):
    """Spans of the run, for Phoenix or another collector of OpenTelemetry."""

    base_url: Address | None = key(
        None,
        "address that takes OTLP over HTTP, with or without /v1/traces; null: $PHOENIX_ENDPOINT or "
        "$OTEL_EXPORTER_OTLP_ENDPOINT, and without these no spans",
        examples=["http://127.0.0.1:6006"],
    )
    content: bool = key(
        True, "whether spans hold what was said: questions, replies, arguments, results and errors"
    )


@dataclass(frozen=True, slots=True)
class CollectorAddress:
    """Where spans go. `asked` is the run file's; else only the environment names it."""

    url: str
    project: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    asked: bool = False


def find_collector(settings: TracingConfig, environ: Mapping[str, str]) -> CollectorAddress | None:
    """The collector of a run; None: none is named. Raises ValueError: a variable is no address."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    name = next((name for name in (*PHOENIX, *OTLP) if environ.get(name, "").strip()), "")
    url = settings.base_url or environ.get(name, "").strip()
    if not url:
        return None
    try:
        check_address(url)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if settings.base_url or name != OTLP[0]:  # that one is used as it stands
        place, question, query = url.partition("?")
        place = place.rstrip("/")
        url = f"{place if place.endswith(PATH) else place + PATH}{question}{query}"
    headers = dict(read_headers(environ))
    if (api_key := environ.get("PHOENIX_API_KEY")) and (settings.base_url or name in PHOENIX):
        headers.setdefault("authorization", f"Bearer {api_key}")
    project = environ.get("PHOENIX_PROJECT_NAME") or PROJECT
    return CollectorAddress(url, project, headers, settings.base_url is not None)


def read_headers(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """`name=value,…` as the standard variables hold them, with their values as they are sent."""
    written = next((environ[name] for name in _HEADERS if environ.get(name)), "")
    for pair in written.split(","):
        name, equals, value = pair.partition("=")
        if equals:
            yield name.strip().lower(), unquote(value.strip())
