"""The points of a run's curve, and fewer of them that say the same."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from engines.core.state.list_row import Point, curve_row, pool_points, practice_points
from tests.support.training_runs import a_state, begun, history, metrics, proposed, tried


def test_a_step_is_a_point_once_all_its_rollouts_have_ended() -> None:
    state = a_state(*begun(), *tried(1, (1, 0, 2)), proposed(1), *tried(2))
    assert practice_points(state) == [Point(1, 3 / 12, 12)]  # 1 + 0 + 2 of 3 groups of 4


def test_on_demonstrations_the_points_are_losses_that_are_numbers() -> None:
    state = a_state(*begun(group_size=0))
    state.steps = {n: replace(a_state(*history()).steps[1], step=n) for n in (1, 2, 3)}
    losses = ({"examples": 16.0}, {"loss": math.nan}, {"loss": 0.4, "examples": 16.0})
    state.training = dict(zip((1, 2, 3), losses, strict=True))
    assert practice_points(state) == [Point(3, 0.4, 16)]
    assert curve_row(state) == {"of": "loss", "points": [[3, 0.4, 16]]}
    assert "loss" in metrics()  # of practice, too: there the curve is the reward all the same
    assert curve_row(a_state(*history()))["of"] == "reward"


def test_of_forty_one_points_forty_stay_the_last_with_the_common_mean_of_two() -> None:
    # 41 points in 40 shares: the last share holds points 39 and 40, of n 10 and 30.
    points = [Point(step, 0.5, 10) for step in range(40)] + [Point(40, 0.9, 30)]
    pooled = pool_points(points, 40)
    assert len(pooled) == 40
    # (0.5 * 10 + 0.9 * 30) / 40 = 0.8
    assert pooled[-1].step == 40 and pooled[-1].n == 40
    assert math.isclose(pooled[-1].value, 0.8)


@given(
    values=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 50)), max_size=200),
    most=st.integers(1, 40),
)
def test_pooling_keeps_every_rollout_and_the_mean(
    values: list[tuple[float, int]], most: int
) -> None:
    points = [Point(step, value, n) for step, (value, n) in enumerate(values, 1)]
    pooled = pool_points(points, most)
    assert len(pooled) == min(most, len(points))
    assert sum(p.n for p in pooled) == sum(p.n for p in points)
    total = math.fsum(p.value * p.n for p in points)
    assert math.isclose(math.fsum(p.value * p.n for p in pooled), total, abs_tol=1e-6)
