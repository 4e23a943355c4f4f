"""What reading costs: `python -m tests.bench.reading_cost`, seconds.

Forty groups of real outputs on GSM8K that hold winners and losers are read by the rehearsal's
reflector, with no library and with one of thirty experiences. Tokens are counted as the estimate
does: four bytes each, and what a chat template adds. A model computes what all requests of a step
begin with once, where its endpoint caches prefixes (and bills it at a tenth or so after that);
`anew` counts it once, `all` every time. `before` is what the prompts of an earlier commit gave in
this program. Prints JSON; exits with 1 when a bound does not hold, which `missed` names.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines.core.library import Experience, Library
from engines.core.protocols import OnText
from engines.core.types import (
    Attempt,
    Completion,
    Group,
    Message,
    Problem,
    Rollout,
    Sampling,
    Usage,
    Verdict,
)
from engines.policies.rehearsal.reply import complete_request
from engines.record.ledger import RecordLedger
from engines.training_free.engine import TrainingFreeEngine
from engines.training_free.settings import TrainingFreeSettings
from engines.verifiers.stated_answer import find_stated_answer, wrong_verdict
from studio.config.settings.training import PracticeConfig
from studio.estimate.facts import BYTES_A_TOKEN, SCAFFOLD_TOKENS

SHARED = Path(__file__).parents[3] / "shared/data"  # beside the checkout
DATA = Path(os.environ.get("PRACTICE_DATA", SHARED)) / "gsm8k/rollouts.jsonl"
GROUPS, EXPERIENCES = 40, 30
MOST_SHARE = 0.60
# Of commit 09b1fc5, by this program run in a checkout of it.
BEFORE = {
    "empty": {"lessons": 40, "all": 36_720, "anew": 30_519},
    "thirty": {"lessons": 40, "all": 65_981, "anew": 59_780},
}


@dataclass
class CountingReflector:
    """The rehearsal's reflector, which keeps what it was shown and what it said."""

    requests: list[str] = field(default_factory=list)
    replies: list[str] = field(default_factory=list)
    name: str = "rehearsal"

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        plain = [{"role": m.role, "content": m.content} for m in messages]
        text, _ = complete_request({"model": "rehearsal", "messages": plain, "seed": 1})
        self.requests.append("\n\n".join(m.content for m in messages))
        self.replies.append(text)
        return Completion(text, usage=Usage(1, 1, 1))

    async def ping(self) -> None: ...

    async def aclose(self) -> None: ...


def mixed_groups() -> Iterator[Group]:
    """The first groups of the log that hold both winners and losers, as the loop has them."""
    position = 0
    for line in DATA.read_text("utf-8").splitlines():
        row = json.loads(line)
        if len({tried["reward"] for tried in row["rollouts"]}) < 2:
            continue
        problem = Problem(f"p{position}", row["question"], row["answer"])
        rollouts, verdicts = [], []
        for index, tried in enumerate(row["rollouts"]):
            said = tried["response"]
            attempt = Attempt((Message("assistant", said),), said)
            rollouts.append(
                Rollout(
                    attempt=attempt,
                    epoch=1,
                    step=1,
                    position=position,
                    index=index,
                    seed=1,
                    policy_version=0,
                    library_version=0,
                )
            )
            got = find_stated_answer(said).text
            right = Verdict(1.0, f"{got} == {row['answer']}")
            verdicts.append(right if tried["reward"] else wrong_verdict(got, [row["answer"]]))
        yield Group(problem, 1, 1, position, tuple(rollouts), tuple(verdicts))
        position += 1
        if position == GROUPS:
            return


def a_library(n: int) -> Library:
    """Experiences of the usual length that say nothing of these problems."""
    wording = "when a text of kind {0} is met, look at its part {0} first and name what it is for"
    entries = (Experience(f"E{k}", f"Kind {k}: {wording.format(k)}.") for k in range(1, n + 1))
    return Library("lib", 0, tuple(entries), n + 1)


async def read_all(groups: Sequence[Group], library: Library) -> dict[str, Any]:
    reflector, practice = CountingReflector(), PracticeConfig()
    settings = TrainingFreeSettings(practice.agent_objective, practice.learning_objective)
    with tempfile.TemporaryDirectory() as folder:
        ledger = RecordLedger(Path(folder), 1)
        engine = TrainingFreeEngine(settings, reflector, ledger)
        found = [await engine.reflect(group, library) for group in groups]
        await ledger.aclose()
    # One extraction a group, so the requests are in the groups' order.
    lost = [
        line
        for group, request in zip(groups, reflector.requests, strict=True)
        for line in _critiques(group)
        if line not in request
    ]
    begun = os.path.commonprefix(reflector.requests)  # noqa: RUF071 - of texts, not of paths
    shared = _tokens(begun)
    n = len(reflector.requests)
    total = sum(map(_tokens, reflector.requests)) + n * SCAFFOLD_TOKENS
    replies = sum(map(_tokens, reflector.replies))
    return {
        "calls": n,
        "lessons": sum(len(one.proposals) for one in found),
        "all": total + replies,
        "anew": total + replies - (n - 1) * shared,
        "shared": shared,
        "critiques_missing": len(lost),
    }


def _critiques(group: Group) -> Iterator[str]:
    """What the verifier says of losers; of winners it says only that the answer is right."""
    for verdict in group.verdicts:
        if not verdict.reward and verdict.critique:
            yield verdict.critique


def _tokens(text: str) -> int:
    return round(len(text.encode()) / BYTES_A_TOKEN)


async def measure() -> dict[str, Any]:
    groups = list(mixed_groups())
    now = {
        "empty": await read_all(groups, a_library(0)),
        "thirty": await read_all(groups, a_library(EXPERIENCES)),
    }
    missed = []
    shares: dict[str, dict[str, float]] = {}
    for name, found in now.items():
        before = BEFORE[name]
        shares[name] = {key: round(found[key] / before[key], 3) for key in ("all", "anew")}
        if shares[name]["anew"] > MOST_SHARE:
            missed.append(f"{name}: tokens for reading")
        if found["lessons"] < before["lessons"]:
            missed.append(f"{name}: lessons")
        if found["critiques_missing"]:
            missed.append(f"{name}: critiques")
    return {"groups": len(groups), "now": now, "before": BEFORE, "share": shares, "missed": missed}


def main() -> int:
    found = asyncio.run(measure())
    print(json.dumps(found, indent=2))
    return bool(found["missed"])


if __name__ == "__main__":
    sys.exit(main())
