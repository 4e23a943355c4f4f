"""What no checker can work out costs its own recorded outcome and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from engines.core.types import Attempt, Problem, Rollout
from engines.verifiers.answers import MathSettings, MathVerifier
from tests.bench.bombs import BOMBS

one_loop = pytest.mark.asyncio(loop_scope="module")  # that of the verifier they share


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def verifier() -> AsyncIterator[MathVerifier]:
    """One for all: its processes take a second to start."""
    verifier = MathVerifier(MathSettings(deadline_s=30))
    yield verifier
    await verifier.aclose()


def a_rollout(answer: str, index: int = 0) -> Rollout:
    return Rollout(
        attempt=Attempt((), answer),
        epoch=1,
        step=1,
        position=0,
        index=index,
        seed=0,
        policy_version=0,
        library_version=0,
    )


@one_loop
async def test_each_bomb_is_a_timeout_or_too_long_and_its_neighbours_are_judged(
    verifier: MathVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(BOMBS) == 20
    # No integers, so that the neighbours need the very process that the bombs go to.
    right, wrong = "\\boxed{\\frac{2}{4}}", "\\boxed{\\frac{2}{3}}"
    texts = [text for bomb in BOMBS.values() for text in (right, bomb, wrong)]
    monkeypatch.setattr(verifier._pool, "_deadline_s", 0.25)
    problem = Problem("p", "q", "0.7", meta={"alternatives": ["0.5"]})
    rollouts = [a_rollout(text, index) for index, text in enumerate(texts)]
    verdicts = await verifier.verify(problem, rollouts)
    for name, verdict in zip(BOMBS, verdicts[1::3], strict=True):
        assert verdict.reward is None, name
        assert str(verdict.error).startswith(("timeout: ", "too long: ")), (name, verdict.error)
    assert [verdict.reward for verdict in verdicts[0::3]] == [1.0] * 20
    assert [verdict.reward for verdict in verdicts[2::3]] == [0.0] * 20


@one_loop
async def test_what_is_nested_too_deeply_to_be_read_is_not_called_wrong(
    verifier: MathVerifier,
) -> None:
    deep = "\\boxed{" + "\\frac{" * 180 + "x" + "}{2}" * 180 + "}"
    (verdict,) = await verifier.verify(Problem("p", "q", "0.5"), [a_rollout(deep)])
    assert verdict.reward is None
    assert verdict.error == "too long: the expression is nested too deeply"


@one_loop
async def test_boxes_of_one_answer_are_read_together(
    verifier: MathVerifier,
) -> None:
    cases = [
        ("\\boxed{1} and \\boxed{2}", 1.0),
        ("$\\boxed{2}, \\boxed{1}$", 1.0),
        ("First \\boxed{1}. Then \\boxed{2}", 0.0),
        ("\\boxed{7}. Wait, no: \\boxed{1, 2}", 1.0),
        ("\\boxed{7} is the first. The final answer is $1,2$. I hope it is correct.", 1.0),
    ]
    for response, reward in cases:
        (verdict,) = await verifier.verify(Problem("p", "q", "$\\{1,2\\}$"), [a_rollout(response)])
        assert verdict.reward == reward, response


@one_loop
async def test_local_ways_to_write_an_answer_are_read(
    verifier: MathVerifier,
) -> None:
    cases = [
        ("1,22", "1.22", 1.0),
        ("1000.99", "1000,99", 1.0),
        ("$12:00$", "$1:00$", 0.0),
        ("A", "A. Because B is not valid", 1.0),
        ("B", "A. Because B is not valid", 0.0),
        ("A", "A train leaves", 0.0),
    ]
    for gold, response, reward in cases:
        (verdict,) = await verifier.verify(Problem("p", "q", gold), [a_rollout(response)])
        assert (verdict.reward, verdict.error) == (reward, None), (gold, response)


@one_loop
async def test_numbers_are_compared_at_the_places_asked_for(verifier: MathVerifier) -> None:
    for places, reward in ((2, 1.0), (6, 0.0)):
        rounding = MathVerifier(MathSettings(float_rounding=places))
        rounding._pool = verifier._pool  # which knows no settings: they go with each question
        (verdict,) = await rounding.verify(Problem("p", "q", "1/3"), [a_rollout("A: 0.33")])
        assert verdict.reward == reward
