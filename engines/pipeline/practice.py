"""The parts of one run, put together, and the small questions the loop asks of them.

Owns no order of events; `engines.pipeline.step` and `engines.pipeline.run` do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engines.core.events import TextStreamed
from engines.core.ids import call_seed
from engines.core.library import Library
from engines.core.protocols import Engine, OnText, Verifier
from engines.core.types import NO_USAGE, CallKey, Job, Problem, Usage
from engines.data.sampler import Sampler
from engines.pipeline.budget import Budget
from engines.pipeline.control import Control
from engines.pipeline.evaluate import Evaluation
from engines.pipeline.gate import Gate
from engines.pipeline.recorder import Recorder
from engines.record.ledger import RecordLedger
from engines.rollouts.manager import RolloutManager


@dataclass(frozen=True, slots=True)
class Practice:
    """Everything a run needs. `publish` writes what follows from a committed library."""

    run: str
    problems: tuple[Problem, ...]
    sampler: Sampler
    group_size: int
    rollouts: RolloutManager
    verifier: Verifier
    engine: Engine
    gate: Gate
    recorder: Recorder
    ledger: RecordLedger
    records: Path
    control: Control
    publish: Callable[[Library], None]
    evaluation: Evaluation | None = None
    budget: Budget | None = None  # None: nothing limits what is spent
    paid_before: Usage = NO_USAGE  # by earlier processes of this run
    pace_tokens_per_s: float | None = None  # of scripted rollouts; None: nothing is paced

    def batch(self, step: int) -> tuple[Problem, ...]:
        return tuple(self.problems[index] for index in self.sampler.batch(step))

    def job(self, key: CallKey, problem: Problem, library: Library) -> Job:
        version = self.recorder.state.policy_version
        return Job(problem, library.guidance(), key, version, library.version)

    def seed(self, key: CallKey) -> int:
        assert self.recorder.state.started is not None
        return call_seed(self.recorder.state.started.seed, key)

    def streaming(self, key: CallKey) -> OnText:
        return lambda text: self.recorder.emit(TextStreamed(key, text))
