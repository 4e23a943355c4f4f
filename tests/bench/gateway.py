"""What the gateway adds to a call: `python -m tests.bench.gateway` prints JSON.

The same requests are asked of one policy in process and over a kept connection, turn by turn in
one run, so that what else the machine does meets both. The policy answers at once: what is left
is the way there and back. CPU is the studio's alone; the client is a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from engines.agents.gateway.server import Gateway
from engines.agents.guided_try import GuidedTry
from engines.core.protocols import OnText
from engines.core.types import Completion, Message, Sampling, Usage

CALLS = 300
REPLY = Completion("Step 1: add the tens. " * 30, usage=Usage(400, 150, 1))
MESSAGES: list[dict[str, str]] = [{"role": "user", "content": "What is 2 + 3? " * 40}]
GUIDANCE = "[E1] Carrying: write the carried digit above the next column. " * 30
CLIENT = """
import http.client, json, os, sys, time
host = os.environ["OPENAI_BASE_URL"].split("/")[2]
connection = http.client.HTTPConnection(host)
head = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
for line in sys.stdin:
    began = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", line, head)
    connection.getresponse().read()
    print(time.perf_counter() - began, flush=True)
"""


class Immediate:
    name = "immediate"

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        return REPLY

    async def ping(self) -> None: ...

    async def aclose(self) -> None: ...


async def measure(*, stream: bool) -> dict[str, float]:
    direct = GuidedTry(Immediate(), Sampling(), GUIDANCE)
    messages = tuple(Message("user", m["content"]) for m in MESSAGES)
    body = json.dumps({"model": "m", "messages": MESSAGES, "stream": stream}).encode() + b"\n"
    times: dict[str, list[float]] = {"direct": [], "client": [], "direct CPU": [], "CPU": []}
    async with Gateway(GuidedTry(Immediate(), Sampling(), GUIDANCE)) as gateway:
        pipes: Any = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
        command = (sys.executable, "-c", CLIENT)
        client = await asyncio.create_subprocess_exec(*command, **pipes, env=gateway.environment())
        assert client.stdin is not None and client.stdout is not None
        for n in range(CALLS + 20):
            cpu, began = time.process_time(), time.perf_counter()
            await direct.ask(messages)
            took, used = time.perf_counter() - began, time.process_time() - cpu
            cpu = time.process_time()
            client.stdin.write(body)
            through = float(await client.stdout.readline())
            if n >= 20:  # the first calls open the connection
                times["direct"].append(took)
                times["direct CPU"].append(used)
                times["client"].append(through)
                times["CPU"].append(time.process_time() - cpu)
        client.stdin.close()
        await client.wait()
    added = [c - d for c, d in zip(times["client"], times["direct"], strict=True)]
    return {
        "added_p50_ms": round(1e3 * statistics.median(added), 3),
        "added_p95_ms": round(1e3 * statistics.quantiles(added, n=20)[-1], 3),
        "cpu_ms": round(
            1e3 * (statistics.mean(times["CPU"]) - statistics.mean(times["direct CPU"])), 3
        ),
        "calls": CALLS,
    }


async def measure_open() -> float:
    """Milliseconds to open and close the gateway of a try, the median."""
    took = []
    for _ in range(30):
        began = time.perf_counter()
        async with Gateway(GuidedTry(Immediate(), Sampling())):
            pass
        took.append(time.perf_counter() - began)
    return round(1e3 * statistics.median(took), 3)


async def main() -> None:
    figures: dict[str, Any] = {
        "whole": await measure(stream=False),
        "streamed": await measure(stream=True),
        "open_ms": await measure_open(),
    }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    asyncio.run(main())
