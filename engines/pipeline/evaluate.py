"""Evaluation: a pinned library on problems that practice never sees.

Owns the measuring of one held-out set, inside a run or outside. Shares no setting with
practice and changes nothing. What was measured before, by whomever, is not paid for
again (`engines.record.scores`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engines.core.codec import dumps
from engines.core.concurrently import all_of
from engines.core.events import EvaluationFinished, EvaluationProgressed
from engines.core.ids import call_seed
from engines.core.library import Library
from engines.core.protocols import Verifier
from engines.core.types import NO_USAGE, CallKey, Job, Problem, Rollout, Usage
from engines.pipeline.metrics import mean_at_k
from engines.pipeline.recorder import Recorder
from engines.record.appender import write_whole
from engines.record.scores import Score, ScoreBook, content_of
from engines.rollouts.manager import RolloutManager


@dataclass(frozen=True, slots=True)
class HeldOut:
    """One set, by a name that no other set of the run has."""

    name: str
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class Measuring:
    """How rollouts are made and judged. `seed` is the run's."""

    rollouts: RolloutManager
    verifier: Verifier
    seed: int
    k: int = 1


@dataclass(frozen=True, slots=True)
class Pinned:
    """What is measured: experiences as they stand in the prompt, with the versions."""

    guidance: str
    library_version: int = 0
    policy_version: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of one set: rewards aligned with its problems, k each.

    `paid` is what this measuring cost, `total` what all its rollouts cost, whoever paid.
    """

    rewards: tuple[tuple[float | None, ...], ...]
    paid: Usage = NO_USAGE
    total: Usage = NO_USAGE
    tool_calls: int = 0
    reused: int = 0
    trouble: str = ""  # why the first of the unjudged was not judged

    @property
    def known(self) -> int:
        return sum(reward is not None for row in self.rewards for reward in row)

    @property
    def unjudged(self) -> int:
        return sum(reward is None for row in self.rewards for reward in row)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a run evaluates, how, and when.

    `folder` receives one JSON file an evaluation; `book` opens the scores of a guidance;
    `fingerprint` covers all that results depend on besides library and problems.
    """

    sets: tuple[HeldOut, ...]
    measuring: Measuring
    folder: Path
    book: Callable[[str], ScoreBook]
    fingerprint: str
    strategy: Literal["epoch", "steps"] = "epoch"
    every_steps: int = 1

    def due(self, step: int, ends_epoch: bool) -> bool:
        """Whether the library is evaluated after this step."""
        return ends_epoch if self.strategy == "epoch" else step % self.every_steps == 0


async def measure(
    measuring: Measuring,
    book: ScoreBook,
    problems: Sequence[Problem],
    pinned: Pinned,
    *,
    step: int = 0,
    tell: Callable[[], None] = lambda: None,
) -> Measured:
    """Roll out and judge what the book does not know yet, and add it to the book.

    Args:
        measuring: model, verifier, seed and tries.
        book: of exactly this model, verifier, seed and guidance.
        problems: of one set.
        pinned: the library.
        step: of the run it belongs to; names the record file.
        tell: called after each rollout, judged or not.
    """
    tried = await all_of(
        _measure_rollout(measuring, book, problem, pinned, CallKey(*at, problem=problem.id), tell)
        for position, problem in enumerate(problems)
        for at in (("evaluation", 0, step, position, index) for index in range(measuring.k))
    )
    rewards, k = [one.reward for one in tried], measuring.k
    return Measured(
        tuple(tuple(rewards[at : at + k]) for at in range(0, len(rewards), k)),
        sum((one.usage for one in tried if not one.reused), NO_USAGE),
        sum((one.usage for one in tried), NO_USAGE),
        sum(one.tool_calls for one in tried),
        sum(one.reused for one in tried),
        next((one.trouble for one in tried if one.reward is None), ""),
    )


async def evaluate(evaluation: Evaluation, recorder: Recorder, step: int, library: Library) -> None:
    """Evaluate a run's library on every set that this step has no result for yet."""
    done = {found.data for found in recorder.state.evaluations if found.step == step}
    pinned = Pinned(library.guidance(), library.version, recorder.state.policy_version)
    measuring = evaluation.measuring
    book = evaluation.book(pinned.guidance)
    try:
        for held_out in evaluation.sets:
            if held_out.name in done:
                continue
            tell = _teller(recorder, step, held_out, measuring.k)
            found = await measure(measuring, book, held_out.problems, pinned, step=step, tell=tell)
            result = EvaluationFinished(
                step,
                held_out.name,
                pinned.policy_version,
                pinned.library_version,
                measuring.k,
                found.known,
                found.unjudged,
                mean_at_k(found.rewards),
                found.paid,
                evaluation.fingerprint,
                found.trouble,
                tuple(problem.id for problem in held_out.problems),
                found.rewards,
                found.total,
                found.tool_calls,
                found.reused,
            )
            write_result(evaluation.folder, result)
            await recorder.record(result)
    finally:
        book.close()


def write_result(folder: Path, result: EvaluationFinished) -> None:
    """Write `step-NNNN-NAME.json`: the whole result, each problem's rewards included."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"step-{result.step:04d}-{result.data}.json", dumps(result))


@dataclass(frozen=True, slots=True)
class _Tried:
    reward: float | None
    usage: Usage
    tool_calls: int
    reused: bool
    trouble: str = ""


async def _measure_rollout(
    measuring: Measuring,
    book: ScoreBook,
    problem: Problem,
    pinned: Pinned,
    key: CallKey,
    tell: Callable[[], None],
) -> _Tried:
    known = book.find(problem, key.index)
    score = known or await _scored(measuring, problem, pinned, key)
    tell()
    if isinstance(score, _Tried):
        return score
    book.add(score)
    return _Tried(score.reward, score.usage, score.tool_calls, known is not None)


async def _scored(
    measuring: Measuring, problem: Problem, pinned: Pinned, key: CallKey
) -> Score | _Tried:
    """A new rollout's score, or what it cost where it could not be judged."""
    versions = (pinned.policy_version, pinned.library_version)
    job = Job(problem, pinned.guidance, key, *versions)
    attempt, _ = await measuring.rollouts.roll(job)
    at = (key.epoch, key.step, key.position, key.index)
    rollout = Rollout(attempt, *at, call_seed(measuring.seed, key), *versions)
    (verdict,) = await measuring.verifier.verify(problem, (rollout,))
    usage = attempt.usage + verdict.usage
    if verdict.reward is None:
        trouble = attempt.error or verdict.error or "there was nothing to judge it by"
        return _Tried(None, usage, attempt.tool_calls, False, trouble)
    return Score(
        content_of(problem),
        key.index,
        verdict.reward,
        verdict.critique,
        verdict.metrics,
        attempt.status,
        usage,
        attempt.tool_calls,
        attempt.elapsed_s,
    )


def _teller(recorder: Recorder, step: int, held_out: HeldOut, k: int) -> Callable[[], None]:
    """Tells listeners of one more rollout at each call, beginning with none."""
    count, total = itertools.count(), len(held_out.problems) * k

    def tell() -> None:
        recorder.emit(EvaluationProgressed(step, held_out.name, next(count), total))

    tell()
    return tell
