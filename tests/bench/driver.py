"""What the process of a run can take: rollouts, events, bytes and streamed pieces a second.

    python -m tests.bench.driver --rollouts 4000 --slots 1000

A model that answers at once with 4 kB stands for any number of endpoints, and workers in this
process, to which all is pickled, for any number of nodes: what is left is the work of the run's own
process, with its records and journal on disk. Prints JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pickle
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from engines.agents.single_turn import SingleTurn
from engines.core import events as ev
from engines.core.protocols import Agent, OnText
from engines.core.state.run_state import RunState
from engines.core.types import CallKey, Completion, Job, Message, Problem, Sampling, Usage, Verdict
from engines.pipeline.recorder import Recorder
from engines.policies.limits import Slots
from engines.record.journal import Journal
from engines.record.ledger import RecordLedger
from engines.rollouts.manager import RolloutManager
from tests.support.builders import a_rollout_finished, a_run, a_step
from tests.support.memory_cluster import on_cluster

REPLY = ("The sum of the two numbers is found column by column. " * 80)[:4000]
PIECES = [REPLY[at : at + 4] for at in range(0, len(REPLY), 4)]
GROUP = 8


class Instant:
    """Answers at once; `pieces` are streamed first."""

    name = "instant"

    def __init__(self, pieces: Sequence[str] = ()) -> None:
        self.pieces = pieces

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        if on_text is not None:
            for piece in self.pieces:
                on_text(piece)
        return Completion(REPLY, usage=Usage(500, 1000, 1))

    async def ping(self) -> None: ...

    async def aclose(self) -> None: ...


async def roll_out(
    agent: Agent, folder: Path, rollouts: int, slots: int, policy: Instant
) -> dict[str, Any]:
    """Make rollouts, record their replies and tell of them as practice does."""
    folder.mkdir()
    ledger, journal = RecordLedger(folder / "records", 1), Journal(folder / "journal.jsonl")
    recorder = Recorder(journal, RunState())
    await recorder.record(a_run())
    await recorder.record(a_step())
    manager = RolloutManager(agent, policy, ledger, Slots(slots), 600.0)
    problem = Problem("p", "What is 2 + 3? " * 20, "5")
    streamed = 0

    async def one(number: int) -> None:
        nonlocal streamed
        key = CallKey("rollout", 1, 1, number // GROUP, number % GROUP)

        def seen(text: str) -> None:
            nonlocal streamed
            streamed += 1
            recorder.emit(ev.TextStreamed(key, text))

        attempt, refs = await manager.roll_out(Job(problem, "", key, 0, 0), seen)
        made = a_rollout_finished(key.position, key.index)
        await recorder.record(replace(made, refs=refs, usage=attempt.usage, elapsed_s=0.0))
        judged = ev.RolloutJudged(1, key.position, key.index, Verdict(1.0, "5 == 5"))
        await recorder.record(judged)

    began, cpu = time.monotonic(), time.process_time()
    async with asyncio.TaskGroup() as group:
        for number in range(rollouts):
            group.create_task(one(number))
    took, used = time.monotonic() - began, time.process_time() - cpu
    await ledger.aclose()
    await journal.aclose()
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {
        "rollouts_per_s": round(rollouts / took),
        "events_per_s": round(2 * rollouts / took),
        "mb_per_s": round(size / took / 1e6, 1),
        "pieces_per_s": round(streamed / took),
        "cpu_ms_per_rollout": round(1000 * used / rollouts, 3),
    }


async def measure(rollouts: int, slots: int, repeats: int) -> dict[str, Any]:
    def make_agent(sampling: Sampling) -> Agent:
        return SingleTurn("Solve it.", sampling)

    found: dict[str, Any] = {}
    for name, policy, remote in (
        ("here", Instant(), False),
        ("here, streamed by tokens", Instant(PIECES), False),
        ("on workers", Instant(), True),
    ):
        best: dict[str, Any] = {}
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                place = Path(folder) / "run"
                if remote:
                    async with on_cluster(
                        make_agent, workers=64, tries_per_worker=-(-slots // 64)
                    ) as dispatcher:
                        agent = dispatcher.agent(Sampling())
                        made = await roll_out(agent, place, rollouts, slots, policy)
                else:
                    agent = make_agent(Sampling())
                    made = await roll_out(agent, place, rollouts, slots, policy)
            if not best or made["rollouts_per_s"] > best["rollouts_per_s"]:
                best = made
        found[name] = best
    job = Job(Problem("p", "What is 2 + 3? " * 20, "5"), "", CallKey("rollout", 1, 1), 0, 0)
    found["bytes_of_a_job"] = len(pickle.dumps(("ask", 1, "attempt", (1, "m", job, None))))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=4000)
    parser.add_argument("--slots", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    print(json.dumps(asyncio.run(measure(asked.rollouts, asked.slots, asked.repeats)), indent=2))


if __name__ == "__main__":
    main()
