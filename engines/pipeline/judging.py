"""How the tries of one problem come to their verdicts: one by one, or all in one call."""

import asyncio
from dataclasses import replace

from engines.core.errors import AnswersPending
from engines.core.protocols import Verifier, judges_whole_groups
from engines.core.types import Problem, Rollout, Verdict


class GroupJudge:
    """Judges each try as it ends; a verifier that compares tries gets all `size` at once.

    Each of the `size` tries must come, in whatever order and also where its verdict is known
    already: what it is compared with would be less without it.
    """

    def __init__(self, verifier: Verifier, problem: Problem, size: int) -> None:
        self._verifier, self._problem, self._size = verifier, problem, size
        self._together = judges_whole_groups(verifier)
        self._arrived: dict[int, tuple[Rollout, asyncio.Future[Verdict]]] = {}
        self._missing: AnswersPending | None = None

    def miss(self, pending: AnswersPending) -> None:
        """One try does not come, for want of an answer: those it is compared with wait no more."""
        self._missing = pending
        for _, waiting in self._arrived.values():
            if not waiting.done():
                waiting.set_exception(pending)

    async def judge(self, rollout: Rollout, known: Verdict | None = None) -> Verdict:
        """The verdict on a try; `known` is returned where it is given."""
        if not self._together:
            if known is not None:
                return known
            (verdict,) = await self._verifier.verify(self._problem, (rollout,))
            return add_own_figures(verdict, rollout)
        if self._missing and known is None:
            raise self._missing
        waiting: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        if known is not None:
            waiting.set_result(known)
        self._arrived[rollout.index] = (rollout, waiting)
        if len(self._arrived) == self._size:
            await self._judge_all()
        return await waiting

    async def _judge_all(self) -> None:
        arrived = [self._arrived[index] for index in sorted(self._arrived)]
        if all(waiting.done() for _, waiting in arrived):
            return
        try:
            rollouts = [rollout for rollout, _ in arrived]
            verdicts = await self._verifier.verify(self._problem, rollouts)
            for (rollout, waiting), verdict in zip(arrived, verdicts, strict=True):
                if not waiting.done():
                    waiting.set_result(add_own_figures(verdict, rollout))
        finally:
            for _, waiting in arrived:
                waiting.cancel()  # does nothing to those that have their verdict


def add_own_figures(verdict: Verdict, rollout: Rollout) -> Verdict:
    """With what a program's own grader said, as metrics `own.NAME`: never the reward."""
    own = {f"own.{name}": figure for name, figure in rollout.attempt.metrics.items()}
    return replace(verdict, metrics={**verdict.metrics, **own}) if own else verdict
