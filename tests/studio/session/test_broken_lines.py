"""A screen's line in trouble: dead drivers, processes that are back, requests nobody can take."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from engines.core import events as ev
from engines.core.errors import ConflictError, LockedError
from engines.core.types import Decision, Operation
from engines.record.lock import write_lock
from engines.record.run_dir import RunDir
from studio.session.control_socket import ask, is_alive
from studio.session.live import MOST_SENT, LiveSession
from studio.session.offline import IDLE_S, OfflineSession
from studio.session.requests import PROTOCOL, Decide, Pause, Preview, ReadQueue, Request, Status
from studio.session.session import ControllerChanged, SnapshotReceived
from tests.studio.session.test_live import ADD, MORE, Cable, Process, a_screen, a_timed

HOURS = 3600.0


@asynccontextmanager
async def a_process(workspace: Path) -> AsyncIterator[Process]:
    made = Process(workspace)
    await made.propose(ADD, MORE)
    await made.note_request()
    yield made
    await made.end()


class Raw:
    """A client that says what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    def says(self, do: str, **more: Any) -> None:
        request = {"v": PROTOCOL, "id": os.urandom(4).hex(), "do": do, **more}
        self.writer.write(json.dumps(request).encode() + b"\n")

    async def hears(self) -> dict[str, Any]:
        """The next answer; what is pushed is passed over."""
        async with asyncio.timeout(20):
            while line := await self._reader.readline():
                said: dict[str, Any] = json.loads(line)
                if "id" in said:
                    return said
        raise ConnectionError

    async def asks(self, do: str, **more: Any) -> dict[str, Any]:
        self.says(do, **more)
        return await self.hears()

    async def hung_up_on(self) -> None:
        async with asyncio.timeout(20):
            while await self._reader.read(1_000_000):
                pass

    async def leave(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


async def a_client(process: Process, **attach: Any) -> Raw:
    client = Raw(*await asyncio.open_unix_connection(process.run.socket))
    if attach:
        assert (await client.asks("attach", **attach))["ok"]
    return client


# -- a driver that dies ------------------------------------------------------------------


async def test_a_driver_that_dies_while_its_commit_is_under_way_leaves_nothing_held(
    tmp_path: Path,
) -> None:
    async with a_process(tmp_path) as process:
        reviewing = asyncio.create_task(process.gate.review(1))
        driver = await a_client(process, who="ann", drive=True)
        driver.says("commit", step=1, reviewer="ann")
        await driver.leave()
        await asyncio.wait_for(reviewing, 20)
        await process.gate.commit(1)
        # Nobody drives, so nobody holds what comes next.
        await process.recorder.record(ev.StepFinished(1, 1))
        await process.propose(*(_of_step(op, 2) for op in (ADD, MORE)), step=2)
        for name in ("op2.1", "op2.2"):
            await process.gate.decide(Decision(name, "reject", reviewer="bob"))
        await asyncio.wait_for(process.gate.review(2), 20)


def _of_step(operation: Operation, step: int) -> Operation:
    return replace(operation, id=f"op{step}.{operation.id.rpartition('.')[2]}")


async def test_a_driver_that_is_gone_drives_no_longer_while_its_commit_is_waited_for(
    tmp_path: Path,
) -> None:
    async with a_process(tmp_path) as process:
        # Nobody reviews here, so that the commit is not answered before the test is over.
        driver = await a_client(process, who="ann", drive=True)
        async with a_screen(process.run, "bob") as bob:
            assert bob.session.controller == "ann"
            driver.says("commit", step=1, reviewer="ann")
            await bob.until(lambda: len(process.state.decisions) == 2)
            await driver.leave()
            await bob.until(lambda: bob.told[-1] == ControllerChanged(False, ""))


async def test_a_screen_that_attaches_again_takes_the_place_of_its_own_dead_line(
    tmp_path: Path,
) -> None:
    async with a_process(tmp_path) as process:
        dead = await a_client(process, who="ann", drive=True, session="a1")
        reviewing = asyncio.create_task(process.gate.review(1))
        for name in ("op1.1", "op1.2"):
            await dead.asks("decide", decisions=[{"operation_id": name, "action": "approve"}])
        other = await a_client(process)
        answer = await other.asks("attach", who="ann", drive=True, session="b2")
        assert answer["result"]["driver"] == {"mine": False, "who": "ann"}
        again = await a_client(process)
        answer = await again.asks("attach", who="ann", drive=True, session="a1")
        assert answer["result"]["driver"] == {"mine": True, "who": "ann"}
        await dead.hung_up_on()
        assert not reviewing.done(), "its commit is held on"
        assert (await again.asks("undo", operation="op1.2"))["ok"]
        for client in (dead, other, again):
            await client.leave()
        reviewing.cancel()


async def test_what_was_done_before_another_took_over_is_answered_when_it_is_sent_again(
    tmp_path: Path,
) -> None:
    async with a_process(tmp_path) as process:
        ann = await a_client(process)
        since = (await ann.asks("attach", who="ann", drive=True))["result"]["seq"]
        decide = {"id": "a1", "decisions": [{"operation_id": "op1.1", "action": "approve"}]}
        first = await ann.asks("decide", **decide)
        bob = await a_client(process, who="bob")
        await bob.asks("drive")
        again = await ann.asks("decide", **decide, since=since)
        assert again["ok"] and again["result"] == first["result"]
        other = await ann.asks("decide", **decide | {"id": "a2"}, since=since)
        assert "bob drives" in other["cause"], "the same words are another request"
        for client in (ann, bob):
            await client.leave()


async def test_a_commit_that_is_sent_again_while_it_is_under_way_is_one_commit(
    tmp_path: Path,
) -> None:
    async with a_process(tmp_path) as process:
        reviewing = asyncio.create_task(process.gate.review(1))
        ann = await a_client(process)
        since = (await ann.asks("attach", who="ann", drive=True))["result"]["seq"]
        ann.says("commit", id="c1", step=1, reviewer="ann")
        await asyncio.wait_for(reviewing, 20)
        bob = await a_client(process, who="bob")
        await bob.asks("drive")
        late = await a_client(process, who="ann")
        late.says("commit", id="c1", step=1, reviewer="ann", since=since)
        await bob.asks("pause")  # takes its turn after it
        await process.gate.commit(1)
        assert "at v" in (await ann.hears())["result"]
        assert "at v" in (await late.hears())["result"]
        assert len(process.journalled(ev.LessonCommitted)) == 1
        for client in (ann, bob, late):
            await client.leave()


# -- a process that is back --------------------------------------------------------------


async def test_a_screen_notices_by_itself_that_a_process_is_back(tmp_path: Path) -> None:
    process = Process(tmp_path)
    await process.propose(ADD, MORE)
    await process.note_request()
    async with a_screen(process.run, look_s=0.0) as screen:
        await process.end()
        await screen.until(
            lambda: not screen.session.living and screen.count(SnapshotReceived) == 2
        )
        again = await Process(tmp_path).note_request()
        await screen.until(lambda: screen.session.living)
        assert screen.session.controls
        await again.end()


async def test_what_is_asked_once_a_process_is_back_is_asked_of_it(tmp_path: Path) -> None:
    process = Process(tmp_path)
    await process.propose(ADD, MORE)
    await process.note_request()
    fallback = lambda: OfflineSession(process.workspace, process.run, "ann")  # noqa: E731
    async with a_screen(process.run, fallback=fallback, look_s=HOURS) as screen:
        await process.end()
        await screen.until(
            lambda: not screen.session.living and screen.count(SnapshotReceived) == 2
        )
        await screen.session.send(Decide((a_timed(),)))  # in the journal
        await cast(LiveSession, screen.session).release_lock()
        again = await Process(tmp_path).note_request()
        assert [op.id for op in (await screen.session.send(ReadQueue())).open] == ["op1.2"]
        assert screen.session.living, "it was looked for, also to look only"
        await screen.session.send(Decide((Decision("op1.2", "approve", reviewer="ann"),)))
        assert screen.session.living and len(again.state.decisions) == 2
        await again.end()


async def test_a_process_that_takes_the_run_up_just_before_a_decision_is_asked_it(
    tmp_path: Path,
) -> None:
    process = Process(tmp_path)
    await process.propose(ADD)
    await process.journal.aclose()
    begun: list[Process] = []

    class Taken(OfflineSession):
        """Its lock is taken while it is opened."""

        async def send(self, request: Request[Any]) -> Any:
            begun.append(await Process(tmp_path).note_request())
            return await super().send(request)

    fallback = lambda: Taken(process.workspace, process.run, "ann")  # noqa: E731
    async with a_screen(process.run, fallback=fallback, look_s=HOURS) as screen:
        decision = (await screen.session.send(Decide((a_timed(),))))[0]
        assert decision.assigned == "E3"
        assert screen.session.living
        assert list(begun[0].state.decisions) == ["op1.1"]
    await begun[0].end()


async def test_a_person_s_screen_holds_the_lock_shortly_and_says_who_it_is(tmp_path: Path) -> None:
    assert IDLE_S <= 5.0
    process = Process(tmp_path)
    await process.propose(ADD)
    await process.journal.aclose()
    stored = OfflineSession(process.workspace, process.run, "ann")
    await stored.send(Decide((a_timed(),)))
    try:
        with pytest.raises(LockedError) as refused, write_lock(process.run.path):
            pass
    finally:
        await stored.close()
    assert refused.value.cause.startswith(
        "a person's screen, which lets go a few seconds after a decision, (pid "
    )


# -- what cannot be asked, or not be answered --------------------------------------------


async def test_a_text_too_long_for_the_line_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    async with a_process(tmp_path) as process, a_screen(process.run) as screen:
        edit = Decision("op1.1", "edit", text="x " * 2_500_000, reviewer="ann")
        for refused in (
            screen.session.send(Decide((edit,))),
            screen.session.send(Preview((edit,))),
        ):
            with pytest.raises(ConflictError, match=r"too long .* 4,000,000 .* Shorten its text"):
                await asyncio.wait_for(refused, 20)
        assert screen.count(SnapshotReceived) == 1 and screen.session.living, "the line was not cut"
        with pytest.raises(ConflictError, match="too long"):
            await asyncio.to_thread(ask, process.run, Decide((edit,)))
        assert process.state.decisions == {}


async def test_a_request_that_cuts_the_line_each_time_is_given_up(tmp_path: Path) -> None:
    process = Process(tmp_path)
    await process.propose(ADD)
    cable = await Cable(process.run).open()
    await process.note_request(cable.far)
    async with a_screen(process.run) as screen:
        cable.cut_answers = lambda said: "id" in said and cable.asked[-1]["do"] == "lint"
        with pytest.raises(ConflictError, match="cut the connection each time"):
            await asyncio.wait_for(screen.session.send(Preview((a_timed(),))), 20)
        assert [request["do"] for request in cable.asked].count("lint") == MOST_SENT
    await cable.gone()
    await process.end()


async def test_a_bug_while_answering_is_a_refusal_and_a_line_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with a_process(tmp_path) as process:

        async def breaks(_: object) -> None:
            raise ZeroDivisionError("a text of a model")

        process.gate.decide_all = breaks  # type: ignore[method-assign, assignment]
        client = await a_client(process)
        defer = {"operation_id": "op1.1", "action": "defer"}
        refusal = await client.asks("decide", decisions=[defer])
        assert refusal["ok"] is False and "ZeroDivisionError" in refusal["cause"]
        assert (await client.asks("status"))["ok"], "the line stays open"
        await client.leave()
    logged = capsys.readouterr().err
    assert "bug: a request was not answered: ZeroDivisionError in breaks" in logged
    assert "a text of a model" not in logged


# -- how a socket is reached -------------------------------------------------------------


async def test_a_run_is_reached_by_a_path_that_is_longer_than_a_socket_s_may_be(
    tmp_path: Path,
) -> None:
    async with a_process(tmp_path / "ws"):
        longer = tmp_path / ("long" * 30)
        longer.symlink_to(tmp_path / "ws")
        run = RunDir(longer / "runs" / "exp")
        assert len(str(run.socket)) > 108
        assert is_alive(run)
        assert (await asyncio.to_thread(ask, run, Status()))["open"] == 2
        async with a_screen(run) as screen:
            assert screen.session.living
            await screen.session.send(Decide((a_timed(),)))
    assert not is_alive(run)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc, as Linux has it")
async def test_a_run_that_was_begun_by_a_short_path_is_reached_by_its_whole_one(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = tmp_path / ("whole" * 25)
    whole.mkdir()
    short = tmp_path_factory.getbasetemp() / "ws"  # the test's own folder is long by its name
    short.symlink_to(whole)
    async with a_process(short) as process:
        run = RunDir(whole / "runs" / "exp")
        assert not run.socket.is_symlink(), "it was bound by its short path"
        assert (await asyncio.to_thread(ask, run, Status()))["open"] == 2
        async with a_screen(run) as screen:
            await screen.session.send(Decide((a_timed(),)))
        assert list(process.state.decisions) == ["op1.1"]


async def test_nothing_is_said_to_a_socket_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_process(tmp_path) as process:
        monkeypatch.setattr(os, "getuid", lambda: 12_345)
        with pytest.raises(ConflictError, match="its socket belongs to another user"):
            await asyncio.to_thread(ask, process.run, Pause())
        screen = LiveSession(process.run, "ann", look_s=HOURS)
        with pytest.raises(ConflictError, match="its socket belongs to another user"):
            await screen.send(Decide((a_timed(),)))
        await screen.close()
        assert process.state.status != "paused" and not process.state.decisions
