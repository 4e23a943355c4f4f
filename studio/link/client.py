"""Asking a living run, one question a connection, without an event loop.

What `studio ctl`, `studio review` and the lists use. Imports little at its top, since
`studio ctl status` is to answer at once; a screen's line is `studio.link.attached`.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from engines.core.errors import ConflictError, StudioError
from studio.link.protocol import granted, line_of, without_envelope

if TYPE_CHECKING:
    from engines.core.run_state import RunState
    from engines.pipeline.budget import Budget


class Place(Protocol):
    """Where a run's process listens; a `RunDir` is one."""

    @property
    def run(self) -> str: ...

    @property
    def socket(self) -> Path: ...


def ask(run: Place, do: str, **arguments: Any) -> dict[str, Any]:
    """Send one request to a living run and return its answer.

    Raises:
        ConflictError: no process of that run answers.
        StudioError: the run refused, with its own words.
    """
    with _connected(run) as file:
        _send(file, do, arguments)
        return _answer(file, run)


def watch(run: Place) -> Iterator[dict[str, Any]]:
    """Yield where a living run stands, as `Watching`, then its events until its process ends.

    `Watching.events` says how many durable events came before the first one that follows.
    """
    with _connected(run) as file:
        _send(file, "watch", {})
        answer = _answer(file, run)
        yield {"kind": "Watching", **without_envelope(answer)}
        with contextlib.suppress(ConnectionError):  # the process was killed: that is the end
            for line in file:
                if line.endswith(b"\n"):  # else the process was killed within it
                    yield json.loads(line)["event"]


def is_alive(run: Place) -> bool:
    """Whether a process of that run answers its socket."""
    try:
        with _connected(run):
            return True
    except StudioError:
        return False


def socket_of(run: Place) -> str:
    """The path to connect to: the private one, where a run's own would be too long."""
    return os.readlink(run.socket) if run.socket.is_symlink() else str(run.socket)


def nobody_runs(run: Place) -> ConflictError:
    return ConflictError(
        f"run {run.run}",
        "no process of it is running.",
        f"Start it with `studio headless --resume {run.run}`.",
    )


def ended_first(run: Place) -> ConflictError:
    return ConflictError(
        f"run {run.run}",
        "its process ended before it answered.",
        f"Look at `studio runs list`, and start it with `studio headless --resume {run.run}`.",
    )


def status_of(state: RunState, budget: Budget | None = None) -> dict[str, Any]:
    """What `status` answers, from the one state, with what is left of each limit of a budget."""
    started = state.started
    current = state.current
    return {
        "run": started.run if started else "",
        "status": state.status,
        "events": state.events,
        "reason": state.reason,
        "rehearsal": bool(started and started.rehearsal),
        "epoch": state.steps[state.step].epoch if state.step in state.steps else 0,
        "epochs": state.epochs,
        "step": state.step,
        "steps": started.steps_per_epoch * state.epochs if started else 0,
        "steps_finished": state.steps_finished,
        "rollouts_done": current.rollouts_done if current else 0,
        "library": started.library if started else "",
        "library_version": state.library_version,
        "undecided": len(state.undecided),
        "open": len(state.open),
        "lost": sum(state.lost.values()),
        "repairs": len(state.repairs),
        "tokens": state.spent.tokens,
        "cost_usd": state.spent.cost_usd,
        "budget_left": budget.left if budget else {},
        "reviewer": state.reviewer,
    }


@contextlib.contextmanager
def _connected(run: Place) -> Iterator[Any]:
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(socket_of(run))
        except OSError as error:
            raise nobody_runs(run) from error
        try:
            with connection.makefile("rwb") as file:
                yield file
        except ConnectionError as error:
            raise ended_first(run) from error


def _send(file: Any, do: str, arguments: Mapping[str, Any]) -> None:
    file.write(line_of(id=1, do=do, **arguments))
    file.flush()


def _answer(file: Any, run: Place) -> dict[str, Any]:
    line = file.readline()  # however long: it comes from a process of our own user
    if not line.endswith(b"\n"):  # nothing, or cut within it
        raise ended_first(run)
    return granted(json.loads(line))
