"""Verifier files of other frameworks, judged by them, for the tests of `engines.verifiers`."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from engines.core.types import (
    Attempt,
    AttemptStatus,
    CallKey,
    Completion,
    Message,
    Problem,
    RecordRef,
    Rollout,
    Sampling,
    Usage,
    Verdict,
)
from engines.verifiers.foreign.verifier import FunctionSettings, FunctionVerifier
from engines.verifiers.judge import JudgeContext
from tests.support.builders import FakePolicy

FILES = Path(__file__).parent / "verifier_files"
SHIPPED = Path(str(resources.files("sample_data"))) / "verifiers"
PROBLEM = Problem("p", "What is 2 + 3?", "5", "sums", {"level": 2, "tags": ["easy"]})


class FakeLedger:
    """Asks, and remembers under which key."""

    def __init__(self) -> None:
        self.keys: list[CallKey] = []

    async def ask(
        self,
        key: CallKey,
        policy: Any,
        messages: Sequence[Message],
        sampling: Sampling,
        on_text: Any = None,
    ) -> tuple[Completion, RecordRef]:
        self.keys.append(key)
        reply = await policy.complete(messages, sampling)
        return reply, RecordRef("step-0001.jsonl", len(self.keys), 1, "d")


def a_rollout(answer: str | None, index: int = 0) -> Rollout:
    said = (Message("user", "What is 2 + 3?"), Message("assistant", answer or ""))
    status: AttemptStatus = "failed" if answer is None else "ok"
    attempt = Attempt(said, answer, status, Usage(3, 4, 1), error="no reply")
    return Rollout(
        attempt=attempt,
        epoch=1,
        step=1,
        position=0,
        index=index,
        seed=7,
        policy_version=0,
        library_version=0,
    )


def judging(policy: FakePolicy, ledger: Any = None) -> JudgeContext:
    return JudgeContext(policy, Sampling(temperature=0.5), ledger or FakeLedger())


async def judged(
    file: Path | str,
    *answers: str | None,
    problem: Problem = PROBLEM,
    asks: JudgeContext | None = None,
    **settings: Any,
) -> list[Verdict]:
    """Verdicts of the function in a file on these answers, as one group."""
    verifier = FunctionVerifier(FunctionSettings(**settings), Path(file), asks)
    try:
        await verifier.check()
        rollouts = [a_rollout(answer, index) for index, answer in enumerate(answers)]
        return list(await verifier.verify(problem, rollouts))
    finally:
        await verifier.aclose()


def a_file(folder: Path, source: str, name: str = "mine.py") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(source))
    return path
