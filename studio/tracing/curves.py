"""Curves of a run by step: for TensorBoard, or a service that the run file names."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from engines.core import errors
from engines.core import events as ev
from engines.core.state.run_state import RunState
from engines.core.types import Lesson, Tell, WeightUpdate
from engines.pipeline.evaluation.statistics import pass_rate
from engines.pipeline.recorder import Recorder
from engines.record.journal import Entry
from studio.config.loading import LoadedRun
from studio.facts.evaluation import question_rewards

Figures = dict[str, float]


def check_curves(loaded: LoadedRun) -> None:
    """Refuse a run file that asks for curves by something that is not installed."""
    config = loaded.config
    if config.tensorboard and find_spec("tensorboard") is None:
        raise errors.ConfigError(
            loaded.place("tensorboard"),
            "TensorBoard is not installed.",
            f"Run: {errors.install_command('tensorboard')}",
        )
    if config.trains and (monitor := config.grpo.monitor) and find_spec(monitor) is None:
        raise errors.ConfigError(
            f"grpo.monitor={monitor}", f"{monitor} is not installed.", f"Run: pip install {monitor}"
        )


def write_curves(
    loaded: LoadedRun,
    run: str,
    recorder: Recorder,
    stack: AsyncExitStack,
    tell: Tell,
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


class ScalarWriter:
    """Writes figures by step into event files.

    This process writes from `first_step` on. Whatever an earlier process wrote from there on is
    hidden, so that a resumed run shows each step once. `clock` gives seconds since the epoch.
    """

    def __init__(
        self,
        folder: Path,
        *,
        first_step: int,
        tell: Tell,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._tell, self._clock = tell, clock
        self._writer: Any = None
        try:
            # Its own writer: torch's wrapper around it takes twice as long to import.
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            tell(f"No scalars for TensorBoard: {errors.install_command('tensorboard')} adds them.")
            return
        self._event, self._summary = Event, Summary
        with self._give_up_on_error():
            again = any(folder.glob("events.out.tfevents.*"))
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._writer = EventFileWriter(str(folder))
            if again:
                start = SessionLog(status=SessionLog.START)
                self._writer.add_event(Event(step=first_step, wall_time=clock(), session_log=start))

    def write(self, step: int, figures: Mapping[str, float], group: str = "train") -> None:
        """One point of each curve `group/name`, on disk when it returns."""
        if self._writer is None or not figures:
            return
        values = [
            self._summary.Value(tag=f"{group}/{name}", simple_value=float(figure))
            for name, figure in figures.items()
        ]
        event = self._event(step=step, wall_time=self._clock(), summary=self._summary(value=values))
        with self._give_up_on_error():
            self._writer.add_event(event)
            self._writer.flush()

    def close(self) -> None:
        writer, self._writer = self._writer, None
        with self._give_up_on_error():
            if writer is not None:
                writer.close()

    @contextmanager
    def _give_up_on_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._writer = None
            self._tell(f"No more scalars for TensorBoard: {error.strerror or error}.")


class Tracker:
    """The same figures in wandb, mlflow or swanlab, by their own libraries."""

    def __init__(self, name: str, project: str, run: str, tell: Tell) -> None:
        library = import_module(name)
        self._name, self._tell, self._lost = name, tell, False
        if name == "mlflow":
            self._log, self._end = library.log_metrics, library.end_run
            self._try(partial(library.set_experiment, project))
            self._try(partial(library.start_run, run_name=run))
        else:
            self._log, self._end = library.log, library.finish
            key = "name" if name == "wandb" else "experiment_name"
            self._try(partial(library.init, project=project, **{key: run}))

    def write(self, step: int, figures: Mapping[str, float], group: str = "train") -> None:
        named = {f"{group}/{name}": float(figure) for name, figure in figures.items()}
        self._try(partial(self._log, named, step=step))

    def close(self) -> None:
        self._try(self._end)

    def _try(self, call: Callable[[], object]) -> None:
        try:
            if not self._lost:
                call()
        except Exception as error:  # of a service: no network, no login, no room
            self._lost = True
            self._tell(f"No more curves for {self._name}: {error}")
