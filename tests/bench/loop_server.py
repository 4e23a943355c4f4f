"""A model endpoint that costs next to nothing: `python -m tests.bench.loop_server`.

Speaks chat completions as server-sent events from canned bytes, after a set delay. Of the
tries at one question every second one is right, so that every group of two or more has
something to learn from; a reflector's question gets one proposal, a consolidation
one operation that rests on every proposal it is shown. Prints its port. `GET /stats` tells
what was asked and when, and begins anew; `POST /script` sets the delay and the length of replies.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import orjson

RIGHT, WRONG = "7", "8"
_EXTRACTED = (
    '[{"operation": "add", "id": null, "experience": "Borrow once: after a borrow, take one '
    'from the next digit.", "reason": "only the better attempts did", "attempts": []}]'
)
_ADDED = (
    '[{"operation": "add", "id": null, "experience": "Borrow once: after a borrow, take one '
    'from the next digit (0).", "reason": "all groups show it", "proposals": %s}]'
)
_MODIFIED = (
    '[{"operation": "modify", "id": "E1", "experience": "Borrow once: after a borrow, take one '
    'from the next digit (%d).", "reason": "all groups show it", "proposals": %s}]'
)


class Script:
    """What is answered, and what was asked."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.padding = ""  # of a rollout's reply
        self._tries: dict[int, int] = {}
        self._lessons = 0
        self._whole: dict[str, bytes] = {}
        self.stats: dict[str, Any] = {}
        self.note_request()

    def note_request(self) -> None:
        self.stats = {"ping": 0, "rollout": 0, "reflection": 0, "consolidation": 0}
        self.stats |= {"first_at": None, "first_rollout_at": None}
        self._tries.clear()

    def reply(self, body: bytes) -> bytes:
        now = time.monotonic()  # one clock for all processes of a machine
        kind = _kind(body)
        self.stats[kind] += 1
        self.stats["first_at"] = self.stats["first_at"] or now
        if kind == "rollout":
            self.stats["first_rollout_at"] = self.stats["first_rollout_at"] or now
            asked = hash(orjson.loads(body)["messages"][-1]["content"])
            tried = self._tries[asked] = self._tries.get(asked, -1) + 1
            answer = WRONG if tried % 2 else RIGHT
            return self._streamed(f"{self.padding}The answer is \\boxed{{{answer}}}.")
        # Every proposal has to be named, or what is missing is asked for and counts as lost.
        numbers = list(range(1, body.count(b"### Proposal ") + 1))
        if kind == "consolidation":
            self._lessons += 1
            if b"[E1]" in body:
                return self._streamed(_MODIFIED % (self._lessons % 10, numbers))
            return self._streamed(_ADDED % numbers)
        return self._streamed(_EXTRACTED if kind == "reflection" else "OK")

    def _streamed(self, text: str) -> bytes:
        """A whole HTTP response, made once for each text: eight pieces, usage, the end."""
        found = self._whole.get(text)
        if found is None:
            size = max(1, -(-len(text) // 8))
            pieces = [text[at : at + size] for at in range(0, len(text), size)]
            events = [_event({"choices": [_choice({"content": piece})]}) for piece in pieces]
            events.append(_event({"choices": [_choice({}, "stop")]}))
            counts = {"prompt_tokens": 100, "completion_tokens": max(1, len(text) // 4)}
            events.append(_event({"choices": [], "usage": counts}))
            body = b"".join([*events, b"data: [DONE]\n\n"])
            head = (
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                b"content-length: %d\r\n\r\n" % len(body)
            )
            found = self._whole[text] = head + body
        return found


class Connection(asyncio.Protocol):
    """One keep-alive connection; requests come one after the other."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            _, _, rest = head.partition(b"content-length:")
            length = int(rest.partition(b"\r\n")[0] or 0)
            if len(self._buffer) < end + 4 + length:
                return
            body = self._buffer[end + 4 : end + 4 + length]
            self._buffer = self._buffer[end + 4 + length :]
            self._answer(head.split(b" ", 2)[1], body)

    def _answer(self, path: bytes, body: bytes) -> None:
        script = self._script
        if path == b"/stats":
            self._plain(orjson.dumps(script.stats))
            script.note_request()
        elif path == b"/script":
            asked = orjson.loads(body)
            script.delay_s = asked["delay_s"]
            script.padding = "word " * (asked["chars"] // 5)
            self._plain(b"{}")
        elif not script.delay_s:
            self._transport.write(script.reply(body))
        else:
            loop = asyncio.get_running_loop()
            loop.call_later(script.delay_s, self._transport.write, script.reply(body))

    def _plain(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self._transport.write(head % len(body) + body)


def _kind(body: bytes) -> str:
    if b"# Task: extract" in body:
        return "reflection"
    if b"# Task: consolidate" in body:
        return "consolidation"
    return "ping" if b"Say OK." in body else "rollout"


def _choice(delta: dict[str, str], finish: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": finish}


def _event(fields: dict[str, Any]) -> bytes:
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "canned"}
    return b"data: " + orjson.dumps({**chunk, **fields}) + b"\n\n"


async def serve() -> None:
    script = Script()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(script), "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)  # until whoever started it goes


if __name__ == "__main__":
    asyncio.run(serve())
