"""The parts of a run that trains weights: its engine, bounds, checkpoints and curves.

Owns which class stands behind each. `studio.run.assemble` puts them beside the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from engines.core import events as ev
from engines.core.state.run_state import RunState
from engines.core.types import Lesson, WeightUpdate
from engines.grpo.settings import GRPOSettings
from engines.pipeline.checkpoints import Checkpoints
from engines.pipeline.recorder import Recorder
from engines.pipeline.replay_training import HistorySegment, load_history
from engines.pipeline.reviewers.limits import MetricLimits
from studio.config.settings.run import RunConfig
from studio.run.models import Tell
from studio.run.plan import RunPlan
from studio.run.resume_checks import weight_facts

if TYPE_CHECKING:
    from engines.grpo.engine.grpo import ScoredBatch
    from engines.grpo.engine.sft import DemonstrationBatch
    from engines.grpo.engine.vllm_synced import VLLMSyncedEngine
    from engines.grpo.engine.weight_engine import WeightEngine
    from engines.grpo.loss.sft import SFTSettings
    from engines.grpo.ranks.rank_zero import RankZeroEngine
    from engines.grpo.ranks.ranks import Ranks
    from engines.policies.hf_local.policy import HFLocal
    from engines.policies.vllm.policy import VLLMRollouts

    TrainingEngine = (
        WeightEngine[ScoredBatch]
        | WeightEngine[DemonstrationBatch]
        | RankZeroEngine
        | VLLMSyncedEngine
    )

USUAL_RATES = (1e-6, 3e-3)
"""Learning rates of adapters outside of these are warned of."""


@dataclass(frozen=True, slots=True)
class Training:
    engine: TrainingEngine
    checkpoints: Checkpoints
    bounds: MetricLimits
    folder: Path  # of this experiment, with its monitor and its steps


def grpo_settings(config: RunConfig) -> GRPOSettings:
    grpo = config.grpo
    return GRPOSettings(
        learning_rate=grpo.learning_rate,
        weight_decay=grpo.weight_decay,
        schedule=grpo.schedule,
        warmup=grpo.warmup,
        max_grad_norm=grpo.max_grad_norm,
        aggregation=grpo.aggregation,
        clip_low=grpo.clip_low,
        clip_high=grpo.clip_high,
        beta=grpo.beta,
        iterations=grpo.iterations,
        minibatches=grpo.minibatches,
        accumulation=grpo.accumulation,
        micro_batch=grpo.micro_batch,
        advantage_scale=grpo.advantage_scale,
        advantage_eps=grpo.advantage_eps,
        discount=grpo.discount,
        max_completion_tokens=config.policy.max_tokens,
        collapse_drop=grpo.collapse_drop or 0.0,
        collapse_patience=grpo.collapse_patience,
        temperature=config.practice.temperature,
    )


def sft_settings(config: RunConfig) -> SFTSettings:
    from engines.grpo.loss.sft import SFTSettings

    sft = config.sft
    return SFTSettings(
        sft.learning_rate, sft.max_grad_norm, sft.schedule, sft.warmup, sft.weight_decay
    )


def check_training(config: RunConfig) -> None:
    """Refuse settings that the engine would refuse, before anything is written.

    Raises:
        ConfigError: a value is out of bounds, or two do not fit each other.
    """
    match config.practice.algorithm:
        case "grpo":
            grpo_settings(config)
        case "sft":
            sft_settings(config)
        case _:
            pass


def training_warnings(config: RunConfig) -> list[str]:
    """What looks like a slip in the settings of a training run."""
    least, most = USUAL_RATES
    section = "sft" if config.practice.algorithm == "sft" else "grpo"
    rate = getattr(config, section).learning_rate
    told = []
    if not least <= rate <= most:
        told.append(
            f"{section}.learning_rate={rate:g} is unusual: adapters mostly learn between {least:g} "
            f"and {most:g}; higher ones tend to collapse, lower ones to do nothing"
        )
    return told


def open_tuning_engine(
    plan: RunPlan, local: HFLocal, tell: Tell = lambda _: None
) -> WeightEngine[DemonstrationBatch]:
    """The engine of a run that is fine-tuned on demonstrations.

    Raises:
        StudioError: settings that cannot be meant, or a model without anything to train.
    """
    from engines.grpo.engine.sft import sft_engine

    config = plan.loaded.config
    return sft_engine(
        sft_settings(config),
        local.local,
        total_steps=plan.sampler.total_steps,
        instructions=config.agent.instructions,
        tell=tell,
    )


def check_demonstrations(plan: RunPlan, local: HFLocal, tell: Tell = lambda _: None) -> None:
    """Look at what a run is to be fine-tuned on; nothing where it learns from rollouts.

    Raises:
        DataError: a problem brings no demonstration, or none fits the model.
    """
    config = plan.loaded.config
    if config.practice.algorithm == "sft":
        from engines.grpo.loss.sft_data import check_problems

        place = str(plan.loaded.data_path(config.data.practice or ""))
        problems = plan.problems[: config.data.truncate]
        check_problems(local.local, problems, config.agent.instructions, place, tell)


def open_training(
    plan: RunPlan,
    local: HFLocal,
    tell: Tell,
    ranks: Ranks | None = None,
    rollouts: VLLMRollouts | None = None,
) -> Training:
    """The engine of a run, its weights as the policy's; nothing is written yet.

    Args:
        plan: of a run whose `practice.algorithm` is grpo or sft.
        local: its policy.
        tell: is told what an update met with.
        ranks: the processes that train together; None: this one.
        rollouts: a server that samples; None: the policy does.

    Raises:
        ConfigError: settings that contradict each other.
    """
    from engines.grpo.engine.grpo import grpo_engine
    from engines.grpo.engine.vllm_synced import VLLMSyncedEngine
    from engines.grpo.ranks.distributed import DistributedRanks
    from engines.grpo.ranks.rank_zero import RankZeroEngine

    config = plan.loaded.config
    settings, steps = grpo_settings(config), plan.sampler.total_steps
    engine: TrainingEngine
    if config.practice.algorithm == "sft":
        engine = open_tuning_engine(plan, local, tell)
    elif isinstance(ranks, DistributedRanks):
        engine = RankZeroEngine(
            ranks, local.local, settings, total_steps=steps, seed=config.seed, tell=tell
        )
        engine.share_sampling(local)
    else:
        engine = grpo_engine(settings, local.local, total_steps=steps, seed=config.seed, tell=tell)
    folder = experiment_folder(plan)
    if rollouts is not None:
        engine = VLLMSyncedEngine(engine, local.local, rollouts, folder / "served")
    checkpoints = Checkpoints(
        plan.run.path,
        folder,
        engine.save,
        config.grpo.checkpoint_steps,
        config.grpo.keep,
        tell,
    )
    bounds = MetricLimits(config.grpo.reject_kl_above, config.grpo.reject_grad_norm_above)
    return Training(engine, checkpoints, bounds, folder)


def experiment_folder(plan: RunPlan) -> Path:
    """`checkpoints/<exp_id>/Experiment-<time>`: the one there is, or one named after now."""
    below = plan.run.path / "checkpoints" / plan.loaded.config.exp_id
    there = sorted(below.glob("Experiment-*"))
    if there:
        return there[-1]
    return below / f"Experiment-{datetime.now():%Y%m%d%H%M%S}"


async def note_engine(training: Training, local: HFLocal, recorder: Recorder) -> None:
    """Journal what the engine runs on, once a run: a later process goes by its threads.

    Raises:
        PolicyError: a server that samples does not take the adapter.
    """
    from engines.grpo.engine.vllm_synced import VLLMSyncedEngine

    if isinstance(training.engine, VLLMSyncedEngine):
        await training.engine.publish()
    if not recorder.state.engine_facts:
        await recorder.record(ev.EngineOpened(weight_facts(local.local)))


def history(plan: RunPlan) -> tuple[HistorySegment, ...]:
    """What the engine is brought up to before the first step.

    Raises:
        ConflictError: a run that this one was forked from is gone.
    """
    if plan.parent is not None:
        return load_history(plan.parent, plan.workspace, plan.adopted_steps, to_restore=True)
    if plan.state is None:
        return ()
    return load_history(plan.run, plan.workspace, to_restore=True)


def curve_listener(
    training: Training, state: RunState, stack: AsyncExitStack, tell: Tell
) -> Callable[[ev.DurableEvent | ev.TransientEvent], None]:
    """A listener that writes a training run's curves beside its checkpoints."""
    from engines.grpo.engine.tensorboard import ScalarWriter

    scalars = ScalarWriter(
        training.folder / "monitor" / "tensorboard", first_step=state.steps_finished, tell=tell
    )
    stack.callback(scalars.close)

    def listen(event: ev.DurableEvent | ev.TransientEvent) -> None:
        match event:
            case ev.LessonProposed(step=step, lesson=Lesson(update=WeightUpdate(metrics=metrics))):
                scalars.write(step, metrics)
            case ev.EvaluationFinished(mean=float() as mean):
                scalars.write(event.step, {event.data: mean}, group="held-out")

    return listen
