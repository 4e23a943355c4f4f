"""A run that trains weights, without a model: its weights are one number, exact on any machine.

The policy decodes every try that attends together, and what it says depends on who is among
them, as rounding makes it do in earnest; here so much that nobody could miss it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engines.core import events as ev
from engines.core.codec import digest
from engines.core.errors import ConflictError, DamagedError
from engines.core.library import Library
from engines.core.protocols import OnText, Policy, Reviewer
from engines.core.state.fold import fold
from engines.core.state.run_state import RunState
from engines.core.types import (
    Attempt,
    Completion,
    Group,
    Job,
    Lesson,
    LostWork,
    Message,
    Operation,
    Problem,
    Reflection,
    Rollout,
    Sampling,
    Usage,
    Verdict,
    WeightUpdate,
)
from engines.data.sampler import Sampler
from engines.pipeline.context import AlternatingEngine, RunContext
from engines.pipeline.control import RunControl
from engines.pipeline.evaluation.evaluate import Evaluation, HeldOutSet, MeasurementSetup
from engines.pipeline.gate.gate import Gate
from engines.pipeline.recorder import Recorder
from engines.pipeline.replay_training import Checkpoints, load_history, policy_version_after
from engines.pipeline.reviewers import AutoReviewer
from engines.pipeline.step import practise
from engines.policies.limits import Slots
from engines.record.journal import Journal
from engines.record.ledger import RecordLedger
from engines.record.run_dir import RunDir, Workspace
from engines.record.scores import ScoreBook
from engines.rollouts.manager import RolloutManager
from studio.config.settings.run import PracticeConfig

GROUP = 2
BATCH = 2


@dataclass
class Weights:
    value: float = 0.0


@dataclass
class Cohort:
    """A policy that owns its weights and decodes all that attend at once."""

    weights: Weights
    name: str = "hf:number"
    batches: list[tuple[int, ...]] = field(default_factory=list)  # seeds of each
    attends: int = 0
    waiting: list[tuple[int, Sequence[Message], asyncio.Future[Completion]]] = field(
        default_factory=list
    )

    @contextmanager
    def attending(self) -> Iterator[None]:
        self.attends += 1
        try:
            yield
        finally:
            self.attends -= 1
            self._look()

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        assert sampling.seed is not None
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self.waiting.append((sampling.seed, messages, future))
        self._look()
        return await future

    def _look(self) -> None:
        """Decode in the next turn of the loop, once whoever comes in this one attends too."""
        asyncio.get_running_loop().call_soon(self._decode)

    def _decode(self) -> None:
        if not self.waiting or len(self.waiting) < self.attends:
            return
        rows, self.waiting = sorted(self.waiting, key=lambda row: row[0]), []
        company = tuple(seed for seed, _, _ in rows)
        self.batches.append(company)
        for seed, messages, future in rows:
            shown = [[m.role, m.content, list(m.token_ids)] for m in messages]
            drawn = int(digest([self.weights.value, seed, shown, company], 4), 16)
            ids = (drawn % 7, drawn % 11, drawn % 13)
            if not future.done():
                prompt_ids = tuple(len(text) for _, text, _ in shown)
                logprobs = tuple(-1 / (3 + token) for token in ids)
                future.set_result(
                    Completion(
                        f"says {drawn % 1000}",
                        usage=Usage(2, 3, 1),
                        token_ids=ids,
                        logprobs=logprobs,
                        prompt_ids=prompt_ids,
                    )
                )

    async def ping(self) -> None: ...

    async def aclose(self) -> None: ...


class Steps:
    """An engine whose update follows from all that a step sampled, bit by bit."""

    def __init__(self, weights: Weights, falls: Sequence[int] = (), total_steps: int = 3) -> None:
        self.weights = weights
        self.total_steps = total_steps  # of the whole run, over which its steps grow smaller
        self.falls = falls  # steps whose update goes back to the last good weights
        self.pending: dict[str, tuple[float, int]] = {}
        self.version = 0
        self.seen = 0  # consolidations, of which the optimiser would keep count
        self.good = (0.0, 0)  # value and step
        self.consolidated: list[int] = []
        self.plans: list[int] = []  # each that differs from the one before it
        self.groups: list[Group] = []
        self.fails: str = ""

    def plan(self, total_steps: int) -> None:
        if total_steps != self.total_steps:
            self.plans.append(total_steps)
        self.total_steps = total_steps

    async def reflect(
        self, group: Group, library: Library, earlier: Sequence[asyncio.Future[Group]] = ()
    ) -> Reflection:
        return Reflection(group.step, group.position, group.reward_outcome)

    async def consolidate(
        self, batch: Sequence[Group], reflections: Sequence[Reflection], library: Library
    ) -> Lesson:
        step = batch[0].step
        self.consolidated.append(step)
        self.groups = list(batch)
        self.seen += 1
        if self.fails:
            lost = LostWork("consolidation", f"step {step}", self.fails)
            return Lesson(step, library.version, losses=(lost,))
        gradient = 0.0
        for group, reflection in zip(batch, reflections, strict=True):
            assert reflection.outcome == group.reward_outcome
            for rollout, verdict in zip(group.rollouts, group.verdicts, strict=True):
                assert verdict.reward is not None
                assert rollout.policy_version == self.version
                for turn in rollout.attempt.turns:
                    pairs = zip(turn.token_ids, turn.logprobs, strict=True)
                    gradient += (verdict.reward - 0.4) * sum(t * p for t, p in pairs)
                    gradient += 0.001 * sum(turn.prompt_ids)
        value = self.weights.value * 0.9 + gradient / 7 + 0.1 / self.seen
        value -= 0.01 * step / self.total_steps
        back = step in self.falls
        metrics = {"kl": abs(gradient), "grad_norm": gradient * gradient, "loss": value}
        handle = f"step-{step}"
        self.pending = {handle: self.good if back else (value, step)}
        return Lesson(
            step,
            library.version,
            update=WeightUpdate(metrics, handle, rollback_to=self.good[1] if back else None),
        )

    async def apply(self, update: WeightUpdate) -> int:
        self.weights.value, step = self.pending.pop(update.handle)
        self.good = self.weights.value, step
        self.version += 1
        return self.version

    async def save(self, folder: Path) -> str:
        state = json.dumps([self.weights.value, self.version, self.seen, self.good])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "state.json").write_text(f"{digest(state)} {state}")
        return digest(state)

    async def restore(self, folder: Path) -> None:
        path = folder / "state.json"
        if not path.exists():
            raise ConflictError(str(folder), "it is not there.", "Put it back.")
        told, _, state = path.read_text().partition(" ")
        if told != digest(state):
            raise DamagedError(str(path), "it fails its check.", "Put it back.")
        self.weights.value, self.version, self.seen, good = json.loads(state)
        self.good = (good[0], good[1])


class Words(Steps):
    """An engine whose lesson is one experience, which every prompt has from then on."""

    async def consolidate(
        self, batch: Sequence[Group], reflections: Sequence[Reflection], library: Library
    ) -> Lesson:
        step = batch[0].step
        self.consolidated.append(step)
        said = batch[0].rollouts[0].attempt.answer
        operation = Operation(f"op{step}.1", "add", text=f"Try {said} in step {step}.")
        return Lesson(step, library.version, (operation,))


@dataclass(frozen=True)
class TwoTurns:
    """Says something, is asked again, and says something else."""

    async def attempt(self, job: Job, policy: Policy, on_text: OnText | None = None) -> Attempt:
        messages: tuple[Message, ...] = (Message("user", job.guidance + job.problem.question),)
        for _ in range(2):
            reply = await policy.complete(messages, Sampling(1.0))
            messages = (*messages, reply.as_message(), Message("user", "sure?"))
        return Attempt(messages[:-1], reply.text, usage=reply.usage)


class EvenIsRight:
    async def check(self) -> None: ...

    async def verify(self, problem: Problem, rollouts: Sequence[Rollout]) -> Sequence[Verdict]:
        return [Verdict(float(int((r.attempt.answer or "1")[-1]) % 2 == 0)) for r in rollouts]

    async def aclose(self) -> None: ...


@dataclass
class Run:
    """One process of a run, and what is left of it."""

    practice: RunContext
    engine: Steps
    policy: Cohort
    run: RunDir
    told: list[str]
    ending: str = ""
    words: Words | None = None  # of a run whose steps take turns

    @property
    def state(self) -> RunState:
        return self.practice.recorder.state

    @property
    def value(self) -> float:
        return self.engine.weights.value


@asynccontextmanager
async def opened(
    place: Path,
    *,
    name: str = "exp",
    reviewers: Sequence[Reviewer] = (),
    fork: tuple[str, int] | None = None,
    open_journal: Callable[..., Journal] = Journal,
    steps: int = 3,
    epochs: int = 1,
    falls: Sequence[int] = (),
    verifier: Any = None,
    weight_steps: int = 0,
) -> AsyncIterator[Run]:
    """Open a run of `steps` steps an epoch, with a checkpoint every 2; nothing is started.

    With `weight_steps` so many of them follow each that learns a library, and cells are measured.
    """
    workspace = Workspace(place)
    run = RunDir(workspace.runs_folder / name)
    run.path.mkdir(parents=True, exist_ok=True)
    problems = tuple(Problem(f"p{n}", f"{n} and {n}?", "") for n in range(BATCH * steps))
    folder = workspace.library(name)
    if not folder.exists():
        folder.create(None)
    told: list[str] = []
    journal = open_journal(run.journal)
    state = RunState()
    for entry in journal.entries:
        fold(state, entry.event)
    recorder = Recorder(journal, state)
    parent, adopted = fork or (None, 0)
    if state.started is None:
        version = 0
        if parent is not None:
            version = policy_version_after(load_history(workspace.run(parent), workspace, adopted))
        opening: Any = ev.RunStarted(
            run=name,
            exp_id=name,
            seed=5,
            epochs=epochs,
            steps_per_epoch=steps,
            group_size=GROUP,
            library=name,
            library_version=0,
            reviewer="auto",
            rehearsal=False,
            settings={},
            forked_from=parent,
            forked_steps=adopted,
            policy_version=version,
        )
    else:
        opening = ev.RunResumed(1, epochs, "auto", {}, steps_per_epoch=steps)
    await recorder.record(opening)
    if not state.engine_facts:
        await recorder.record(ev.EngineOpened({"threads": 1}))
    weights = Weights()
    engine, policy = Steps(weights, falls, epochs * steps), Cohort(weights)
    ledger = RecordLedger(run.records, 5)
    control = RunControl(recorder)
    manager = RolloutManager(
        agent=TwoTurns(),
        policy=policy,
        ledger=ledger,
        slots=Slots(64),
        task_timeout_s=60.0,
        cleared=control.wait_while_paused,
        attending=policy.attending,
    )
    gate = Gate(recorder, folder, reviewers or (AutoReviewer(),), run=name, apply=engine.apply)
    practice = RunContext(
        run=name,
        problems=problems,
        sampler=Sampler(len(problems), BATCH, epochs, 5),
        group_size=GROUP,
        rollouts=manager,
        verifier=verifier or EvenIsRight(),
        engine=engine,
        gate=gate,
        recorder=recorder,
        ledger=ledger,
        records=run.records,
        control=control,
        publisher=lambda _: None,
        cohort=True,
        checkpoints=Checkpoints(run.path, run.path / "checkpoints/e", engine.save, every_steps=2),
        history=load_history(run, workspace),
        weights=lambda: digest([weights.value]),
        tell=told.append,
    )
    words = Words(weights) if weight_steps else None
    if words is not None:
        practice = _alternate(practice, words, weights, workspace, weight_steps)
    try:
        yield Run(practice, engine, policy, run, told, words=words)
    finally:
        await ledger.aclose()
        await journal.aclose()


def _alternate(
    practice: RunContext, words: Words, weights: Weights, workspace: Workspace, weight_steps: int
) -> RunContext:
    """The same run, in which one step learns words and the next ones weights."""
    settings = PracticeConfig(algorithm="both", weight_steps=weight_steps)
    steps = practice.recorder.state.steps

    @asynccontextmanager
    async def first_weights() -> AsyncIterator[None]:
        now, weights.value = weights.value, 0.0
        yield
        weights.value = now

    def open_book(guidance: str, of_weights: str) -> ScoreBook:
        return ScoreBook(workspace.evaluations, {"said": guidance, "weights": of_weights})

    measured = Evaluation(
        sets=(HeldOutSet("held", (Problem("h", "and now?", ""),)),),
        measuring=MeasurementSetup(practice.rollouts, practice.verifier, 5),
        folder=practice.records.parent / "evals",
        book=open_book,
        fingerprint="f",
        account=practice.run,
    )
    return replace(
        practice,
        engine=AlternatingEngine(
            words, practice.engine, lambda step: steps[step].learns, settings.library_steps
        ),
        learns=settings.learns,
        first_weights=first_weights,
        evaluation=measured,
    )


async def trained(place: Path, **how: Any) -> Run:
    """Practise to the end, from wherever the journal is."""
    async with opened(place, **how) as run:
        run.ending = await practise(run.practice)
        return run
