"""From a planned run to its running parts: what is opened, and in which order."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from engines.core.errors import ConflictError
from engines.core.events import AgentOpened, NodesChanged, RolloutPlaced
from engines.core.protocols import Engine, Reviewer
from engines.core.types import Learns
from engines.core.waiting import slow_stage
from engines.pipeline.alternating import AlternatingEngine
from engines.pipeline.context import RunContext
from engines.pipeline.control import Outage, RunControl
from engines.pipeline.gate.gate import Gate
from engines.pipeline.recorder import Recorder
from engines.pipeline.reviewers import open_reviewers
from engines.policies.limits import Slots, Throttled
from engines.record.appender import write_atomic
from engines.record.cassette import is_played, open_cassette
from engines.record.derived.run_state import open_run
from engines.record.journal import Journal
from engines.record.ledger import RecordLedger
from engines.record.lock import check_lockable, write_lock
from engines.record.seal import add_seal
from engines.training_free.engine import TrainingFreeEngine
from engines.training_free.lint import OperationLinter
from studio.config.run_yaml import dump_run_yaml
from studio.render.run_lines import agent_lines
from studio.run.acting import sampling_of
from studio.run.budget import apply_budget, open_budget, prior_usage
from studio.run.held_out import (
    evaluated_sets,
    measuring_setup,
    open_effect_gate,
    open_evaluation,
    prompt_writer,
    tried_pool,
)
from studio.run.library import check_start, make_publisher, open_library, opening_event
from studio.run.linter import count_vectors, open_run_embedder, open_run_linter
from studio.run.models import (
    Tell,
    apply_pace,
    make_pausable,
    make_rollouts,
    open_roles,
    pace_of,
    rollout_slots,
    slots_for,
    tell_each,
    weights_digest,
)
from studio.run.new_or_resume import RunPlan, check_weights
from studio.run.training import (
    Training,
    check_demonstrations,
    check_training,
    history,
    open_training,
    recorded_threads,
)
from studio.run.verifier import open_run_verifier
from studio.secrets.workspace import remember_secrets
from studio.tracing.curves import check_curves, write_curves

if TYPE_CHECKING:
    from engines.grpo.ranks.accelerated import AcceleratedRanks


async def open_run_context(
    plan: RunPlan,
    stack: AsyncExitStack,
    tell: Tell,
    *,
    open_journal: Callable[..., Journal] = Journal,
    reviewers: Sequence[Reviewer] | None = None,
    watched: bool = False,
    ranks: AcceleratedRanks | None = None,
) -> RunContext:
    """Open everything a planned run needs; what is opened is closed with the stack.

    `reviewers` decide instead of the plan's reviewer. A run that is `watched` by a screen streams
    scripted rollouts at a pace one can follow. `ranks` train together; None: this process alone.

    Raises StudioError: something cannot be opened; nothing has been spent.
    """
    if reviewers is None:
        review = plan.loaded.config.review
        reviewers = open_reviewers(plan.reviewer, review.hold_s, review.rejects)
    run = _RunParts(plan, stack, tell)
    # Models are opened before anything is written, so that a refusal leaves no trace.
    await run.open_models()
    await run.open_record(open_journal)
    # Closed before the journal, whose events refer to its records.
    stack.push_async_callback(run.ledger.aclose)
    run.training = await open_training(plan, run.roles, run.recorder, tell, ranks=ranks)
    run.control = RunControl(run.recorder)
    if run.training is not None:
        reviewers = (run.training.bounds, *reviewers)
    context = run.put_together(reviewers, watched)
    run.write_curves(context.gate)
    return context


async def check_verifier(plan: RunPlan, stack: AsyncExitStack) -> dict[str, Any]:
    """Load the run's verifier and close it with the stack; nothing is asked and nothing written.

    Returns what the agent acts with, as `Acting.check`.
    """
    config = plan.loaded.config
    roles = open_roles(config, stack, workspace=plan.workspace.path)
    check_training(config)
    _check_monitors(plan)
    if roles.local is not None:
        check_demonstrations(plan, roles.local)
    ledger = RecordLedger(plan.run.records, config.seed)
    roles.acting.folder = plan.run.path / "programs"
    slots = Slots(config.practice.concurrency)
    judged = (plan.problems, *(held_out.problems for held_out in evaluated_sets(plan.loaded)))
    verifier = open_run_verifier(
        plan.loaded, plan.workspace, roles, ledger, slots, sets=judged, stack=stack
    )
    await verifier.check()
    return await roles.acting.check()


def _check_monitors(plan: RunPlan, tell: Tell = lambda _: None) -> None:
    check_curves(plan.loaded)
    if plan.loaded.config.collector is not None:  # what it imports, few runs need
        from studio.tracing.run_spans import check_tracing

        check_tracing(plan.loaded, tell)


class _RunParts:
    """The parts of a run that is being opened: made in order, since each needs others."""

    control: RunControl  # made last, since it needs the journal; looked up when a call is made
    training: Training | None

    def __init__(self, plan: RunPlan, stack: AsyncExitStack, tell: Tell) -> None:
        self.plan, self.stack, self.tell = plan, stack, tell
        self.config = plan.loaded.config

    async def open_models(self) -> None:
        """Open models and verifier, and let each answer once."""
        plan, stack, tell, config = self.plan, self.stack, self.tell, self.config
        loaded, records = plan.loaded, plan.run.records
        check_start(plan)
        _check_monitors(plan, tell)
        check_lockable(plan.run.path)
        tape = open_cassette(
            *(loaded.tape, f"run {plan.run.run}", stack, loaded.mask, tell),
            resumes=plan.mode == "resume",
        )
        roles = open_roles(
            config,
            stack,
            tell,
            training=config.trains,
            threads=recorded_threads(plan),
            workspace=plan.workspace.path,
            cassette=tape,
        )
        check_training(config)
        self.budget = open_budget(
            loaded, config, records, lambda reason: self.control.give_up("budget", reason)
        )
        roles.acting.folder = plan.run.path / "programs"
        self.roles = make_pausable(
            apply_budget(roles, config, self.budget), lambda: self.control.wait_before_call()
        )
        # Writes nothing until it is asked.
        self.ledger = RecordLedger(records, config.seed, tell=tell, mask=loaded.mask)
        roles.acting.reserve = lambda wanted: count_vectors(wanted, self.budget, self.ledger)
        self.slots = Slots(config.practice.concurrency, tell)
        self.sets = evaluated_sets(loaded)
        self.pool = tried_pool(loaded, plan.problems, self.sets)
        judged = (plan.problems, self.pool, *(held_out.problems for held_out in self.sets))
        self.verifier = open_run_verifier(
            loaded, plan.workspace, self.roles, self.ledger, self.slots, sets=judged, stack=stack
        )
        with slow_stage(tell, f"loading the verifier {config.verifier.name}"):
            await self.verifier.check()
        models = ", ".join(dict.fromkeys(policy.name for policy in roles.distinct))
        with slow_stage(tell, f"asking {models} for a first reply"):
            await self.roles.ping()
        tell_each(tell, self.roles.notes)
        self.agent_facts = await roles.acting.check()
        tell_each(tell, agent_lines(self.agent_facts))
        stack.callback(roles.tell_strays, tell)
        if roles.local is not None:
            check_demonstrations(plan, roles.local, tell)
            if config.trains:
                check_weights(*plan.origin, plan.fingerprint, roles.local.local)
        with slow_stage(tell, "asking the embedding model for a first reply"):
            self.embedder = await open_run_embedder(
                loaded, plan.workspace, stack, self.budget, self.ledger, tape
            )

    def remove_left_files(self) -> None:
        """Remove what programs left, unless a resume may still have it graded."""
        if self.recorder.state.status == "finished":
            shutil.rmtree(self.plan.run.path / "programs", ignore_errors=True)

    async def open_record(self, open_journal: Callable[..., Journal]) -> None:
        """Lock the run, open its library and journal, and record that this process begins."""
        run, mask = self.plan.run, self.plan.loaded.mask
        # Training that is restored before the first step.
        self.past = history(self.plan) if self.config.trains else ()
        look, end = f"`studio attach {run.run}`", f"`studio ctl stop {run.run}`"
        move = f"See it with {look}, end it with {end}, or start another run with --name NAME."
        self.stack.enter_context(write_lock(run.path, move=move))
        if self.plan.state is None and run.journal.exists() and run.state().started is not None:
            cause = "another start began it since, and its process has ended."
            raise ConflictError(f"run {run.run}", cause, "Give the command again to go on with it.")
        self.library = open_library(self.plan)
        self.library.head()  # a damaged one is reported before anything is written
        journal, state = open_run(run.journal, open_journal, tell=self.tell, mask=mask)
        self.stack.push_async_callback(journal.aclose)
        self.recent = journal.entries
        self.recorder = Recorder(journal, state)
        if self.config.collector is not None:
            from studio.tracing.run_spans import open_tracing

            open_tracing(
                *(self.plan.loaded, run, self.recorder, self.recent, self.stack, self.tell)
            )
        self.stack.callback(self.remove_left_files)
        write_atomic(run.run_file, add_seal(dump_run_yaml(self.config, mask).encode()))
        remember_secrets(self.plan.workspace.path, self.plan.loaded.secrets)
        await self.recorder.record(opening_event(self.plan, state, self.library, self.past))
        if self.agent_facts != dict(state.agent_facts):
            await self.recorder.record(AgentOpened(self.agent_facts))
        if self.roles.local is not None:
            self.roles.local.is_watched = self.recorder.is_text_read

    def put_together(self, reviewers: Sequence[Reviewer], watched: bool) -> RunContext:
        plan, config, roles, ledger = self.plan, self.config, self.roles, self.ledger
        recorder, control, training = self.recorder, self.control, self.training
        state, records = recorder.state, plan.run.records
        outage = Outage(lambda reason: control.give_up("failed", reason))
        recorder.listen(outage.watch(state))
        linter = open_run_linter(plan, self.sets, state, self.embedder)
        reflector, slots = self._training_free_engine(linter), rollout_slots(config, self.slots)
        wait = control.wait_while_paused
        pace = pace_of(config, watched=watched, played=is_played(roles.cassette))
        setup, trials = (
            measuring_setup(
                *(config, roles, ledger, slots, self.verifier),
                wait=wait,
                outage=outage,
                temperature=temperature,
            )
            for temperature in (config.evaluation.temperature, config.practice.temperature)
        )
        weights = roles.weights if config.trains else partial(weights_digest, config.policy)
        # Evaluations are never paced: nobody watches them stream.
        streamed = apply_pace(roles, pace, control.wait_before_call)
        writer = prompt_writer(config)
        return RunContext(
            run=plan.run.run,
            problems=plan.problems,
            sampler=plan.sampler,
            group_size=config.rollouts_a_problem,
            rollouts=make_rollouts(config, streamed, ledger, slots, wait=wait),
            verifier=self.verifier,
            engine=self._engine(reflector),
            gate=self._gate(reviewers, linter),
            recorder=recorder,
            ledger=ledger,
            records=records,
            control=control,
            publisher=make_publisher(plan.loaded, plan.run, state, self.library),
            mask=plan.loaded.mask,
            evaluation=open_evaluation(plan, self.sets, setup, writer),
            budget=self.budget,
            paid_before=prior_usage(records, state),
            pace_tokens_per_s=pace,
            cohort=roles.local is not None,
            checkpoints=training.checkpoints if training else None,
            history=self.past,
            effects=open_effect_gate(plan, self.pool, trials, writer, weights),
            drafts=config.practice.proposals,
            engine_of_draft=reflector.with_draft,
            rolls_back=config.review.gate.roll_back,
            weights=weights,
            tell=self.tell,
            writer=writer,
            dropout=config.practice.dropout,
            worsened=config.practice.reflect_on_worsened,
            learnable=config.practice.sampling == "learnable",
            learns=config.practice.learns,
            first_weights=training.first_weights if training and config.practice.reflects else None,
            remarks=lambda: tuple(map(plan.loaded.mask, roles.notes)),
            nodes=self._tell_nodes(),
        )

    def _tell_nodes(self) -> Callable[[], Mapping[str, tuple[str, ...]] | None]:
        """Have whoever watches told of nodes and where tries are made; returns who knows it."""
        dispatcher, emit = self.roles.acting.dispatcher, self.recorder.emit
        if dispatcher is None:
            return lambda: None
        dispatcher.on_nodes = lambda nodes, lost: emit(NodesChanged(nodes, lost))
        dispatcher.on_placed = lambda key, node: emit(RolloutPlaced(key, node))
        return dispatcher.tries_by_node

    def _gate(self, reviewers: Sequence[Reviewer], linter: OperationLinter) -> Gate:
        return Gate(
            self.recorder,
            self.library,
            reviewers,
            run=self.plan.run.run,
            limit=self.config.practice.library_limit,
            linter=linter,
            apply=self.training.engine.apply if self.training else None,
        )

    def write_curves(self, gate: Gate) -> None:
        plan, folder = self.plan, self.plan.run.path / "tensorboard"
        if self.training is not None:
            folder = self.training.folder / "monitor" / "tensorboard"
        write_curves(
            plan.loaded,
            plan.run.run,
            self.recorder,
            self.stack,
            self.tell,
            folder=folder,
            recent=self.recent,
            count_experiences=lambda: len(gate.library.experiences),
        )
        self.recent = ()  # a step's may be many

    def _engine(self, library: TrainingFreeEngine) -> Engine:
        training, practice, state = self.training, self.config.practice, self.recorder.state
        if training is None:
            return library
        if not self.config.practice.reflects:
            return training.engine

        def learns(step: int) -> Learns:  # as it began: an accepted change is for later steps
            return state.steps[step].learns if step in state.steps else "weights"

        return AlternatingEngine(library, training.engine, learns, practice.library_steps)

    def _training_free_engine(self, linter: OperationLinter) -> TrainingFreeEngine:
        slots = slots_for(self.config.reflector, self.slots)
        reflector = Throttled(self.roles.reflector, slots, (0,))
        sampling = sampling_of(self.config.role("reflector"))
        words = self.config.lint.max_words
        settings = replace(self.config.practice, replies=sampling, max_words=words)
        state = self.recorder.state
        return TrainingFreeEngine(
            settings, reflector, self.ledger, linter, lambda: state.open_operations
        )
