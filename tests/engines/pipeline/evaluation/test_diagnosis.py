"""What became of each held-out question, and which measurements are set against each other."""

from __future__ import annotations

import pytest

from engines.core.events import EvaluationFinished
from engines.core.types import NO_USAGE
from engines.pipeline.evaluation.verdict import change_of, diagnose

Rows = tuple[tuple[float | None, ...], ...]


def measured(step: int, rows: Rows, data: str = "set", version: int = 0) -> EvaluationFinished:
    known = [reward for row in rows for reward in row if reward is not None]
    return EvaluationFinished(
        step=step, data=data, policy_version=0, library_version=version, k=len(rows[0]),
        n=len(known), unjudged=0, mean=sum(known) / len(known), usage=NO_USAGE,
        problems=tuple(f"q{n}" for n in range(len(rows))), rewards=rows,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        (0.5, 0.75, "improved"),
        (0.0, 0.25, "improved"),  # although it is still wrong more often than right
        (1.0, 0.75, "worsened"),
        (0.25, 0.25, "still wrong"),
        (0.5, 0.5, "still right"),
        (0.1 + 0.2, 0.3, "still wrong"),  # 0.30000000000000004 is no improvement on 0.3
    ],
)
def test_a_question_goes_by_the_means_of_its_tries(
    before: float, after: float, change: str
) -> None:
    assert change_of(before, after) == change


def test_each_question_is_counted_once_with_its_verdict() -> None:
    before = measured(0, ((1.0, 1.0), (1.0, 0.0), (0.0, 0.0), (1.0, 1.0), (0.0, None), (None, 1.0)))
    after = measured(2, ((0.0, 0.0), (1.0, 1.0), (0.0, 0.0), (1.0, 0.0), (0.0, 0.0), (1.0, 1.0)))
    (found,) = diagnose([before, after], since=0)
    assert found.questions("worsened") == ["q0", "q3"]  # the one that fell furthest comes first
    assert found.questions("improved") == ["q1"]
    assert found.questions("still wrong") == ["q2", "q4"] and found.questions("still right") == [
        "q5"
    ]
    assert found.comparison.verdict == "cannot tell"


def test_the_end_of_the_epoch_before_is_what_it_is_set_against() -> None:
    right, wrong = ((1.0,),) * 6, ((0.0,),) * 6
    every = [measured(0, wrong), measured(2, right), measured(3, wrong), measured(4, right)]
    (found,) = diagnose(every, since=2)
    assert (found.before.step, found.after.step) == (2, 4)
    assert diagnose(every, since=4) == []  # the epoch that began then has not been measured
    assert diagnose(every[-1:], since=3) == []  # nothing was measured before it
    (longer,) = diagnose([measured(0, wrong), measured(4, right)], since=2)
    assert longer.before.step == 0
