"""What a turn with tools costs beside the call itself: `python -m tests.bench.tool_loop`.

A policy and a tool that answer at once stand on both sides of the real agent, records and context
budget. Prints JSON: CPU milliseconds a turn at two lengths of a try, the minimum of the repeats,
and how much memory a try of 50 turns with 200 kB outputs adds to the process. Exits with 1 when a
target is missed.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from engines.agents.tool_loop import ToolLoop
from engines.core.protocols import OnText, ToolTry
from engines.core.text.tokens import prompt_tokens
from engines.core.tools import ToolResult, ToolSpec
from engines.core.types import CallKey, Completion, Job, Message, Problem, Sampling, ToolCall, Usage
from engines.policies.limits import Slots
from engines.policies.tool_use import ToolUsePolicy
from engines.record.ledger import RecordLedger
from engines.rollouts.manager import RolloutManager
from engines.tools.toolbox import CheckedToolbox, Entry

TRIES, REPEATS, BUDGET = 16, 5, 24_000
TARGETS = {"cpu_ms_a_turn_of_8": 1.0, "cpu_ms_a_turn_of_50": 1.0, "added_mb": 30.0}


class Calling:
    """Calls a tool in every turn but the last; remembers the largest prompt it was sent."""

    name = "bench:calls"

    def __init__(self, turns: int) -> None:
        self.turns, self.largest = turns, 0

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        self.largest = max(self.largest, prompt_tokens(messages, sampling.tools))
        turn = sum(message.role == "assistant" for message in messages)
        if turn + 1 == self.turns:
            return Completion("#### 5", usage=Usage(100, 5, 1))
        call = ToolCall(f"c{turn}", "look", json.dumps({"at": turn}))
        return Completion("Let me look.", tool_calls=(call,), usage=Usage(100, 5, 1))

    async def ping(self) -> None: ...

    async def aclose(self) -> None: ...


class Look:
    """Answers with a text of a given length."""

    def __init__(self, chars: int) -> None:
        schema = {"type": "object", "properties": {"at": {"type": "integer"}}}
        self.spec = ToolSpec("look", "Looks.", schema)
        self._text = "x" * chars

    async def check(self) -> None: ...

    async def call(self, arguments: Mapping[str, Any], within: ToolTry) -> ToolResult:
        return ToolResult(self._text)

    async def aclose(self) -> None: ...


async def roll_out(folder: Path, turns: int, chars: int, tries: int) -> tuple[float, int]:
    """CPU seconds of all tries together, and the largest prompt in tokens."""
    asked = Calling(turns)
    toolbox = CheckedToolbox([Entry(Look(chars), "look", 30.0)])
    await toolbox.check()
    ledger = RecordLedger(folder, 1)
    manager = RolloutManager(
        ToolLoop("Use tools.", Sampling(0.7), toolbox, turns),
        ToolUsePolicy(asked, "native", BUDGET),
        ledger,
        Slots(tries),
        600.0,
    )
    job = Job(Problem("p", "How many?"), "", CallKey("rollout", 1, 1, 0, 0), 0, 0)
    jobs = [replace(job, key=replace(job.key, index=n)) for n in range(tries)]
    began = time.process_time()
    await asyncio.gather(*(manager.roll_out(one) for one in jobs))
    spent = time.process_time() - began
    await ledger.aclose()
    return spent, asked.largest


def main() -> int:
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for turns in (8, 50):
            spent = min(
                asyncio.run(roll_out(Path(folder, f"{turns}-{n}"), turns, 500, TRIES))[0]
                for n in range(REPEATS)
            )
            figures[f"cpu_ms_a_turn_of_{turns}"] = round(1_000 * spent / TRIES / turns, 3)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        _, largest = asyncio.run(roll_out(Path(folder, "long"), 50, 200_000, 8))
        figures["added_mb"] = round(
            (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, 1
        )
        figures["largest_prompt_tokens"] = largest
    missed = [name for name, most in TARGETS.items() if figures[name] > most]
    missed += ["largest_prompt_tokens"] if largest > BUDGET else []
    print(json.dumps({**figures, "missed": missed}, indent=2))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
