"""Asking a living run, one question a connection, without an event loop.

What `studio ctl`, `studio review` and the lists use. Imports little at its top, since
`studio ctl status` is to answer at once; a screen's line is `studio.session.live`.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from shlex import quote
from typing import TYPE_CHECKING, Any

from engines.core.errors import ConflictError
from studio.session.protocol import parse_answer, request_line, strip_envelope
from studio.session.socket_file import RunAddress, check_owner, connect_path

if TYPE_CHECKING:
    from engines.core.state.run_state import RunState
    from engines.pipeline.budget import Budget


def ask(run: RunAddress, do: str, **arguments: Any) -> dict[str, Any]:
    """Send one request to a living run and return its answer.

    Raises:
        ConflictError: no process of that run answers.
        StudioError: the run refused, with its own words.
    """
    request = request_line(1, do, **arguments)
    with _connect(run) as file:
        _send(file, request)
        return _read_answer(file, run)


def watch(run: RunAddress) -> Iterator[dict[str, Any]]:
    """Yield where a living run stands, as `Watching`, then its events until its process ends.

    `Watching.events` says how many durable events came before the first one that follows.
    """
    with _connect(run) as file:
        _send(file, request_line(1, "watch"))
        answer = _read_answer(file, run)
        yield {"kind": "Watching", **strip_envelope(answer)}
        with contextlib.suppress(ConnectionError):  # the process was killed: that is the end
            for line in file:
                if line.endswith(b"\n"):  # else the process was killed within it
                    yield json.loads(line)["event"]


def is_alive(run: RunAddress) -> bool:
    """Whether a process answers that run's socket.

    Raises:
        ConflictError: the path of the socket is too long to be connected to.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            with connect_path(run) as path:
                connection.connect(path)
        except OSError:
            return False
    return True


def not_running_error(run: RunAddress) -> ConflictError:
    return ConflictError(
        f"run {run.run}",
        "no process of it is running.",
        f"Start it with `studio headless --resume {run.run}`.",
    )


def ended_early_error(run: RunAddress) -> ConflictError:
    return ConflictError(
        f"run {run.run}",
        "its process ended before it answered.",
        f"Look at `studio runs list`, and start it with `studio headless --resume {run.run}`.",
    )


def controlled_elsewhere_error(run: RunAddress, who: str) -> ConflictError:
    return ConflictError(
        f"run {run.run}",
        f"{who} decides on a screen, and one decides at a time.",
        f"Take over there (studio attach {quote(run.run)}, then T), or wait until that screen is "
        f"left: studio review {quote(run.run)} --wait.",
    )


def _training_line(state: RunState) -> str | None:
    """The last step that is through in a line; None of a run that trains no weights."""
    if not state.trains_weights:
        return None
    from studio.report.training import figures_text, learnt_steps, measured_steps, trained_steps

    steps = trained_steps(state)
    known = measured_steps(steps) or learnt_steps(steps)
    return f"step {known[-1].step}: {figures_text(known[-1])}" if known else "no step yet"


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
        "policy_version": state.policy_version if state.trains_weights else None,
        "training": _training_line(state),
        "undecided": len(state.undecided_operations),
        "open": len(state.open_operations),
        "lost": sum(state.lost.values()),
        "repairs": len(state.repairs),
        "tokens": state.total_usage.tokens,
        "cost_usd": state.total_usage.cost_usd,
        "budget": budget.limits.amounts if budget else {},
        "budget_left": budget.remaining if budget else {},
        "reviewer": state.reviewer,
    }


@contextlib.contextmanager
def _connect(run: RunAddress) -> Iterator[Any]:
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            with connect_path(run) as path:
                check_owner(path, run)
                connection.connect(path)
        except OSError as error:
            raise not_running_error(run) from error
        try:
            with connection.makefile("rwb") as file:
                yield file
        except ConnectionError as error:
            raise ended_early_error(run) from error


def _send(file: Any, request: bytes) -> None:
    file.write(request)
    file.flush()


def _read_answer(file: Any, run: RunAddress) -> dict[str, Any]:
    line = file.readline()  # however long: it comes from a process of our own user
    if not line.endswith(b"\n"):  # nothing, or cut within it
        raise ended_early_error(run)
    return parse_answer(json.loads(line))
