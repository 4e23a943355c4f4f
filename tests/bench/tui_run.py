"""The run of `tests.bench.tui`: recorded once from a rehearsal, then played to real screens.

`record` practises one step with scripted replies and writes its events, durable and
transient, a JSON object a line. `serve` opens a copy of that run as its process does, serves
its socket, and plays the recorded text: SIGUSR1 plays it at its rate, SIGUSR2 as fast as it
goes. With `--practise` the run itself goes on too, which is how a review is held.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from engines.core.events import (
    DurableEvent,
    RolloutStarted,
    TextStreamed,
    TransientEvent,
    event_from_dict,
    event_to_dict,
)
from engines.core.types import CallKey
from engines.pipeline.context import RunContext
from engines.pipeline.step import practise
from engines.record.run_dir import Workspace
from studio.config.source import Source
from studio.run.assemble import open_run_context
from studio.run.new_or_resume import RunRequest, load_plan
from studio.session.server import serve

RUN = "recorded"
TOKENS = 1_000
"""Of each recorded text: twenty seconds at fifty a second."""
_SLICE = 2_000  # tokens that are played before the loop has its turn
_Event = DurableEvent | TransientEvent


def _quiet(_: str) -> None:
    pass


async def record(workspace: Workspace, groups: int, size: int, file: Path) -> None:
    """Practise one step up to its review and write down what happened.

    A rehearsal's replies are short and come whole. Each is cut into words here and goes on
    with what the other tries at its problem said, until it has `TOKENS` of them.
    """
    settings = (f"practice.batch_size={groups}", f"practice.group_size={size}",
                "evaluation.do_eval=false", "practice.epochs=1", "review.hold_s=0.001")  # fmt: skip
    source = Source(settings, "rehearsal")
    request = RunRequest(workspace=workspace, source=source, name=RUN, review="wait")
    plan = load_plan(request, _quiet)
    heard: list[_Event] = []
    async with AsyncExitStack() as stack:
        practice = await open_run_context(plan, stack, _quiet)
        practice.recorder.listen(heard.append)
        await practise(practice)
    heard.insert(0, next(iter(plan.run.entries())).event)
    first = next(at for at, event in enumerate(heard) if isinstance(event, RolloutStarted))
    rest = [e for e in heard[first:] if not isinstance(e, RolloutStarted | TextStreamed)]
    started = [e for e in heard if isinstance(e, RolloutStarted)]
    with file.open("w") as out:
        for event in (*heard[:first], *started, *_spoken(heard), *rest):
            out.write(json.dumps(event_to_dict(event)) + "\n")


def _spoken(heard: Sequence[_Event]) -> Iterator[TextStreamed]:
    """Every text a word at a time, all of them abreast."""
    words: dict[CallKey, list[str]] = {}
    for event in heard:
        if isinstance(event, TextStreamed) and event.key.purpose == "rollout":
            words.setdefault(event.key, []).extend(re.findall(r"\s*\S+|\s+\Z", event.text))
    texts = {}
    for key in words:
        group = [[*said, "\n"] for o, said in words.items() if o.position == key.position]
        at = key.index % len(group)
        texts[key] = list(itertools.chain(*group[at:], *group[:at]))
    for number in range(TOKENS):
        for key, said in texts.items():
            yield TextStreamed(key, said[number % len(said)])


class Player:
    """Plays the texts of a recording into a practice, as its policies would."""

    def __init__(self, practice: RunContext, file: Path, out: Path, rate: float) -> None:
        self._practice, self._out, self._rate = practice, out, rate
        self._starts: list[RolloutStarted] = []
        self._rounds: list[list[TextStreamed]] = []
        self._begun = False
        self._plays = 0
        self._task: asyncio.Task[None] | None = None
        for line in file.open():
            if '"kind": "TextStreamed"' in line or '"kind": "RolloutStarted"' in line:
                self._keep(event_from_dict(json.loads(line)))

    def _keep(self, event: RolloutStarted | TextStreamed) -> None:
        if isinstance(event, RolloutStarted):
            self._starts.append(event)
            return
        if not self._rounds or len(self._rounds[-1]) == len(self._starts):
            self._rounds.append([])
        self._rounds[-1].append(event)

    def play(self, rounds: int, rate: float | None) -> None:
        """So many tokens of every text, at a rate each or at once."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._play(rounds, rate))

    async def _play(self, rounds: int, rate: float | None) -> None:
        emit = self._practice.recorder.emit
        if not self._begun:
            self._begun = True
            for start in self._starts:
                emit(start)
            await asyncio.sleep(1.0)  # a screen asks for their texts
        began, cpu = time.monotonic(), time.process_time()
        said = 0
        for number in range(rounds):
            if rate is not None:
                await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            for event in self._rounds[number % len(self._rounds)]:
                emit(event)
                said += 1
                if rate is None and said % _SLICE == 0:
                    await asyncio.sleep(0)
        self._plays += 1
        facts = {
            "plays": self._plays, "tokens": said, "began": began, "ended": time.monotonic(),
            "cpu_s": time.process_time() - cpu,
        }  # fmt: skip
        whole = self._out.with_suffix(".new")
        whole.write_text(json.dumps(facts))
        whole.replace(self._out)


async def serving(arguments: argparse.Namespace) -> None:
    """Serve the run until SIGTERM."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    workspace = Workspace(arguments.workspace)
    request = RunRequest(workspace=workspace, source=Source((), resume=RUN), review="wait")
    plan = load_plan(request, _quiet)
    decided: list[float] = []
    async with AsyncExitStack() as stack:
        practice = await open_run_context(plan, stack, _quiet)
        _timed(practice, decided)
        player = Player(practice, arguments.events, arguments.out, arguments.rate)
        rounds = int(arguments.seconds * arguments.rate)
        loop.add_signal_handler(signal.SIGUSR1, player.play, rounds, arguments.rate)
        loop.add_signal_handler(signal.SIGUSR2, player.play, arguments.flood, None)
        await stack.enter_async_context(serve(practice, plan.run.socket))
        practising = asyncio.create_task(practise(practice)) if arguments.practise else None
        arguments.ready.touch()
        await ended.wait()
        arguments.out.with_suffix(".decided").write_text(json.dumps(decided))
        if practising is not None:
            practising.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await practising


def _timed(practice: RunContext, decided: list[float]) -> None:
    """Note how long the gate takes until a decision is on disk, in milliseconds."""
    decide = practice.gate.decide_all

    async def timed(*arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return await decide(*arguments, **named)
        finally:
            decided.append((time.perf_counter() - began) * 1000)

    practice.gate.decide_all = timed  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("record", "serve"))
    parser.add_argument("--workspace", type=Path, required=True)
    parser.add_argument("--events", type=Path, required=True)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--rate", type=float, default=50.0, help="tokens a second of a text")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--flood", type=int, default=0, help="tokens of each text, at once")
    parser.add_argument("--practise", action="store_true")
    parser.add_argument("--ready", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.what == "record":
        workspace = Workspace(arguments.workspace)
        asyncio.run(record(workspace, arguments.groups, arguments.size, arguments.events))
    else:
        asyncio.run(serving(arguments))


if __name__ == "__main__":
    main()
