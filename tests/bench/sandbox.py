"""Latency and throughput of the sandbox: `python -m tests.bench.sandbox`, some seconds.

Prints JSON; exits with 1 when a bound does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from typing import Any

from engines.tools.sandbox.sandbox import Sandbox, Session

MEDIAN_MS, PER_SECOND = 10.0, 100  # the bounds
CODE = "import math\nprint(math.factorial(20))\nsum(i * i for i in range(1000))"
VALUE = "332833500"


async def call(session: Session) -> float:
    began = time.perf_counter()
    result = await session.run(CODE)
    if result.value != VALUE:
        raise RuntimeError(f"{result.status}: {result.error}")
    return time.perf_counter() - began


async def fresh_call(sandbox: Sandbox, *, pause_s: float = 0.0) -> float:
    """From the making of a session to its end. In a pause the next interpreter gets ready."""
    await asyncio.sleep(pause_s)
    began = time.perf_counter()
    session = sandbox.session()
    await call(session)
    await session.aclose()
    return time.perf_counter() - began


def milliseconds(times: list[float]) -> dict[str, float]:
    found = {"median_ms": statistics.median(times), "p95_ms": statistics.quantiles(times, n=20)[-1]}
    return {name: round(1e3 * value, 2) for name, value in found.items()}


async def calls_per_second(sandbox: Sandbox, calls: int, *, fresh: bool) -> float:
    """Over two sessions at once."""

    async def work() -> None:
        session = sandbox.session()
        for _ in range(calls // 2):
            await (fresh_call(sandbox) if fresh else call(session))
        await session.aclose()

    began = time.perf_counter()
    await asyncio.gather(work(), work())
    return round(calls / (time.perf_counter() - began))


async def measured(calls: int) -> dict[str, Any]:
    sandbox = Sandbox()
    began = time.perf_counter()
    report = await sandbox.start()
    start_s = time.perf_counter() - began
    for _ in range(5):
        await fresh_call(sandbox)
    fresh = [await fresh_call(sandbox) for _ in range(calls)]
    spaced = [await fresh_call(sandbox, pause_s=0.05) for _ in range(calls // 2)]
    session = sandbox.session()
    await call(session)
    kept = [await call(session) for _ in range(calls)]
    await session.aclose()
    found = {
        "tier": report.tier,
        "layers": dict(report.layers),
        "calls": calls,
        "start_s": round(start_s, 2),
        "fresh_session": milliseconds(fresh),
        "fresh_session_each_50_ms": milliseconds(spaced),
        "kept_session": milliseconds(kept),
        "per_second_fresh": await calls_per_second(sandbox, calls, fresh=True),
        "per_second_kept": await calls_per_second(sandbox, calls, fresh=False),
    }
    await sandbox.aclose()
    return found


def holds(found: dict[str, Any]) -> bool:
    return bool(
        found["fresh_session"]["median_ms"] <= MEDIAN_MS
        and found["kept_session"]["median_ms"] <= MEDIAN_MS
        and found["per_second_fresh"] >= PER_SECOND
        and found["per_second_kept"] >= PER_SECOND
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=200)
    found = asyncio.run(measured(parser.parse_args().calls))
    found["holds"] = holds(found)
    print(json.dumps(found, indent=2))
    return 0 if found["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
