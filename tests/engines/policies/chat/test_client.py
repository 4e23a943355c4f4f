"""The endpoint policy against a real server on this machine that misbehaves on demand."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from engines.core.errors import CallFailed, PolicyError
from engines.core.types import NO_USAGE, Message, Sampling, ToolCall, Usage
from engines.policies.chat.client import OpenAICompat
from engines.policies.chat.endpoint import EndpointSettings, retry_after_s, retry_wait_s
from engines.policies.chat.exchange import StreamedReply
from engines.policies.open import open_policy
from tests.support.fake_endpoint import (
    DONE,
    Behaviour,
    Exchange,
    FakeEndpoint,
    answers,
    delta,
    drips,
    drops,
    event,
    fake_endpoint,
    hangs,
    refuses,
    says,
    sends,
    usage,
)

QUESTION = (Message("user", "What is 2 + 2?"),)
SEEDED = Sampling(seed=11)


class Slept:
    """A sleep that returns at once and remembers what was asked of it."""

    def __init__(self) -> None:
        self.waits_s: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.waits_s.append(seconds)


def a_policy(fake: FakeEndpoint, slept: Slept | None = None, **changes: object) -> OpenAICompat:
    settings = EndpointSettings(model="m", base_url=fake.base_url)
    return OpenAICompat(replace(settings, **changes), sleep=slept or Slept())  # type: ignore[arg-type]


async def asked(
    *script: Behaviour, sampling: Sampling = SEEDED, **changes: object
) -> tuple[object, list[str], FakeEndpoint, list[float]]:
    """Run one call; gives completion or failure, pieces shown, the server, waits."""
    slept, pieces = Slept(), []  # type: tuple[Slept, list[str]]
    async with fake_endpoint(*script) as fake:
        policy = a_policy(fake, slept, **changes)
        try:
            result: object = await policy.complete(QUESTION, sampling, pieces.append)
        except CallFailed as failed:
            result = failed
        await policy.aclose()
        return result, pieces, fake, slept.waits_s


async def ping_error(*script: Behaviour, **changes: object) -> PolicyError:
    async with fake_endpoint(*script) as fake:
        policy = a_policy(fake, **changes)
        with pytest.raises(PolicyError) as caught:
            await policy.ping()
        await policy.aclose()
        return caught.value


async def test_a_streamed_reply_arrives_piece_by_piece_with_usage_and_cost() -> None:
    made, pieces, fake, _ = await asked(
        says("2 + 2", " is 4", counts=(1000, 500)),
        price_in_usd_per_mtok=2.0,
        price_out_usd_per_mtok=8.0,
    )
    assert (made.text, made.finish, made.model) == ("2 + 2 is 4", "stop", "served")
    assert pieces == ["2 + 2", " is 4"]
    assert (made.usage.prompt_tokens, made.usage.completion_tokens, made.usage.calls) == (
        1000,
        500,
        1,
    )
    # 1000 · 2 + 500 · 8 = 6000 millionths
    assert made.usage.cost_usd == pytest.approx(0.006)
    assert fake.requests[0].path == "/v1/chat/completions"


async def test_only_what_is_set_is_sent() -> None:
    _, _, fake, _ = await asked(
        says("x"),
        sampling=Sampling(temperature=None, stop=("END",), seed=5),
        max_tokens=None,
        extra_body={"top_k": 3},
        headers={"x-team": "blue"},
        api_key="sk-abcdefgh",
    )
    assert fake.bodies == [
        {
            "model": "m",
            "messages": [{"role": "user", "content": "What is 2 + 2?"}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "stop": ["END"],
            "seed": 5,
            "top_k": 3,
        }
    ]
    assert fake.requests[0].headers["x-team"] == "blue"
    assert fake.requests[0].headers["authorization"] == "Bearer sk-abcdefgh"


async def test_a_tool_conversation_is_sent_in_the_protocols_words() -> None:
    call = ToolCall("c1", "add", '{"a": 1}')
    told = (
        *QUESTION,
        Message("assistant", "", "thinking", (call,)),
        Message("tool", "3", tool_call_id="c1"),
    )
    async with fake_endpoint(says("ok")) as fake:
        policy = a_policy(fake)
        await policy.complete(told, Sampling(tools=({"name": "add", "parameters": {}},)))
        await policy.aclose()
    assert fake.bodies[0]["messages"][1:] == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "add", "arguments": '{"a": 1}'},
                }
            ],
        },
        {"role": "tool", "content": "3", "tool_call_id": "c1"},
    ]
    assert fake.bodies[0]["tools"] == [
        {"type": "function", "function": {"name": "add", "parameters": {}}}
    ]


async def test_nothing_of_the_request_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("API_KEY", "ADMIN_KEY", "ORG_ID", "PROJECT_ID"):
        monkeypatch.setenv(f"OPENAI_{name}", "ambient")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "x-ambient: ambient")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    _, pieces, fake, _ = await asked(says("x"))
    assert pieces == ["x"]
    assert "ambient" not in " ".join(fake.requests[0].headers.values())


async def test_reasoning_is_kept_apart_and_a_reply_of_nothing_else_is_returned() -> None:
    made, pieces, _, _ = await asked(
        sends(
            delta(reasoning_content="two and ", reasoning="two and "),
            delta(reasoning="two"),
            delta("length"),
            DONE,
        )
    )
    assert (made.text, made.reasoning, made.finish) == ("", "two and two", "length")
    assert pieces == []


async def test_tool_calls_are_merged_by_index() -> None:
    made, _, _, _ = await asked(
        sends(
            delta(tool_calls=[{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}]),
            delta(tool_calls=[{"index": 1, "id": "b", "function": {"name": "g"}}]),
            delta(tool_calls=[{"index": 0, "function": {"arguments": '{"x":'}}]),
            delta(tool_calls=[{"index": 1, "function": {"arguments": "{}"}}]),
            delta("tool_calls", tool_calls=[{"index": 0, "function": {"arguments": "1}"}}]),
            DONE,
        )
    )
    assert made.tool_calls == (ToolCall("a", "f", '{"x":1}'), ToolCall("b", "g", "{}"))
    assert made.finish == "tool_calls"


async def test_calls_that_all_say_index_0_are_told_apart_by_their_id() -> None:
    calls = [{"index": 0, "id": i, "function": {"name": "f", "arguments": i}} for i in "ab"]
    made, _, _, _ = await asked(
        sends(delta(tool_calls=calls[:1]), delta("stop", tool_calls=calls[1:]))
    )
    assert [call.arguments for call in made.tool_calls] == ["a", "b"]


async def test_what_an_endpoint_does_not_count_is_estimated_by_its_length() -> None:
    made, _, _, _ = await asked(says("w" * 400, counts=None), **PRICES)
    # 14 bytes asked and 400 said, 4 a token
    assert made.usage == Usage(ASKED, 100, 1, pytest.approx(ASKED / 1000 + 100))


async def test_a_reply_whose_own_tokens_are_not_counted_is_estimated_by_its_length() -> None:
    made, _, _, _ = await asked(says("four", counts=(7, 0)), **PRICES)
    assert made.usage == Usage(7, 1, 1, pytest.approx(0.007 + 1))


async def test_a_lost_try_does_not_hide_that_the_reply_was_not_counted() -> None:
    lost = sends(HALF, cut=True)
    made, _, _, _ = await asked(lost, says("w" * 400, counts=None))
    assert made.usage == Usage(2 * ASKED, 2 + 100, 2)


@pytest.mark.parametrize("absurd", [10**9 + 1, 1e30, -5, True, 1.5, "7"])
async def test_a_number_that_can_be_no_count_is_none(absurd: object) -> None:
    counted = event({"choices": [], "usage": {"prompt_tokens": absurd, "completion_tokens": 3}})
    made, _, _, _ = await asked(sends(delta(content="w" * 400), delta("stop"), counted, DONE))
    assert made.usage == Usage(ASKED, 100, 1)


async def test_a_plain_json_body_is_accepted_for_a_stream() -> None:
    made, pieces, _, _ = await asked(
        answers(
            {
                "model": "plain",
                "choices": [{"message": {"content": "4"}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 2},
            }
        )
    )
    assert (made.text, pieces, made.model, made.usage.tokens) == ("4", ["4"], "plain", 3)


async def test_a_line_separator_inside_a_word_does_not_split_the_line() -> None:
    made, _, _, _ = await asked(says("a\u2028b\x85c"))
    assert made.text == "a\u2028b\x85c"


@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_a_reply_reads_the_same_however_its_bytes_are_cut(size: int) -> None:
    data = b": hello\r\n\r\n" + delta(content="Grüße, ") + delta(content="Welt") + delta("stop")
    data = data.replace(b"\n", b"\r\n") + usage(5, 2) + DONE
    reply = StreamedReply()
    pieces = [reply.feed(data[at : at + size]) for at in range(0, len(data), size)]
    assert "".join(pieces) + reply.end() == "Grüße, Welt"
    assert reply.completion("m").usage.tokens == 7


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
async def test_a_passing_error_status_is_tried_again(status: int) -> None:
    made, _, fake, waits_s = await asked(refuses(status), says("4"))
    assert (made.text, len(fake.requests), len(waits_s)) == ("4", 2, 1)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_a_lasting_error_status_is_not_tried_again(status: int) -> None:
    failed, _, fake, waits_s = await asked(refuses(status, "not like this"))
    assert isinstance(failed, CallFailed)
    assert failed.kind == "status"
    assert f"{status} from {fake.base_url}: not like this" in str(failed)
    assert (len(fake.requests), waits_s) == (1, [])


async def test_a_spent_quota_is_not_tried_again() -> None:
    _, _, fake, _ = await asked(refuses(429, "pay first", code="insufficient_quota"))
    assert len(fake.requests) == 1


async def test_retries_end_and_the_failure_counts_them() -> None:
    failed, _, fake, _ = await asked(refuses(503, "busy"), max_retries=2)
    assert (failed.kind, len(fake.requests)) == ("status", 3)
    assert "busy" in str(failed) and "after 3 tries" in str(failed)


async def test_waits_grow_and_follow_from_the_seed() -> None:
    first, again, other = [
        (await asked(refuses(503), sampling=Sampling(seed=seed)))[3] for seed in (1, 1, 2)
    ]
    assert first == again != other
    # 0.5, 1, 2 and 4 s times a jitter in [0.5, 1)
    assert all(whole / 2 <= wait < whole for whole, wait in zip((0.5, 1, 2, 4), first, strict=True))


@pytest.mark.parametrize(
    ("headers", "expected_s"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "1.5"}, 1.5),
    ],
)
async def test_the_wait_an_endpoint_asks_for_is_kept(
    headers: dict[str, str], expected_s: float
) -> None:
    _, _, _, waits_s = await asked(refuses(429, "slowly", headers), says("4"))
    (wait_s,) = waits_s
    assert expected_s < wait_s < 1.25 * expected_s  # never less, and not all at once


async def test_two_calls_that_were_asked_to_wait_as_long_come_back_apart() -> None:
    waits = []
    for seed in (1, 2):
        script = (refuses(429, "slowly", {"retry-after": "7"}), says("4"))
        waits.append((await asked(*script, sampling=Sampling(seed=seed)))[3])
    assert waits[0] != waits[1]


async def test_an_endpoint_that_asks_for_no_wait_is_given_more_and_more() -> None:
    zero = refuses(429, "slowly", {"retry-after": "0"})
    _, _, _, waits_s = await asked(zero, zero, zero, says("4"), max_retries=3)
    # a sixteenth of the usual wait, which is at least half of 0.5, 1 and 2 s
    assert all(wait >= 2**n / 64 for n, wait in enumerate(waits_s))


@pytest.mark.parametrize(
    "hostile",
    [
        "Mon, 01 Jan 2024 00:00:00 +999999999",
        "Mon, 01 Jan 2024 00:00:00 +99999999999999999999",
        "Mon, 01 Jan 99999 00:00:00 GMT",
        "Sun, 01 Jan 99999999999999999999 00:00:00 GMT",
        "Mon, 01 Jan 0001 00:00:00 +2359",
        "Fri, 31 Dec 9999 23:59:59 -2359",
        "9" * 400,
    ],
)
def test_a_wait_that_no_calendar_has_is_none(hostile: str) -> None:
    found = retry_after_s({"retry-after": hostile}, datetime(2025, 1, 1, tzinfo=UTC))
    assert found is None or found >= 0


async def test_a_wait_beyond_all_measure_does_not_fill_the_page() -> None:
    failed, _, _, _ = await asked(refuses(429, "slowly", {"retry-after": "1e308"}))
    assert failed.kind == "timeout" and len(str(failed)) < 300


def test_a_retry_date_is_read_against_the_given_time_when_the_endpoint_sends_none() -> None:
    now = datetime(2025, 1, 1, 10, 0, 0, tzinfo=UTC)
    assert retry_after_s({"retry-after": "Wed, 01 Jan 2025 10:00:05 GMT"}, now) == 5.0
    assert retry_after_s({"retry-after": "Wed, 01 Jan 2025 09:00:00 GMT"}, now) == 0.0
    assert retry_after_s({"retry-after": "soon"}, now) is None
    assert retry_after_s({"retry-after": "nan"}, now) is None
    assert retry_after_s({}, now) is None


def test_a_wait_never_passes_its_cap() -> None:
    assert retry_wait_s(None, 1000, 1, "") <= 30.0


async def test_a_wait_beyond_the_deadline_fails_at_once_and_says_why() -> None:
    failed, _, fake, waits_s = await asked(refuses(429, "slowly", {"retry-after": "3600"}))
    assert (failed.kind, len(fake.requests), waits_s) == ("timeout", 1, [])
    assert "after the deadline of 120 s" in str(failed) and "slowly" in str(failed)


async def test_a_cut_stream_is_asked_again_and_shown_once() -> None:
    made, pieces, fake, _ = await asked(
        sends(delta(content="one "), delta(content="two "), cut=True), says("one", " two three")
    )
    assert (made.text, len(fake.requests)) == ("one two three", 2)
    assert "".join(pieces) == "one two three"


@pytest.mark.parametrize(
    "behaviour",
    [
        sends(delta(content="half"), cut=True),
        sends(delta(content="half")),
        sends(delta(content="half"), b'data: {"choi'),
        sends(),
    ],
    ids=["connection dropped", "body ended", "inside a line", "nothing"],
)
async def test_a_reply_that_stays_cut_fails_as_cut(behaviour: Behaviour) -> None:
    failed, _, fake, _ = await asked(behaviour, max_retries=1)
    assert isinstance(failed, CallFailed)
    assert (failed.kind, len(fake.requests)) == ("cut", 2)


@pytest.mark.parametrize(
    "behaviour",
    [sends(delta(content="all"), delta("stop"), cut=True), sends(delta(content="all"), DONE)],
    ids=["without DONE", "without finish reason"],
)
async def test_either_mark_of_the_end_is_enough(behaviour: Behaviour) -> None:
    made, _, fake, _ = await asked(behaviour)
    assert (made.text, made.finish, len(fake.requests)) == ("all", "stop", 1)


async def test_an_error_inside_a_stream_is_tried_again_unless_it_is_lasting() -> None:
    passing = sends(delta(content="a"), event({"error": {"code": 502, "message": "upstream"}}))
    made, _, _, _ = await asked(passing, says("4"))
    assert made.text == "4"
    lasting = sends(event({"error": {"code": 403, "message": "not for you"}}))
    failed, _, fake, _ = await asked(lasting)
    assert (failed.kind, len(fake.requests)) == ("status", 1)
    assert "not for you" in str(failed)


TWO = [{"index": n, "delta": {"content": "4"}, "finish_reason": "stop"} for n in (0, 1)]


@pytest.mark.parametrize(
    "behaviour",
    [
        sends(event({"choices": []}), DONE),
        sends(event({"choices": "4"}), DONE),
        sends(event({"choices": [{"delta": {"content": 4}}]}), DONE),
        sends(event([1]), DONE),
        sends(b"data: <html>\n\n", DONE),
        sends(b"<html>hello</html>"),
        sends(*(event({"choices": [c]}) for c in TWO), DONE),
        sends(event({"choices": TWO}), DONE),
        answers({"choices": []}),
        answers(["4"]),
    ],
)
async def test_a_reply_of_the_wrong_shape_is_tried_again_like_one_that_was_cut(
    behaviour: Behaviour,
) -> None:
    failed, _, fake, _ = await asked(behaviour, max_retries=1)
    assert isinstance(failed, CallFailed)
    assert (failed.kind, len(fake.requests)) == ("shape", 2)
    made, _, _, _ = await asked(behaviour, says("4"))
    assert made.text == "4"


PRICES = {"price_in_usd_per_mtok": 1000.0, "price_out_usd_per_mtok": 1_000_000.0}
ASKED = 4  # "What is 2 + 2?" has 14 bytes
HALF = delta(content="12345678")  # 2 tokens


@pytest.mark.parametrize(
    ("behaviour", "tokens"),
    [
        (sends(HALF, cut=True), (ASKED, 2)),
        (sends(HALF, usage(50, 9), cut=True), (50, 9)),
        (hangs(), (ASKED, 0)),
        (hangs(HALF), (ASKED, 2)),
        (drips(HALF), (ASKED, 2)),
        (sends(HALF, b"data: {no\n\n"), (ASKED, 2)),
        (answers(["4"]), (ASKED, 0)),
        (sends(HALF, event({"error": {"code": 403, "message": "enough"}})), (ASKED, 2)),
        (drops(), (ASKED, 0)),
        (sends(delta(content="x" * 1_000_001)), (ASKED, 250_001)),
    ],
    ids=[
        "cut", "counted", "hangs", "hangs midway", "drips", "no JSON", "another JSON",
        "an error midway", "dropped", "too long",
    ],
)  # fmt: skip
async def test_a_lost_reply_tells_what_it_may_have_cost(
    behaviour: Behaviour, tokens: tuple[int, int]
) -> None:
    failed, _, _, _ = await asked(behaviour, max_retries=0, timeout_s=0.3, **PRICES)
    assert isinstance(failed, CallFailed)
    found = failed.usage
    assert (found.prompt_tokens, found.completion_tokens, found.calls) == (*tokens, 1)
    # a thousandth of a dollar for each token asked, a dollar for each one said
    assert found.cost_usd == pytest.approx(tokens[0] / 1000 + tokens[1])


@pytest.mark.parametrize(
    "behaviour",
    [refuses(429), refuses(500), refuses(401), sends(event({"error": {"code": 429}}))],
)
async def test_a_refusal_costs_nothing(behaviour: Behaviour) -> None:
    failed, _, _, _ = await asked(behaviour, max_retries=1)
    assert isinstance(failed, CallFailed)
    assert failed.usage == NO_USAGE


async def test_a_reply_after_lost_ones_is_charged_for_them_as_well() -> None:
    lost = sends(HALF, cut=True)
    made, _, _, _ = await asked(refuses(500), lost, lost, says("4", counts=(7, 3)), **PRICES)
    assert made.usage == Usage(ASKED * 2 + 7, 2 * 2 + 3, 3, pytest.approx(0.015 + 7))


async def test_a_call_that_ends_at_its_deadline_is_charged_for_every_try() -> None:
    failed, _, _, _ = await asked(sends(HALF, cut=True), hangs(HALF), timeout_s=0.8)
    assert failed.kind == "timeout"
    assert failed.usage == Usage(ASKED * 2, 4, 2)
    late = refuses(429, "slowly", {"retry-after": "3600"})
    failed, _, _, _ = await asked(sends(HALF, cut=True), late)
    assert failed.usage == Usage(ASKED, 2, 1)


async def test_a_stream_that_drips_ends_at_the_deadline() -> None:
    failed, _, fake, _ = await asked(drips(HALF), timeout_s=0.3, idle_s=0.2)
    assert (failed.kind, len(fake.requests)) == ("timeout", 1)


async def test_a_connection_reset_before_the_reply_is_tried_again() -> None:
    made, _, fake, _ = await asked(drops(reset=True), drops(), says("4"))
    assert (made.text, len(fake.requests)) == ("4", 3)


@pytest.mark.parametrize(
    "page",
    [
        b'{"error": {"code": 99999999999999999999999, "message": "big"}}',
        b'{"error": {"message": "half a pair \\ud800"}}',
        b'{"error": ' + b"[" * 600 + b"]" * 600 + b"}",
        b"[" * 30_000,
        b"\xff\xfe\x00",
        b'{"error": {"message": ["no", "text"]}}',
    ],
    ids=["big number", "lone surrogate", "deep", "deeper", "no text", "list"],
)
async def test_an_error_page_of_any_form_is_an_error_status(page: bytes) -> None:
    async def behaviour(exchange: Exchange) -> None:
        kind = {"content-type": "application/json; charset=zip"}
        await exchange.plain(500, page, kind)

    failed, _, _, _ = await asked(behaviour, max_retries=0)
    assert isinstance(failed, CallFailed)
    assert failed.kind == "status" and "500 from" in str(failed)
    assert len(str(failed)) < 1000
    str(failed).encode()  # no journal takes what cannot be encoded


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_calls": 5},
        {"tool_calls": "ab"},
        {"tool_calls": [{"function": {"arguments": json.loads("[" * 400 + "]" * 400)}}]},
    ],
    ids=["number", "text", "deep"],
)
async def test_tool_calls_of_any_form_are_a_wrong_shape(fields: dict[str, object]) -> None:
    data = b"data: " + json.dumps({"choices": [{"delta": fields}]}).encode() + b"\n\n"
    failed, _, _, _ = await asked(sends(data, DONE), max_retries=0)
    assert isinstance(failed, CallFailed) and failed.kind == "shape"


async def test_an_error_code_that_is_no_status_is_none() -> None:
    for code in ("9" * 5000, "²", -4):
        made, _, _, _ = await asked(sends(event({"error": {"code": code}})), says("4"))
        assert made.text == "4"


@pytest.mark.parametrize(
    "behaviour", [hangs(), hangs(delta(content="a"))], ids=["no first byte", "in the middle"]
)
async def test_a_hanging_endpoint_meets_the_deadline(behaviour: Behaviour) -> None:
    failed, _, fake, _ = await asked(behaviour, timeout_s=0.15)
    assert isinstance(failed, CallFailed)
    assert failed.kind == "timeout"
    assert "0.15 s" in str(failed) and fake.base_url in str(failed)


async def test_a_silence_longer_than_allowed_is_cut_short_and_tried_again() -> None:
    made, pieces, fake, _ = await asked(hangs(delta(content="4")), says("4", "!"), idle_s=0.1)
    assert (made.text, len(fake.requests)) == ("4!", 2)
    assert "".join(pieces) == "4!"


async def test_a_server_that_keeps_the_line_open_after_the_end_loses_nothing() -> None:
    made, _, _, _ = await asked(hangs(delta(content="4"), delta("stop"), DONE))
    assert made.text == "4"


async def test_a_refused_connection_is_tried_again_and_named() -> None:
    async with fake_endpoint(says("x")) as fake:
        url = fake.base_url
    slept = Slept()
    policy = OpenAICompat(EndpointSettings("m", url, max_retries=2), sleep=slept)
    with pytest.raises(CallFailed, match="no connection to http://127") as caught:
        await policy.complete(QUESTION, SEEDED)
    assert (caught.value.kind, len(slept.waits_s)) == ("refused", 2)
    with pytest.raises(PolicyError, match="Check base_url: a server must run there") as told:
        await policy.ping()
    assert told.value.place == f"policy openai:m at {url}"
    await policy.aclose()


@pytest.mark.parametrize(
    ("refusal", "gone", "note"),
    [
        (refuses(400, "unknown field: stream_options"), "stream_options", "stream_options is not"),
        (refuses(422, "extra_forbidden", loc=["body", "seed"]), "seed", "seed is not sent"),
        (
            refuses(400, "'max_tokens' is not supported. Use 'max_completion_tokens' instead."),
            "max_tokens",
            "max_tokens is sent as max_completion_tokens",
        ),
    ],
)
async def test_a_refused_parameter_is_dropped_once_and_for_the_policys_life(
    refusal: Behaviour, gone: str, note: str
) -> None:
    async with fake_endpoint(refusal, says("4")) as fake:
        policy = a_policy(fake)
        for _ in range(2):
            assert (await policy.complete(QUESTION, SEEDED)).text == "4"
        await policy.aclose()
    assert [gone in body for body in fake.bodies] == [True, False, False]
    assert ("max_completion_tokens" in fake.bodies[-1]) == (gone == "max_tokens")
    assert note in policy.dialect.notes[0]


@pytest.mark.parametrize(
    "refusal",
    [
        "Failed to generate JSON. Please adjust your prompt.",
        "JSON mode is not enabled for this model",
        "json_object is no known type",
        "'response_format.type' must be 'json_schema' or 'text'",
    ],
)
async def test_json_is_asked_for_by_the_prompt_alone_where_its_mode_is_refused(
    refusal: str,
) -> None:
    async with fake_endpoint(refuses(400, refusal), says("{}")) as fake:
        policy = a_policy(fake)
        made = await policy.complete(QUESTION, replace(SEEDED, json_object=True))
        await policy.aclose()
    assert made.text == "{}"
    assert ["response_format" in body for body in fake.bodies] == [True, False]


async def test_a_limit_that_is_only_too_large_is_the_users_to_change() -> None:
    failed, _, fake, _ = await asked(refuses(400, "max_tokens is too large"))
    assert (failed.kind, len(fake.requests)) == ("status", 1)


async def test_sixty_four_calls_at_once_all_reach_the_endpoint() -> None:
    async with fake_endpoint(says("x")) as fake:
        gate = asyncio.Event()
        answer = fake.script[0]

        async def gated(exchange: object) -> None:
            await gate.wait()
            await answer(exchange)  # type: ignore[arg-type]

        fake.script = [gated]
        policy = a_policy(fake)
        calls = [asyncio.create_task(policy.complete(QUESTION, SEEDED)) for _ in range(64)]
        await fake.until(lambda: len(fake.requests) == 64)
        gate.set()
        made = await asyncio.gather(*calls)
        assert {completion.text for completion in made} == {"x"}
        await policy.complete(QUESTION, SEEDED)
        assert fake.connections == 64  # the sixty-fifth used one of them again
        await policy.aclose()


async def test_a_ping_asks_for_one_token() -> None:
    async with fake_endpoint(says("OK")) as fake:
        policy = a_policy(fake)
        await policy.ping()
        await policy.aclose()
    assert fake.bodies[0]["max_tokens"] == 1


async def test_a_ping_takes_too_few_tokens_for_an_answer() -> None:
    text = "Could not finish: max_tokens or model output limit was reached."
    async with fake_endpoint(refuses(400, text)) as fake:
        policy = a_policy(fake)
        await policy.ping()
        await policy.aclose()
        assert len(fake.requests) == 1


async def test_a_wrong_key_is_named_without_being_shown() -> None:
    key = "sk-verysecretkey123"
    error = await ping_error(
        refuses(401, f"Incorrect key: {key}; also sk-ver*********y123"), api_key=key
    )
    assert "the key was refused" in str(error) and "set api_key" in error.move
    assert key not in str(error) and "y123" not in str(error)
    assert error.__cause__ is None


async def test_a_missing_model_lists_those_that_are_there() -> None:
    listing = answers({"data": [{"id": "zeta"}, {"id": "qwen3"}]})
    error = await ping_error(refuses(404, "no such model"), listing, model="qwen2")
    assert "the model 'qwen2' is not there" in error.cause
    assert error.move == "Choose one of qwen3, zeta."


async def test_a_missing_path_points_at_the_base_url() -> None:
    error = await ping_error(refuses(404, "no such page"))
    assert "base_url" in error.move


async def test_the_hosted_service_without_a_key_is_refused_before_any_connection() -> None:
    policy = OpenAICompat(EndpointSettings("m"))
    with pytest.raises(PolicyError, match="no key is given"):
        await policy.ping()
    await policy.aclose()


def test_secrets_stand_in_no_text_about_the_settings() -> None:
    settings = EndpointSettings(
        "m", "https://me:pass@host/v1?key=k1234", "sk-abc", headers={"authorization": "Bearer t"}
    )
    assert settings.url == "https://host/v1"
    assert "sk-abc" not in repr(settings) and "Bearer" not in repr(settings)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("opena:gpt", "Did you mean openai:gpt?"),
        ("gpt-5", "Write openai:gpt-5 for a model behind an endpoint"),
        ("openai:", "it wants openai:MODEL"),
        ("replay", "it wants replay:FILE"),
        ("rehersal", "Did you mean rehearsal?"),
    ],
)
def test_an_unknown_policy_names_the_nearest_one(spec: str, said: str) -> None:
    with pytest.raises(PolicyError) as caught:
        open_policy(spec)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "name"), [("openai:m:7b", "openai:m:7b"), ("rehearsal", "rehearsal")]
)
def test_a_policy_is_named_as_it_was_opened(spec: str, name: str) -> None:
    assert open_policy(spec).name == name
