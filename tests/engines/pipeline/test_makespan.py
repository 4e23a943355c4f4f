"""A step whose calls take long and unequally wastes none of its slots."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.bench.makespan import AT_MOST, Latencies, ideal, measured, with_barriers
from tests.support.virtual_clock import on_virtual_clock


@pytest.mark.parametrize("slots", [8, 16, 32])
def test_a_step_takes_hardly_longer_than_an_ideal_schedule_and_less_than_one_with_barriers(
    slots: int, tmp_path: Path
) -> None:
    found = measured(slots, tmp_path, draws=8)
    assert found["to_ideal_max"] <= AT_MOST
    assert found["gain_over_barriers_mean"] > 0


def test_the_ideal_schedule_takes_a_ready_reflection_before_the_next_rollout() -> None:
    # One slot and two groups of one: rollout 1 s, its reflection 2 s, rollout 4 s, and
    # its reflection 8 s, whatever the order: 15 s. Two slots: both rollouts begin at 0; the
    # first reflection runs 1 to 3, the second 4 to 12.
    two = Latencies(((1.0,), (4.0,)), (2.0, 8.0))
    assert ideal(two, 1) == 15.0
    assert ideal(two, 2) == 12.0
    # Two slots and three groups: at 1 the reflection of the first (1 to 11) goes before the
    # third rollout, which gets the slot that the second leaves at 2, and ends at 3; its
    # reflection waits behind that of the second (3 to 4), and runs 4 to 5.
    three = Latencies(((1.0,), (2.0,), (1.0,)), (10.0, 1.0, 1.0))
    assert ideal(three, 2) == 11.0


def test_barriers_make_each_stage_wait_for_the_slowest_of_the_one_before() -> None:
    # Rollouts of 1 and 4 s at once end at 4; then reflections of 2 and 8 s at once.
    assert with_barriers(Latencies(((1.0,), (4.0,)), (2.0, 8.0)), 2) == 12.0
    # With three slots a third rollout changes nothing.
    assert with_barriers(Latencies(((1.0, 1.0), (4.0,)), (2.0, 8.0)), 3) == 12.0


def test_an_hour_on_the_virtual_clock_passes_at_once_and_in_order() -> None:
    async def main() -> list[tuple[str, float]]:
        seen = []

        async def after(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append((name, asyncio.get_running_loop().time()))

        await asyncio.gather(after("late", 3600.0), after("early", 60.0))
        assert await asyncio.to_thread(lambda: "in place") == "in place"
        return seen

    assert on_virtual_clock(main()) == [("early", 60.0), ("late", 3600.0)]


def test_waiting_for_what_no_timer_brings_ends_with_an_error_on_the_virtual_clock() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match="no timer"):
        on_virtual_clock(main())
