"""What both ends of `control.sock` say: one JSON object a line, over a Unix socket.

A request is `{"v": 2, "id": 7, "do": "pause", …}`, its answer `{"v": 2, "id": 7, "ok": true,
…}` or `{"v": 2, "id": 7, "ok": false, "place": …, "cause": …, "move": …}`. After `watch` or
`attach` come, between answers, `{"v": 2, "seq": n, "event": …}`, where a durable event is the
nth of the run's journal; after `attach` also `{"v": 2, "streams": [[rollout, offset, text],
…]}` and `{"v": 2, "driver": {"mine": …, "who": …}}`. Owns the envelope, and the refusals both
ends know; what a request does is `studio.session.requests`'s.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from shlex import quote
from typing import TYPE_CHECKING, Any, TypeVar

from engines.core.codec import dumps, fields_of, from_dict
from engines.core.errors import ConflictError, StudioError
from studio.session.socket_file import RunAddress

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

PROTOCOL = 2
"""2: `attach` and what comes with it; requests that are sent again."""
MAX_LINE = 4_000_000
"""Bytes of one request: an edit is short, a mended reply is not. An answer may be longer."""
MAX_ID = 2**53 - 1
"""Of a request: what every reader of JSON takes for the same number."""
_ENVELOPE = frozenset({"v", "id", "ok"})


def format_line(**fields: Any) -> bytes:
    """One line, with the version in front."""
    return dumps({"v": PROTOCOL, **fields}) + b"\n"


def request_line(number: int, do: str, **arguments: Any) -> bytes:
    line = format_line(id=number, do=do, **arguments)
    if len(line) > MAX_LINE:
        raise too_long_error(do, len(line))
    return line


def too_long_error(do: str, size: int) -> ConflictError:
    """Why a request is not answered; `size` in bytes."""
    cause = f"it is too long to be sent: {size:,} bytes, where {MAX_LINE:,} are the most."
    return ConflictError(f"request {do}".rstrip(), cause, "Shorten its text.")


def parse_request(line: bytes) -> dict[str, Any]:
    try:
        request = json.loads(line)
    except ValueError as error:
        raise ConflictError("request", "it is not JSON.", "Send one object a line.") from error
    except RecursionError:
        raise ConflictError("request", "it is nested too deeply.", "Write it flatter.") from None
    if not isinstance(request, dict) or request.get("v") != PROTOCOL:
        version = request.get("v") if isinstance(request, dict) else None
        cause = f"it speaks protocol {version}, this run speaks {PROTOCOL}."
        raise ConflictError("request", cause, "Use the studio release that started the run.")
    number = request.get("id")
    if isinstance(number, int) and not -MAX_ID <= number <= MAX_ID:
        raise ConflictError("request", "its id has too many digits.", f"Send at most {MAX_ID}.")
    if not isinstance(number, int | None):
        raise ConflictError("request", "its id is no whole number.", "Number your requests.")
    return request


def refusal_line(number: Any, error: StudioError) -> bytes:
    return format_line(id=number, ok=False, **fields_of(error, "place", "cause", "move"))


def parse_answer(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The answer itself, where it is none of another protocol.

    Raises ConflictError: the run refused, with its own words; those of a run of an older release,
    which knows another protocol, among them.
    """
    if not answer.get("ok"):
        # Read with care: who refuses may speak any version.
        place, cause, move = (str(answer.get(name, "")) for name in ("place", "cause", "move"))
        raise ConflictError(place or "request", cause or "the run refused it.", move)
    if answer.get("v") != PROTOCOL:
        cause = f"it speaks protocol {answer.get('v')}, this studio speaks {PROTOCOL}."
        move = "Use the studio release that started the run."
        raise ConflictError("the run's process", cause, move)
    return dict(answer)


def strip_envelope(answer: Mapping[str, Any]) -> dict[str, Any]:
    """What an answer says, without what only the protocol needs."""
    return {key: value for key, value in answer.items() if key not in _ENVELOPE}


def parse_value(cls: type[T], answer: Mapping[str, Any]) -> T:
    """A dataclass from an answer that holds its fields, and perhaps others."""
    known = {field.name for field in dataclasses.fields(cls)}
    return from_dict(cls, {key: value for key, value in answer.items() if key in known})


def parse_results(cls: type[T], answer: Mapping[str, Any]) -> list[T]:
    return [parse_value(cls, one) for one in answer["results"]]


class NotRunningError(ConflictError):
    """No process of the run answers, or it ended before it did."""


class ControlledElsewhereError(ConflictError):
    """Somebody decides on a screen, and one person decides at a time."""


def silent_error(run: RunAddress) -> ConflictError:
    cause = "its process is there and does not answer: it may be suspended."
    move = "Let it go on (fg, or kill -CONT), then look again: what was asked may still be done."
    return ConflictError(f"run {run.run}", cause, move)


def not_running_error(run: RunAddress) -> NotRunningError:
    move = f"Start it with `studio headless --resume {run.run}`."
    return NotRunningError(f"run {run.run}", "no process of it is running.", move)


def ended_early_error(run: RunAddress) -> NotRunningError:
    move = f"Look at `studio runs list`, and start it with `studio headless --resume {run.run}`."
    return NotRunningError(f"run {run.run}", "its process ended before it answered.", move)


def controlled_elsewhere_error(run: RunAddress, who: str) -> ControlledElsewhereError:
    return ControlledElsewhereError(
        f"run {run.run}",
        f"{who} decides on a screen, and one decides at a time.",
        f"Take over there (studio attach {quote(run.run)}, then T), or wait until that screen is "
        f"left: studio review {quote(run.run)} --wait.",
    )
