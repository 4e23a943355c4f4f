"""What `studio serve` adds to a call: `python -m tests.bench.serve [ROUNDS]` prints JSON.

The same requests go to one endpoint, which answers at once, and through `studio serve` to it, turn
by turn in one run over kept connections, so that what else the machine does meets both. Client,
server and endpoint are processes of their own. Other programs only ever add to a round, so the
round with the least is given beside all.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support.fake_endpoint import DONE, delta, fake_endpoint, usage

CALLS, LIMIT_MS = 300, 3.0
TEXT = "Step 1: add the tens. "
EXPERIENCES = [f"- {{id: E{n}, text: 'Rule {n}: {TEXT * 20}'}}" for n in range(20)]
STREAM = b"".join([delta(content=TEXT)] * 30 + [delta("stop"), usage(400, 150), DONE])
MESSAGE = {"role": "assistant", "content": TEXT * 30}
WHOLE = json.dumps({"choices": [{"index": 0, "finish_reason": "stop", "message": MESSAGE}]})


async def answer_at_once() -> None:
    async def behaviour(exchange: Any) -> None:
        if exchange.request.body.get("stream"):
            await exchange.stream([STREAM])
        else:
            await exchange.plain(200, WHOLE.encode())

    async with fake_endpoint(behaviour) as fake:
        print(fake.base_url, flush=True)
        await asyncio.get_running_loop().create_future()


def ask(connection: http.client.HTTPConnection, body: str) -> float:
    """Milliseconds that a call took."""
    began = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", body, {"Authorization": "Bearer any"})
    reply = connection.getresponse()
    assert reply.status == 200 and TEXT.strip().encode() in reply.read()
    return 1e3 * (time.perf_counter() - began)


def measure(direct: str, served: str, *, stream: bool) -> dict[str, float]:
    """What the way through the server adds to a call, in pairs."""
    messages = [{"role": "user", "content": "What is 2 + 3? " * 40}]
    body = json.dumps({"model": "m", "messages": messages, "stream": stream})
    hosts = (url.split("/")[2] for url in (direct, served))
    there, through = (http.client.HTTPConnection(host) for host in hosts)
    added = [-ask(there, body) + ask(through, body) for _ in range(CALLS + 20)][20:]
    p50, p95 = statistics.median(added), statistics.quantiles(added, n=20)[-1]
    return {"added_p50_ms": round(p50, 3), "added_p95_ms": round(p95, 3)}


def start(*words: str) -> tuple[subprocess.Popen[str], str]:
    """A process, and the first line that it prints."""
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    process = subprocess.Popen([sys.executable, "-m", *words], **pipes)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def main(rounds: int) -> None:
    upstream, direct = start("tests.bench.serve", "endpoint")
    with tempfile.TemporaryDirectory() as folder:
        agent = Path(folder) / "agent.yaml"
        head = ("model: openai:m", "instructions: Solve.", "experiences:")
        agent.write_text("\n".join((*head, *EXPERIENCES)))
        words = ("serve", str(agent), "--port", "0", f"policy.base_url={direct}")
        server, served = start("studio", *words)
    found: dict[str, list[dict[str, float]]] = {"whole": [], "streamed": []}
    for _ in range(rounds):
        found["whole"].append(measure(direct, served, stream=False))
        found["streamed"].append(measure(direct, served, stream=True))
    for process in (server, upstream):
        process.terminate()
        process.wait()
    least = {name: min(all_, key=lambda one: one["added_p50_ms"]) for name, all_ in found.items()}
    within = all(one["added_p50_ms"] <= LIMIT_MS for one in least.values())
    print(json.dumps({"calls": CALLS, "least": least, "within": within, "rounds": found}, indent=2))


if __name__ == "__main__":
    if sys.argv[1:] == ["endpoint"]:
        asyncio.run(answer_at_once())
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 8)
