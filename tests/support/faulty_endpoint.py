"""A rehearsal endpoint that fails a share of its requests, each in one of many ways.

Owns which request fails and how. What becomes of a request follows from the seed and its
body alone, however often it was asked before: a passing fault hits the first tries and is
cured by the next, a lasting one stays. So a run that was killed and resumed ends as one
that never was, as long as its retries and deadlines cover one passing fault.

    python -m tests.support.faulty_endpoint --port 0 --share 0.2 --seed 1

prints its base URL once it listens. `GET /faults` tells what has been done to whom. The
counts of tries live in this process, hence outlive the runs that are killed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import orjson

from engines.core.codec import digest, seed_for
from engines.policies.rehearsal.server import answer_request
from tests.support.fake_endpoint import DONE, Exchange, Request, delta, drop, event, read_request

PASSING = (
    "500", "503", "429", "429-later", "dropped", "reset", "cut", "empty", "not-json", "html",
    "other-json",
)  # fmt: skip
"""Faults that another try cures."""
LASTING = ("broken", "hang", "hang-midway", "drip", "filtered", "length", "thought", "refused")
"""Faults that come again at every try of the same request, or are not tried again."""
NEVER_ANSWERED = ("hang", "hang-midway", "drip")
"""Those of them that end in a timeout."""
KINDS = (*PASSING, *LASTING)
LATER_MS = 20
"""The wait that "429-later" asks for; the only one that hits the same request twice."""
DRIP_S = 0.05


@dataclass(slots=True)
class FaultyEndpoint:
    """The server's mind: what it does to whom, and what it has done."""

    share: float
    seed: int
    kinds: Sequence[str] = KINDS
    latency_s: float = 0.0
    base_url: str = ""
    closed: str = ""  # an address that refuses connections
    requests: int = 0
    served: Counter[str] = field(default_factory=Counter)  # by kind, "good" among them
    group_rollouts: Counter[str] = field(default_factory=Counter)  # by request

    def kind_of(self, request: Request) -> str:
        """What becomes of one request, which counts as one more try of it."""
        mark = digest(request.body)
        self.group_rollouts[mark] += 1
        if seed_for(self.seed, "fault", mark) / 2**31 >= self.share:
            return "good"
        # A ping stands for nothing that may be lost: what lasts would refuse every run.
        ping = request.body.get("max_tokens") == 1
        kinds = [kind for kind in self.kinds if not (ping and kind in LASTING)] or ["good"]
        kind = kinds[seed_for(self.seed, "kind", mark) % len(kinds)]
        hits = 2 if kind == "429-later" and not ping else 1
        return kind if kind in LASTING or self.group_rollouts[mark] <= hits else "good"

    async def serve_adapter(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while (request := await read_request(reader)) is not None:
                exchange = Exchange(request, writer)
                if (request.method, request.path) == ("GET", "/faults"):
                    await exchange.plain(200, orjson.dumps(self.told()))
                    continue
                kind = self.kind_of(request) if request.method == "POST" else "good"
                self.requests += 1
                self.served[kind] += 1
                if not await self._answered(kind, exchange, reader):
                    return
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client left, or the server is closed
        finally:
            writer.close()

    def told(self) -> dict[str, object]:
        faults = {kind: n for kind, n in sorted(self.served.items()) if kind != "good"}
        return {"requests": self.requests, "good": self.served["good"], "faults": faults}

    async def _answered(self, kind: str, exchange: Exchange, reader: asyncio.StreamReader) -> bool:
        """Answer in a way; False where the connection is of no more use."""
        if self.latency_s:
            await asyncio.sleep(self.latency_s)
        error = orjson.dumps({"error": {"message": f"a fault on purpose: {kind}"}})
        match kind:
            case "good":
                await self._good(exchange)
            case "500" | "503" | "429":
                await exchange.plain(int(kind), error)
            case "broken":
                await exchange.plain(500, error)
            case "429-later":
                later = {"retry-after": "1", "retry-after-ms": str(LATER_MS)}
                await exchange.plain(429, error, later)
            case "refused":  # by the address it is sent on to
                await exchange.plain(307, b"", {"location": self.closed})
            case "dropped":
                return False
            case "reset":
                await self._begun(exchange)
                drop(exchange.writer, reset=True)
                return False
            case "cut":
                await self._begun(exchange)
                return False
            case "empty":
                await exchange.stream([event({"choices": []}), DONE])
            case "not-json":
                await exchange.stream([b"data: {half\n\n", DONE])
            case "html":
                await exchange.plain(200, b"<html><body>Come back later.</body></html>\n")
            case "other-json":
                await exchange.plain(200, orjson.dumps({"status": "ok", "choices": "none"}))
            case "hang":
                await reader.read(1)  # until the client leaves
                return False
            case "hang-midway":
                await self._begun(exchange)
                await reader.read(1)
                return False
            case "drip":
                await self._begun(exchange)
                await _drip(exchange, reader)
                return False
            case "filtered":
                await exchange.stream([delta(content="I "), delta("content_filter"), DONE])
            case "length":
                half = await self._text(exchange)
                await exchange.stream(
                    [delta(content=half[: len(half) // 2]), delta("length"), DONE]
                )
            case "thought":
                await exchange.stream([delta(reasoning_content="Hm."), delta("stop"), DONE])
            case _:
                raise ValueError(f"there is no fault {kind!r}")
        return True

    async def _good(self, exchange: Exchange) -> None:
        request = exchange.request
        made = answer_request(request.method, request.path, orjson.dumps(request.body))
        head = {"transfer-encoding": "chunked"}
        await exchange.head(made.status, made.content_type, head)
        async for piece in made.body:
            await exchange.chunk(piece)
        await exchange.end()

    async def _text(self, exchange: Exchange) -> str:
        body = {**exchange.request.body, "stream": False}
        made = answer_request("POST", exchange.request.path, orjson.dumps(body))
        whole = orjson.loads(b"".join([piece async for piece in made.body]))
        return str(whole["choices"][0]["message"]["content"])

    async def _begun(self, exchange: Exchange) -> None:
        half = await self._text(exchange)
        await exchange.head(200, "text/event-stream", {"transfer-encoding": "chunked"})
        await exchange.chunk(delta(content=half[: len(half) // 2]))


async def _drip(exchange: Exchange, reader: asyncio.StreamReader) -> None:
    """One byte now and then, never a whole line, until the client leaves."""
    leaving = asyncio.create_task(reader.read(1))
    try:
        while not leaving.done():
            await exchange.chunk(b":")
            await asyncio.wait({leaving}, timeout=DRIP_S)
    finally:
        leaving.cancel()


@contextlib.asynccontextmanager
async def faulty_endpoint(
    share: float = 0.2,
    seed: int = 1,
    *,
    kinds: Sequence[str] = KINDS,
    latency_s: float = 0.0,
    port: int = 0,
) -> AsyncIterator[FaultyEndpoint]:
    """Serve inside the `with`; port 0 takes any free one."""
    faulty = FaultyEndpoint(share, seed, kinds, latency_s)
    server = await asyncio.start_server(
        faulty.serve_adapter, "127.0.0.1", port, limit=2**22, backlog=1024
    )
    with socket.socket() as never:
        never.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        faulty.closed = f"http://127.0.0.1:{never.getsockname()[1]}/v1/chat/completions"
        faulty.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        try:
            yield faulty
        finally:
            server.close()


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--share", type=float, default=0.2, help="of the requests that fail")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--latency-ms", type=float, default=0.0, help="before every answer")
    parser.add_argument("--kinds", default=",".join(KINDS), help="of faults, with commas between")
    given = parser.parse_args()
    kinds = [kind for kind in given.kinds.split(",") if kind]
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"there is no fault {', '.join(sorted(unknown))}; there are {KINDS}")
    async with faulty_endpoint(
        given.share,
        given.seed,
        kinds=kinds,
        latency_s=given.latency_ms / 1000,
        port=given.port,
    ) as faulty:
        print(faulty.base_url, flush=True)
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
