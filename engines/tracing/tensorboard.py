"""Curves of a run: event files of TensorBoard, or another service by its own library.

A monitor never stops a run: where it cannot write, that is told once.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from engines.core.errors import install_command


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
        tell: Callable[[str], None],
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
            tell(f"No scalars for TensorBoard: {install_command('tensorboard')} adds them.")
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

    def __init__(self, name: str, project: str, run: str, tell: Callable[[str], None]) -> None:
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
