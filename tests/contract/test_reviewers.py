"""What every reviewer keeps to: it decides only what it is asked, and journals nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engines.core.protocols import Reviewer
from engines.core.types import DUPLICATE, HURTS, Decision, Flag, WeightUpdate, weights_operation
from engines.pipeline.reviewers import (
    AutoReviewer,
    HoldExpired,
    HumanReviewer,
    MetricLimits,
    read_rules,
)
from tests.support.builders import a_library, an_operation

OPERATIONS = (
    an_operation("delete", "E1", id="op1.1"),
    an_operation("add", None, "three", id="op1.2"),
    an_operation("modify", "E9", "x", id="op1.3"),
    weights_operation(1, WeightUpdate({"kl": 2.0}, "step-1")),
)
LIBRARY = a_library("one", "two")


def auto(folder: Path) -> Reviewer:
    return AutoReviewer()


def rules(folder: Path) -> Reviewer:
    path = folder / "rules.yaml"
    path.write_text("rules:\n  - {when: {kind: add}, do: approve}\n  - {do: ask}\n")
    return read_rules(path)


def outside(folder: Path) -> Reviewer:
    reviewer = HumanReviewer()
    reviewer.is_done = lambda: True
    return reviewer


def bounds(folder: Path) -> Reviewer:
    reviewer = MetricLimits(max_kl=1.0)
    reviewer.metrics_of = lambda operation: {"kl": 2.0}
    return reviewer


every_reviewer = pytest.mark.parametrize("opened", [auto, rules, outside, bounds])
Opened = Callable[[Path], Reviewer]


async def decisions_of(reviewer: Reviewer, *numbers: int) -> list[Decision]:
    asked = [OPERATIONS[n] for n in numbers]
    return [decision async for decision in reviewer.review(asked, LIBRARY)]


@every_reviewer
async def test_only_what_is_asked_is_decided_at_most_once_and_in_order(
    opened: Opened, tmp_path: Path
) -> None:
    reviewer = opened(tmp_path)
    asked = [operation.id for operation in OPERATIONS]
    found = [d.operation_id for d in await decisions_of(reviewer, 0, 1, 2, 3)]
    assert found == [name for name in asked if name in found]
    assert {d.operation_id for d in await decisions_of(reviewer, 1)} <= {asked[1]}
    assert await decisions_of(reviewer) == []


@every_reviewer
async def test_decisions_name_their_reviewer_and_leave_time_and_id_to_the_gate(
    opened: Opened, tmp_path: Path
) -> None:
    reviewer = opened(tmp_path)
    for decision in await decisions_of(reviewer, 0, 1, 2, 3):
        assert decision.reviewer
        assert (decision.at, decision.assigned) == (0.0, None)


@every_reviewer
async def test_the_same_question_is_decided_the_same_way(opened: Opened, tmp_path: Path) -> None:
    reviewer = opened(tmp_path)
    first = await decisions_of(reviewer, 0, 1, 2, 3)
    assert await decisions_of(reviewer, 0, 1, 2, 3) == first


async def test_auto_approves_everything_and_rules_leave_the_rest_undecided(tmp_path: Path) -> None:
    assert [d.action for d in await decisions_of(AutoReviewer(), 0, 1, 2)] == ["approve"] * 3
    assert [d.operation_id for d in await decisions_of(rules(tmp_path), 0, 1, 2)] == ["op1.2"]


async def test_bounds_decide_weight_updates_alone(tmp_path: Path) -> None:
    found = await decisions_of(bounds(tmp_path), 0, 1, 2, 3)
    assert [(d.operation_id, d.action) for d in found] == [("op1.w", "reject")]


async def test_a_hold_ends_only_when_something_is_still_undecided() -> None:
    reviewer = HumanReviewer(hold_s=0)
    with pytest.raises(HoldExpired):
        await decisions_of(reviewer, 0)
    reviewer.is_done = lambda: True
    assert await decisions_of(reviewer, 0) == []


async def test_auto_takes_nothing_away_that_was_found_to_be_missed() -> None:
    flags = [Flag(HURTS, detail="-0.1 [-0.2, -0.05]"), Flag(DUPLICATE, detail="of E2")]
    asked = [
        replace(an_operation("delete", "E1", id=f"op1.{n}"), flags=(flag,))
        for n, flag in enumerate(flags)
    ]
    actions = [one.action async for one in AutoReviewer().review(asked, LIBRARY)]
    assert actions == ["reject", "approve"]
