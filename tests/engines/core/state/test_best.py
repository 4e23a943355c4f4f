"""The best step is the best on equal terms, never the one that was asked less."""

from __future__ import annotations

from collections.abc import Sequence

from engines.core.events import EvaluationFinished
from engines.core.state.run_state import best_step, comparable_evaluations
from engines.core.types import NO_USAGE


def measured(
    step: int,
    rewards: Sequence[float | None],
    *,
    data: str = "a",
    k: int = 1,
    fingerprint: str = "f",
    ids: Sequence[str] | None = None,
) -> EvaluationFinished:
    known = [reward for reward in rewards if reward is not None]
    return EvaluationFinished(
        step=step,
        data=data,
        policy_version=0,
        library_version=step,
        k=k,
        n=len(known),
        unjudged=len(rewards) - len(known),
        mean=sum(known) / len(known) if known else None,
        usage=NO_USAGE,
        fingerprint=fingerprint,
        problems=tuple(ids or [f"p{n}" for n in range(len(rewards))]),
        rewards=tuple((reward,) for reward in rewards),
    )


def test_the_highest_mean_wins_and_of_equals_the_earliest() -> None:
    assert best_step([]) is None
    assert best_step([measured(0, [0, 0]), measured(1, [1, 0]), measured(2, [0, 1])]) == 1
    assert best_step([measured(0, [1, 1]), measured(1, [1, 0])]) == 0


def test_the_mean_is_that_over_sets_and_a_step_needs_them_all() -> None:
    one = [measured(1, [1, 1]), measured(1, [0, 0], data="b")]  # 0.5
    two = [measured(2, [1, 0]), measured(2, [1, 1], data="b")]  # 0.75
    assert best_step([*one, *two]) == 2
    assert best_step([measured(0, [1, 1]), *two]) == 2


def test_a_set_that_is_measured_no_longer_blocks_nobody() -> None:
    before = [measured(0, [0, 0]), measured(0, [0, 0], data="b")]
    assert best_step([*before, measured(1, [1, 1])]) == 1


def test_mostly_unjudged_measurements_do_not_compete() -> None:
    few = measured(2, [1.0, *[None] * 19])
    assert best_step([measured(1, [1.0] * 18 + [0.0] * 2), few, measured(3, [0.5] * 20)]) == 1


def test_steps_compete_on_the_questions_that_all_of_them_know() -> None:
    # Step 2 could not be judged on the one question that step 1 gets wrong.
    one = measured(1, [1.0] * 19 + [0.0])
    two = measured(2, [1.0] * 18 + [0.0, None])
    assert best_step([one, two]) == 1


def test_another_number_of_questions_tries_or_settings_is_no_competition() -> None:
    latest = measured(3, [1.0, 0.0, 1.0])
    assert best_step([measured(1, [1.0]), latest]) == 3
    assert best_step([measured(1, [1.0] * 3, k=2), latest]) == 3
    assert best_step([measured(1, [1.0] * 3, fingerprint="g"), latest]) == 3


def test_a_question_that_stands_twice_counts_once() -> None:
    ids = ["p", "p#2", "p#3", "q"]
    thrice = measured(1, [1, 1, 1, 0], ids=ids)  # p right, q wrong: 0.5
    other = measured(2, [0, 0, 1, 1], ids=ids)  # p a third, q right: 0.67
    assert best_step([thrice, other]) == 2


def test_evaluations_of_a_version_without_rewards_have_no_best() -> None:
    old = EvaluationFinished(
        step=1,
        data="a",
        policy_version=0,
        library_version=1,
        k=1,
        n=8,
        unjudged=0,
        mean=0.5,
        usage=NO_USAGE,
    )
    assert best_step([old]) is None


def test_a_question_unjudged_here_and_there_does_not_leave_a_run_without_a_best() -> None:
    looks = []
    for step in range(10):
        rewards: list[float | None] = [float(n < step) for n in range(10)]
        rewards[step] = None
        looks.append(measured(step, rewards))
        assert best_step(looks) is not None
    assert best_step(looks) == 9


def test_only_looks_of_the_latest_kind_are_counted() -> None:
    assert list(comparable_evaluations([measured(0, [1.0]), measured(1, [1.0, 0.0])])) == [1]
