"""From a planned run to its running parts: what is opened, and in which order.

Of a run that trains weights these are also its engine, limits, checkpoints and curves.
"""

import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines.core import errors, events, protocols, waiting
from engines.core import events as ev
from engines.core.frozen import frozen
from engines.core.state.run_state import RunState
from engines.core.types import Learns, Problem, Tell
from engines.grpo.settings import USUAL_RATES, GRPOSettings
from engines.pipeline.budget import Budget
from engines.pipeline.context import AlternatingEngine, RunContext
from engines.pipeline.control import Outage, RunControl
from engines.pipeline.evaluation.evaluate import FirstWeights, HeldOutSet, MeasurementSetup
from engines.pipeline.gate.gate import Gate
from engines.pipeline.recorder import Recorder
from engines.pipeline.replay_training import Checkpoints, HistorySegment, load_history
from engines.pipeline.reviewers import MetricLimits, open_reviewers
from engines.policies.limits import Slots, Throttled
from engines.record import appender, cassette, libraries, lock, seal
from engines.record.derived.run_state import open_run
from engines.record.journal import Entry, Journal
from engines.record.ledger import RecordLedger
from engines.record.run_dir import RunDir
from engines.training_free.consolidation import TrainingFreeEngine
from engines.training_free.lint import OperationLinter
from studio.config.run_yaml import dump_run_yaml
from studio.config.settings.run import RunConfig
from studio.render.run_lines import agent_lines
from studio.run import models
from studio.run.acting import Acting, sampling_of
from studio.run.held_out import (
    evaluated_sets,
    measuring_setup,
    open_effect_gate,
    open_evaluation,
    open_run_embedder,
    open_run_linter,
    prompt_writer,
    tried_pool,
)
from studio.run.library import check_start, make_publisher, open_library, opening_event
from studio.run.new_or_resume import RunPlan, check_weights, weight_facts
from studio.secrets.workspace import remember_secrets
from studio.tracing.curves import check_curves, write_curves

if TYPE_CHECKING:
    from engines.grpo.ranks.accelerated import AcceleratedRanks
    from engines.policies.hf_local.policy import HFLocal


@frozen
class Training:
    folder: Path  # of the experiment
    engine: protocols.Engine
    checkpoints: Checkpoints
    bounds: MetricLimits
    first_weights: FirstWeights


async def open_run_context(
    plan: RunPlan,
    stack: AsyncExitStack,
    tell: Tell,
    *,
    open_journal: Callable[..., Journal] = Journal,
    reviewers: Sequence[protocols.Reviewer] | None = None,
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
    parts = await _open_parts(plan, stack, tell, control)
    record = await _open_record(plan, stack, tell, open_journal, parts)
    control.record_with(record.recorder)
    # Closed before the journal, whose events refer to its records.
    stack.push_async_callback(parts.ledger.aclose)
    training = await open_training(plan, parts.roles, record.recorder, tell, ranks=ranks)
    if training is not None:
        reviewers = (training.bounds, *reviewers)
    linter = open_run_linter(plan, parts.sets, record.recorder.state, parts.embedder)
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
        parts=parts,
        record=record,
        training=training,
        gate=gate,
        reflector=_open_reflector(parts, record.recorder, linter),
        pace=models.pace_of(
            plan.loaded.config, watched=watched, played=cassette.is_played(parts.roles.cassette)
        ),
    )


async def check_verifier(plan: RunPlan, stack: AsyncExitStack) -> dict[str, Any]:
    """Load the run's verifier and close it with the stack; nothing is asked and nothing written.

    Returns what the agent acts with, as `Acting.check`.
    """
    config = plan.loaded.config
    roles = models.open_roles(config, stack, workspace=plan.workspace.path)
    check_training(config)
    _check_monitors(plan)
    if roles.local is not None:
        check_demonstrations(plan, roles.local)
    ledger = RecordLedger(plan.run.records, config.seed)
    roles.acting.folder = plan.run.path / "programs"
    slots = Slots(config.practice.concurrency)
    judged = (plan.problems, *(held_out.problems for held_out in evaluated_sets(plan.loaded)))
    verifier = models.open_run_verifier(
        plan.loaded, plan.workspace, roles, ledger, slots, sets=judged, stack=stack
    )
    await verifier.check()
    return await roles.acting.check()


def _check_monitors(plan: RunPlan, tell: Tell = lambda _: None) -> None:
    check_curves(plan.loaded)
    if plan.loaded.config.collector is not None:  # what it imports, few runs need
        from studio.tracing.collector import check_tracing

        check_tracing(plan.loaded, tell)


@frozen
class _Parts:
    """What a run asks, and what its answers are judged by; each has answered once."""

    config: RunConfig
    roles: models.Roles  # each call waits while the run is paused, and comes out of the budget
    budget: Budget | None
    ledger: RecordLedger
    slots: Slots
    sets: tuple[HeldOutSet, ...]
    pool: tuple[Problem, ...]  # operations are tried on these
    verifier: protocols.Verifier
    embedder: protocols.Embedder | None
    agent_facts: dict[str, Any]


async def _open_parts(
    plan: RunPlan, stack: AsyncExitStack, tell: Tell, control: RunControl
) -> _Parts:
    """Open models and verifier, and let each answer once; nothing is written."""
    loaded, config = plan.loaded, plan.loaded.config
    check_start(plan)
    _check_monitors(plan, tell)
    lock.check_lockable(plan.run.path)
    tape = cassette.open_cassette(
        loaded.tape,
        f"run {plan.run.run}",
        stack,
        loaded.mask,
        tell,
        resumes=plan.mode == "resume",
    )
    budget = models.open_budget(
        loaded, config, plan.run.records, partial(control.give_up, "budget")
    )
    ledger = RecordLedger(plan.run.records, config.seed, tell=tell, mask=loaded.mask)
    roles = models.open_roles(
        config,
        stack,
        tell,
        training=config.trains,
        threads=recorded_threads(plan),
        workspace=plan.workspace.path,
        cassette=tape,
        budget=budget,
        ledger=ledger,
    )
    check_training(config)
    acting, local = roles.acting, roles.local
    acting.folder = plan.run.path / "programs"
    roles = models.make_pausable(roles, control.wait_before_call)
    slots = Slots(config.practice.concurrency, tell)
    sets = evaluated_sets(loaded)
    pool = tried_pool(loaded, plan.problems, sets)
    judged = (plan.problems, pool, *(held_out.problems for held_out in sets))
    verifier = models.open_run_verifier(
        loaded, plan.workspace, roles, ledger, slots, sets=judged, stack=stack
    )
    with waiting.slow_stage(tell, f"loading the verifier {config.verifier.name}"):
        await verifier.check()
    names = ", ".join(dict.fromkeys(policy.name for policy in roles.distinct))
    with waiting.slow_stage(tell, f"asking {names} for a first reply"):
        await roles.ping()
    models.tell_each(tell, roles.notes)
    agent_facts = await acting.check()
    models.tell_each(tell, agent_lines(agent_facts))
    stack.callback(roles.tell_strays, tell)
    if local is not None:
        check_demonstrations(plan, local, tell)
        if config.trains:
            check_weights(*plan.origin, plan.fingerprint, local.local)
    with waiting.slow_stage(tell, "asking the embedding model for a first reply"):
        embedder = await open_run_embedder(loaded, plan.workspace, stack, budget, ledger, tape)
    return _Parts(
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


@frozen
class _Record:
    """What a run writes to: its journal and its library."""

    recorder: Recorder
    library: libraries.LibraryFolder
    past: tuple[HistorySegment, ...]  # training that is restored before the first step
    recent: Sequence[Entry]  # events of the step under way, read with the journal


async def _open_record(
    plan: RunPlan,
    stack: AsyncExitStack,
    tell: Tell,
    open_journal: Callable[..., Journal],
    parts: _Parts,
) -> _Record:
    """Lock the run, open its library and journal, and record that this process begins."""
    run, loaded, local = plan.run, plan.loaded, parts.roles.local
    past = history(plan) if loaded.config.trains else ()
    look, end = f"`studio attach {run.run}`", f"`studio ctl stop {run.run}`"
    stack.enter_context(
        lock.write_lock(
            run.path,
            move=f"See it with {look}, end it with {end}, or start another run with --name NAME.",
        )
    )
    if plan.state is None and run.journal.exists() and run.state().started is not None:
        raise errors.ConflictError(
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
    appender.write_atomic(
        run.run_file, seal.add_seal(dump_run_yaml(loaded.config, loaded.mask).encode())
    )
    remember_secrets(plan.workspace.path, loaded.secrets)
    await recorder.record(opening_event(plan, state, library, past))
    if parts.agent_facts != dict(state.agent_facts):
        await recorder.record(events.AgentOpened(parts.agent_facts))
    if local is not None:
        local.is_watched = recorder.is_text_read
    return _Record(recorder=recorder, library=library, past=past, recent=journal.entries)


def _remove_left_files(run: RunDir, state: RunState) -> None:
    """Remove what programs left, unless a resume may still have it graded."""
    if state.status == "finished":
        shutil.rmtree(run.path / "programs", ignore_errors=True)


def _open_reflector(
    parts: _Parts, recorder: Recorder, linter: OperationLinter
) -> TrainingFreeEngine:
    config, state = parts.config, recorder.state
    slots = models.slots_for(config.reflector, parts.slots)
    settings = replace(
        config.practice,
        replies=sampling_of(config.role("reflector")),
        max_words=config.lint.max_words,
    )
    policy = Throttled(parts.roles.reflector, slots, (0,))
    return TrainingFreeEngine(settings, policy, parts.ledger, linter, lambda: state.open_operations)


def _choose_engine(
    config: RunConfig, state: RunState, reflector: TrainingFreeEngine, training: Training | None
) -> protocols.Engine:
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
    parts: _Parts,
    record: _Record,
    training: Training | None,
    gate: Gate,
    reflector: TrainingFreeEngine,
    pace: float | None,
) -> RunContext:
    config, roles, ledger = parts.config, parts.roles, parts.ledger
    recorder, state = record.recorder, record.recorder.state
    slots = models.rollout_slots(config, parts.slots)
    outage = Outage(partial(control.give_up, "failed"))

    def measure_at(temperature: float) -> MeasurementSetup:
        return measuring_setup(
            config,
            roles,
            ledger,
            slots,
            parts.verifier,
            wait=control.wait_while_paused,
            outage=outage,
            temperature=temperature,
        )

    measured = measure_at(config.evaluation.temperature)
    tried = measure_at(config.practice.temperature)
    # Evaluations are never paced: nobody watches them stream.
    streamed = models.apply_pace(roles, pace, control.wait_before_call)
    rollouts = models.make_rollouts(config, streamed, ledger, slots, wait=control.wait_while_paused)
    weights = roles.weights if config.trains else partial(models.weights_digest, config.policy)
    writer = prompt_writer(config)
    return RunContext(
        run=plan.run.run,
        problems=plan.problems,
        sampler=plan.sampler,
        group_size=config.rollouts_a_problem,
        rollouts=rollouts,
        verifier=parts.verifier,
        engine=_choose_engine(config, state, reflector, training),
        gate=gate,
        recorder=recorder,
        ledger=ledger,
        records=plan.run.records,
        control=control,
        publisher=make_publisher(plan.loaded, plan.run, state, record.library),
        outage=outage,
        mask=plan.loaded.mask,
        evaluation=open_evaluation(plan, parts.sets, measured, writer),
        budget=parts.budget,
        paid_before=models.prior_usage(plan.run.records, state),
        pace_tokens_per_s=pace,
        cohort=roles.local is not None,
        checkpoints=training.checkpoints if training else None,
        history=record.past,
        effects=open_effect_gate(plan, parts.pool, tried, writer, weights),
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
    pool = acting.worker_pool
    if pool is None:
        return lambda: None
    pool.on_nodes = lambda nodes, lost: recorder.emit(events.NodesChanged(nodes, lost))
    pool.on_placed = lambda key, node: recorder.emit(events.RolloutPlaced(key, node))
    return pool.tries_by_node


def grpo_settings(config: RunConfig) -> GRPOSettings:
    return config.grpo.for_rollouts(config.practice.temperature, config.policy.max_tokens)


def check_training(config: RunConfig) -> None:
    """Refuse settings that the engine would refuse, before anything is written."""
    if config.practice.algorithm in ("grpo", "both"):
        grpo_settings(config)


def training_warnings(config: RunConfig) -> list[str]:
    """Settings of a training run that look like a mistake."""
    least, most = USUAL_RATES
    section = "sft" if config.practice.algorithm == "sft" else "grpo"
    rate = getattr(config, section).learning_rate
    if least <= rate <= most:
        return []
    return [
        f"{section}.learning_rate={rate:g} is unusual: adapters mostly learn between {least:g} "
        f"and {most:g}; higher ones tend to collapse, lower ones to do nothing"
    ]


def check_demonstrations(plan: RunPlan, local: "HFLocal", tell: Tell = lambda _: None) -> None:
    """Check the data of a run that is fine-tuned; nothing where it learns from rollouts."""
    config = plan.loaded.config
    if config.practice.algorithm == "sft":
        from engines.grpo.loss.sft_data import check_problems

        place = str(plan.loaded.data_path(config.data.practice or ""))
        problems = plan.problems[: config.data.truncate]
        check_problems(local.local, problems, config.agent.instructions, place, tell)


async def open_training(
    plan: RunPlan,
    roles: models.Roles,
    recorder: Recorder,
    tell: Tell,
    *,
    ranks: "AcceleratedRanks | None" = None,
) -> Training | None:
    """The parts of a run that trains weights; None of one that does not.

    `ranks` train together; None: this process alone.

    Raises ConfigError: settings that contradict each other. PolicyError: a server that samples does
    not take the adapter.
    """
    if not plan.loaded.config.trains or roles.local is None:
        return None
    folder = experiment_folder(plan)
    local = roles.local.local
    first = local.adapter_state()  # nothing is restored yet
    engine, publish = _open_engine(plan, roles.local, tell, ranks), _publish_nothing
    if roles.rollouts is not None:
        from engines.grpo.engine.weight_engine import VLLMSyncedEngine

        synced = VLLMSyncedEngine(engine, local, roles.rollouts, folder / "served")
        await synced.publish()
        engine, publish = synced, synced.publish
    # Once a run: a later process trains with the threads of the first.
    if not recorder.state.engine_facts:
        await recorder.record(ev.EngineOpened(weight_facts(local)))
    grpo = plan.loaded.config.grpo

    @asynccontextmanager
    async def first_weights() -> AsyncIterator[None]:
        with local.exchange_adapter(first):
            await publish()
            yield
        await publish()

    return Training(
        folder,
        engine,
        Checkpoints(plan.run.path, folder, engine.save, grpo.checkpoint_steps, tell=tell),
        MetricLimits(grpo.reject_kl_above, grpo.reject_grad_norm_above),
        first_weights,
    )


async def _publish_nothing() -> None:
    """Whoever samples has the weights themselves."""


def _open_engine(
    plan: RunPlan, local: "HFLocal", tell: Tell, ranks: "AcceleratedRanks | None"
) -> protocols.Engine:
    from engines.grpo.engine.grpo import GRPOEngine
    from engines.grpo.engine.sft import SFTEngine

    config, total = plan.loaded.config, plan.sampler.total_steps
    steps = total - config.practice.library_steps(total)
    if config.practice.algorithm == "sft":
        return SFTEngine(
            config.sft,
            local.local,
            total_steps=steps,
            instructions=config.agent.instructions,
            tell=tell,
        )
    settings, seed = grpo_settings(config), config.seed
    if ranks is None:
        return GRPOEngine(settings, local.local, total_steps=steps, seed=seed, tell=tell)
    from engines.grpo.ranks.accelerated import open_engine, share_sampling

    engine = open_engine(ranks, local.local, settings, total_steps=steps, seed=seed, tell=tell)
    share_sampling(ranks, local)
    return engine


def experiment_folder(plan: RunPlan) -> Path:
    """`checkpoints/<exp_id>/Experiment-<time>`: the existing one, or one named after now."""
    parent = plan.run.path / "checkpoints" / plan.loaded.config.exp_id
    existing = sorted(parent.glob("Experiment-*"))
    return existing[-1] if existing else parent / f"Experiment-{datetime.now():%Y%m%d%H%M%S}"


def recorded_threads(plan: RunPlan) -> int | None:
    """Threads of the CPU that a run's first process trained with; None: it is new."""
    # Another count adds floats in another order, so that a resume would drift.
    _, state = plan.origin
    found = state.engine_facts.get("threads") if state is not None else None
    return found if isinstance(found, int) else None


def history(plan: RunPlan) -> tuple[HistorySegment, ...]:
    """The training that the engine restores before the first step.

    Raises ConflictError: a run that this one was forked from is gone.
    """
    if plan.parent is not None:
        return load_history(plan.parent, plan.workspace, plan.adopted_steps, to_restore=True)
    if plan.state is None:
        return ()
    return load_history(plan.run, plan.workspace, to_restore=True)
