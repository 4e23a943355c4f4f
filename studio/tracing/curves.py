"""Curves of a run by step: for TensorBoard, or a service that the run file names."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AsyncExitStack
from importlib.util import find_spec
from pathlib import Path

from engines.core import events as ev
from engines.core.errors import ConfigError, install_command
from engines.core.state.run_state import RunState
from engines.core.types import Lesson, WeightUpdate
from engines.pipeline.evaluation.statistics import pass_rate
from engines.pipeline.recorder import Recorder
from engines.record.journal import Entry
from engines.tracing.tensorboard import ScalarWriter, Tracker
from studio.config.loading import LoadedRun
from studio.facts.evaluation import question_rewards

Figures = dict[str, float]


def check_curves(loaded: LoadedRun) -> None:
    """Refuse a run file that asks for curves by something that is not installed."""
    config = loaded.config
    if config.tensorboard and find_spec("tensorboard") is None:
        move = f"Run: {install_command('tensorboard')}"
        raise ConfigError(loaded.place("tensorboard"), "TensorBoard is not installed.", move)
    if config.trains and (monitor := config.grpo.monitor) and find_spec(monitor) is None:
        cause = f"{monitor} is not installed."
        raise ConfigError(f"grpo.monitor={monitor}", cause, f"Run: pip install {monitor}")


def write_curves(
    loaded: LoadedRun,
    run: str,
    recorder: Recorder,
    stack: AsyncExitStack,
    tell: Callable[[str], None],
    *,
    folder: Path,
    recent: Iterable[Entry],
    count_experiences: Callable[[], int],
) -> None:
    """Write a run's curves from now on, into `folder` or to a service.

    `recent` are the entries since its last step began: that step's points are written anew.
    """
    config, state = loaded.config, recorder.state
    writers: list[ScalarWriter | Tracker] = []
    if config.trains if config.tensorboard is None else config.tensorboard:
        recent = tuple(recent)
        has_step = any(isinstance(entry.event, ev.StepStarted) for entry in recent)
        first_step = state.step if has_step else state.step + 1
        writers.append(ScalarWriter(folder, first_step=first_step, tell=tell))
    began: dict[int, float] = {}

    def write(entry: Entry) -> None:
        event = entry.event
        if isinstance(event, ev.StepStarted):
            began[event.step] = entry.at
        for group, figures in _figures(event, state):
            if isinstance(event, ev.StepFinished) and group == "practice":
                figures["experiences"] = count_experiences()
                if (start := began.pop(event.step, None)) is not None:
                    figures["seconds"] = entry.at - start
            for scalars in writers:
                scalars.write(event.step, figures, group)

    for entry in recent if writers else ():
        write(entry)
    if config.trains and config.grpo.monitor is not None:
        writers.append(Tracker(config.grpo.monitor, config.exp_id, run, tell))
    for scalars in writers:
        stack.callback(scalars.close)
    recorder.listen(lambda _: write(recorder.entry) if writers and recorder.entry else None)


def _figures(
    event: ev.DurableEvent | ev.TransientEvent, state: RunState
) -> Iterator[tuple[str, Figures]]:
    """What an event of a step adds to each group of curves."""
    match event:
        case ev.LessonProposed(lesson=Lesson(update=WeightUpdate(metrics=found))):
            yield "train", dict(found)
        case ev.EvaluationFinished(mean=float() as mean):
            yield "held-out", {event.data: mean}
            passed = pass_rate(tuple(question_rewards(event).values()), event.k).value
            if event.k > 1 and passed is not None:
                yield f"held-out-pass@{event.k}", {event.data: passed}
        case ev.StepFinished():
            step, total = state.steps[event.step], state.total_usage
            figures: Figures = {
                "rollouts": step.rollouts_done,
                "failed": step.failed,
                "unjudged": step.unjudged,
                "tokens": total.tokens,
            }
            if (mean_reward := step.rewards.mean) is not None:
                figures["reward"] = mean_reward
            if total.cost_usd is not None:
                figures["cost_usd"] = total.cost_usd
            if groups := sum(step.groups.values()):
                figures["informative"] = step.groups["used"] / groups
            yield "practice", figures
            yield "groups", {outcome: float(n) for outcome, n in step.groups.items()}
            applied = sum(outcome.applied for outcome in step.outcomes)
            rejected = len(step.outcomes) - applied
            yield "operations", {"applied": applied, "rejected": rejected}
