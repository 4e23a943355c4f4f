"""The parts of one run, put together, and the small questions the loop asks of them."""

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from pathlib import Path

from engines.core import codec, waiting
from engines.core.frozen import frozen
from engines.core.library import Library
from engines.core.protocols import Earlier, Engine, Verifier
from engines.core.types import (
    NO_USAGE,
    CallKey,
    Group,
    Job,
    Learns,
    Lesson,
    Names,
    Operation,
    Problem,
    Reflection,
    Tell,
    Usage,
)
from engines.data.sampler import Sampler
from engines.pipeline.budget import Budget
from engines.pipeline.control import Outage, RunControl
from engines.pipeline.effect.effect_gate import EffectGate
from engines.pipeline.effect.worth import dropout
from engines.pipeline.evaluation.evaluate import Evaluation, FirstWeights, evaluate, measure_cells
from engines.pipeline.gate.draft import ROLL_BACK, find_setback, revert_operations
from engines.pipeline.gate.gate import Gate
from engines.pipeline.guidance import PromptWriter
from engines.pipeline.recorder import Recorder
from engines.pipeline.replay_training import Checkpoints, HistorySegment
from engines.record.ledger import RecordLedger
from engines.rollouts.manager import RolloutManager
from engines.secrets.mask import NO_SECRETS, Mask

QUESTION_CHARS = 4_000
"""Of a question, as a screen is told it; the whole is in the records."""


@frozen
class RunContext:
    """Everything a run needs.

    The last five are of a policy that owns its weights. `cohort` says that it decodes all tries
    of a step together, so that a step that was cut is rolled out again in the same company;
    `history` is what the engine is brought up to before the first step, nothing where it keeps
    no weights; `weights` tells the digest of the current ones.
    """

    run: str
    problems: tuple[Problem, ...]
    sampler: Sampler
    group_size: int  # 0 where nothing is rolled out: the engine learns from the problems alone
    rollouts: RolloutManager
    verifier: Verifier
    engine: Engine
    gate: Gate
    recorder: Recorder
    ledger: RecordLedger
    records: Path
    control: RunControl
    publisher: Callable[[Library], None]  # writes what follows from a committed library
    outage: Outage = field(default_factory=Outage)  # is told of what failed
    mask: Mask = NO_SECRETS  # takes secrets out of what a screen is told
    evaluation: Evaluation | None = None
    effects: EffectGate | None = None  # None: operations are decided untried
    drafts: int = 1  # lessons that are drawn from a batch, of which one is proposed
    engine_of_draft: Callable[[int], Engine] | None = None  # by the lesson's number, from 1
    rolls_back: bool = False  # where a held-out set says after an epoch that the library got worse
    budget: Budget | None = None  # None: nothing limits what is spent
    paid_before: Usage = NO_USAGE  # by earlier processes of this run
    pace_tokens_per_s: float | None = None  # of scripted rollouts; None: nothing is paced
    cohort: bool = False
    checkpoints: Checkpoints | None = None
    history: tuple[HistorySegment, ...] = ()
    weights: Callable[[], str] | None = None
    tell: Tell = lambda _: None
    writer: PromptWriter = field(default_factory=PromptWriter)
    dropout: float = 0.0  # chance of each experience to be left out of a practice rollout
    worsened: int = 0  # held-out problems that got worse and are read after an epoch, at most
    learnable: bool = False  # see `tries_by_streak`; False: every problem is tried as often
    learns: Callable[[int], Learns] = lambda step: ""  # of a step that begins now
    first_weights: FirstWeights | None = None  # None: no four cells are measured at the end
    remarks: Callable[[], Names] = tuple  # on endpoints, so far
    nodes: Callable[[], Mapping[str, Names] | None] = lambda: None
    """The tries on each node of a cluster; None: all are made here."""

    def batch(self, step: int) -> tuple[Problem, ...]:
        return tuple(self.problems[index] for index in self.sampler.batch(step))

    def job(self, key: CallKey, problem: Problem, library: Library) -> Job:
        version = self.recorder.state.policy_version
        keep = None
        if self.dropout and (started := self.recorder.state.started) is not None:
            place = key.epoch * self.group_size + key.index
            keep = dropout(started.seed, problem.id, place, self.dropout)
        guidance, shown = self.writer.write(library, problem.question, keep)
        return Job(problem, guidance, key, version, library.version, shown)

    def planned_tries(self, step: int) -> tuple[int, ...]:
        """The tries of each problem of a step that begins now; (): `group_size` each."""
        state, batch = self.recorder.state, self.batch(step)
        if self.learnable:
            ids = [problem.id for problem in batch]
            return tries_by_streak(ids, state.streaks, self.group_size)
        # An accepted change of the setting is known from here on.
        changed = state.started is not None and state.started.group_size != self.group_size
        return (self.group_size,) * len(batch) if changed else ()

    def seed(self, key: CallKey) -> int:
        assert self.recorder.state.started is not None
        return codec.call_seed(self.recorder.state.started.seed, key)

    async def evaluate(self, measured: Evaluation, step: int) -> None:
        """Evaluate the library and the weights as they are after this step."""
        weights = "" if self.weights is None else self.weights()
        await evaluate(measured, self.recorder, step, self.gate.library, weights)
        await self.publish()  # another version may be the best now

    async def try_lesson(self, step: int) -> None:
        """Try what the step proposes, where that is wanted, before anybody decides about it."""
        state = self.recorder.state
        if self.effects is None or not self.effects.by_itself:
            return
        if state.flagged_stale is None:
            steps = self.sampler.total_steps - step + 1
            await self.effects.try_lesson(self.recorder, self.gate.library, step, steps)

    async def roll_back_if_worse(self, step: int) -> None:
        """After an epoch, propose the way back from what a held-out set found to hurt."""
        state, gate = self.recorder.state, self.gate
        if not self.rolls_back or not self.sampler.ends_epoch(step):
            return
        setback = find_setback(state.evaluations, step - self.sampler.steps_per_epoch)
        if setback is None or state.library_version != state.evaluations[-1].library_version:
            return  # the last is of another version where the way back was committed already
        wanted: tuple[Operation, ...] = ()
        if not any(op.proposer == ROLL_BACK for op in state.open_operations):
            self.tell(f"{setback.reason}; going back is proposed")
            older = gate.at(setback.version)
            wanted = revert_operations(gate.library, older, setback.reason)
        await gate.propose_between_steps(wanted, ROLL_BACK)

    async def try_asked(self, wanted: Sequence[Operation]) -> None:
        """Try open operations that somebody asks about; needs `effects`."""
        assert self.effects is not None
        await self.effects.try_asked(self.recorder, self.trial_base, wanted)

    @property
    def trial_base(self) -> Library:
        """The draft, tried on the problems of the version that it is made from."""
        return replace(self.gate.draft(), version=self.gate.library.version)

    async def measure_cells(self) -> None:
        """At the end of an alternating run: what its library and its weights are worth alone."""
        if self.first_weights is not None and self.evaluation and self.weights:
            known = self.gate.library
            await measure_cells(
                self.evaluation, self.recorder, known, self.weights, self.first_weights
            )

    async def publish(self) -> None:
        """Write what follows from the library and from the evaluations as they are now."""
        await waiting.run_to_end(partial(self.publisher, self.gate.library))

    def questions(self, wanted: Collection[str]) -> dict[str, str]:
        """What the problems of these ids ask, in practice and in held-out sets."""
        sets = self.evaluation.sets if self.evaluation is not None else ()
        known = itertools.chain(self.problems, *(held_out.problems for held_out in sets))
        found = {problem.id: problem.question for problem in known if problem.id in wanted}
        return {name: self.mask(text[:QUESTION_CHARS]) for name, text in found.items()}

    async def save_if_due(self, step: int) -> None:
        """Keep the engine's state after a step, where that is due and not done yet.

        What a fork adopted is kept at once: nothing is asked of its parent's records again.
        """
        started = self.recorder.state.started
        if self.checkpoints is None or not step or started is None:
            return
        last = step in (self.sampler.total_steps, started.forked_steps)
        if self.checkpoints.is_due(step, ends_epoch=self.sampler.ends_epoch(step), last=last):
            await self.checkpoints.write(self.recorder, step)


def tries_by_streak(
    problems: Sequence[str], streaks: Mapping[str, int], group_size: int
) -> tuple[int, ...]:
    """Fewer tries where all were right twice in a row, more where all failed.

    A solved problem keeps one or two, so that forgetting is noticed. What that saves goes to
    problems without a right try, at most twice `group_size` each: a step never makes more tries
    than with `group_size` each. `streaks` is `RunState.streaks`.
    """
    few = fewest_tries(group_size)
    tries = [few if streaks.get(name, 0) >= 2 else group_size for name in problems]
    saved = group_size * len(problems) - sum(tries)
    failed = [at for at, name in enumerate(problems) if streaks.get(name, 0) < 0]
    for number in range(min(saved, group_size * len(failed))):
        tries[failed[number % len(failed)]] += 1
    return tuple(tries)


def fewest_tries(group_size: int) -> int:
    """Of a problem that was right twice; two can still differ where a group has room."""
    return min(2, max(1, group_size // 2))


class AlternatingEngine:
    """Implements `engines.core.protocols.Engine`; only weights have a state to be kept.

    `learns` says what a step that has begun learns, `library_steps` how many of the first so many
    learn the library: the schedule of the weights spans the others.
    """

    def __init__(
        self,
        library: Engine,
        weights: Engine,
        learns: Callable[[int], Learns],
        library_steps: Callable[[int], int],
    ) -> None:
        self._library, self._weights = library, weights
        self._learns, self._library_steps = learns, library_steps
        self.apply, self.save, self.restore = weights.apply, weights.save, weights.restore

    def plan(self, total_steps: int) -> None:
        self._weights.plan(total_steps - self._library_steps(total_steps))

    async def reflect(self, group: Group, library: Library, earlier: Earlier = ()) -> Reflection:
        return await self._engine_of(group.step).reflect(group, library, earlier)

    async def consolidate(
        self, batch: Sequence[Group], reflections: Sequence[Reflection], library: Library
    ) -> Lesson:
        return await self._engine_of(batch[0].step).consolidate(batch, reflections, library)

    def _engine_of(self, step: int) -> Engine:
        return self._library if self._learns(step) == "library" else self._weights
