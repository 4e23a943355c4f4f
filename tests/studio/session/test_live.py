"""A screen's line to a run: what it is told, who decides, and what happens when it is cut."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engines.core import events as ev
from engines.core.errors import ConflictError
from engines.core.types import NO_USAGE, CallKey, Decision, Operation, try_id
from engines.pipeline.context import RunContext
from engines.pipeline.control import RunControl
from engines.pipeline.reviewers import HumanReviewer
from engines.record.libraries import LibraryFolder
from engines.record.lock import is_held
from engines.record.run_dir import RunDir, Workspace
from studio.session import feed
from studio.session.control_socket import is_alive
from studio.session.live import LiveSession
from studio.session.offline import OfflineSession
from studio.session.requests import (
    PROTOCOL,
    Commit,
    Decide,
    Drop,
    Kill,
    Mend,
    Pause,
    Preview,
    Propose,
    ReadQueue,
    Resume,
    Step,
    Stop,
    Undo,
)
from studio.session.server import serve
from studio.session.session import (
    ControllerChanged,
    Disconnected,
    EventReceived,
    Message,
    SnapshotReceived,
    TextPiece,
    TextReceived,
)
from tests.engines.pipeline.gate.test_gate import Desk
from tests.support.builders import a_decision, a_library, an_operation

ADD = an_operation("add", None, "three", id="op1.1")
MORE = an_operation("add", None, "four", id="op1.2")


class Process(Desk):
    """A run's process as far as the link sees it: a gate, brakes, a journal; no practice."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = Workspace(workspace)
        self.run = RunDir(workspace / "runs" / "exp")
        self.folder = LibraryFolder(workspace / "libraries" / "lib")
        self.journal_path = self.run.journal
        self.run.path.mkdir(parents=True, exist_ok=True)
        if not self.folder.exists():
            self.folder.create(a_library("one", "two"))
        self.killed: list[tuple[object, ...]] = []
        self.reopen(HumanReviewer())
        self._stack = AsyncExitStack()

    async def note_request(self, path: Path | None = None) -> Process:
        """Open the socket; `path` where something stands between it and the screens."""
        practice = SimpleNamespace(
            recorder=self.recorder,
            gate=self.gate,
            control=RunControl(self.recorder),
            budget=None,
            pace_tokens_per_s=40.0,
            records=self.run.records,
            rollouts=SimpleNamespace(kill=self._kill),
            nodes=lambda: None,
        )
        serving = serve(cast(RunContext, practice), path or self.run.socket, batch_s=0.0)
        await self._stack.enter_async_context(serving)
        return self

    def _kill(self, *place: object) -> bool:
        self.killed.append(place)
        return True

    async def end(self) -> None:
        await self._stack.aclose()
        await self.journal.aclose()

    def streams(self, text: str, index: int = 0) -> None:
        key = CallKey("rollout", 1, 1, 0, index)
        if try_id(key) not in self.recorder.state.live.tries:
            self.recorder.emit(ev.RolloutStarted(key, "p0"))
        self.recorder.emit(ev.TextStreamed(key, text))

    async def finishes(self, index: int = 0) -> None:
        await self.recorder.record(
            ev.RolloutFinished(
                step=1,
                position=0,
                index=index,
                seed=7,
                status="ok",
                answer=None,
                error=None,
                usage=NO_USAGE,
                elapsed_s=1.0,
            )
        )

    def journalled(self, kind: type[Any]) -> list[Any]:
        return [e.event for e in self.run.entries() if isinstance(e.event, kind)]


class Screen:
    """Whoever attached, with everything it has been told."""

    def __init__(self, session: LiveSession | OfflineSession) -> None:
        self.session = session
        self.told: list[Message] = []
        self._more = asyncio.Event()
        self._task = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for message in self.session.messages():
            self.told.append(message)
            self._more.set()

    async def until(self, seen: Callable[[], bool]) -> None:
        """Wait for a message after which something holds."""
        async with asyncio.timeout(20):
            while not seen():
                self._more.clear()
                await self._more.wait()

    async def attached(self) -> Screen:
        await self.until(
            lambda: any(isinstance(message, ControllerChanged) for message in self.told)
        )
        return self

    def events(self) -> list[object]:
        return [message.event for message in self.told if isinstance(message, EventReceived)]

    def text(self, rollout: str = "s1p0r0") -> str:
        """What a pane of this rollout would show."""
        text = ""
        for message in self.told:
            for piece in message.pieces if isinstance(message, TextReceived) else ():
                if piece.rollout == rollout:
                    text = text + piece.text if piece.offset == len(text) else piece.text
        return text

    def count(self, kind: type[Any]) -> int:
        return sum(isinstance(message, kind) for message in self.told)

    async def close(self) -> None:
        await self.session.close()
        await asyncio.wait_for(self._task, 20)


class Cable:
    """Stands between the screens and a process, and cuts where a test says."""

    def __init__(self, run: RunDir) -> None:
        self._run, self.far = run, run.path / "far.sock"
        self.asked: list[dict[str, Any]] = []
        self.cut_answers: Callable[[dict[str, Any]], bool] = lambda _: False
        self.lose_requests = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def open(self) -> Cable:
        self._run.socket.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._plugged, self._run.socket)
        return self

    async def _plugged(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(self.far)
        except OSError:
            writer.close()
            return
        ends = writer, far_writer
        self._writers |= {*ends}
        for pump in (self._to_run(reader, far_writer), self._to_screen(far_reader, ends)):
            task = asyncio.create_task(pump)
            self._pumps.add(task)

    async def _to_run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while line := await reader.readline():
                self.asked.append(json.loads(line))
                if self.lose_requests:
                    self.lose_requests -= 1
                    self.cut()
                    break
                writer.write(line)
            writer.close()

    async def _to_screen(
        self, reader: asyncio.StreamReader, ends: tuple[asyncio.StreamWriter, ...]
    ) -> None:
        with suppress(OSError):
            while line := await reader.readline():
                if self.cut_answers(json.loads(line)):
                    break
                ends[0].write(line)
        for end in ends:
            end.close()

    def cut(self) -> None:
        for writer in self._writers:
            writer.close()

    async def close(self) -> None:
        """As a killed process leaves it: the socket's file stays."""
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._pumps)

    async def gone(self) -> None:
        """The name without anybody behind it."""
        await self.close()
        self._run.socket.unlink(missing_ok=True)


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[Process]:
    made = Process(tmp_path)
    await made.propose(ADD, MORE)
    await made.note_request()
    yield made
    await made.end()


@asynccontextmanager
async def a_screen(run: RunDir, who: str = "ann", **more: Any) -> AsyncIterator[Screen]:
    screen = Screen(LiveSession(run, who, **more))
    try:
        yield await screen.attached()
    finally:
        await screen.close()


async def test_a_screen_begins_with_the_journal_and_goes_on_with_events(process: Process) -> None:
    async with a_screen(process.run) as screen:
        session = screen.session
        assert isinstance(screen.told[0], SnapshotReceived)
        assert session.state == process.state and session.state is not process.state
        assert (session.living, session.controls, session.controller) == (True, True, "ann")
        assert session.pace_tokens_per_s == 40.0  # as its process says
        approve = Decision("op1.1", "approve", reviewer="ann")
        (decision,) = await session.send(Decide((approve,)))
        assert (decision.assigned, decision.note) == ("E3", "becomes E3")
        assert session.state == process.state, "the event came before the answer"
        assert [type(event).__name__ for event in screen.events()] in ([], ["OperationDecided"])
        await screen.until(lambda: len(screen.events()) == 1)
        desktop = await session.send(ReadQueue())
        assert [op.id for op in desktop.open] == ["op1.2"]
        assert ("E3", "three") in desktop.draft
        assert await session.send(Undo("op1.1")) == ("op1.1",)


async def test_the_socket_is_for_its_user_alone(process: Process) -> None:
    assert stat.S_IMODE(process.run.socket.stat().st_mode) == 0o600


async def test_of_two_screens_one_decides_and_the_other_is_told_who(process: Process) -> None:
    async with a_screen(process.run) as ann, a_screen(process.run, "bob") as bob:
        assert (bob.session.controls, bob.session.controller) == (False, "ann")
        approve = Decision("op1.1", "approve", reviewer="bob")
        for ask in (
            lambda: bob.session.send(Decide((approve,))),
            lambda: bob.session.send(Undo("op1.1")),
            lambda: bob.session.send(Propose(ADD, bob.session.who)),
            lambda: bob.session.send(Mend("s1p0", "x", "bob")),
            lambda: bob.session.send(Drop("s1p0", "x", "bob")),
            lambda: bob.session.send(Commit(bob.session.state.step, bob.session.who)),
            lambda: bob.session.send(Pause()),
            lambda: bob.session.send(Resume()),
            lambda: bob.session.send(Step()),
            lambda: bob.session.send(Stop()),
            lambda: bob.session.send(Kill("s1p0r0", "bob")),
        ):
            with pytest.raises(ConflictError, match=r"ann drives this run\. Press T"):
                await ask()
        assert process.state.decisions == {} and process.killed == []
        assert (await bob.session.send(Preview((approve,))))[0].objection == ""

        await bob.session.take_control()
        assert bob.session.controls
        await ann.until(lambda: not ann.session.controls)
        assert ann.session.controller == "bob"
        assert ControllerChanged(False, "bob") in ann.told
        with pytest.raises(ConflictError, match="bob drives"):
            await ann.session.send(Decide((approve,)))
        await bob.session.send(Decide((approve,)))
        assert list(process.state.decisions) == ["op1.1"]


async def test_when_the_driver_leaves_nobody_drives_until_somebody_takes_over(
    process: Process,
) -> None:
    async with a_screen(process.run, "bob") as first:
        async with a_screen(process.run, "ann") as ann:
            await ann.session.take_control()
        await first.until(lambda: first.told[-1] == ControllerChanged(False, ""))
        with pytest.raises(ConflictError, match="nobody drives now"):
            await first.session.send(Undo("op1.1"))
        await first.session.take_control()
        assert await first.session.send(Kill("s1p0r2", "bob")) is True
        assert process.killed == [(1, 0, 2, "killed by bob")]
        with pytest.raises(ConflictError, match="no rollout's id"):
            await first.session.send(Kill("r2"))


async def test_a_driver_holds_the_commit_and_lets_it_go(process: Process) -> None:
    async with a_screen(process.run) as screen:
        reviewing = asyncio.create_task(process.gate.review(1))
        await screen.session.send(Decide((Decision("op1.1", "approve", reviewer="ann"),)))
        committing = asyncio.create_task(screen.session.send(a_commit(screen)))
        await asyncio.wait_for(reviewing, 20)
        assert process.state.decisions["op1.2"].action == "defer"
        await process.gate.commit(1)
        assert await committing == "committed: library lib is at v1"
        assert screen.session.state.library_version == 1
        with pytest.raises(ConflictError, match="there is no lesson to commit"):
            await screen.session.send(a_commit(screen))


async def test_a_commit_is_of_the_step_that_was_looked_at(process: Process) -> None:
    async with a_screen(process.run) as screen:
        screen.session.state.step = 7
        with pytest.raises(ConflictError, match="step 1 is under way"):
            await screen.session.send(a_commit(screen))
        assert process.state.decisions == {}


async def test_a_screen_that_leaves_lets_the_commit_go(process: Process) -> None:
    async with a_screen(process.run) as screen:
        reviewing = asyncio.create_task(process.gate.review(1))
        for name in ("op1.1", "op1.2"):
            await screen.session.send(Decide((Decision(name, "reject", reviewer="ann"),)))
        await screen.until(lambda: any(_ready(event) for event in screen.events()))
        assert not reviewing.done()
    await asyncio.wait_for(reviewing, 20)


def _ready(event: object) -> bool:
    return isinstance(event, ev.StageEntered) and event.stage == "ready"


async def test_text_under_way_arrives_whole_and_before_its_rollout_is_over(
    process: Process,
) -> None:
    words = [f"wörd {n} 例 " for n in range(2_000)]
    async with a_screen(process.run) as screen:
        for word in words[:700]:
            process.streams(word)
        process.streams("another's", index=1)
        screen.session.subscribe(["s1p0r0"])
        await screen.until(lambda: screen.text() == "".join(words[:700]))
        for word in words[700:]:
            process.streams(word)
            if word.endswith("00 例 "):
                await asyncio.sleep(0)
        await process.finishes()
        await screen.until(lambda: len(screen.events()) == 3)  # two began, and one ended
        assert screen.text() == "".join(words)
        assert isinstance(screen.told[-1], EventReceived), "the text came first"
        assert screen.text("s1p0r1") == ""


async def test_a_late_screen_gets_the_text_from_its_beginning(process: Process) -> None:
    async with a_screen(process.run) as early:
        early.session.subscribe(["s1p0r0"])
        process.streams("one ")
        await early.until(lambda: early.text() == "one ")
        process.streams("two ")
        async with a_screen(process.run, "bob") as late:
            late.session.subscribe(["s1p0r0", "s1p0r1"])
            await late.until(lambda: late.text() == "one two ")
            process.streams("three")
            await early.until(lambda: early.text() == "one two three")
            await late.until(lambda: late.text() == "one two three")
        offsets = [m.pieces[0].offset for m in late.told if isinstance(m, TextReceived)]
        assert offsets[0] == 0


async def test_a_late_screen_is_told_which_rollouts_are_under_way(process: Process) -> None:
    await process.propose()
    for index in range(3):
        process.streams("text", index)
    await process.finishes(1)
    screen = await Screen(LiveSession(process.run, "ann")).attached()
    assert screen.session.state.live.tries.keys() == {"s1p0r0", "s1p0r2"}
    await screen.close()


async def test_what_is_no_longer_subscribed_to_is_not_sent_and_begins_anew_later(
    process: Process,
) -> None:
    async with a_screen(process.run) as screen:
        screen.session.subscribe(["s1p0r0"])
        process.streams("one ")
        await screen.until(lambda: screen.text() == "one ")
        screen.session.subscribe(["s1p0r1"])
        process.streams("x", index=1)
        await screen.until(lambda: screen.text("s1p0r1") == "x")
        process.streams("two")
        process.streams("y", index=1)
        await screen.until(lambda: screen.text("s1p0r1") == "xy")
        assert screen.text() == "one "
        screen.session.subscribe(["s1p0r0"])
        await screen.until(lambda: screen.text() == "one two")
        assert TextReceived((TextPiece("s1p0r0", 0, "one two"),)) in screen.told


async def test_a_rollout_that_begins_anew_has_none_of_its_old_text(process: Process) -> None:
    async with a_screen(process.run) as screen:
        screen.session.subscribe(["s1p0r0"])
        process.streams("in vain")
        await screen.until(lambda: screen.text() == "in vain")
        process.recorder.emit(ev.RolloutStarted(CallKey("rollout", 1, 1, 0, 0), "q"))
        process.streams("anew")
        await screen.until(lambda: screen.text() == "anew")


async def test_half_a_character_waits_for_its_other_half(process: Process) -> None:
    async with a_screen(process.run) as screen:
        screen.session.subscribe(["s1p0r0"])
        process.streams("a\ud83d")
        await screen.until(lambda: screen.text() == "a")
        process.streams("\ude00b\udc00")
        await screen.until(lambda: screen.text() == "a\U0001f600b\ufffd")
        process.streams("\ud83d")
        await process.finishes()
        await screen.until(lambda: len(screen.events()) == 2)  # it began, and ended
        assert screen.text() == "a\U0001f600b\ufffd\ufffd"


async def test_a_text_longer_than_any_line_arrives_in_pieces(process: Process) -> None:
    long = "例" * 1_200_000
    process.streams(long)
    async with a_screen(process.run) as screen:
        screen.session.subscribe(["s1p0r0"])
        await screen.until(lambda: screen.text() == long)
        pieces = [p for m in screen.told if isinstance(m, TextReceived) for p in m.pieces]
        assert max(len(piece.text) for piece in pieces) <= 500_000


async def test_a_screen_that_stops_reading_costs_its_events_only_and_is_let_go_of(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "MAX_WAITING_BYTES", 2_000)
    reader, writer = await asyncio.open_unix_connection(process.run.socket, limit=1_000)
    for line in (
        {"id": "1", "do": "attach", "who": "zoe", "drive": True},
        {"id": "2", "do": "subscribe", "rollouts": ["s1p0r0"]},
    ):
        writer.write(json.dumps({"v": PROTOCOL, **line}).encode() + b"\n")
    assert json.loads(await _whole(reader))["ok"]
    assert json.loads(await _whole(reader))["ok"]
    async with a_screen(process.run) as screen:
        for _ in range(300):  # far beyond what the socket's buffers hold
            process.streams("x" * 10_000)
            await asyncio.sleep(0)
        for _ in range(60):
            await process.recorder.record(ev.RunPaused())
        await screen.until(lambda: len(screen.events()) == 60)
        assert is_alive(process.run)
        await screen.until(
            lambda: ControllerChanged(False, "") in screen.told
        )  # though it reads nothing
        with suppress(ConnectionError):
            while await reader.read(1_000_000):
                pass  # up to the end: it was hung up on
    writer.close()


async def _whole(reader: asyncio.StreamReader) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        line += await reader.read(1)
    return line


async def test_a_cut_line_is_taken_up_again_and_nothing_is_missing(tmp_path: Path) -> None:
    process = Process(tmp_path)
    await process.propose(ADD, MORE)
    cable = await Cable(process.run).open()
    await process.note_request(cable.far)
    async with a_screen(process.run) as screen:
        screen.session.subscribe(["s1p0r0"])
        process.streams("one ")
        await screen.until(lambda: screen.text() == "one ")
        cable.cut()
        process.streams("two")
        await process.decide(ADD)
        await screen.until(lambda: screen.count(SnapshotReceived) == 2)
        assert [m.ended for m in screen.told if isinstance(m, Disconnected)] == [False]
        assert screen.session.state == process.state
        await screen.until(lambda: screen.text() == "one two")
        assert screen.session.controls, "who drove goes on to"
    await cable.gone()
    await process.end()


@pytest.mark.parametrize(
    ("do", "ask", "kind"),
    [
        ("decide", lambda s: s.send(Decide((a_timed(),))), ev.OperationDecided),
        ("decide", lambda s: s.send(Decide(a_batch())), ev.OperationsDecided),
        ("undo", lambda s: s.send(Undo("op1.2")), ev.DecisionUndone),
        (
            "propose",
            lambda s: s.send(Propose(Operation("", "add", None, "mine"), s.who)),
            ev.OperationProposed,
        ),
        ("step", lambda s: s.send(Step()), ev.RunContinued),
    ],
)
async def test_what_was_done_before_its_answer_was_cut_is_answered_and_not_done_again(
    do: str, ask: Callable[[LiveSession], Any], kind: type[Any], tmp_path: Path
) -> None:
    process = Process(tmp_path)
    await process.propose(ADD, MORE)
    await process.decide(MORE, "reject")
    cable = await Cable(process.run).open()
    await process.note_request(cable.far)
    before = len(process.journalled(kind))
    async with a_screen(process.run) as screen:
        cable.cut_answers = _once("id", cable, do)
        answer = await ask(cast(LiveSession, screen.session))
        first, again = (request for request in cable.asked if request["do"] == do)
        assert first["id"] == again["id"] and "since" not in first
        assert again["since"] == len(list(process.run.entries())) - 1
        assert len(process.journalled(kind)) == before + 1
        assert answer
    await cable.gone()
    await process.end()


def a_commit(screen: Screen) -> Commit:
    return Commit(screen.session.state.step, screen.session.who)


async def test_a_commit_of_another_step_than_was_looked_at_is_refused(process: Process) -> None:
    async with a_screen(process.run) as screen:
        for step in (screen.session.state.step - 1, screen.session.state.step + 1):
            with pytest.raises(ConflictError, match="is under way by now"):
                await screen.session.send(Commit(step, screen.session.who))
    assert process.journalled(ev.OperationDecided) == []


def a_timed() -> Decision:
    return Decision("op1.1", "approve", reviewer="ann", took_s=1.25)


def a_batch() -> tuple[Decision, ...]:
    return (a_timed(), Decision("op1.2", "edit", text="four, my words", reviewer="ann"))


def _once(key: str, cable: Cable, do: str) -> Callable[[dict[str, Any]], bool]:
    """Of the first answer to a request."""

    def cut(said: dict[str, Any]) -> bool:
        if key in said and cable.asked and cable.asked[-1]["do"] == do:
            cable.cut_answers = lambda _: False
            return True
        return False

    return cut


async def test_the_gate_s_own_refusal_is_known_again_as_the_answer(tmp_path: Path) -> None:
    process = Process(tmp_path)
    await process.propose(an_operation("modify", "E9", "gone", id="op1.1"))
    cable = await Cable(process.run).open()
    await process.note_request(cable.far)
    async with a_screen(process.run) as screen:
        cable.cut_answers = _once("id", cable, "decide")
        (decision,) = await screen.session.send(Decide((a_timed(),)))
        assert (decision.action, decision.reviewer) == ("reject", "gate")
        assert decision.note.startswith("rejected: ")
        assert len(process.journalled(ev.OperationDecided)) == 1
    await cable.gone()
    await process.end()


async def test_the_same_decision_made_and_undone_before_is_no_answer_to_a_new_one(
    tmp_path: Path,
) -> None:
    process = Process(tmp_path)
    await process.propose(ADD)
    await process.decide(ADD)
    await process.gate.undo(ADD.id)
    cable = await Cable(process.run).open()
    await process.note_request(cable.far)
    async with a_screen(process.run) as screen:
        cable.lose_requests = 1  # the run never hears of it
        await screen.session.send(Decide((a_decision(ADD, "approve"),)))
        assert "since" in cable.asked[-1]
        assert list(process.state.decisions) == [ADD.id]
        assert len(process.journalled(ev.OperationDecided)) == 2
    await cable.gone()
    await process.end()


async def test_a_decision_of_a_killed_process_is_found_by_the_one_that_takes_it_up(
    tmp_path: Path,
) -> None:
    process = Process(tmp_path)
    await process.propose(ADD)
    cable = await Cable(process.run).open()
    await process.note_request(cable.far)
    resumed: list[Process] = []

    async with a_screen(process.run) as screen:
        cable.cut_answers = _once("id", cable, "decide")
        deciding = asyncio.create_task(screen.session.send(Decide((a_timed(),))))
        await screen.until(lambda: bool(process.journalled(ev.OperationDecided)))
        await process.end()  # it is on disk, and its answer never came
        resumed.append(await Process(tmp_path).note_request(cable.far))
        (decision,) = await asyncio.wait_for(deciding, 20)
        assert (decision.assigned, decision.note) == ("E3", "becomes E3")
        assert len(resumed[0].journalled(ev.OperationDecided)) == 1
        assert screen.session.living
    await cable.gone()
    await resumed[0].end()


async def test_a_decision_of_a_process_that_is_gone_is_found_in_its_journal(
    tmp_path: Path,
) -> None:
    process = Process(tmp_path)
    await process.propose(ADD, MORE)
    cable = await Cable(process.run).open()
    await process.note_request(cable.far)
    async with a_screen(process.run) as screen:

        def dies(said: dict[str, Any]) -> bool:
            if "id" in said and cable.asked[-1]["do"] == "decide":
                assert cable._server is not None
                cable._server.close()
                return True
            return False

        cable.cut_answers = dies
        decision = (await screen.session.send(Decide((a_timed(),))))[0]
        assert decision.assigned == "E3"
        assert not screen.session.living
        assert [m.ended for m in screen.told if isinstance(m, Disconnected)][-1:] in ([], [True])
        with pytest.raises(ConflictError, match="no process of it is running"):
            await screen.session.send(Decide((Decision("op1.2", "approve"),)))
        assert len(process.journalled(ev.OperationDecided)) == 1
        # The file of the socket is left, as of a killed process.
        assert process.run.socket.exists() and not is_alive(process.run)
    await process.end()


async def test_after_a_process_has_ended_the_fallback_decides_until_one_is_back(
    tmp_path: Path,
) -> None:
    process = Process(tmp_path)
    await process.propose(ADD, MORE)
    await process.note_request()
    workspace = process.workspace
    fallback = lambda: OfflineSession(workspace, process.run, "ann")  # noqa: E731
    async with a_screen(process.run, fallback=fallback) as screen:
        session = cast(LiveSession, screen.session)
        await process.recorder.record(ev.RunEnded("stopped", "by ann"))
        await process.end()
        await screen.until(lambda: not session.living and screen.count(SnapshotReceived) == 2)
        # An end is no loss of the connection.
        cuts = [one for one in screen.told if isinstance(one, Disconnected)]
        assert cuts == [Disconnected("the run has ended, and its process too", True)]
        assert session.state.ending == "stopped"
        decision = (await session.send(Decide((a_timed(),))))[0]
        assert decision.assigned == "E3"
        assert "op1.1" in session.state.decisions
        assert [op.id for op in (await session.send(ReadQueue())).open] == ["op1.2"]
        with pytest.raises(ConflictError, match="studio headless --resume exp"):
            await session.send(Resume())
        await session.release_lock()
        again = await Process(tmp_path).note_request()
        assert await session.reattach()
        assert session.controls and session.state == again.state
        await session.send(Decide((Decision("op1.2", "approve", reviewer="ann"),)))
        assert len(again.journalled(ev.OperationDecided)) == 2
        await again.end()


async def test_a_batch_is_one_record_with_a_process_and_without(tmp_path: Path) -> None:
    process = Process(tmp_path)
    await process.propose(ADD, MORE)
    await process.note_request()
    fallback = lambda: OfflineSession(process.workspace, process.run, "ann")  # noqa: E731
    async with a_screen(process.run, fallback=fallback) as screen:
        session = cast(LiveSession, screen.session)
        results = await session.send(Decide(a_batch()))
        assert [decision.note for decision in results] == ["becomes E3", "becomes E4"]
        await screen.until(lambda: len(session.state.decisions) == 2)
        assert [len(one.decisions) for one in process.journalled(ev.OperationsDecided)] == [2]
        for name in ("op1.1", "op1.2"):
            await session.send(Undo(name))
        await process.recorder.record(ev.RunEnded("stopped", "by ann"))
        await process.end()
        await screen.until(lambda: not session.living)
        assert len(await session.send(Decide(a_batch()))) == 2
        assert len(process.journalled(ev.OperationsDecided)) == 2
        assert not process.journalled(ev.OperationDecided)


async def test_a_gap_in_the_events_is_closed_from_the_journal(tmp_path: Path) -> None:
    process = Process(tmp_path)
    await process.propose(ADD, MORE)
    cable = await Cable(process.run).open()
    await process.note_request(cable.far)
    async with a_screen(process.run) as screen:
        session = cast(LiveSession, screen.session)
        session.state.events -= 1  # as if one had never come
        await process.decide(ADD)
        await screen.until(lambda: screen.count(SnapshotReceived) == 2)
        assert session.state == process.state
        assert session.living
    await cable.gone()
    await process.end()


@pytest.mark.parametrize("version", [2, 4])
async def test_a_process_of_another_protocol_is_understood_when_it_refuses(
    version: int, tmp_path: Path
) -> None:
    process = Process(tmp_path)
    await process.propose(ADD)

    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            asked = json.loads(line)["v"]
            cause = f"it speaks protocol {asked}, this run speaks {version}."
            said = {"ok": False, "place": "request", "cause": cause, "move": "Use that release."}
            writer.write(json.dumps({"v": version, "id": None, **said}).encode() + b"\n")
        writer.close()

    server = await asyncio.start_unix_server(refuses, process.run.socket)
    fallback = lambda: pytest.fail("its process holds the lock")  # noqa: E731
    screen = Screen(LiveSession(process.run, "ann", fallback=fallback))
    await screen.until(lambda: screen.count(SnapshotReceived) == 1)
    (parted,) = (m for m in screen.told if isinstance(m, Disconnected))
    assert f"this run speaks {version}" in parted.reason and not parted.ended
    assert [op.id for op in screen.session.state.open_operations] == ["op1.1"], (
        "it shows the journal"
    )
    with pytest.raises(ConflictError, match="Use that release"):
        await screen.session.send(Decide((a_timed(),)))
    await screen.close()
    server.close()
    await process.end()


async def test_a_screen_at_a_run_without_a_process_shows_its_journal(tmp_path: Path) -> None:
    process = Process(tmp_path)
    await process.propose(ADD)
    screen = Screen(LiveSession(process.run, "ann"))
    await screen.until(lambda: screen.count(SnapshotReceived) == 1)
    assert screen.told[0] == Disconnected("no process of it is running", True)
    assert not await cast(LiveSession, screen.session).reattach()
    with pytest.raises(ConflictError, match="no process"):
        await screen.session.send(Pause())
    assert screen.count(Disconnected) == 1, "it is told once"
    await process.note_request()
    assert (await screen.session.status())["open"] == 1
    assert screen.session.living
    assert (await screen.session.send(Pause()))["status"] == "paused"
    await screen.close()
    await process.end()


async def test_an_open_run_is_decided_in_its_journal_and_the_lock_is_given_back(
    tmp_path: Path,
) -> None:
    process = Process(tmp_path)
    await process.propose(ADD, MORE)
    await process.recorder.record(ev.RunEnded("stopped", "by ann"))
    await process.journal.aclose()
    screen = Screen(OfflineSession(process.workspace, process.run, "ann"))
    stored = cast(OfflineSession, screen.session)
    with pytest.raises(ConflictError, match="not open"):
        await stored.send(Decide((Decision("op9.9", "approve"),)))
    assert _lockable(process), "nothing was decided"
    await stored.send(Preview((a_timed(),)))
    assert _lockable(process)
    await stored.send(Decide((a_timed(),)))
    assert not _lockable(process)
    assert await stored.send(Undo("op1.1")) == ("op1.1",)
    mine = await stored.send(Propose(Operation("", "add", None, "mine"), stored.who))
    assert (mine.id, mine.proposer) == ("op1.h1", "ann")
    assert [op.id for op in (await stored.send(ReadQueue())).open] == ["op1.1", "op1.2", "op1.h1"]
    assert stored.state == process.run.state()
    with pytest.raises(ConflictError, match=r"studio headless --resume exp"):
        await stored.send(Resume())
    said = await stored.close()
    assert said == "go on with: studio headless --resume exp"
    assert _lockable(process)
    await screen.close()


def _lockable(process: Process) -> bool:
    return not is_held(process.run.path)


async def test_an_idle_sitting_gives_the_lock_back_and_takes_it_again(tmp_path: Path) -> None:
    process = Process(tmp_path)
    await process.propose(ADD, MORE)
    await process.journal.aclose()
    stored = OfflineSession(process.workspace, process.run, "ann", idle_s=0.0)
    await stored.send(Decide((a_timed(),)))
    while not _lockable(process):
        await asyncio.sleep(0)
    # Somebody else decides meanwhile, and it is seen.
    other = Process(tmp_path)
    await other.decide(MORE, "reject")
    await other.journal.aclose()
    assert await stored.send(Undo("op1.1")) == ("op1.1",)
    assert stored.state == process.run.state()
    assert list(stored.state.decisions) == ["op1.2"]
    await stored.close()
    kinds = [type(entry.event).__name__ for entry in process.run.entries()]
    assert kinds[-3:] == ["OperationDecided", "OperationDecided", "DecisionUndone"]
