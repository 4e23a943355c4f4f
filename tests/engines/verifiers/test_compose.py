"""Weighted lists: how verdicts become one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from engines.core.errors import VerifierError
from engines.core.types import Problem, RecordRef, Rollout, Usage, Verdict
from engines.verifiers.compose import WeightedCriterion, WeightedVerifier, combine_verdicts
from tests.support.builders import a_problem, a_rollout


@dataclass
class Says:
    """A verifier that gives every rollout the same verdict."""

    verdict: Verdict = field(default_factory=lambda: Verdict(1.0))
    broken: VerifierError | None = None
    seen: list[str] = field(default_factory=list)

    async def check(self) -> None:
        self.seen.append("check")
        if self.broken:
            raise self.broken

    async def verify(self, problem: Problem, rollouts: Sequence[Rollout]) -> tuple[Verdict, ...]:
        return tuple(self.verdict for _ in rollouts)

    async def aclose(self) -> None:
        self.seen.append("aclose")


def of(*weighed: tuple[float, Verdict], names: str = "abcdef") -> Verdict:
    """Combine verdicts of criteria that are called a, b, c and so on."""
    parts = [
        WeightedCriterion(name, weight, Says())
        for name, (weight, _) in zip(names, weighed, strict=False)
    ]
    return combine_verdicts(parts, [verdict for _, verdict in weighed])


def test_the_reward_is_the_mean_by_weight() -> None:
    # (3 · 1 + 1 · 0.5) / 4 = 0.875
    verdict = of((3, Verdict(1.0)), (1, Verdict(0.5)))
    assert verdict.reward == 0.875
    assert verdict.metrics == {"a": 1.0, "b": 0.5}
    assert verdict.error is None


@pytest.mark.parametrize("weights", [(0.1, 0.2, 0.3), (1 / 3, 1e-9, 7e8), (5e-324, 1, 2)])
def test_full_marks_everywhere_are_full_marks(weights: tuple[float, ...]) -> None:
    assert of(*((weight, Verdict(1.0)) for weight in weights)).reward == 1.0


def test_a_criterion_without_an_opinion_is_left_out_with_its_weight() -> None:
    verdict = of((3, Verdict(None)), (1, Verdict(0.5)))
    assert (verdict.reward, verdict.metrics, verdict.error) == (0.5, {"b": 0.5}, None)


def test_where_none_has_an_opinion_there_is_no_reward_and_no_error() -> None:
    assert of((1, Verdict(None)), (2, Verdict(None))) == Verdict(None)


def test_a_criterion_that_failed_leaves_the_whole_unjudged_and_names_itself() -> None:
    verdict = of((1, Verdict(1.0, "fine")), (1, Verdict(None, error="timeout: after 2 s")))
    assert verdict.reward is None
    assert verdict.error == "timeout: b: after 2 s"
    assert (verdict.metrics, verdict.critique) == ({"a": 1.0}, "a: fine")


def test_several_failures_are_all_named_and_begin_with_the_first_ones_kind() -> None:
    verdict = of((1, Verdict(None, error="too long: 1 MB")), (1, Verdict(None, error="failed: x")))
    assert verdict.error == "too long: a: 1 MB; b: failed: x"


def test_a_failed_rollout_blames_no_criterion() -> None:
    failed = Verdict(None, error="failed: rollout failed: no reply")
    assert of((1, failed), (1, failed)).error == failed.error


def test_a_criterions_own_metrics_stand_below_its_name() -> None:
    verdict = of((1, Verdict(1.0, metrics={"steps": 3.0})), (1, Verdict(None, metrics={"n": 2.0})))
    assert verdict.metrics == {"a": 1.0, "a/steps": 3.0, "b/n": 2.0}


def test_critiques_are_joined_one_a_line_under_their_names() -> None:
    said = of((1, Verdict(1.0, "good\nwork")), (1, Verdict(0.0)), (1, Verdict(0.0, "no")))
    assert said.critique == "a: good work\nc: no"


def test_costs_and_records_are_summed() -> None:
    refs = [RecordRef("step-0001.jsonl", n, 1, "d") for n in range(3)]
    verdict = of(
        (1, Verdict(1.0, usage=Usage(1, 2, 1), refs=(refs[0],))),
        (1, Verdict(1.0)),
        (1, Verdict(None, error="unparsable: x", usage=Usage(3, 4, 2), refs=(refs[1], refs[2]))),
    )
    assert (verdict.usage, verdict.refs) == (Usage(4, 6, 3), tuple(refs))


async def test_all_criteria_see_the_same_rollouts_at_the_same_time() -> None:
    meeting = asyncio.Barrier(2)  # neither would get past it if one waited for the other

    class Meets(Says):
        async def verify(
            self, problem: Problem, rollouts: Sequence[Rollout]
        ) -> tuple[Verdict, ...]:
            await meeting.wait()
            return tuple(Verdict(float(rollout.index)) for rollout in rollouts)

    verifier = WeightedVerifier(
        [WeightedCriterion("a", 1, Meets()), WeightedCriterion("b", 3, Meets())]
    )
    rollouts = [a_rollout(index=n) for n in range(2)]
    async with asyncio.timeout(60):
        verdicts = await verifier.verify(a_problem(), rollouts)
    assert [verdict.reward for verdict in verdicts] == [0.0, 1.0]
    assert await WeightedVerifier([WeightedCriterion("a", 1, Says())]).verify(a_problem(), []) == ()


async def test_every_criterion_is_checked_and_closed() -> None:
    broken = VerifierError("f.py:3", "no function.", "Write it.")
    fine, wrong = Says(), Says(broken=broken)
    verifier = WeightedVerifier([WeightedCriterion("a", 1, fine), WeightedCriterion("b", 1, wrong)])
    with pytest.raises(VerifierError, match="no function"):
        await verifier.check()
    await verifier.aclose()
    assert (fine.seen, wrong.seen) == (["check", "aclose"], ["check", "aclose"])
