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
from studio.session.protocol import granted, request_line, without_envelope
from studio.session.socket_file import Place, check_owner, reached

if TYPE_CHECKING:
    from engines.core.state.run_state import RunState
    from engines.pipeline.budget import Budget


def ask(run: Place, do: str, **arguments: Any) -> dict[str, Any]:
    """Send one request to a living run and return its answer.

    Raises:
        ConflictError: no process of that run answers.
        StudioError: the run refused, with its own words.
    """
    request = request_line(1, do, **arguments)
    with _connected(run) as file:
        _send(file, request)
        return _answer(file, run)


def watch(run: Place) -> Iterator[dict[str, Any]]:
    """Yield where a living run stands, as `Watching`, then its events until its process ends.

    `Watching.events` says how many durable events came before the first one that follows.
    """
    with _connected(run) as file:
        _send(file, request_line(1, "watch"))
        answer = _answer(file, run)
        yield {"kind": "Watching", **without_envelope(answer)}
        with contextlib.suppress(ConnectionError):  # the process was killed: that is the end
            for line in file:
                if line.endswith(b"\n"):  # else the process was killed within it
                    yield json.loads(line)["event"]


def is_alive(run: Place) -> bool:
    """Whether a process answers that run's socket.

    Raises:
        ConflictError: the path of the socket is too long to be connected to.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            with reached(run) as path:
                connection.connect(path)
        except OSError:
            return False
    return True


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


def driven_elsewhere(run: Place, who: str) -> ConflictError:
    return ConflictError(
        f"run {run.run}",
        f"{who} decides on a screen, and one decides at a time.",
        f"Take over there (studio attach {quote(run.run)}, then T), or wait until that screen is "
        f"left: studio review {quote(run.run)} --wait.",
    )


def _training(state: RunState) -> str | None:
    """The last step that is through in a line; None of a run that trains no weights."""
    if not state.trains:
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
        "policy_version": state.policy_version if state.trains else None,
        "training": _training(state),
        "undecided": len(state.undecided),
        "open": len(state.open),
        "lost": sum(state.lost.values()),
        "repairs": len(state.repairs),
        "tokens": state.spent.tokens,
        "cost_usd": state.spent.cost_usd,
        "budget": budget.limits.amounts if budget else {},
        "budget_left": budget.left if budget else {},
        "reviewer": state.reviewer,
    }


@contextlib.contextmanager
def _connected(run: Place) -> Iterator[Any]:
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            with reached(run) as path:
                check_owner(path, run)
                connection.connect(path)
        except OSError as error:
            raise nobody_runs(run) from error
        try:
            with connection.makefile("rwb") as file:
                yield file
        except ConnectionError as error:
            raise ended_first(run) from error


def _send(file: Any, request: bytes) -> None:
    file.write(request)
    file.flush()


def _answer(file: Any, run: Place) -> dict[str, Any]:
    line = file.readline()  # however long: it comes from a process of our own user
    if not line.endswith(b"\n"):  # nothing, or cut within it
        raise ended_first(run)
    return granted(json.loads(line))
