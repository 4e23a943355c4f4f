"""Practice on the rehearsal model moves held-out accuracy, and its controls do not."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from engines.core.library import Library
from engines.core.protocols import OnText, Policy
from engines.core.types import Completion, Job, Message, Sampling
from engines.pipeline.context import RunContext
from tests.support.harness import Practised, heldout_rewards, paired_interval, practised


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return asyncio.run(heldout_rewards(None, tmp_path_factory.mktemp("without")))


async def test_the_practised_library_helps_on_held_out_problems(
    learned: Practised, without: list[float], tmp_path: Path
) -> None:
    after = await heldout_rewards(learned.library, tmp_path)
    low, _ = paired_interval(without, after)
    assert len(after) == 200
    assert low > 0


async def test_with_every_operation_rejected_nothing_is_learned(
    without: list[float], tmp_path: Path
) -> None:
    rules = tmp_path / "reject.yaml"
    rules.write_text("rules:\n  - do: reject\n    reason: a control\n")
    rejected = await practised(tmp_path / "practice", "practice.epochs=1", review=f"rules:{rules}")
    assert rejected.state.operations == {}
    assert sum(len(step.outcomes) for step in rejected.state.steps.values()) > 0
    after = await heldout_rewards(rejected.library, tmp_path)
    low, high = paired_interval(without, after)
    assert low <= 0 <= high


async def test_lessons_swapped_between_families_do_not_help(
    learned: Practised, without: list[float], tmp_path: Path
) -> None:
    after = await heldout_rewards(swapped(learned.library), tmp_path)
    low, high = paired_interval(without, after)
    assert low <= 0 <= high


async def test_when_solution_steps_are_renamed_the_lesson_changes_with_them(
    learned: Practised, tmp_path: Path
) -> None:
    def renamed(practice: RunContext) -> RunContext:
        rollouts = replace(practice.rollouts, policy=Renaming(practice.rollouts.policy))
        return replace(practice, rollouts=rollouts)

    other = await practised(tmp_path, "practice.epochs=1", "data.truncate=40", change=renamed)
    assert any("carry" in text.lower() for _, text in learned.texts)
    assert any("transport" in text.lower() for _, text in other.texts)
    assert not any("carry" in text.lower() for _, text in other.texts)


def swapped(library: Library) -> Library:
    """Each condition with the rule of the next experience's family."""
    halves = [_halves(e.text) for e in library.experiences]
    rules = [rule for _, rule in halves]
    shifted = [*rules[1:], rules[0]]
    entries = tuple(
        replace(e, text=f"{condition}, {rule}")
        for e, (condition, _), rule in zip(library.experiences, halves, shifted, strict=True)
    )
    assert len(entries) >= 2
    return replace(library, experiences=entries)


def _halves(text: str) -> tuple[str, str]:
    """("Name: when so and so", "do this.") of a lesson."""
    match = re.fullmatch(r"(.*?: when [^,]*), (.*)", text)
    assert match is not None, text
    return match[1], match[2]


@dataclass(frozen=True)
class Renaming:
    """A policy whose replies call the carry a transport."""

    inner: Policy

    @property
    def name(self) -> str:
        return self.inner.name

    def for_job(self, job: Job) -> Policy:
        return self

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        reply = await self.inner.complete(messages, sampling)
        text = reply.text.replace("carry", "transport").replace("Carry", "Transport")
        return replace(reply, text=text)

    async def ping(self) -> None:
        await self.inner.ping()

    async def aclose(self) -> None:
        await self.inner.aclose()
