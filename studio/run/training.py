"""The parts of a run that trains weights: its engine, limits, checkpoints and curves."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from engines.core import events as ev
from engines.core.protocols import Engine
from engines.grpo.settings import USUAL_RATES, GRPOSettings
from engines.pipeline.evaluation.evaluate import FirstWeights
from engines.pipeline.recorder import Recorder
from engines.pipeline.replay_training import Checkpoints, HistorySegment, load_history
from engines.pipeline.reviewers import MetricLimits
from studio.config.settings.run import RunConfig
from studio.run.models import Roles, Tell
from studio.run.new_or_resume import RunPlan, weight_facts

if TYPE_CHECKING:
    from engines.grpo.ranks.accelerated import AcceleratedRanks
    from engines.policies.hf_local.policy import HFLocal


@dataclass(frozen=True, slots=True)
class Training:
    folder: Path  # of the experiment
    engine: Engine
    checkpoints: Checkpoints
    bounds: MetricLimits
    first_weights: FirstWeights


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
    roles: Roles,
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
) -> Engine:
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
