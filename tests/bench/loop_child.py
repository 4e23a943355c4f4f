"""The measured processes of `tests.bench.loop`, each of which prints one JSON object.

`python -m tests.bench.loop_child studio headless …` is the real command line, with a
look at the clock and the counters before practice, after each step and after it.
`python -m tests.bench.loop_child bare URL RECORDS SLOTS` puts the requests that such a
run recorded to the client library alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any


def looked() -> dict[str, float]:
    """CPU of this process with its threads, of its ended children, time, and bytes."""
    own, ended = resource.getrusage(resource.RUSAGE_SELF), resource.RUSAGE_CHILDREN
    children = resource.getrusage(ended)
    io = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return {
        "cpu_s": own.ru_utime + own.ru_stime,
        "children_cpu_s": children.ru_utime + children.ru_stime,
        "at": time.monotonic(),
        # Files only: sockets are not counted here, since recv and send are no read and write.
        "read": float(io["rchar"]),
        "written": float(io["wchar"]),
    }


def peak_mb() -> float:
    """Of this process alone; `ru_maxrss` would begin with its parent's."""
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def studio(arguments: list[str]) -> dict[str, Any]:
    from engines.core.events import DurableEvent, StepFinished, TransientEvent
    from engines.pipeline import step
    from engines.pipeline.context import RunContext
    from engines.pipeline.step import Ending
    from studio.cli import run

    practise = step.practise
    found: dict[str, Any] = {}

    async def measured(practice: RunContext) -> Ending:
        looks: list[dict[str, float]] = []

        def look(event: DurableEvent | TransientEvent | None = None) -> None:
            if event is None or isinstance(event, StepFinished):
                events = practice.recorder.state.events
                looks.append({**looked(), "events": events, "calls": practice.ledger.asked})

        practice.recorder.listen(look)
        look()
        ending = await practise(practice)
        look()
        found.update(looks=looks, ending=ending, lost=dict(practice.recorder.state.lost))
        return ending

    step.practise = measured
    with contextlib.redirect_stdout(sys.stderr):
        found["exit"] = run(arguments)
    return found | {"peak_mb": peak_mb(), **looked()}


async def bare(url: str, records: Path, slots: int) -> dict[str, Any]:
    import httpx2
    import openai
    import orjson

    from engines.core.codec import from_dict
    from engines.policies.chat.exchange import Dialect, chat_request
    from engines.record import lines
    from engines.record.ledger import Record

    bodies = []
    for path in sorted(records.glob("*.jsonl")):
        for line in lines.read(path, chained=False).lines:
            record = from_dict(Record, orjson.loads(line.body))
            bodies.append(chat_request("canned", record.messages, record.sampling, 4096, Dialect()))
    slot = asyncio.Semaphore(slots)
    http = httpx2.AsyncClient(
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=256), trust_env=False
    )
    async with openai.AsyncOpenAI(
        api_key="none", base_url=url, max_retries=0, http_client=http
    ) as client:
        create: Any = client.chat.completions.with_streaming_response.create

        async def call(body: dict[str, Any]) -> None:
            async with slot, create(**body) as response:
                await response.read()

        await asyncio.gather(*(call(body) for body in bodies[:slots]))  # connect first
        before = looked()
        await asyncio.gather(*(call(body) for body in bodies))
        after = looked()
    return {
        "calls": len(bodies),
        "cpu_s": after["cpu_s"] - before["cpu_s"],
        "wall_s": after["at"] - before["at"],
    }


def main() -> None:
    what, *arguments = sys.argv[1:]
    if what == "studio":
        found = studio(arguments)
    else:
        url, records, slots = arguments
        found = asyncio.run(bare(url, Path(records), int(slots)))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
