"""What a lesson of 1,900 operations costs beside a library of 10,000 experiences.

`python -m tests.bench.lesson_size [--alike]` prints JSON: CPU seconds of each stage from the reply
of the reflector to the commit, and the longest time in which the event loop answered nobody. With
`--alike` all texts are near copies of each other.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from engines.core import events as ev
from engines.core.library import Experience, Library
from engines.core.review_memory import PastDecision
from engines.core.state.run_state import RunState
from engines.core.types import Lesson, Operation, Problem
from engines.pipeline.gate.gate import Gate
from engines.pipeline.recorder import Recorder
from engines.pipeline.reviewers.human import AutoReviewer
from engines.record.journal import Journal
from engines.record.libraries import LibraryFolder
from engines.training_free.lint import OperationLinter
from engines.training_free.proposals import withhold_rejected
from tests.support.builders import a_run, a_step

OPERATIONS, EXPERIENCES, REJECTED, PROBLEMS = 1_900, 10_000, 1_000, 10_000
_PARTS = ("b", "br", "d", "f", "gl", "k", "l", "m", "n", "p", "r", "s", "st", "t", "tr", "v")


def make_words() -> list[str]:
    vowels = "aeiou"
    return [f"{a}{v}{b}{w}" for a in _PARTS for v in vowels for b in _PARTS[:6] for w in vowels]


def make_text(chance: random.Random, words: list[str], *, alike: bool) -> str:
    if alike:
        same = "carry the tens of a column into the next one before you add what stands there"
        return f"Case {chance.choice(words)}: {same}, {chance.choice(words)} and so on."
    # As in real text, some words stand in nearly all of them.
    often = ["when", "the", "of", "a", "before", "you", "it", "and", "is", "number", "answer"]
    body = [chance.choice(often if chance.random() < 0.45 else words) for _ in range(24)]
    return f"{chance.choice(words).title()}: {' '.join(body)}."


class Stages:
    """CPU seconds of each stage, and the longest time that the loop was held."""

    def __init__(self) -> None:
        self.cpu_s: dict[str, float] = {}
        self.held_s: dict[str, float] = {}

    @asynccontextmanager
    async def measure(self, name: str) -> AsyncIterator[None]:
        longest, stop = 0.0, asyncio.Event()

        async def tick() -> None:
            nonlocal longest
            last = time.thread_time()  # of this thread: others on the machine do not count
            while not stop.is_set():
                await asyncio.sleep(0.001)
                now = time.thread_time()
                longest, last = max(longest, now - last), now

        ticking = asyncio.create_task(tick())
        await asyncio.sleep(0.01)
        began = time.process_time()
        yield
        self.cpu_s[name] = round(time.process_time() - began, 3)
        await asyncio.sleep(0.002)
        stop.set()
        await ticking
        self.held_s[name] = round(longest, 3)


async def measure(folder: Path, *, alike: bool) -> dict[str, Any]:
    chance, words = random.Random(11), make_words()

    def text() -> str:
        return make_text(chance, words, alike=alike)

    problems = [
        Problem(f"p{n}", f"{text()} How many are {chance.randrange(900)}?", str(n))
        for n in range(PROBLEMS)
    ]
    texts = list(dict.fromkeys(text() for _ in range(EXPERIENCES)))
    experiences = tuple(Experience(f"E{n}", one) for n, one in enumerate(texts, 1))
    rejected = tuple(
        PastDecision(
            run="r", operation_id=f"op0.{n}", kind="add", text=text(), became="", reason="no",
            problems=("p1",), reviewer="ann", at=1.0,
        )
        for n in range(REJECTED)
    )  # fmt: skip
    library = Library("lib", 1, experiences, len(experiences) + 1, rejected, len(rejected))
    kinds = ["add"] * 6 + ["modify"] * 3 + ["delete"]
    operations = [
        Operation(
            f"op1.{n}",
            kind := chance.choice(kinds),  # type: ignore[arg-type]
            None if kind == "add" else f"E{chance.randrange(1, len(texts))}",
            "" if kind == "delete" else text(),
            evidence=(f"s1p{n % 50}r0", f"s1p{n % 49}r1"),
            problems=(f"p{n}", f"p{n + 7}"),
        )
        for n in range(1, OPERATIONS + 1)
    ]
    place = LibraryFolder(folder / "lib")
    place.create(library)
    journal = Journal(folder / "journal.jsonl")
    state = RunState()
    recorder = Recorder(journal, state)
    await recorder.record(replace(a_run(), library_version=place.head().version))
    await recorder.record(a_step(1))
    stages, linter = Stages(), OperationLinter(practised=problems, held_out=problems[:500])
    async with stages.measure("withhold"):
        kept, withheld = await withhold_rejected(operations, library)
    async with stages.measure("lint"):
        found = await linter.flags_of(kept, library)
    async with stages.measure("lint_of_an_edit"):
        await linter.flags_of(kept[:1], library, kept[1:])
    linted = tuple(replace(op, flags=flags) for op, flags in zip(kept, found, strict=True))
    lesson = Lesson(1, place.head().version, linted, withheld=withheld)
    gate = Gate(recorder, place, [AutoReviewer()], run="exp", linter=linter)
    async with stages.measure("propose"):
        await recorder.record(ev.LessonProposed(1, lesson))
    async with stages.measure("gate"):
        await gate.review(1)
    async with stages.measure("commit"):
        done = await gate.commit(1)
    await journal.aclose()
    flagged = sum(bool(flags) for flags in found)
    return {
        "operations": OPERATIONS,
        "library": len(texts),
        "withheld": len(withheld),
        "flagged": flagged,
        "applied": sum(outcome.applied for outcome in done.outcomes),
        "cpu_s": stages.cpu_s,
        "cpu_s_in_all": round(sum(stages.cpu_s.values()), 3),
        "longest_held_s": stages.held_s,
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(Path(folder), alike="--alike" in sys.argv))
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
