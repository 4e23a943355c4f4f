"""From a planned run to its running parts: what is opened, and in which order."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from engines.core.errors import ConflictError
from engines.core.events import AgentOpened, NodesChanged, RolloutPlaced
from engines.core.protocols import Engine, Reviewer, Verifier
from engines.core.state.run_state import RunState
from engines.core.types import Learns, Problem
from engines.core.waiting import slow_stage
from engines.pipeline.budget import Budget
from engines.pipeline.context import AlternatingEngine, RunContext
from engines.pipeline.control import Outage, RunControl
from engines.pipeline.evaluation.evaluate import HeldOutSet, MeasurementSetup
from engines.pipeline.gate.gate import Gate
from engines.pipeline.recorder import Recorder
from engines.pipeline.replay_training import HistorySegment
from engines.pipeline.reviewers import open_reviewers
from engines.policies.limits import Slots, Throttled
from engines.record.appender import write_atomic
from engines.record.cassette import OpenEmbedder, is_played, open_cassette
from engines.record.derived.run_state import open_run
from engines.record.journal import Entry, Journal
from engines.record.ledger import RecordLedger
from engines.record.libraries import LibraryFolder
from engines.record.lock import check_lockable, write_lock
from engines.record.run_dir import RunDir
from engines.record.seal import add_seal
from engines.training_free.consolidation import TrainingFreeEngine
from engines.training_free.lint import OperationLinter
from studio.config.run_yaml import dump_run_yaml
from studio.config.settings.run import RunConfig
from studio.render.run_lines import agent_lines
from studio.run.acting import Acting, sampling_of
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
    Roles,
    Tell,
    apply_budget,
    apply_pace,
    make_pausable,
    make_rollouts,
    open_budget,
    open_roles,
    pace_of,
    prior_usage,
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
    ranks: "AcceleratedRanks | None" = None,
) -> RunContext:
    """Open everything a planned run needs; what is opened is closed with the stack.

    `reviewers` decide instead of the plan's reviewer. A run that is `watched` by a screen streams
    scripted rollouts at a pace one can follow. `ranks` train together; None: this process alone.

    Raises StudioError: something cannot be opened; nothing has been spent.
    """
    if reviewers is None:
        review = plan.loaded.config.review
        reviewers = open_reviewers(plan.reviewer, review.hold_s, review.rejects)
    control = RunControl()
    # Models are opened before anything is written, so that a refusal leaves no trace.
    models = await _open_models(plan, stack, tell, control)
    record = await _open_record(plan, stack, tell, open_journal, models)
    control.record_with(record.recorder)
    # Closed before the journal, whose events refer to its records.
    stack.push_async_callback(models.ledger.aclose)
    training = await open_training(plan, models.roles, record.recorder, tell, ranks=ranks)
    if training is not None:
        reviewers = (training.bounds, *reviewers)
    linter = open_run_linter(plan, models.sets, record.recorder.state, models.embedder)
    gate = Gate(
        record.recorder,
        record.library,
        reviewers,
        run=plan.run.run,
        limit=plan.loaded.config.practice.library_limit,
        linter=linter,
        apply=training.engine.apply if training is not None else None,
    )
    folder = plan.run.path if training is None else training.folder / "monitor"
    write_curves(
        plan.loaded,
        plan.run.run,
        record.recorder,
        stack,
        tell,
        folder=folder / "tensorboard",
        recent=record.recent,
        count_experiences=lambda: len(gate.library.experiences),
    )
    return _put_together(
        plan=plan,
        tell=tell,
        control=control,
        models=models,
        record=record,
        training=training,
        gate=gate,
        reflector=_open_reflector(models, record.recorder, linter),
        pace=pace_of(plan.loaded.config, watched=watched, played=is_played(models.roles.cassette)),
    )


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
        from studio.tracing.collector import check_tracing

        check_tracing(plan.loaded, tell)


@dataclass(frozen=True, slots=True)
class _Models:
    """What a run asks, and what its answers are judged by; each has answered once."""

    config: RunConfig
    roles: Roles  # each call waits while the run is paused, and comes out of the budget
    budget: Budget | None
    ledger: RecordLedger
    slots: Slots
    sets: tuple[HeldOutSet, ...]
    pool: tuple[Problem, ...]  # operations are tried on these
    verifier: Verifier
    embedder: OpenEmbedder | None
    agent_facts: dict[str, Any]


async def _open_models(
    plan: RunPlan, stack: AsyncExitStack, tell: Tell, control: RunControl
) -> _Models:
    """Open models and verifier, and let each answer once; nothing is written."""
    loaded, config = plan.loaded, plan.loaded.config
    check_start(plan)
    _check_monitors(plan, tell)
    check_lockable(plan.run.path)
    tape = open_cassette(
        loaded.tape,
        f"run {plan.run.run}",
        stack,
        loaded.mask,
        tell,
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
    budget = open_budget(loaded, config, plan.run.records, partial(control.give_up, "budget"))
    ledger = RecordLedger(plan.run.records, config.seed, tell=tell, mask=loaded.mask)
    acting, local = roles.acting, roles.local
    acting.folder = plan.run.path / "programs"
    acting.reserve = lambda wanted: count_vectors(wanted, budget, ledger)
    roles = make_pausable(apply_budget(roles, config, budget), control.wait_before_call)
    slots = Slots(config.practice.concurrency, tell)
    sets = evaluated_sets(loaded)
    pool = tried_pool(loaded, plan.problems, sets)
    judged = (plan.problems, pool, *(held_out.problems for held_out in sets))
    verifier = open_run_verifier(
        loaded, plan.workspace, roles, ledger, slots, sets=judged, stack=stack
    )
    with slow_stage(tell, f"loading the verifier {config.verifier.name}"):
        await verifier.check()
    names = ", ".join(dict.fromkeys(policy.name for policy in roles.distinct))
    with slow_stage(tell, f"asking {names} for a first reply"):
        await roles.ping()
    tell_each(tell, roles.notes)
    agent_facts = await acting.check()
    tell_each(tell, agent_lines(agent_facts))
    stack.callback(roles.tell_strays, tell)
    if local is not None:
        check_demonstrations(plan, local, tell)
        if config.trains:
            check_weights(*plan.origin, plan.fingerprint, local.local)
    with slow_stage(tell, "asking the embedding model for a first reply"):
        embedder = await open_run_embedder(loaded, plan.workspace, stack, budget, ledger, tape)
    return _Models(
        config=config,
        roles=roles,
        budget=budget,
        ledger=ledger,
        slots=slots,
        sets=sets,
        pool=pool,
        verifier=verifier,
        embedder=embedder,
        agent_facts=agent_facts,
    )


@dataclass(frozen=True, slots=True)
class _Record:
    """What a run writes to: its journal and its library."""

    recorder: Recorder
    library: LibraryFolder
    past: tuple[HistorySegment, ...]  # training that is restored before the first step
    recent: Sequence[Entry]  # events of the step under way, read with the journal


async def _open_record(
    plan: RunPlan,
    stack: AsyncExitStack,
    tell: Tell,
    open_journal: Callable[..., Journal],
    models: _Models,
) -> _Record:
    """Lock the run, open its library and journal, and record that this process begins."""
    run, loaded, local = plan.run, plan.loaded, models.roles.local
    past = history(plan) if loaded.config.trains else ()
    look, end = f"`studio attach {run.run}`", f"`studio ctl stop {run.run}`"
    stack.enter_context(
        write_lock(
            run.path,
            move=f"See it with {look}, end it with {end}, or start another run with --name NAME.",
        )
    )
    if plan.state is None and run.journal.exists() and run.state().started is not None:
        raise ConflictError(
            f"run {run.run}",
            "another start began it since, and its process has ended.",
            "Give the command again to go on with it.",
        )
    library = open_library(plan)
    library.head()  # a damaged one is reported before anything is written
    journal, state = open_run(run.journal, open_journal, tell=tell, mask=loaded.mask)
    stack.push_async_callback(journal.aclose)
    recorder = Recorder(journal, state)
    if loaded.config.collector is not None:
        from studio.tracing.collector import open_tracing

        open_tracing(loaded, run, recorder, journal.entries, stack, tell)
    stack.callback(_remove_left_files, run, state)
    write_atomic(run.run_file, add_seal(dump_run_yaml(loaded.config, loaded.mask).encode()))
    remember_secrets(plan.workspace.path, loaded.secrets)
    await recorder.record(opening_event(plan, state, library, past))
    if models.agent_facts != dict(state.agent_facts):
        await recorder.record(AgentOpened(models.agent_facts))
    if local is not None:
        local.is_watched = recorder.is_text_read
    return _Record(recorder=recorder, library=library, past=past, recent=journal.entries)


def _remove_left_files(run: RunDir, state: RunState) -> None:
    """Remove what programs left, unless a resume may still have it graded."""
    if state.status == "finished":
        shutil.rmtree(run.path / "programs", ignore_errors=True)


def _open_reflector(
    models: _Models, recorder: Recorder, linter: OperationLinter
) -> TrainingFreeEngine:
    config, state = models.config, recorder.state
    slots = slots_for(config.reflector, models.slots)
    settings = replace(
        config.practice,
        replies=sampling_of(config.role("reflector")),
        max_words=config.lint.max_words,
    )
    policy = Throttled(models.roles.reflector, slots, (0,))
    return TrainingFreeEngine(
        settings, policy, models.ledger, linter, lambda: state.open_operations
    )


def _choose_engine(
    config: RunConfig, state: RunState, reflector: TrainingFreeEngine, training: Training | None
) -> Engine:
    if training is None:
        return reflector
    if not config.practice.reflects:
        return training.engine

    def learns(step: int) -> Learns:  # as it began: an accepted change is for later steps
        return state.steps[step].learns if step in state.steps else "weights"

    return AlternatingEngine(reflector, training.engine, learns, config.practice.library_steps)


def _put_together(
    *,
    plan: RunPlan,
    tell: Tell,
    control: RunControl,
    models: _Models,
    record: _Record,
    training: Training | None,
    gate: Gate,
    reflector: TrainingFreeEngine,
    pace: float | None,
) -> RunContext:
    config, roles, ledger = models.config, models.roles, models.ledger
    recorder, state = record.recorder, record.recorder.state
    slots = rollout_slots(config, models.slots)
    outage = Outage(partial(control.give_up, "failed"))

    def measure_at(temperature: float) -> MeasurementSetup:
        return measuring_setup(
            config,
            roles,
            ledger,
            slots,
            models.verifier,
            wait=control.wait_while_paused,
            outage=outage,
            temperature=temperature,
        )

    measured = measure_at(config.evaluation.temperature)
    tried = measure_at(config.practice.temperature)
    # Evaluations are never paced: nobody watches them stream.
    streamed = apply_pace(roles, pace, control.wait_before_call)
    rollouts = make_rollouts(config, streamed, ledger, slots, wait=control.wait_while_paused)
    weights = roles.weights if config.trains else partial(weights_digest, config.policy)
    writer = prompt_writer(config)
    return RunContext(
        run=plan.run.run,
        problems=plan.problems,
        sampler=plan.sampler,
        group_size=config.rollouts_a_problem,
        rollouts=rollouts,
        verifier=models.verifier,
        engine=_choose_engine(config, state, reflector, training),
        gate=gate,
        recorder=recorder,
        ledger=ledger,
        records=plan.run.records,
        control=control,
        publisher=make_publisher(plan.loaded, plan.run, state, record.library),
        outage=outage,
        mask=plan.loaded.mask,
        evaluation=open_evaluation(plan, models.sets, measured, writer),
        budget=models.budget,
        paid_before=prior_usage(plan.run.records, state),
        pace_tokens_per_s=pace,
        cohort=roles.local is not None,
        checkpoints=training.checkpoints if training else None,
        history=record.past,
        effects=open_effect_gate(plan, models.pool, tried, writer, weights),
        drafts=config.practice.proposals,
        engine_of_draft=reflector.with_draft,
        rolls_back=config.review.gate.roll_back,
        weights=weights,
        tell=tell,
        writer=writer,
        dropout=config.practice.dropout,
        worsened=config.practice.reflect_on_worsened,
        learnable=config.practice.sampling == "learnable",
        learns=config.practice.learns,
        first_weights=training.first_weights if training and config.practice.reflects else None,
        remarks=lambda: tuple(map(plan.loaded.mask, roles.notes)),
        nodes=_tell_nodes(roles.acting, recorder),
    )


def _tell_nodes(
    acting: Acting, recorder: Recorder
) -> Callable[[], Mapping[str, tuple[str, ...]] | None]:
    """Have whoever watches told of nodes and where tries are made; returns who knows it."""
    dispatcher = acting.dispatcher
    if dispatcher is None:
        return lambda: None
    dispatcher.on_nodes = lambda nodes, lost: recorder.emit(NodesChanged(nodes, lost))
    dispatcher.on_placed = lambda key, node: recorder.emit(RolloutPlaced(key, node))
    return dispatcher.tries_by_node
