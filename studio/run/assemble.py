"""From a planned run to its running parts: the one place that names concrete classes.

Owns what is opened and in which order it is closed again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines.core import events as ev
from engines.core.errors import ConfigError, DamagedError
from engines.core.library import Library
from engines.core.protocols import Reviewer
from engines.core.state.fold import fold
from engines.core.state.run_state import RunState
from engines.core.text.prompts import prompt_hashes
from engines.core.types import NO_USAGE, Usage
from engines.pipeline.context import RunContext
from engines.pipeline.control import RunControl
from engines.pipeline.evaluation.evaluate import Evaluation, HeldOutSet, MeasurementSetup
from engines.pipeline.gate.gate import Gate
from engines.pipeline.outage import Outage
from engines.pipeline.recorder import Recorder
from engines.pipeline.replay_training import HistorySegment, policy_version_after
from engines.pipeline.reviewers.human import AutoReviewer, HumanReviewer
from engines.policies.limits.paced import StreamPacedPolicy
from engines.policies.limits.throttle import Slots, Throttled
from engines.record.appender import write_atomic
from engines.record.export import format_agent_yaml
from engines.record.journal import Journal
from engines.record.ledger import RecordLedger, read_usage
from engines.record.libraries import LibraryFolder
from engines.record.lock import write_lock
from engines.rollouts.manager import RolloutManager
from engines.training_free.engine import TrainingFreeEngine
from engines.training_free.settings import TrainingFreeSettings
from studio.config.loading import dump_run_yaml
from studio.config.settings.run import RunConfig
from studio.run.budget import apply_budget, open_budget
from studio.run.held_out import (
    held_out_sets,
    measurement_id,
    measurement_settings,
    measuring_setup,
    score_book_opener,
)
from studio.run.library_start import open_library
from studio.run.linter import (
    held_out_problems,
    make_linter,
    open_run_embedder,
    tool_output_reader,
    usage_recorder,
)
from studio.run.models import (
    Tell,
    agent_of,
    endpoint_of,
    is_rehearsal,
    make_pausable,
    open_roles,
    pace_of,
    rollout_slots,
    sampling_of,
    slots_for,
)
from studio.run.plan import RunPlan
from studio.run.resume_checks import check_weights
from studio.run.training import (
    check_demonstrations,
    check_training,
    curve_listener,
    history,
    note_engine,
    open_training,
)
from studio.run.verifier import open_run_verifier

if TYPE_CHECKING:
    from engines.grpo.ranks.ranks import Ranks

_PROMPTS_OF = ("engines.core", "engines.training_free", "engines.verifiers", "studio.config")
"""Packages whose prompt files a run may send; its journal names the hash of each."""


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

    Args:
        plan: a new, resumed or forked run.
        stack: entered by the caller.
        tell: is told what was mended on the way.
        open_journal: makes the run's journal.
        reviewers: who decides instead of the plan's reviewer.
        watched: by a screen, so that scripted rollouts stream at a pace one can follow.
        ranks: the processes that train together; None: this one alone.

    Raises:
        StudioError: something cannot be opened; nothing has been spent.
    """
    config, run = plan.loaded.config, plan.run
    opened = open_roles(
        config, stack, tell, training=config.trains, threads=_recorded_threads(plan)
    )
    check_training(config)
    budget = open_budget(
        plan.loaded, config, run.records, lambda reason: control.give_up("budget", reason)
    )
    roles = make_pausable(apply_budget(opened, config, budget), lambda: control.wait_before_call())
    mask = plan.loaded.mask
    # Writes nothing until it is asked.
    ledger = RecordLedger(run.records, config.seed, tell=tell, mask=mask)
    slots = Slots(config.practice.concurrency, tell)
    sets = held_out_sets(plan.loaded) if config.evaluation.do_eval else ()
    judged = (plan.problems, *(held_out.problems for held_out in sets))
    verifier = open_run_verifier(plan.loaded, plan.workspace, roles, ledger, slots, sets=judged)
    stack.push_async_callback(verifier.aclose)
    if reviewers is None:
        reviewers = open_reviewers(plan.reviewer, config.review.hold_s)
    await verifier.check()
    await roles.ping()
    if opened.local is not None:
        check_demonstrations(plan, opened.local, tell)
        if config.trains:
            check_weights(plan, opened.local.local)
    embedder = await open_run_embedder(
        plan.loaded, plan.workspace, stack, budget, usage_recorder(ledger, config)
    )
    stack.callback(roles.tell_notes, tell)

    past = history(plan) if config.trains else ()
    stack.enter_context(write_lock(run.path))
    folder = open_library(plan)
    folder.head()  # a damaged one is told before anything is written
    journal = open_journal(run.journal, tell=tell, mask=mask)
    stack.push_async_callback(journal.aclose)
    state = RunState()
    for entry in journal.take_entries():
        fold(state, entry.event)
    recorder = Recorder(journal, state)
    if opened.local is not None:
        opened.local.is_watched = recorder.is_text_read
    write_atomic(run.run_file, dump_run_yaml(config, mask).encode())
    await recorder.record(_opening_event(plan, state, folder, past))

    stack.push_async_callback(ledger.aclose)
    training = None
    if config.trains and opened.local is not None:
        training = open_training(plan, opened.local, tell, ranks, opened.rollouts)
        await note_engine(training, opened.local, recorder)
        if config.grpo.tensorboard:
            recorder.listen(curve_listener(training, state, stack, tell))
        reviewers = (training.bounds, *reviewers)
    rolling = rollout_slots(config, slots)
    control = RunControl(recorder)
    outage = Outage(lambda reason: control.give_up("failed", reason))
    recorder.listen(outage.watch(state))
    rolled, pace = roles.policy, pace_of(config, watched=watched)
    if pace is not None:  # evaluations go on as fast as they can: nobody sees them stream
        rolled = StreamPacedPolicy(rolled, pace, control.wait_before_call)
    manager = RolloutManager(
        agent_of(config, sampling_of(config.role("policy"))),
        rolled,
        ledger,
        rolling,
        config.practice.task_timeout_s,
        control.wait_while_paused,
        opened.join_batch,
    )
    linter = make_linter(
        config,
        plan.problems,
        held_out_problems(plan.loaded, sets),
        tool_output_reader(state, run.records),
        embedder,
    )
    reflector = Throttled(roles.reflector, slots_for(config.reflector, slots), (0,))
    return RunContext(
        run=run.run,
        problems=plan.problems,
        sampler=plan.sampler,
        group_size=config.rollouts_a_problem,
        rollouts=manager,
        verifier=verifier,
        engine=training.engine
        if training
        else TrainingFreeEngine(engine_settings(config), reflector, ledger, linter),
        gate=Gate(
            recorder,
            folder,
            reviewers,
            run=run.run,
            limit=config.practice.library_limit,
            linter=linter,
            apply=training.engine.apply if training else None,
        ),
        recorder=recorder,
        ledger=ledger,
        records=run.records,
        control=control,
        publish=_publisher(plan, state, folder),
        evaluation=_open_evaluation(
            plan,
            sets,
            replace(
                measuring_setup(
                    config,
                    roles.policy,
                    ledger,
                    rolling,
                    verifier,
                    control.wait_while_paused,
                    opened.join_batch,
                ),
                outage=outage,
            ),
        ),
        budget=budget,
        paid_before=_prior_usage(run.records, state),
        pace_tokens_per_s=pace,
        cohort=opened.local is not None,
        checkpoints=training.checkpoints if training else None,
        history=past,
        weights=opened.weights,
        tell=tell,
    )


def _recorded_threads(plan: RunPlan) -> int | None:
    """Of the CPU, that a run's first process trained with: others add up in another order."""
    state = plan.state or (plan.parent.state() if plan.parent else None)
    found = state.engine_facts.get("threads") if state is not None else None
    return found if isinstance(found, int) else None


def _prior_usage(records: Path, state: RunState) -> Usage:
    """By earlier processes; where a record is damaged, what the journal tells of it."""
    try:
        return sum((usage for _, usage in read_usage(records)), NO_USAGE)
    except DamagedError:
        return state.total_usage


async def check_verifier(plan: RunPlan, stack: AsyncExitStack) -> None:
    """Load the run's verifier and let go of it; nothing is asked and nothing is written.

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
    sets = held_out_sets(plan.loaded) if config.evaluation.do_eval else ()
    judged = (plan.problems, *(held_out.problems for held_out in sets))
    slots = Slots(config.practice.concurrency)
    verifier = open_run_verifier(plan.loaded, plan.workspace, roles, ledger, slots, sets=judged)
    stack.push_async_callback(verifier.aclose)
    await verifier.check()


def engine_settings(config: RunConfig) -> TrainingFreeSettings:
    practice = config.practice
    return TrainingFreeSettings(
        agent_objective=practice.agent_objective,
        learning_objective=practice.learning_objective,
        experiences_per_query=practice.experiences_per_query,
        given_ground_truth=practice.given_ground_truth,
        summarise=practice.summarise,
        summarise_above_chars=practice.summarise_above_chars,
        library_limit=practice.library_limit,
        sampling=sampling_of(config.role("reflector")),
    )


def open_reviewers(spec: str, hold_s: float | None) -> tuple[Reviewer, ...]:
    """`auto`, `wait`, or `rules:FILE`, which leaves the rest to a person.

    Raises:
        ConfigError: another name, or the rules cannot be read.
    """
    kind, _, file = spec.partition(":")
    match kind:
        case "auto":
            return (AutoReviewer(),)
        case "wait":
            return (HumanReviewer(hold_s),)
        case "rules" if file:
            from engines.pipeline.reviewers.rules import read_rules

            return (read_rules(Path(file).expanduser()), HumanReviewer(hold_s))
    raise ConfigError(
        f"reviewer {spec!r}", "there is no such reviewer.", "Choose auto, wait or rules:FILE."
    )


def _opening_event(
    plan: RunPlan, state: RunState, folder: LibraryFolder, past: tuple[HistorySegment, ...]
) -> ev.DurableEvent:
    config = plan.loaded.config
    if state.started is not None:
        return ev.RunResumed(
            os.getpid(),
            config.practice.epochs,
            plan.reviewer,
            plan.fingerprint,
            again=True,
            steps_per_epoch=plan.sampler.steps_per_epoch,
            prompts=prompt_hashes(_PROMPTS_OF),
        )
    head = folder.head()
    return ev.RunStarted(
        run=plan.run.run,
        exp_id=config.exp_id,
        seed=config.seed,
        epochs=config.practice.epochs,
        steps_per_epoch=plan.sampler.steps_per_epoch,
        group_size=config.rollouts_a_problem,
        library=folder.name,
        library_version=head.version,
        reviewer=plan.reviewer,
        rehearsal=is_rehearsal(config),
        settings=plan.fingerprint,
        forked_from=plan.parent.run if plan.parent else None,
        forked_steps=plan.adopted_steps,
        remembered=head.remembered,
        policy_version=policy_version_after(past),
        prompts=prompt_hashes(_PROMPTS_OF),
    )


def agent_description(config: RunConfig, adapter: str | None = None) -> dict[str, Any]:
    """What `agent.yaml` says besides the experiences: no key, no header, no address's user.

    Args:
        config: of the run.
        adapter: where the weights are that the run trained; None: as the run file says.
    """
    model = config.role("policy")
    described: dict[str, Any] = {"model": model.model}
    for name in ("base_url", "temperature", "top_p", "max_tokens"):
        value = getattr(model, name)
        if value is not None:
            described[name] = value
    if model.base_url is not None:
        described["base_url"] = endpoint_of(model).url
    if (adapter or model.adapter) is not None:
        described["adapter"] = adapter or model.adapter
    agent: dict[str, Any] = {
        "name": config.agent.name,
        "instructions": config.agent.instructions,
    }
    if config.agent.kind != "single_turn":
        agent |= {"kind": config.agent.kind, "max_turns": config.agent.max_turns}
    return {**agent, "model": described}


def _publisher(plan: RunPlan, state: RunState, folder: LibraryFolder) -> Callable[[Library], None]:
    """Writes what follows from a committed library: the enhanced agent and the catalogue.

    Beside the agent as it is now stands the one that did best on the held-out sets.
    """
    from engines.record.catalogue import write_library_rows

    config, mask = plan.loaded.config, plan.loaded.mask

    def adapter(step: int | None = None) -> str | None:
        """Of what was trained so far, or as it was after a step."""
        trained = config.trains and state.policy_version and step != 0
        at = "" if step is None else f"@{step}"
        return f"run:{plan.run.run}{at}" if trained else None

    def publish(library: Library) -> None:
        agent = agent_description(config, adapter())
        write_atomic(plan.run.agent_file, format_agent_yaml(agent, library, plan.run.run, mask))
        best = best_library(state, folder)
        if best is not None:
            agent = agent_description(config, adapter(state.best_step))
            text = format_agent_yaml(
                agent, best, f"{plan.run.run}, best on the held-out sets", mask
            )
            write_atomic(plan.run.best_agent_file, text)
        write_library_rows(plan.workspace, library)

    return publish


def best_library(state: RunState, folder: LibraryFolder) -> Library | None:
    """The version that did best on the held-out sets; None where nothing was measured."""
    step = state.best_step
    if step is None:
        return None
    version = next(e.library_version for e in state.evaluations if e.step == step)
    return folder.at(version)


def _open_evaluation(
    plan: RunPlan, sets: tuple[HeldOutSet, ...], how: MeasurementSetup
) -> Evaluation | None:
    if not sets:
        return None
    evaluation = plan.loaded.config.evaluation
    facts = measurement_settings(plan.loaded.config, plan.fingerprint)
    return Evaluation(
        sets=sets,
        measuring=how,
        folder=plan.run.path / "evals",
        book=score_book_opener(
            plan.workspace.evaluations, facts, plan.loaded.config, plan.loaded.mask
        ),
        fingerprint=measurement_id(facts),
        account=f"{plan.run.run} of {plan.run.started_at():.3f}",
        strategy=evaluation.strategy,
        every_steps=evaluation.every_steps,
        mask=plan.loaded.mask,
    )
