"""The server of a run's process on `control.sock`: its clients, and which of them decides.

A request that is sent again while its first is still being carried out gets that one's answer.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from engines.core.codec import JsonObject
from engines.core.errors import ConflictError, StudioError
from engines.core.events import NodesChanged
from engines.pipeline.context import RunContext
from engines.pipeline.effect.effect_gate import open_trials
from engines.record.run_dir import RunDir
from studio.render.lines import to_stderr
from studio.session import control_socket, feed, requests

_LAST_WORDS_S = 2.0
"""How long an ending run waits for a slow reader."""
COMMIT_S = 60.0
"""How long a commit is waited for: another process may hold the library's lock."""

T = TypeVar("T")


class LivingRun(requests.OpenRun):
    """A run in its process."""

    def __init__(self, context: RunContext) -> None:
        super().__init__(RunDir(context.records.parent), context.gate)
        self._context = context
        self._trying: asyncio.Task[None] | None = None  # operations, as somebody asked
        self._trial_failure = ""  # why the last of these ended early

    @property
    def practice(self) -> RunContext:
        return self._context

    def status(self) -> JsonObject:
        status = requests.status_of(self.state, self._context.budget)
        nodes = self._context.nodes()
        if nodes is not None:
            status["nodes"] = {name: list(rollouts) for name, rollouts in nodes.items()}
        status["trying"] = self._is_trying
        status["trial_failure"] = self._trial_failure
        return status

    def close(self) -> None:
        """The run ends: answer everyone who waits for a commit, and keep what was tried."""
        if self._trying is not None:
            self._trying.cancel()
        self.gate.hold.finish("the run's process ends; nothing is lost")

    async def commit(self, step: int, reviewer: str) -> str:
        state, gate = self.state, self.gate
        place = f"run {self.run.run}"
        if step != state.step:  # not the one the person looked at
            raise ConflictError(
                f"step {step}",
                f"step {state.step} is under way by now.",
                "Look at what is open now, and try again.",
            )
        if not state.under_review:
            raise ConflictError(
                place, "there is no lesson to commit now.", "What is decided joins the next commit."
            )
        await gate.defer_undecided(reviewer)
        try:
            why_not = await asyncio.wait_for(gate.hold.release_once(), COMMIT_S)
        except TimeoutError:
            return "the commit is under way, and not finished yet"
        return why_not or requests.committed_text(state)

    @property
    def _is_trying(self) -> bool:
        return self._trying is not None and not self._trying.done()

    def try_operations(self, names: Sequence[str]) -> JsonObject:
        context, state = self._context, self.state
        if self._is_trying:
            raise ConflictError(
                f"run {self.run.run}",
                "operations are being tried already.",
                "Wait for their verdicts.",
            )
        operations = open_trials(state, names)
        if context.effects is None:
            raise requests.no_trials_error(self.run.run)
        facts = context.effects.describe_asked(state, context.trial_base, operations)
        self._trial_failure = ""
        self._trying = asyncio.create_task(context.try_asked(operations))
        self._trying.add_done_callback(self._tell_of_trial)
        return facts

    def _tell_of_trial(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._trial_failure = str(error)
            self._context.tell(f"operations could not be tried: {error}")


@asynccontextmanager
async def serve(
    context: RunContext, path: Path, *, batch_s: float = feed.BATCH_S
) -> AsyncIterator[None]:
    """Answer requests about a run on the socket of this path, as long as the context lasts."""
    with control_socket.bind_path(path) as name:
        server = _Server(context, batch_s)
        listening = socket.socket(socket.AF_UNIX)
        # Before `bind`, so that no other user can connect in between; and after it, for
        # systems that check the file's mode only.
        os.fchmod(listening.fileno(), 0o600)
        listening.bind(name)
        os.chmod(name, 0o600)
        listener = await asyncio.start_unix_server(
            server.serve_client, sock=listening, limit=requests.MAX_LINE
        )
        try:
            yield
        finally:
            listener.close()
            await server.close()


@dataclass(slots=True, eq=False)
class _Client:
    """One client: what it is sent, and who it is once it has attached."""

    outbox: feed.Outbox
    who: str | None = None  # None: it has not attached
    session: str = ""  # the same for each connection of one screen; "": not given


class _Server:
    """Serves clients, each in its own task."""

    def __init__(self, context: RunContext, batch_s: float) -> None:
        self._context = context
        self._run = LivingRun(context)
        self._feed = feed.Feed(context.recorder.state, batch_s)
        self._stop_listening = context.recorder.listen(
            self._feed, reads_text=self._feed.is_followed
        )
        if nodes := context.nodes():
            self._feed(NodesChanged(tuple(nodes)))
        self._connections: dict[asyncio.Task[None], _Client] = {}
        self._under_way: set[asyncio.Task[Any]] = set()  # requests being answered
        self._performing: dict[str, asyncio.Task[Any]] = {}  # requests being carried out, by id
        self._controller: _Client | None = None
        self._closing = False

    async def serve_client(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self._closing:  # it was still in the queue of the socket
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        client = self._connections[task] = _Client(feed.Outbox(self._feed))
        sending = asyncio.create_task(client.outbox.send(writer))
        reading = asyncio.create_task(self._answer_requests(client, reader))
        client.outbox.on_dropped = sending.cancel  # it may wait for somebody who never reads
        try:
            # Until the client left, or stopped reading, or the run is over.
            await asyncio.wait((sending, reading), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass  # it did not read the last events in time
        finally:
            self._detach(client)
            for part in (sending, reading):
                part.cancel()
            await asyncio.gather(sending, reading, return_exceptions=True)
            writer.close()
            if client.outbox.dropped or not client.outbox.ended:
                writer.transport.abort()  # else closing would wait for it to read
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()
            self._connections.pop(task, None)

    async def close(self) -> None:
        """Send everyone the last events, and wait a moment for slow readers."""
        self._closing = True
        self._stop_listening()
        self._feed.close()
        self._run.close()
        if self._under_way:  # let a decision that is being written reach the disk
            await asyncio.wait(self._under_way, timeout=_LAST_WORDS_S)
        tasks = tuple(self._connections)
        for client in self._connections.values():
            client.outbox.end()
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=_LAST_WORDS_S)
            for task in left:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer_requests(self, client: _Client, reader: asyncio.StreamReader) -> None:
        """Answer one request after another until the client leaves."""
        coming = asyncio.create_task(_read_line(reader))
        try:
            while (line := await coming) and not self._closing:
                if not line.endswith(b"\n"):  # a part of one that is too long
                    size = await _skip_long_line(line, reader)
                    client.outbox.enqueue(
                        requests.refusal_line(None, requests.too_long_error("", size))
                    )
                    await client.outbox.wait_until_sent()
                    return
                coming = asyncio.create_task(_read_line(reader))
                # A task of its own: were it cancelled when its client leaves, a decision could
                # be on disk and not in the state.
                answering = asyncio.create_task(self._answer(client, line))
                self._under_way.add(answering)
                answering.add_done_callback(self._under_way.discard)
                await asyncio.wait((answering, coming), return_when=asyncio.FIRST_COMPLETED)
                if client.who is not None and coming.done() and not coming.result():
                    return  # a screen that left controls no more; a script's request is finished
                await asyncio.shield(answering)
                await client.outbox.wait_until_sent()
        finally:
            coming.cancel()

    async def _answer(self, client: _Client, line: bytes) -> None:
        name: str | None = None
        try:
            message = requests.parse_line(line)
            name = message["id"]
            request, since = requests.parse_request(message)
            answered = requests.answer_line(request, await self._perform(client, request, since))
        except StudioError as error:
            client.outbox.enqueue(requests.refusal_line(name, error))
            return
        except Exception as error:  # a bug: the client must not wait for ever
            to_stderr(f"bug: a request was not answered: {_bug_line(error)}")
            client.outbox.enqueue(
                requests.refusal_line(
                    name,
                    ConflictError(
                        "request",
                        f"the run could not answer it ({type(error).__name__}).",
                        "Its log says where; please report it.",
                    ),
                )
            )
            return
        client.outbox.enqueue(answered)
        if isinstance(request, requests.Watch):
            self._feed.add(client.outbox)

    async def _perform(
        self, client: _Client, request: requests.Request[Any], since: int | None
    ) -> Any:
        match request:
            case requests.Watch():
                return self._run.status()
            case requests.Attach():
                return self._attach(client, request)
            case requests.TakeControl() | requests.Subscribe() if client.who is None:
                raise ConflictError(
                    f"request {request.do}",
                    "only a screen that attached asks it.",
                    "Send attach first.",
                )
            case requests.TakeControl():
                self._set_controller(client)
                return self._controller_data(client)
            case requests.Subscribe():
                self._feed.subscribe(client.outbox, frozenset(request.rollouts))
                return True
        if not request.changes:
            self._check_control(client, request)
            return await request.perform(self._run)
        performing = self._performing.get(request.id)
        if performing is None:
            work = self._perform_once(client, request, since)
            performing = self._performing[request.id] = asyncio.create_task(work)
            performing.add_done_callback(lambda _: self._performing.pop(request.id))
        return await asyncio.shield(performing)

    async def _perform_once(
        self, client: _Client, request: requests.Request[T], since: int | None
    ) -> T:
        if since is not None:
            # Before the check: somebody may have taken over since it was first sent.
            run, state = self._run.run, self._run.state
            done = await asyncio.to_thread(requests.find_answer, request, run, state, since)
            if done is not None:
                return done
        self._check_control(client, request)
        with self._context.recorder.carrying_out(request.id):
            return await request.perform(self._run)

    def _check_control(self, client: _Client, request: requests.Request[Any]) -> None:
        """Refuse what only the controlling screen may ask."""
        if client is self._controller:
            return
        if client.who is not None and request.changes:
            who = "nobody drives now"
            if self._controller is not None:
                who = f"{self._controller_name} drives this run"
            raise ConflictError("this screen", f"it observes; {who}.", "Press T to take over.")
        if client.who is None and self._controller is not None and request.decides:
            raise requests.controlled_elsewhere_error(self._run.run.run, self._controller_name)

    @property
    def _controller_name(self) -> str:
        return (self._controller.who or "") if self._controller is not None else ""

    def _attach(self, client: _Client, request: requests.Attach) -> JsonObject:
        session = request.session
        client.who, client.session = request.who or "somebody", session
        others = (one for one in self._connections.values() if one is not client)
        before = [one for one in others if session and one.session == session]
        # Before its older connection is dropped: without a controller a held commit is released.
        if request.drive and (self._controller is None or self._controller in before):
            self._set_controller(client)
        for one in before:  # a screen has one connection: the older one is dead
            self._detach(one)
            one.outbox.on_dropped()
        # No await from here to `add`, so that no event is missed in between.
        self._feed.add(client.outbox)
        return {
            **self._run.status(),
            "seq": self._run.state.events,
            "pace_tokens_per_s": self._context.pace_tokens_per_s,
            "under_way": self._feed.rollouts,
            **self._controller_data(client),
        }

    def _set_controller(self, client: _Client | None) -> None:
        """Let this client decide (None: nobody), and tell every other attached one."""
        if client is self._controller:
            return
        self._controller = client
        self._context.gate.hold.set(client is not None)
        for other in self._connections.values():
            if other.who is not None and other is not client:
                other.outbox.enqueue(requests.format_line(**self._controller_data(other)))

    def _controller_data(self, client: _Client) -> JsonObject:
        return {"driver": {"mine": client is self._controller, "who": self._controller_name}}

    def _detach(self, client: _Client) -> None:
        self._feed.remove(client.outbox)
        client.who, client.session = None, ""
        if client is self._controller:
            self._set_controller(None)


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    """A request; without its end where it is too long, b"" where the client has left."""
    try:
        return await reader.readuntil(b"\n")
    except asyncio.LimitOverrunError as more:
        return await reader.readexactly(more.consumed)
    except (asyncio.IncompleteReadError, OSError):
        return b""


async def _skip_long_line(line: bytes, reader: asyncio.StreamReader) -> int:
    """Read a line that is too long to its end, so that its sender reads on; returns its bytes."""
    size = len(line)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LAST_WORDS_S):
            while (part := await _read_line(reader)) and not part.endswith(b"\n"):
                size += len(part)
            size += len(part)
    return size


def _bug_line(error: Exception) -> str:
    """A bug in one line: what and where. No values, which may be texts of models."""
    import traceback

    lines = [
        f"{f.name} ({f.filename}:{f.lineno})" for f in traceback.extract_tb(error.__traceback__)
    ]
    return f"{type(error).__name__} in {' < '.join(lines[:-4:-1])}"
