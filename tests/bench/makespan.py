"""How long a step takes where latencies vary: `python -m tests.bench.makespan`, half a minute.

The real step runs on a virtual clock, with a policy and a reflector whose latencies are
log-normal (sigma 1, median 1 s). Its makespan goes from the moment the first rollout holds
a slot to the moment the last reflection is recorded. Beside it stand two list schedules
that know no latency before it is over, as the step does not: the ideal one takes ready
reflections first and then rollouts in sample order; the one with barriers begins the
reflections when the last rollout is over. Prints JSON.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engines.core.events import DurableEvent, GroupReflected, RolloutStarted, TransientEvent
from engines.core.protocols import OnText
from engines.core.types import Completion, Job, Message, Sampling, Usage
from engines.pipeline.context import RunContext
from tests.support.harness import practised
from tests.support.virtual_clock import on_virtual_clock

GROUPS, GROUP, DRAWS, SLOTS = 8, 4, 20, (8, 16, 32)
AT_MOST = 1.05
"""What our makespan may be of the ideal one."""


@dataclass(frozen=True)
class Latencies:
    """Seconds of each call: of rollouts by position and index, of reflections by position."""

    rollouts: tuple[tuple[float, ...], ...]
    reflections: tuple[float, ...]


def drawn(seed: int) -> Latencies:
    rng = random.Random(seed)
    rollouts = tuple(tuple(rng.lognormvariate(0, 1) for _ in range(GROUP)) for _ in range(GROUPS))
    return Latencies(rollouts, tuple(rng.lognormvariate(0, 1) for _ in range(GROUPS)))


# ── the two schedules, which share no code with the loop


def ideal(latencies: Latencies, slots: int) -> float:
    """Whenever a slot is free: a reflection whose group is through, else the next rollout."""
    groups = latencies.rollouts
    waiting = [(p, i) for p, group in enumerate(groups) for i in range(len(group))][::-1]
    ready: list[int] = []
    left = [len(group) for group in groups]
    running: list[tuple[float, int, int]] = []  # ends at, position, index or -1
    now = 0.0
    while waiting or ready or running:
        while len(running) < slots and (ready or waiting):
            if ready:
                position, index = ready.pop(0), -1
                takes = latencies.reflections[position]
            else:
                position, index = waiting.pop()
                takes = latencies.rollouts[position][index]
            heapq.heappush(running, (now + takes, position, index))
        now, position, index = heapq.heappop(running)
        if index >= 0:
            left[position] -= 1
            if not left[position]:
                ready.append(position)
    return now


def with_barriers(latencies: Latencies, slots: int) -> float:
    """All rollouts, and only then all reflections."""
    rollouts = [seconds for group in latencies.rollouts for seconds in group]
    return _listed(rollouts, slots) + _listed(latencies.reflections, slots)


def _listed(seconds: Sequence[float], slots: int) -> float:
    free = [0.0] * slots
    for takes in seconds:
        heapq.heappush(free, heapq.heappop(free) + takes)
    return max(free)


# ── the real step


@dataclass(frozen=True)
class Slow:
    """Policy and reflector with set latencies; of each group the first try is right."""

    latencies: Latencies
    positions: dict[str, int]  # of the questions
    job: Job | None = None
    name: str = "slow"

    def for_job(self, job: Job) -> Slow:
        return replace(self, job=job)

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        asked = messages[-1].content
        if self.job is not None:
            key = self.job.key
            takes = self.latencies.rollouts[key.position][key.index]
            text = self.job.problem.answer or "" if key.index == 0 else "no"
        elif "# Task: extract" in messages[0].content:
            found = [at for question, at in self.positions.items() if question in asked]
            takes, text = self.latencies.reflections[found[0]], "[]"
        else:
            raise AssertionError(f"nothing is to be consolidated: {asked}")
        await asyncio.sleep(takes)
        return Completion(text, usage=Usage(1, 1, 1))

    async def ping(self) -> None: ...

    async def aclose(self) -> None: ...


def makespan(latencies: Latencies, slots: int, workspace: Path) -> float:
    """Of the real step; see the head of this file for what it counts."""
    seen: list[float] = []

    def slowed(practice: RunContext) -> RunContext:
        def listen(event: DurableEvent | TransientEvent) -> None:
            if isinstance(event, GroupReflected) or (
                isinstance(event, RolloutStarted) and not seen
            ):
                seen.append(asyncio.get_running_loop().time())

        practice.recorder.listen(listen)
        positions = {p.question: at for at, p in enumerate(practice.batch(1))}
        slow = Slow(latencies, positions)
        # The reflector's slots and priority are as assembled; only what they hold is another.
        asked = practice.engine.reflector  # type: ignore[attr-defined]
        asked.policy = replace(asked.policy, inner=slow)
        return replace(practice, rollouts=replace(practice.rollouts, policy=slow))

    async def run() -> None:
        await practised(
            workspace,
            f"data.truncate={GROUPS}",
            "verifier=text",
            "practice.epochs=1",
            f"practice.batch_size={GROUPS}",
            f"practice.group_size={GROUP}",
            f"practice.concurrency={slots}",
            change=slowed,
        )

    on_virtual_clock(run())
    assert len(seen) == GROUPS + 1
    return seen[-1] - seen[0]


def measured(slots: int, folder: Path, draws: int = DRAWS) -> dict[str, float]:
    """Ours to the ideal at worst and in the mean, and the mean gain over barriers."""
    to_ideal, gains = [], []
    for seed in range(draws):
        latencies = drawn(seed)
        ours = makespan(latencies, slots, folder / f"{slots}-{seed}")
        to_ideal.append(ours / ideal(latencies, slots))
        gains.append(1 - ours / with_barriers(latencies, slots))
    return {
        "slots": slots,
        "draws": draws,
        "to_ideal_max": round(max(to_ideal), 4),
        "to_ideal_mean": round(statistics.fmean(to_ideal), 4),
        "gain_over_barriers_mean": round(statistics.fmean(gains), 4),
        "gain_over_barriers_min": round(min(gains), 4),
    }


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        found = [measured(slots, Path(name)) for slots in SLOTS]
    holds = all(
        row["to_ideal_max"] <= AT_MOST and row["gain_over_barriers_mean"] > 0 for row in found
    )
    setting = {"groups": GROUPS, "group_size": GROUP, "sigma": 1, "to_ideal_at_most": AT_MOST}
    print(json.dumps({**setting, "schedules": found, "holds": holds}, indent=2))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
