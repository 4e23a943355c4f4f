"""What a step's attempts show of the experiences: one count an attempt, of what it was shown."""

from __future__ import annotations

from engines.core import events as ev
from engines.core.library_notes import UseCounts
from engines.core.state.run_state import StepState
from engines.core.types import NO_USAGE, Credit, Reflection
from engines.pipeline.gate.gate import count_uses
from tests.support.builders import a_library

LIBRARY = a_library("one", "two", "three")


def a_step(
    *credits: Credit,
    shown: tuple[str, ...] | None = None,
    cited: tuple[str, ...] | None = (),
) -> StepState:
    now = StepState(1, 1, ("p",), 0)
    for index in range(3):
        now.rollouts[0, index] = ev.RolloutFinished(
            step=1,
            position=0,
            index=index,
            seed=0,
            status="ok",
            answer=None,
            error=None,
            usage=NO_USAGE,
            elapsed_s=0.0,
            shown=shown,
            cited=cited if index == 0 else None,
        )
    now.reflections[0] = Reflection(1, 0, "used", credits=credits)
    return now


def test_each_attempt_counts_once_and_harm_goes_before_use() -> None:
    now = a_step(
        Credit("E1", "used", ("s1p0r0", "s1p0r1", "s1p0r1")),
        Credit("E1", "misled", ("s1p0r1",)),
        Credit("E2", "ignored", ("s1p0r2",)),
    )
    assert count_uses(now, LIBRARY, LIBRARY) == {
        "E1": UseCounts(used=1, misled=1),
        "E2": UseCounts(ignored=1),
    }


def test_what_did_not_stand_in_the_prompt_is_neither_used_nor_cited() -> None:
    used = Credit("E1", "used", ("s1p0r0",))
    now = a_step(used, Credit("E2", "used", ("s1p0r0",)), shown=("E2",), cited=("E1", "E2"))
    assert count_uses(now, LIBRARY, LIBRARY) == {"E2": UseCounts(used=1, cited=1)}


def test_an_unknown_id_an_unknown_attempt_and_a_credit_without_one_count_nothing() -> None:
    now = a_step(Credit("E9", "used", ("s1p0r0",)), Credit("E1", "used", ("s9p0r0",)))
    now.reflections[1] = Reflection(1, 1, "used", credits=(Credit("E1", "used"),))
    assert count_uses(now, LIBRARY, LIBRARY) == {}


def test_a_wording_that_the_head_no_longer_has_is_not_counted() -> None:
    now = a_step(Credit("E1", "used", ("s1p0r0",)), Credit("E2", "used", ("s1p0r0",)))
    head = a_library("other words", "two")
    assert count_uses(now, LIBRARY, head) == {"E2": UseCounts(used=1)}
