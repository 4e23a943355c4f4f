"""Evaluation: a pinned library on problems that practice never sees.

Owns its own seeds, record files and result file; shares no setting with practice. Runs
after a commit and changes nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from engines.core.codec import dumps
from engines.core.concurrently import all_of
from engines.core.events import EvaluationFinished, EvaluationProgressed
from engines.core.ids import call_seed
from engines.core.library import Library
from engines.core.protocols import Verifier
from engines.core.state import RunState
from engines.core.types import NO_USAGE, CallKey, Job, Problem, Rollout, Verdict
from engines.pipeline.recorder import Recorder
from engines.record.appender import write_whole
from engines.rollouts.manager import RolloutManager


@dataclass(frozen=True, slots=True)
class HeldOut:
    """One set, by a name that no other set of the run has.

    `fingerprint` covers all that a result depends on besides the versions: the problems,
    tries, prompt, sampling, model, verifier and seed.
    """

    name: str
    problems: tuple[Problem, ...]
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What is evaluated, how, and when. `folder` receives one JSON file an evaluation."""

    sets: tuple[HeldOut, ...]
    rollouts: RolloutManager
    verifier: Verifier
    folder: Path
    seed: int
    k: int = 1
    strategy: Literal["epoch", "steps"] = "epoch"
    every_steps: int = 1

    def due(self, step: int, ends_epoch: bool) -> bool:
        """Whether the library is evaluated after this step."""
        return ends_epoch if self.strategy == "epoch" else step % self.every_steps == 0


@dataclass(slots=True)
class Scores:
    """Per-problem results of one evaluation, aligned with its problems."""

    rewards: list[list[float | None]] = field(default_factory=list)

    @property
    def known(self) -> list[float]:
        return [reward for row in self.rewards for reward in row if reward is not None]

    @property
    def unjudged(self) -> int:
        return sum(reward is None for row in self.rewards for reward in row)

    @property
    def mean(self) -> float | None:
        return sum(self.known) / len(self.known) if self.known else None


async def evaluate(evaluation: Evaluation, recorder: Recorder, step: int, library: Library) -> None:
    """Evaluate on every set that this step has no result for yet."""
    done = {found.data for found in recorder.state.evaluations if found.step == step}
    version = recorder.state.policy_version
    for held_out in evaluation.sets:
        name, problems = held_out.name, held_out.problems
        if name in done:
            continue
        if (known := _known_result(recorder.state, step, held_out, library)) is not None:
            await recorder.record(known)
            continue
        tell = _teller(recorder, step, name, len(problems) * evaluation.k)
        tried = await all_of(
            _evaluate_rollout(evaluation, version, library, key, problem, tell)
            for position, problem in enumerate(problems)
            for key in _keys(step, position, problem.id, evaluation.k)
        )
        rewards = [verdict.reward for _, verdict in tried]
        k = evaluation.k
        scores = Scores([rewards[at : at + k] for at in range(0, len(rewards), k)])
        result = EvaluationFinished(
            step,
            name,
            version,
            library.version,
            evaluation.k,
            len(scores.known),
            scores.unjudged,
            scores.mean,
            sum((rollout.attempt.usage for rollout, _ in tried), NO_USAGE),
            held_out.fingerprint,
            next((v.error or "" for _, v in tried if v.reward is None), ""),
        )
        write_result(evaluation.folder, result, problems, scores)
        await recorder.record(result)


def write_result(
    folder: Path, result: EvaluationFinished, problems: Sequence[Problem], scores: Scores
) -> None:
    """Write `step-NNNN-NAME.json`: the result and each problem's rewards."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"problem": problem.id, "rewards": rewards}
        for problem, rewards in zip(problems, scores.rewards, strict=True)
    ]
    path = folder / f"step-{result.step:04d}-{result.data}.json"
    write_whole(path, dumps({"result": result, "problems": rows}))


def _known_result(
    state: RunState, step: int, held_out: HeldOut, library: Library
) -> EvaluationFinished | None:
    """The result of an earlier step for the very same versions.

    Evaluations share their seeds, so measuring an unchanged library again would buy the
    same numbers, or noise that nobody asked about. One with gaps is measured again.
    """
    same = (held_out.fingerprint, state.policy_version, library.version, 0)
    for found in state.evaluations:
        had = (found.fingerprint, found.policy_version, found.library_version, found.unjudged)
        if had == same:
            return replace(found, step=step, usage=NO_USAGE)
    return None


def _teller(recorder: Recorder, step: int, data: str, total: int) -> Callable[[], None]:
    """Tells listeners of one more rollout at each call, beginning with none."""
    count = itertools.count()

    def tell() -> None:
        recorder.emit(EvaluationProgressed(step, data, next(count), total))

    tell()
    return tell


def _keys(step: int, position: int, problem: str, k: int) -> list[CallKey]:
    return [CallKey("evaluation", 0, step, position, index, problem=problem) for index in range(k)]


async def _evaluate_rollout(
    evaluation: Evaluation,
    version: int,
    library: Library,
    key: CallKey,
    problem: Problem,
    tell: Callable[[], None],
) -> tuple[Rollout, Verdict]:
    job = Job(problem, library.guidance(), key, version, library.version)
    attempt, _ = await evaluation.rollouts.roll(job)
    seed = call_seed(evaluation.seed, key)
    at = (key.epoch, key.step, key.position, key.index)
    rollout = Rollout(attempt, *at, seed, version, library.version)
    (verdict,) = await evaluation.verifier.verify(problem, (rollout,))
    tell()
    return rollout, verdict
