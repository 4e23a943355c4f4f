"""What an endpoint may send at most, and that memory stays flat whatever it sends.

A process of its own asks, so that its peak memory is the caller's alone.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache

import pytest

from engines.core.errors import CallFailed
from engines.policies.chat.endpoint import (
    BODY_BYTES,
    LINE_BYTES,
    TEXT_CHARS,
    TEXT_LINES,
    TOOL_CALLS,
)
from engines.policies.chat.exchange import StreamedReply
from tests.support.fake_endpoint import DONE, Behaviour, Exchange, delta, event, fake_endpoint, says

FLAT_MB = 60
MB = 1_000_000

ASK = """
import asyncio, json, sys
from pathlib import Path
from engines.core.errors import CallFailed
from engines.core.types import Message, Sampling
from engines.policies.chat.endpoint import EndpointSettings
from engines.policies.chat.client import OpenAICompat

def peak_mb():
    # Not getrusage: it remembers the peak of the process that started this one.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024

async def main(url):
    policy = OpenAICompat(EndpointSettings("m", url, timeout_s=60, max_retries=0))
    question = (Message("user", "Say it."),)
    await policy.complete(question, Sampling(seed=1), lambda text: None)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = peak_mb()
    said = "", 0
    try:
        made = await policy.complete(question, Sampling(seed=1), lambda text: None)
    except CallFailed as failed:
        said = str(failed), failed.usage.calls
    print(json.dumps([*said, peak_mb() - before]), flush=True)
    await policy.aclose()

for line in sys.stdin:
    asyncio.run(main(line.strip()))
"""


def streams(piece: bytes, times: int) -> Behaviour:
    async def behaviour(exchange: Exchange) -> None:
        await exchange.head(200, "text/event-stream", {"transfer-encoding": "chunked"})
        for _ in range(times):
            await exchange.chunk(piece)
        await exchange.chunk(delta("stop") + DONE)
        await exchange.end()

    return behaviour


def pours(head: bytes, piece: bytes, tail: bytes, times: int, status: int = 200) -> Behaviour:
    """One body without a line's end before its own."""

    async def behaviour(exchange: Exchange) -> None:
        await exchange.head(status, "application/json", {"transfer-encoding": "chunked"})
        for part in (head, *[piece] * times, tail):
            if part:  # an empty chunk is the end
                await exchange.chunk(part)
        await exchange.end()

    return behaviour


@cache
def gzip_bomb() -> bytes:
    return gzip.compress(bytes(50 * MB))


def zipped(status: int) -> Behaviour:
    async def behaviour(exchange: Exchange) -> None:
        await exchange.plain(status, gzip_bomb(), {"content-encoding": "gzip"})

    return behaviour


PLAIN = (b'{"choices":[{"finish_reason":"stop","message":{"content":"', b'"}}]}')
BIG = b"word " * 20_000  # 100 KB


@pytest.fixture(scope="module")
def asker() -> Iterator[subprocess.Popen[str]]:
    """A process that asks each endpoint it is told of twice, and tells of the second time."""
    with subprocess.Popen(
        [sys.executable, "-c", ASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory from /proc")
@pytest.mark.parametrize(
    ("behaviour", "said", "calls"),
    [
        (streams(delta(content=BIG.decode()), 500), "too long", 1),
        (streams(delta(content="word " * 5), 400_000), "too long", 1),
        (pours(b"data: " + PLAIN[0], BIG, PLAIN[1] + b"\n\n", 500), "too long", 1),
        (pours(PLAIN[0], BIG, PLAIN[1], 500), "too long", 1),
        (pours(b"", b"<p>\n" * 25_000, b"", 500), "too long", 1),
        (streams((b": " + b"wait " * 15 + b"\n\n") * 10_000, 64), "too long", 1),
        (streams(delta(content="\n"), 1_000_000), "too long", 1),
        (streams(delta(content="\n" * 1_000_000), 1), "too long", 1),
        (streams(delta(content="\x1b[31m" * 1000), 1000), "too long", 1),
        (streams(delta(content="\x1b[m" * 1_000_000), 1), "too long", 1),
        (zipped(200), "too long", 1),
        (pours(b"", BIG, b"", 500, status=500), "status: 500", 0),
        (zipped(500), "status: 500", 0),
        (zipped(302), "status: 302", 0),
    ],
    ids=[
        "50 MB streamed", "50 MB streamed a few words each", "50 MB in one event", "50 MB of JSON",
        "50 MB of HTML", "50 MB of silence", "a million newlines", "a million newlines at once",
        "a million ANSI sequences", "a million ANSI sequences at once", "gzip bomb", 
        "50 MB of error", "gzip bomb as an error", "gzip bomb as a redirect",
    ],
)  # fmt: skip
async def test_what_is_too_long_is_a_recorded_failure_and_memory_stays_flat(
    behaviour: Behaviour, said: str, calls: int, asker: subprocess.Popen[str]
) -> None:
    assert asker.stdin is not None and asker.stdout is not None
    async with fake_endpoint(says("ready"), behaviour) as fake:
        print(fake.base_url, file=asker.stdin, flush=True)
        out = await asyncio.to_thread(asker.stdout.readline)
    error, counted, grown_mb = json.loads(out)
    print(f"{grown_mb:.0f} MB: {error[:100]}")
    assert error.startswith(said)
    assert len(error) < 1000
    assert counted == calls
    assert grown_mb < FLAT_MB


def fed(*pieces: bytes) -> StreamedReply:
    reply = StreamedReply()
    for piece in pieces:
        reply.feed(piece)
    reply.end()
    return reply


def test_up_to_every_limit_a_reply_is_taken_whole() -> None:
    text = "x" * (TEXT_CHARS - TEXT_LINES) + "\n" * TEXT_LINES
    thirds = [text[at : at + TEXT_CHARS // 3] for at in range(0, TEXT_CHARS, TEXT_CHARS // 3)]
    made = fed(*(delta(content=part) for part in thirds), delta("stop")).completion("m")
    assert made.text == text
    calls = [{"index": n, "function": {"name": "f", "arguments": "{}"}} for n in range(TOOL_CALLS)]
    assert len(fed(delta("stop", tool_calls=calls)).completion("m").tool_calls) == TOOL_CALLS
    frame = len(delta(content=""))
    assert fed(delta(content="é" * (LINE_BYTES // 2 - frame)), delta("stop")).is_complete


@pytest.mark.parametrize(
    "pieces",
    [
        [delta(content="x" * TEXT_CHARS), delta(content="x")],
        [delta(content="x" * TEXT_CHARS, reasoning="x")],
        [delta(reasoning="x" * (TEXT_CHARS + 1))],
        [delta(tool_calls=[{"function": {"name": "f", "arguments": "x" * (TEXT_CHARS + 1)}}])],
        [delta(content="\n" * TEXT_LINES), delta(content="\r")],
        [b"data: " + b"x" * LINE_BYTES],
        [b"x\n" * (LINE_BYTES // 2 + 1)],
        [delta(tool_calls=[{"index": n, "function": {}}]) for n in range(TOOL_CALLS + 1)],
        [b": " + b"x" * 998_000 + b"\n"] * (BODY_BYTES // 998_000 + 1),
    ],
    ids=[
        "text", "text and reasoning", "reasoning", "arguments", "lines", "event", "page", "calls",
        "body",
    ],
)  # fmt: skip
def test_one_more_is_too_long(pieces: list[bytes]) -> None:
    with pytest.raises(CallFailed) as caught:
        fed(*pieces, delta("stop"))
    assert caught.value.kind == "too long"


def test_names_are_cut_to_what_can_be_shown() -> None:
    choice = {"delta": {"content": "4"}, "finish_reason": "f" * 5000}
    made = fed(event({"model": "m" * 5000, "choices": [choice]})).completion("m")
    assert (len(made.model), len(made.finish)) == (200, 200)
