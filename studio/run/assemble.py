"""From a planned run to its running parts: what is opened, and in which order.

Owns the order of opening; closing is the reverse. Each part is made by the module it belongs to.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from engines.core.protocols import Reviewer, Verifier
from engines.core.state.fold import fold
from engines.core.state.run_state import RunState
from engines.pipeline.budget import Budget
from engines.pipeline.context import RunContext
from engines.pipeline.control import RunControl
from engines.pipeline.evaluation.evaluate import HeldOutSet
from engines.pipeline.gate.gate import Gate
from engines.pipeline.outage import Outage
from engines.pipeline.recorder import Recorder
from engines.pipeline.replay_training import HistorySegment
from engines.policies.limits.throttle import Slots, Throttled
from engines.record.appender import write_atomic
from engines.record.journal import Journal
from engines.record.ledger import RecordLedger
from engines.record.libraries import LibraryFolder
from engines.record.lock import write_lock
from engines.training_free.engine import TrainingFreeEngine
from engines.training_free.lint import OperationLinter
from studio.config.run_yaml import dump_run_yaml
from studio.config.settings.run import RunConfig
from studio.run.budget import apply_budget, open_budget, prior_usage
from studio.run.held_out import evaluated_sets, measuring_setup, open_evaluation
from studio.run.library_start import open_library, opening_event
from studio.run.linter import (
    Embedder,
    open_run_embedder,
    open_run_linter,
    tool_output_reader,
    usage_recorder,
)
from studio.run.models import (
    Roles,
    Tell,
    apply_pace,
    make_pausable,
    make_rollouts,
    open_roles,
    pace_of,
    rollout_slots,
    sampling_of,
    slots_for,
)
from studio.run.plan import RunPlan
from studio.run.publish import make_publisher
from studio.run.resume_checks import check_weights
from studio.run.reviewers import open_reviewers
from studio.run.training import (
    Training,
    check_demonstrations,
    check_training,
    history,
    open_training,
    recorded_threads,
)
from studio.run.verifier import open_run_verifier

if TYPE_CHECKING:
    from engines.grpo.ranks.ranks import Ranks


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a run asks and judges by. All of it has answered, and nothing is written yet."""

    roles: Roles
    budget: Budget | None
    ledger: RecordLedger
    slots: Slots
    sets: tuple[HeldOutSet, ...]
    verifier: Verifier
    embedder: Embedder | None


@dataclass(frozen=True, slots=True)
class _Written:
    """What a run writes to; the event that opens this process is in its journal."""

    recorder: Recorder
    library: LibraryFolder
    past: tuple[HistorySegment, ...]  # training that is restored before the first step


async def open_run_context(
    plan: RunPlan,
    stack: AsyncExitStack,
    tell: Tell,
    *,
    open_journal: Callable[..., Journal] = Journal,
    reviewers: Sequence[Reviewer] | None = None,
    watched: bool = False,
    ranks: Ranks | None = None,
) -> RunContext:
    """Open everything a planned run needs; what is opened is closed with the stack.

    `reviewers` decide instead of the plan's reviewer. A run that is `watched` by a screen streams
    scripted rollouts at a pace one can follow. `ranks` train together; None: this process alone.

    Raises:
        StudioError: something cannot be opened; nothing has been spent.
    """
    config = plan.loaded.config
    if reviewers is None:
        reviewers = open_reviewers(plan.reviewer, config.review.hold_s)
    # Models are opened before anything is written, so that a refusal leaves no trace. The
    # control needs the journal, so it comes last; it is looked up when a call is made.
    asked = await _open_models(
        plan,
        stack,
        tell,
        give_up=lambda reason: control.give_up("budget", reason),
        wait=lambda: control.wait_before_call(),
    )
    written = await _open_record(plan, stack, tell, open_journal)
    if asked.roles.local is not None:
        asked.roles.local.is_watched = written.recorder.is_text_read
    # Closed before the journal, whose events refer to its records.
    stack.push_async_callback(asked.ledger.aclose)
    training = await open_training(plan, asked.roles, written.recorder, stack, tell, ranks=ranks)
    control = RunControl(written.recorder)
    outage = Outage(lambda reason: control.give_up("failed", reason))
    written.recorder.listen(outage.watch(written.recorder.state))
    if training is not None:
        reviewers = (training.bounds, *reviewers)
    return _put_together(
        plan,
        asked,
        written,
        training,
        control,
        outage=outage,
        reviewers=reviewers,
        watched=watched,
        tell=tell,
    )


async def check_verifier(plan: RunPlan, stack: AsyncExitStack) -> None:
    """Load the run's verifier and close it with the stack; nothing is asked and nothing written.

    Raises:
        StudioError: a model has no known form, a set cannot be read, or the verifier is of
            no use.
    """
    config = plan.loaded.config
    roles = open_roles(config, stack)
    check_training(config)
    if roles.local is not None:
        check_demonstrations(plan, roles.local)
    ledger = RecordLedger(plan.run.records, config.seed)
    slots = Slots(config.practice.concurrency)
    await _open_verifier(
        plan, stack, roles, ledger, slots, sets=evaluated_sets(plan.loaded)
    ).check()


async def _open_models(
    plan: RunPlan,
    stack: AsyncExitStack,
    tell: Tell,
    *,
    give_up: Callable[[str], None],
    wait: Callable[[], Awaitable[None]],
) -> _Asked:
    """Open models and verifier, and let each answer once.

    `give_up` ends the run for its budget; `wait` is awaited before each call.
    """
    loaded, config, records = plan.loaded, plan.loaded.config, plan.run.records
    roles = open_roles(config, stack, tell, training=config.trains, threads=recorded_threads(plan))
    check_training(config)
    budget = open_budget(loaded, config, records, give_up)
    roles = make_pausable(apply_budget(roles, config, budget), wait)
    # Writes nothing until it is asked.
    ledger = RecordLedger(records, config.seed, tell=tell, mask=loaded.mask)
    slots = Slots(config.practice.concurrency, tell)
    sets = evaluated_sets(loaded)
    verifier = _open_verifier(plan, stack, roles, ledger, slots, sets=sets)
    await verifier.check()
    await roles.ping()
    if roles.local is not None:
        check_demonstrations(plan, roles.local, tell)
        if config.trains:
            check_weights(*plan.origin, plan.fingerprint, roles.local.local)
    embedder = await open_run_embedder(
        loaded, plan.workspace, stack, budget, usage_recorder(ledger, config)
    )
    stack.callback(roles.tell_notes, tell)
    return _Asked(roles, budget, ledger, slots, sets, verifier, embedder)


def _open_verifier(
    plan: RunPlan,
    stack: AsyncExitStack,
    roles: Roles,
    ledger: RecordLedger,
    slots: Slots,
    *,
    sets: tuple[HeldOutSet, ...],
) -> Verifier:
    judged = (plan.problems, *(held_out.problems for held_out in sets))
    return open_run_verifier(
        plan.loaded, plan.workspace, roles, ledger, slots, sets=judged, stack=stack
    )


async def _open_record(
    plan: RunPlan, stack: AsyncExitStack, tell: Tell, open_journal: Callable[..., Journal]
) -> _Written:
    """Lock the run, open its library and journal, and record that this process begins."""
    run, config, mask = plan.run, plan.loaded.config, plan.loaded.mask
    past = history(plan) if config.trains else ()
    stack.enter_context(write_lock(run.path))
    library = open_library(plan)
    library.head()  # a damaged one is reported before anything is written
    journal = open_journal(run.journal, tell=tell, mask=mask)
    stack.push_async_callback(journal.aclose)
    state = RunState()
    for entry in journal.take_entries():
        fold(state, entry.event)
    recorder = Recorder(journal, state)
    write_atomic(run.run_file, dump_run_yaml(config, mask).encode())
    await recorder.record(opening_event(plan, state, library, past))
    return _Written(recorder, library, past)


def _put_together(
    plan: RunPlan,
    asked: _Asked,
    written: _Written,
    training: Training | None,
    control: RunControl,
    *,
    outage: Outage,
    reviewers: Sequence[Reviewer],
    watched: bool,
    tell: Tell,
) -> RunContext:
    config, roles, ledger = plan.loaded.config, asked.roles, asked.ledger
    recorder, state, library = written.recorder, written.recorder.state, written.library
    linter = open_run_linter(
        plan.loaded,
        plan.problems,
        asked.sets,
        tool_output_reader(state, plan.run.records),
        asked.embedder,
    )
    slots = rollout_slots(config, asked.slots)
    wait, pace = control.wait_while_paused, pace_of(config, watched=watched)
    setup = measuring_setup(config, roles, ledger, slots, asked.verifier, wait=wait, outage=outage)
    # Evaluations are never paced: nobody watches them stream.
    streamed = apply_pace(roles, pace, control.wait_before_call)
    engine = training.engine if training else _open_training_free(config, asked, linter)
    return RunContext(
        run=plan.run.run,
        problems=plan.problems,
        sampler=plan.sampler,
        group_size=config.rollouts_a_problem,
        rollouts=make_rollouts(config, streamed, ledger, slots, wait=wait),
        verifier=asked.verifier,
        engine=engine,
        gate=Gate(
            recorder,
            library,
            reviewers,
            run=plan.run.run,
            limit=config.practice.library_limit,
            linter=linter,
            apply=training.engine.apply if training else None,
        ),
        recorder=recorder,
        ledger=ledger,
        records=plan.run.records,
        control=control,
        publish=make_publisher(plan, state, library),
        evaluation=open_evaluation(plan, asked.sets, setup),
        budget=asked.budget,
        paid_before=prior_usage(plan.run.records, state),
        pace_tokens_per_s=pace,
        cohort=roles.local is not None,
        checkpoints=training.checkpoints if training else None,
        history=written.past,
        weights=roles.weights,
        tell=tell,
    )


def _open_training_free(
    config: RunConfig, asked: _Asked, linter: OperationLinter
) -> TrainingFreeEngine:
    slots = slots_for(config.reflector, asked.slots)
    reflector = Throttled(asked.roles.reflector, slots, (0,))
    settings = replace(config.practice, sampling=sampling_of(config.role("reflector")))
    return TrainingFreeEngine(settings, reflector, asked.ledger, linter)
