"""Groups in which no try was better: which are read, by which prompt, and what comes of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.core.library import Library
from engines.core.types import Credit, Doubt, Group, Reflection
from engines.record.ledger import RecordLedger
from engines.training_free.consolidation import TrainingFreeEngine
from engines.training_free.settings import TrainingFreeSettings
from tests.support.builders import FakePolicy, a_group, a_library, a_problem, answering

TASK = TrainingFreeSettings("Solve sums.", "Be right more often.")
ADD = {"operation": "add", "experience": "Unit: name it.", "reason": "seen", "attempts": [0, 1]}


def an_engine(
    folder: Path, *replies: Any, **settings: Any
) -> tuple[TrainingFreeEngine, FakePolicy]:
    policy = answering(*[r if isinstance(r, str) else json.dumps(r) for r in replies])
    return TrainingFreeEngine(replace(TASK, **settings), policy, RecordLedger(folder, 1)), policy


async def reflected(
    folder: Path, group: Group, *replies: Any, library: Library | None = None, **settings: Any
) -> tuple[Reflection, FakePolicy]:
    engine, policy = an_engine(folder, *replies, **settings)
    return await engine.reflect(group, library or a_library()), policy


@pytest.mark.parametrize("rewards", [[0, 0], [0.5, 0.5], [0.5, 0.52], [0]])
async def test_a_group_without_a_good_try_is_read_by_a_prompt_of_its_own(
    rewards: list[float | None], tmp_path: Path
) -> None:
    row = {**ADD, "attempts": list(range(len(rewards)))}
    found, policy = await reflected(tmp_path, a_group(rewards), [row])
    assert (found.outcome, len(found.proposals)) == ("critique", 1)
    assert found.proposals[0].evidence == tuple(f"s1p0r{n}" for n in range(len(rewards)))
    assert policy.requests[0][-1].content.startswith("# No try was good")


async def test_what_is_read_for_contrast_has_another_prompt_and_hash(tmp_path: Path) -> None:
    wrong, _ = await reflected(tmp_path / "a", a_group([0, 0]), [])
    mixed, policy = await reflected(tmp_path / "b", a_group([1, 0]), [])
    assert (wrong.outcome, mixed.outcome) == ("critique", "used")
    assert wrong.prompt_hash and wrong.prompt_hash != mixed.prompt_hash
    assert policy.requests[0][-1].content.startswith("# Some tries were better")


@pytest.mark.parametrize(
    ("group", "settings", "outcome"),
    [
        (a_group([0, 0]), {"read_without_contrast": 0}, "all-wrong"),
        (a_group([0.5, 0.5]), {"read_without_contrast": 0}, "all-equal"),
        (a_group([0, 0], problem=a_problem(answer=None)), {}, "all-wrong"),
        (a_group([1, 0.97]), {}, "all-right"),
    ],
)
async def test_what_cannot_teach_or_is_switched_off_costs_no_call(
    group: Group, settings: dict[str, Any], outcome: str, tmp_path: Path
) -> None:
    found, policy = await reflected(tmp_path, group, **settings)
    assert (found.outcome, policy.requests) == (outcome, [])


@pytest.mark.parametrize("order", [range(6), range(5, -1, -1), (3, 5, 0, 4, 1, 2)])
async def test_the_first_ones_by_place_are_read_whatever_order_they_end_in(
    order: Sequence[int], tmp_path: Path
) -> None:
    """And no group waits for anything but the rewards of those before it."""
    wrong = [True, False, True, True, False, True]
    groups = [a_group([0, 0] if bad else [1, 1], position=n) for n, bad in enumerate(wrong)]
    engine, policy = an_engine(tmp_path, *[[]] * 2, read_without_contrast=2)
    judged = tuple(asyncio.get_running_loop().create_future() for _ in groups)
    tasks = [
        asyncio.create_task(engine.reflect(group, a_library(), judged[:n]))
        for n, group in enumerate(groups)
    ]
    for place in order:
        judged[place].set_result(groups[place])
    outcomes = [(await task).outcome for task in tasks]
    assert outcomes == ["critique", "all-right", "critique", "all-wrong", "all-right", "all-wrong"]
    assert len(policy.requests) == 2


async def test_a_group_that_is_surely_within_the_limit_waits_for_nobody(tmp_path: Path) -> None:
    engine, _ = an_engine(tmp_path, [], read_without_contrast=2)
    never = asyncio.get_running_loop().create_future()
    found = await engine.reflect(a_group([0, 0], position=1), a_library(), [never])
    assert found.outcome == "critique"


async def test_all_questions_of_a_step_begin_with_the_same_message(tmp_path: Path) -> None:
    """Models cache what requests have in common: it holds all that is not of the group."""
    library = a_library("Carry: mind it.", "Units: name them.")
    engine, policy = an_engine(tmp_path, [], [], [], max_words=33)
    for n, rewards in enumerate(([1, 0], [0, 0], [0.2, 0.9])):
        await engine.reflect(a_group(rewards, position=n), library)
    first, *others = [request[0] for request in policy.requests]
    assert first.role == "system" and others == [first, first]
    for part in (
        "| Solve sums.",
        "| Be right more often.",
        "| [E1] Carry: mind it.",
        "| [E2] Units: name them.",
        "33 words at most",
        '"credit": "E3"',
        "at most 1 objects",
        "right by luck",
    ):
        assert part in first.content
    for request in policy.requests:
        assert len(request) == 2 and len(request[1].content) < 700
    empty, policy = an_engine(tmp_path / "empty", [])
    await empty.reflect(a_group([1, 0]), a_library())
    assert '"credit"' not in policy.requests[0][0].content  # of nothing


async def test_doubts_and_credits_come_with_their_rollouts_and_change_no_reward(
    tmp_path: Path,
) -> None:
    rows = [
        ADD,
        {"doubt": "it says 5", "attempts": [1]},
        {"doubt": "again", "attempts": [1]},
        {"credit": "E1", "use": "used", "attempts": [0, 1]},
        {"credit": "E2", "use": "misled", "attempts": [0, 1]},
        {"credit": "E2", "use": "ignored", "attempts": [1]},
    ]
    group = a_group([1, 0])
    first, second = group.rollouts
    group = replace(
        group, rollouts=(replace(first, shown=("E1", "E2")), replace(second, shown=("E1",)))
    )
    found, policy = await reflected(tmp_path, group, rows, library=a_library("one", "two"))
    assert found.doubts == (Doubt("s1p0r1", "again"),)
    assert found.credits == (  # E2 stood before the first attempt alone
        Credit("E1", "used", ("s1p0r0", "s1p0r1")),
        Credit("E2", "misled", ("s1p0r0",)),
    )
    assert (len(found.proposals), len(policy.requests)) == (1, 1)
    assert group.rewards == (1, 0)


async def test_a_critique_survives_a_summary_and_a_cut_word_by_word(tmp_path: Path) -> None:
    critique = "the date must stand with the day first " * 10
    group = a_group([0, 0], texts=["long " * 200, "very long " * 200])
    verdicts = tuple(replace(v, critique=critique) for v in group.verdicts)
    group = replace(group, verdicts=verdicts)
    found, policy = await reflected(
        tmp_path, group, "1. one", "1. two", [], summarise_above_chars=1, read_chars=300
    )
    assert found.usage.calls == 3
    assert critique not in policy.requests[0][-1].content  # the summary is of the attempt alone
    assert "characters left out in the middle" in policy.requests[0][-1].content
    assert policy.requests[-1][-1].content.count(critique.strip()) == 2
    never = 10_000
    whole, policy = await reflected(
        tmp_path / "cut", group, [], summarise_above_chars=never, read_chars=300
    )
    shown = policy.requests[0][-1].content
    assert whole.outcome == "critique"
    assert shown.count("characters left out in the middle") == 2
    assert shown.count(critique.strip()) == 2
