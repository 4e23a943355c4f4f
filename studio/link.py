"""The line between a run's process and whoever attaches to it: `control.sock`.

Newline-separated JSON over a Unix socket of mode 0600. A client sends
`{"v": 1, "id": 7, "do": "pause", …}` and gets `{"v": 1, "id": 7, "ok": true, …}` or
`{"v": 1, "id": 7, "ok": false, "place": …, "cause": …, "move": …}`. After `watch` come
events as `{"v": 1, "event": …}`. Owns the protocol; what a request does is the
control's and the gate's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from engines.core.codec import dumps, from_dict, to_dict
from engines.core.errors import ConflictError, StudioError
from engines.core.events import DurableEvent, TextStreamed, TransientEvent, event_to_dict
from engines.core.run_state import RunState
from engines.core.types import Decision
from engines.pipeline.budget import Budget
from engines.pipeline.practice import Practice
from engines.record.run_dir import RunDir
from studio.mending import mend

_Waiting = asyncio.Queue[DurableEvent | TransientEvent | None]

PROTOCOL = 1
MAX_LINE = 4_000_000
"""Bytes of one request or answer: an edit is short, a lesson of hundreds is not."""
_LAST_WORDS_S = 2.0
"""How long an ending run waits for a watcher that reads slowly."""
MAX_WAITING = 50_000
"""Events kept for a watcher that reads more slowly than the run writes."""
_ENVELOPE = frozenset({"v", "id", "ok"})
_LONGEST_PATH = 100  # what sun_path holds on every platform, with room for the NUL


@asynccontextmanager
async def serve(practice: Practice, path: Path) -> AsyncIterator[None]:
    """Answer requests about a run for as long as the context lasts."""
    server = _Server(practice)
    with _bound(path) as bound:
        listening = socket.socket(socket.AF_UNIX)
        # Before it has a name, so that nobody else can connect in between; after it for
        # systems that look at the name only.
        os.fchmod(listening.fileno(), 0o600)
        listening.bind(bound)
        os.chmod(bound, 0o600)
        listener = await asyncio.start_unix_server(server.attend, sock=listening, limit=MAX_LINE)
        try:
            yield
        finally:
            listener.close()
            await server.close()


def ask(run: RunDir, do: str, **arguments: Any) -> dict[str, Any]:
    """Send one request to a living run and return its answer.

    Raises:
        ConflictError: no process of that run answers.
        StudioError: the run refused, with its own words.
    """
    with _connected(run) as file:
        _send(file, do, arguments)
        return _answer(file, run)


def watch(run: RunDir) -> Iterator[dict[str, Any]]:
    """Yield where a living run stands, as `Watching`, then its events until its process ends.

    `Watching.events` says how many durable events came before the first one that follows.
    """
    with _connected(run) as file:
        _send(file, "watch", {})
        answer = _answer(file, run)
        yield {"kind": "Watching", **without_envelope(answer)}
        with contextlib.suppress(ConnectionError):  # the process was killed: that is the end
            for line in file:
                yield json.loads(line)["event"]


def without_envelope(answer: Mapping[str, Any]) -> dict[str, Any]:
    """What an answer says, without what only the protocol needs."""
    return {key: value for key, value in answer.items() if key not in _ENVELOPE}


def is_alive(run: RunDir) -> bool:
    """Whether a process of that run answers its socket."""
    try:
        with _connected(run):
            return True
    except StudioError:
        return False


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


class _Server:
    """Attends clients, each in its own task."""

    def __init__(self, practice: Practice) -> None:
        self._practice = practice
        self._clients: set[asyncio.Task[None]] = set()
        self._watchers: dict[asyncio.Task[Any], _Waiting] = {}

    async def attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            while line := await reader.readline():
                with self._listening(task) as waiting:
                    # Listened to before the answer is made, so that no event falls between.
                    request, answer = await self._answered(line)
                    _write(writer, answer)
                    await writer.drain()
                    if request == "watch" and answer["ok"]:
                        self._watchers[task] = waiting
                        await self._stream(writer, waiting)
                        break
        except (ConnectionError, ValueError, asyncio.CancelledError):
            pass  # the client is gone, or sent a line beyond all bounds
        finally:
            self._clients.discard(task)
            writer.close()

    async def close(self) -> None:
        """Let watchers have the last events, for a moment; leave everyone else at once."""
        watching = dict(self._watchers)
        for waiting in watching.values():
            waiting.put_nowait(None)
        if watching:
            await asyncio.wait(watching, timeout=_LAST_WORDS_S)
        for task in tuple(self._clients):
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    async def _answered(self, line: bytes) -> tuple[str, dict[str, Any]]:
        number: Any = None
        try:
            request = _request(line)
            number = request.get("id")
            answer = await self._do(str(request.get("do")), request)
        except StudioError as error:
            refusal = {"ok": False, "place": error.place, "cause": error.cause, "move": error.move}
            return "", {"v": PROTOCOL, "id": number, **refusal}
        return str(request["do"]), {"v": PROTOCOL, "id": number, "ok": True, **answer}

    async def _do(self, do: str, request: Mapping[str, Any]) -> dict[str, Any]:
        control, gate = self._practice.control, self._practice.gate
        match do:
            case "status" | "watch":
                pass
            case "pause":
                await control.pause()
            case "resume":
                await control.resume()
            case "step":
                await control.step()
            case "stop":
                # Answered first: stopping closes this very connection.
                after_step = bool(request.get("after_step"))
                asyncio.get_running_loop().call_soon(control.stop, *_stop(after_step))
                return {**self._status(), "status": "stopping"}
            case "review":
                return self._review()
            case "decide":
                decision = _decision(request)
                settled = await gate.decide(decision)
                return {"decision": to_dict(settled.decision), "note": settled.note}
            case "lint":
                return dict(to_dict(await gate.lint(_decision(request))))
            case "undo":
                return {"undone": list(await gate.undo(str(request.get("operation"))))}
            case "mend":
                return await self._mend(*_said(request, "repair", "text", "reviewer"))
            case "drop":
                repair, reason, reviewer = _said(request, "repair", "reason", "reviewer")
                await gate.drop(repair, reason, reviewer)
                return {}
            case _:
                raise ConflictError(
                    f"request {do!r}",
                    "a run knows no such request.",
                    "Known: status, watch, pause, resume, step, stop, review, lint, decide, "
                    "undo, mend, drop.",
                )
        return self._status()

    def _status(self) -> dict[str, Any]:
        return status_of(self._practice.recorder.state, self._practice.budget)

    def _review(self) -> dict[str, Any]:
        state = self._practice.recorder.state
        draft = self._practice.gate.draft()
        return {
            "open": [to_dict(operation) for operation in state.open],
            "decided": [to_dict(decision) for decision in state.decisions.values()],
            "draft": [[e.id, e.text] for e in draft.experiences],
            "stale": state.flagged_stale,
            "repairs": [to_dict(repair) for repair in state.repairs.values()],
        }

    async def _mend(self, repair_id: str, text: str, reviewer: str) -> dict[str, Any]:
        gate = self._practice.gate
        run = RunDir(self._practice.records.parent)
        repair = gate.repair(repair_id)
        # In a thread: it reads the journal, and the run must not stand still meanwhile.
        found = await asyncio.to_thread(mend, run, repair, text, gate.draft(), reviewer)
        made = () if found.problems else await gate.mend(repair_id, found.operations, reviewer)
        answer: dict[str, Any] = to_dict(replace(found, operations=made))
        return answer

    @contextlib.contextmanager
    def _listening(self, task: asyncio.Task[Any]) -> Iterator[_Waiting]:
        waiting: _Waiting = asyncio.Queue()

        def keep(event: DurableEvent | TransientEvent) -> None:
            if isinstance(event, TextStreamed):
                return
            if waiting.qsize() > MAX_WAITING:  # it stopped reading: let go of it
                waiting.put_nowait(None)
                stop()
                return
            waiting.put_nowait(event)

        stop = self._practice.recorder.listen(keep)
        try:
            yield waiting
        finally:
            stop()
            self._watchers.pop(task, None)

    async def _stream(self, writer: asyncio.StreamWriter, waiting: _Waiting) -> None:
        while (event := await waiting.get()) is not None:
            _write(writer, {"v": PROTOCOL, "event": event_to_dict(event)})
            await writer.drain()


def _stop(after_step: bool) -> tuple[str, bool]:
    return ("after this step", True) if after_step else ("studio ctl stop", False)


def _request(line: bytes) -> dict[str, Any]:
    try:
        request = json.loads(line)
    except ValueError as error:
        raise ConflictError("request", "it is not JSON.", "Send one object a line.") from error
    if not isinstance(request, dict) or request.get("v") != PROTOCOL:
        version = request.get("v") if isinstance(request, dict) else None
        raise ConflictError(
            "request",
            f"it speaks protocol {version}, this run speaks {PROTOCOL}.",
            "Use the studio release that started the run.",
        )
    return request


def _said(request: Mapping[str, Any], *names: str) -> list[str]:
    """The texts of a request's fields, "" of one that is missing.

    Raises:
        ConflictError: one is something else than a text.
    """
    found = [request.get(name, "") for name in names]
    for name, value in zip(names, found, strict=True):
        if not isinstance(value, str):
            raise ConflictError(
                f"request {request.get('do')}", f'its "{name}" is no text.', "Send a string."
            )
    return found


def _decision(request: Mapping[str, Any]) -> Decision:
    try:
        return from_dict(Decision, request["decision"])
    except (KeyError, ValueError) as error:
        raise ConflictError(
            "request decide",
            f"its decision cannot be read ({error}).",
            "Give operation_id, action and reviewer; an edit also text, kind or target.",
        ) from error


def _write(writer: asyncio.StreamWriter, data: object) -> None:
    writer.write(dumps(data) + b"\n")


@contextlib.contextmanager
def _bound(path: Path) -> Iterator[str]:
    """Where to bind: the path itself, or a short one it then links to."""
    path.unlink(missing_ok=True)  # left by a process that was killed: we hold the run's lock
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        yield str(path)
        path.unlink(missing_ok=True)
        return
    with tempfile.TemporaryDirectory(prefix="studio-") as private:  # made with mode 0700
        short = Path(private) / "control.sock"
        path.symlink_to(short)
        yield str(short)
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _connected(run: RunDir) -> Iterator[Any]:
    path = os.readlink(run.socket) if run.socket.is_symlink() else str(run.socket)
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(path)
        except OSError as error:
            raise ConflictError(
                f"run {run.run}",
                "no process of it is running.",
                f"Start it with `studio headless --resume {run.run}`.",
            ) from error
        try:
            with connection.makefile("rwb") as file:
                yield file
        except ConnectionError as error:
            raise _gone(run) from error


def _send(file: Any, do: str, arguments: Mapping[str, Any]) -> None:
    file.write(dumps({"v": PROTOCOL, "id": 1, "do": do, **arguments}) + b"\n")
    file.flush()


def _answer(file: Any, run: RunDir) -> dict[str, Any]:
    line = file.readline(MAX_LINE)
    if not line:
        raise _gone(run)
    answer: dict[str, Any] = json.loads(line)
    if not answer.get("ok"):
        raise ConflictError(answer["place"], answer["cause"], answer["move"])
    return answer


def _gone(run: RunDir) -> ConflictError:
    return ConflictError(
        f"run {run.run}",
        "its process ended before it answered.",
        f"Look at `studio runs list`, and start it with `studio headless --resume {run.run}`.",
    )
