"""Which collector a run file and the usual variables name, and what of it is a secret."""

from __future__ import annotations

import pytest

from engines.secrets.mask import Mask
from studio.config.settings.run import TracingConfig, find_collector
from studio.secrets.run_files import environment_secrets

URL = "http://127.0.0.1:6006"
NONE = TracingConfig()


@pytest.mark.parametrize(
    ("given", "url"),
    [
        (URL, f"{URL}/v1/traces"),
        (f"{URL}/", f"{URL}/v1/traces"),
        (f"{URL}/v1/traces", f"{URL}/v1/traces"),
        (f"{URL}/s/team?x=1", f"{URL}/s/team/v1/traces?x=1"),
    ],
)
@pytest.mark.parametrize("name", ["PHOENIX_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT", "run file"])
def test_an_address_may_be_given_with_or_without_its_path(name: str, given: str, url: str) -> None:
    asked = TracingConfig(base_url=given) if name == "run file" else NONE
    found = find_collector(asked, {name: given})
    assert found is not None and found.url == url
    assert found.asked == (name == "run file")


def test_the_run_file_comes_first_then_phoenix_and_an_address_of_traces_stays_as_it_is() -> None:
    of_traces = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/in"}
    environ = of_traces | {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://d:4318"}
    found = find_collector(NONE, environ)
    assert found is not None and found.url == "http://c:4318/in"
    found = find_collector(NONE, {**environ, "PHOENIX_COLLECTOR_ENDPOINT": "http://b:6006"})
    assert found is not None and found.url == "http://b:6006/v1/traces"
    found = find_collector(TracingConfig(base_url="http://a:1"), environ)
    assert found is not None and found.url == "http://a:1/v1/traces"
    assert find_collector(NONE, {}) is None
    assert find_collector(NONE, {**environ, "OTEL_SDK_DISABLED": "true"}) is None


def test_a_key_of_phoenix_goes_to_no_other_collector() -> None:
    environ = {"PHOENIX_API_KEY": "k", "OTEL_EXPORTER_OTLP_HEADERS": "X-A=1,x-b=two%20words"}
    found = find_collector(NONE, {**environ, "PHOENIX_ENDPOINT": URL})
    assert found is not None
    assert found.headers == {"authorization": "Bearer k", "x-a": "1", "x-b": "two words"}
    found = find_collector(NONE, {**environ, "OTEL_EXPORTER_OTLP_ENDPOINT": URL})
    assert found is not None and found.headers == {"x-a": "1", "x-b": "two words"}
    found = find_collector(TracingConfig(base_url=URL), {"PHOENIX_PROJECT_NAME": "q"})
    assert found is not None and found.project == "q"


def test_a_variable_that_is_no_address_is_named() -> None:
    with pytest.raises(ValueError, match=r"PHOENIX_ENDPOINT: it must begin with http"):
        find_collector(NONE, {"PHOENIX_ENDPOINT": "localhost:6006"})


def test_headers_and_passwords_of_the_variables_are_masked_wherever_they_occur() -> None:
    environ = {
        "OTEL_EXPORTER_OTLP_HEADERS": "x-key=words%20of%20mine,authorization=Bearer%20tiny-words",
        "PHOENIX_ENDPOINT": "https://me:pass-words@phoenix.example.org?token=query-words",
        "OTHER_HEADERS": "x=not-a-secret",
    }
    mask = Mask(environment_secrets(environ))
    told = mask("words of mine, tiny-words, pass-words, query-words, not-a-secret")
    assert told == "***, ***, ***, ***, not-a-secret"
