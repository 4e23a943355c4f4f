"""Verifiers that judge each rollout alone, and the verdict on a rollout that failed."""

from abc import abstractmethod
from collections.abc import Sequence

from engines.core.protocols import Verifier
from engines.core.types import Problem, Rollout, Verdict
from engines.core.waiting import gather_all
from engines.verifiers.stated_answer import short_text


def failed_verdict(rollout: Rollout) -> Verdict | None:
    """The verdict on a rollout that left nothing to judge; None for any other."""
    attempt = rollout.attempt
    if attempt.status != "failed" and attempt.answer is not None:
        return None
    cause = short_text(attempt.error or "no answer", 200)
    return Verdict(None, error=f"failed: rollout failed: {cause}")


class IndependentVerifier(Verifier):
    """Judges the rollouts of a problem at once, none by what the others are."""

    @abstractmethod
    async def judge(self, problem: Problem, rollout: Rollout) -> Verdict:
        """Judge a rollout that did not fail; the problem may have no answer."""

    async def verify(self, problem: Problem, rollouts: Sequence[Rollout]) -> tuple[Verdict, ...]:
        verdicts = [self._judge_unless_failed(problem, rollout) for rollout in rollouts]
        return tuple(await gather_all(verdicts))

    async def _judge_unless_failed(self, problem: Problem, rollout: Rollout) -> Verdict:
        return failed_verdict(rollout) or await self.judge(problem, rollout)
