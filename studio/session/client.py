"""Ask a running process one question over a connection of its own, without an event loop.

For `studio ctl` and the lists of runs. Imports little, so that `studio ctl status` answers
at once. Decisions go through `studio.session.live`.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from typing import Any, TypeVar

from studio.session.requests import (
    Request,
    Watch,
    ended_early_error,
    not_running_error,
    parse_answer,
    request_line,
    silent_error,
)
from studio.session.socket_file import RunAddress, check_owner, connect_path

T = TypeVar("T")

CONNECT_S, ANSWER_S = 2.0, 20.0
"""A process that is suspended takes requests, until its queue is full, and answers none."""


def ask(run: RunAddress, request: Request[T]) -> T:
    """Send one request to a running process and return its answer.

    Raises NotRunningError: no process of that run answers. StudioError: the run refused, with its
    own words.
    """
    with _ask(run, request) as (answer, _):
        return answer


def watch(run: RunAddress) -> Iterator[dict[str, Any]]:
    """Yield where a run stands, as `Watching`, then its events until its process ends.

    `Watching.events` says how many durable events came before the first one that follows.
    """
    with _ask(run, Watch()) as (answer, file):
        yield {"kind": "Watching", **answer}
        with contextlib.suppress(ConnectionError):  # the process was killed: that is the end
            for line in file:
                if line.endswith(b"\n"):  # else the process was killed within it
                    yield json.loads(line)["event"]


def is_alive(run: RunAddress) -> bool:
    """Whether a process answers that run's socket.

    Raises ConflictError: the path of the socket is too long to be connected to.
    """
    if not os.path.lexists(run.socket):  # most of hundreds that are listed
        return False
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(CONNECT_S)
        try:
            with connect_path(run) as path:
                connection.connect(path)
        except (TimeoutError, BlockingIOError):  # others wait for it, too
            return True
        except OSError:
            return False
    return True


@contextlib.contextmanager
def _ask(run: RunAddress, request: Request[T]) -> Iterator[tuple[T, Any]]:
    """The answer to a request, and the file from which what follows is read."""
    sent = request_line(request)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_S)
        try:
            with connect_path(run) as path:
                check_owner(path, run)
                connection.connect(path)
        except (TimeoutError, BlockingIOError) as error:  # the queue of requests is full
            raise silent_error(run.run) from error
        except OSError as error:
            raise not_running_error(run.run) from error
        try:
            with connection.makefile("rwb") as file:
                file.write(sent)
                file.flush()
                line = file.readline()  # however long: it comes from a process of our own user
                if not line.endswith(b"\n"):  # nothing, or cut within it
                    raise ended_early_error(run.run)
                connection.settimeout(None)  # what follows comes when it happens
                yield parse_answer(request, json.loads(line)), file
        except TimeoutError as error:
            raise silent_error(run.run) from error
        except ConnectionError as error:
            raise ended_early_error(run.run) from error
