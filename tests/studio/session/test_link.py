"""The line to a living run: what it answers, what it refuses, and when nobody is there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engines.core import events as ev
from engines.core.errors import ConflictError
from engines.core.types import Decision
from engines.record.run_dir import RunDir, Workspace
from studio.review.evidence import EvidenceLoader
from studio.review.line_mode import LineReview
from studio.review.review_run import LoopThread, RunReview
from studio.session import control_socket
from studio.session.control_socket import bind_path, connect_path
from studio.session.live import LiveSession
from studio.session.requests import (
    MAX_LINE,
    PROTOCOL,
    ControlledElsewhereError,
    Decide,
    NotRunningError,
    Preview,
    ReadQueue,
    Status,
    Undo,
)
from tests.support.forked_studio import ForkedStudio, run_forked
from tests.support.processes import SMALL, STUDIO, running
from tests.support.run_studio import run_here, studio


@pytest.fixture(scope="module")
def living(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunDir]:
    """A run that waits for its three operations; tests leave all of them undecided."""
    workspace = tmp_path_factory.mktemp("living")
    with running(workspace, "rehearsal", *SMALL, "--review", "wait") as process:
        process.until("StageEntered", stage="review")
        yield Workspace(workspace).run("rehearsal")
        assert process.child.poll() is None, "whatever was asked of it, it still runs"


class Client:
    """One connection, spoken to in raw lines."""

    def __init__(self, run: RunDir) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(20)
        with connect_path(run) as place:
            self._socket.connect(place)
        self._file = self._socket.makefile("rwb")

    def say(self, line: bytes) -> None:
        self._file.write(line + b"\n")
        self._file.flush()

    def hear(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._file.readline())
        return answer

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        self.say(json.dumps({"v": PROTOCOL, "id": "7", "do": do, **more}).encode())
        return self.hear()

    def find(self, do: str, **more: Any) -> Any:
        """Ask, and return what is answered, which must be no refusal."""
        answer = self.ask(do, **more)
        assert answer["ok"], answer
        return answer["result"]

    def decide(self, *decisions: dict[str, Any], **more: Any) -> Any:
        return self.find("decide", id=os.urandom(4).hex(), decisions=decisions, **more)

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@contextmanager
def connected(run: RunDir) -> Iterator[Client]:
    client = Client(run)
    try:
        yield client
    finally:
        client.close()


def a_decision(operation: str, action: str = "approve", **more: Any) -> dict[str, Any]:
    return {"operation_id": operation, "action": action, "reviewer": "ann", **more}


def test_an_answer_carries_the_protocol_s_version_and_the_request_s_id(living: RunDir) -> None:
    with connected(living) as client:
        answer = client.ask("status")
    assert (answer["v"], answer["id"], answer["ok"]) == (PROTOCOL, "7", True)
    status = answer["result"]
    assert (status["run"], status["status"]) == ("rehearsal", "reviewing")
    assert (status["undecided"], status["open"]) == (3, 3)
    assert (status["rehearsal"], status["cost_usd"]) == (True, None)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"v": 2, "id": "7", "do": "status"}', "protocol 2, this run speaks 3"),
        (b'{"id": "7", "do": "status"}', "protocol None, this run speaks 3"),
        (b"[1, 2]", "it is no JSON object"),
        (b"hello", "it is no JSON object"),
        (b"", "it is no JSON object"),
        (b"\xff\xfe", "it is no JSON object"),
        (b'{"v": 3, "do": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"v": 3, "id": "' + b"0" * 400 + b'", "do": "status"}', "its id is no text of 1 to 64"),
        (b'{"v": 3, "id": 7, "do": "status"}', "its id is no text of 1 to 64"),
        (b'{"v": 3, "id": {"a": "\\ud800"}, "do": "status"}', "its id is no text of 1 to 64"),
        (b'{"v": 3, "id": "7", "do": "explode"}', "a run knows no such request"),
        (b'{"v": 3, "id": "7", "do": ["decide"]}', "a run knows no such request"),
        (b'{"v": 3, "id": "7"}', "a run knows no such request"),
        (b'{"v": 3, "id": "7", "do": "decide"}', "cannot be read"),
        (b'{"v": 3, "id": "7", "do": "decide", "decisions": 3}', "cannot be read"),
        (b'{"v": 3, "id": "7", "do": "undo", "operation": 3}', "cannot be read"),
        (b'{"v": 3, "id": "7", "do": "undo", "operation": "a", "x": 1}', "has no field x"),
        (
            b'{"v": 3, "id": "7", "do": "decide", "decisions": [{"operation_id": "op1.1", '
            b'"action": "burn"}]}',
            "cannot be read",
        ),
        (b'{"v": 3, "id": "7", "do": "undo", "operation": "op9.9"}', "no decision about it stands"),
        (b'{"v": 3, "id": "7", "do": "undo", "operation": "a", "since": "x"}', "is no count"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_words_and_the_line_stays_open(
    line: bytes, said: str, living: RunDir
) -> None:
    with connected(living) as client:
        client.say(line)
        refusal = client.hear()
        assert refusal["ok"] is False
        assert said in refusal["cause"]
        assert refusal["place"] and refusal["move"]
        assert client.ask("status")["ok"] is True


def test_a_decision_about_an_unknown_operation_names_those_that_are_open(living: RunDir) -> None:
    with connected(living) as client:
        refusal = client.ask("decide", decisions=[a_decision("op9.9")])
        assert refusal["ok"] is False
        assert "operation op9.9" in refusal["place"]
        assert "op1.1, op1.2, op1.3" in refusal["move"]
        assert len(client.find("review")["open"]) == 3


def test_the_same_decision_twice_has_the_same_outcome_and_counts_once(living: RunDir) -> None:
    with connected(living) as client:
        (first,) = client.decide(a_decision("op1.1"))
        (again,) = client.decide(a_decision("op1.1"))
        sheet = client.find("review")
        client.ask("undo", operation="op1.1")
    assert first["action"] == again["action"] == "approve"
    texts = dict(sheet["draft"])
    assert len(texts) == 1
    assert again["assigned"] in texts
    assert [op["id"] for op in sheet["open"]] == ["op1.2", "op1.3"]
    assert [d["operation_id"] for d in sheet["decided"]] == ["op1.1"]


def test_of_two_decisions_about_one_operation_the_last_counts(living: RunDir) -> None:
    with connected(living) as client:
        client.decide(a_decision("op1.1"))
        client.decide(a_decision("op1.1", "reject", reason="no"))
        sheet = client.find("review")
        undone = client.find("undo", operation="op1.1")
    assert sheet["draft"] == []
    assert [d["action"] for d in sheet["decided"]] == ["reject"]
    assert undone == ["op1.1"]


def test_two_clients_decide_at_once_and_both_see_the_same_sheet(living: RunDir) -> None:
    with connected(living) as one, connected(living) as other:
        for client, name in ((one, "op1.1"), (other, "op1.2")):
            decide = {"do": "decide", "decisions": [a_decision(name)]}
            client.say(json.dumps({"v": PROTOCOL, "id": name, **decide}).encode())
        theirs, ours = other.hear(), one.hear()
        assert (ours["id"], theirs["id"]) == ("op1.1", "op1.2")
        (mine,), (yours,) = ours["result"], theirs["result"]
        assert (mine["operation_id"], yours["operation_id"]) == ("op1.1", "op1.2")
        assert mine["assigned"] != yours["assigned"]
        sheets = [client.find("review") for client in (one, other)]
        for name in ("op1.1", "op1.2"):
            one.ask("undo", operation=name)
    assert sheets[0]["draft"] == sheets[1]["draft"]
    assert len(sheets[0]["draft"]) == 2


def test_a_watcher_hears_of_a_decision_and_may_leave_at_any_time(living: RunDir) -> None:
    with connected(living) as client, connected(living) as watcher:
        assert watcher.ask("watch")["ok"] is True
        client.decide(a_decision("op1.1", "reject", reason="no"))
        heard = watcher.hear()
        assert heard["event"]["kind"] == "OperationDecided"
        assert heard["event"]["decision"]["reason"] == "no"
        watcher.close()
        client.ask("undo", operation="op1.1")
        assert client.find("status")["open"] == 3


def test_a_line_beyond_all_bounds_ends_that_connection_only(living: RunDir) -> None:
    with connected(living) as client:
        client.say(b"x" * (MAX_LINE + 100_000))
        refusal = client.hear()
        assert refusal["ok"] is False and "too long to be sent" in refusal["cause"]
        assert client._file.readline() == b""
    with connected(living) as client:
        assert client.ask("status")["ok"] is True


def test_a_run_without_a_process_is_refused_with_the_command_that_starts_one(
    practised: Path,
) -> None:
    run = Workspace(practised).run("rehearsal")
    assert not control_socket.is_alive(run)
    with pytest.raises(ConflictError) as refused:
        control_socket.ask(run, Status())
    assert "studio headless --resume rehearsal" in refused.value.move


@contextmanager
def a_process_that(answers: Callable[[socket.socket], None], run: RunDir) -> Iterator[None]:
    """Something that accepts one connection on the run's socket, and is gone afterwards."""
    with bind_path(run.socket) as place, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place)
        listener.listen()

        def attend() -> None:
            connection, _ = listener.accept()
            run.socket.unlink()
            with connection:
                answers(connection)

        thread = threading.Thread(target=attend)
        thread.start()
        try:
            yield
        finally:
            thread.join(20)


def hangs_up(connection: socket.socket) -> None:
    """Closes with the request unread, as a process does that is killed."""


def hangs_up_politely(connection: socket.socket) -> None:
    connection.recv(65536)


@pytest.mark.parametrize("ends", [hangs_up, hangs_up_politely])
def test_a_process_that_ends_before_it_answers_is_no_bug_of_the_asker(
    ends: Callable[[socket.socket], None], practised: Path
) -> None:
    run = Workspace(practised).run("rehearsal")
    with a_process_that(ends, run), pytest.raises(ConflictError) as refused:
        control_socket.ask(run, Undo("x" * 1_000_000))
    assert "ended before it answered" in refused.value.cause


def test_a_watch_of_a_process_that_is_killed_ends(practised: Path) -> None:
    def answers(connection: socket.socket) -> None:
        connection.recv(16)  # the rest of the request stays unread
        connection.sendall(b'{"v": 3, "id": "1", "ok": true, "result": {"run": "rehearsal"}}\n')
        connection.sendall(b'{"v": 3, "event": {"kind": "RunPaused"}}\n')

    run = Workspace(practised).run("rehearsal")
    with a_process_that(answers, run):
        kinds = [event["kind"] for event in control_socket.watch(run)]
    assert kinds in (["Watching", "RunPaused"], ["Watching"])


def a_review(run: RunDir) -> tuple[list[str], list[str]]:
    """What `studio review` prints and tells, whose input ends at once."""
    said: list[str] = []
    told: list[str] = []
    with LoopThread() as loop:
        session = LiveSession(run, "ann", as_screen=False)
        review = RunReview(session, loop.run, waits=False, say=said.append, tell=told.append)
        LineReview(review, lambda prompt: None, lambda text: None, EvidenceLoader(run)).run()
        loop.run(session.close())
    return said, told


def test_a_review_whose_process_has_ended_has_nothing_open_and_says_so(practised: Path) -> None:
    said, told = a_review(Workspace(practised).run("rehearsal"))
    assert said == [
        "run rehearsal: nothing is open",
        "the process of run rehearsal has ended",
    ]
    assert told == []


async def test_a_script_is_refused_where_no_process_answers(practised: Path) -> None:
    session = LiveSession(Workspace(practised).run("rehearsal"), "ann", as_screen=False)
    for asking in (
        session.send(ReadQueue()),
        session.send(Decide((Decision("op1.1", "approve"),))),
    ):
        with pytest.raises(NotRunningError):
            await asking
    await session.close()


def test_a_review_whose_last_decision_ends_the_run_ends_well(workspace: Path) -> None:
    one_step = (*SMALL, "data.truncate=4", "--review", "wait")
    with running(workspace, "rehearsal", *one_step) as process:
        process.until("StageEntered", stage="review")
        reviewed = studio("review", workspace=workspace, typed="a\n" * 2)
        assert reviewed.code == 0, reviewed.stderr
        assert "2 decided, 0 open" in reviewed.stdout
        assert process.end() == 0


def test_evidence_that_a_run_journals_during_a_sitting_is_found(practised: Path) -> None:
    run = Workspace(practised).run("rehearsal")
    whole = run.journal.read_bytes()
    lessons = [e.event.lesson for e in run.entries() if isinstance(e.event, ev.LessonProposed)]
    operation = lessons[-1].operations[0]
    run.journal.write_bytes(whole.splitlines(keepends=True)[0])  # as far as it went at first
    room = EvidenceLoader(run)
    run.journal.write_bytes(whole)
    found = room.operation_groups(operation)
    assert [w.id for group in found for w in group.witnesses] == list(operation.evidence)
    assert all(group.n == 3 for group in found)


async def test_an_edit_is_linted_over_the_connection_and_nothing_is_journalled(
    living: RunDir,
) -> None:
    session = LiveSession(living, "ann", as_screen=False)
    first = (await session.send(ReadQueue())).open[0]
    before = (await session.status())["events"]
    long = Decision(first.id, "edit", kind="add", text="word " * 200, reviewer="ann")
    assert "too long" in [flag.name for flag in (await session.send(Preview((long,))))[0].flags]
    empty = Decision(first.id, "edit", kind="add", text=" ", reviewer="ann")
    assert (await session.send(Preview((empty,))))[0].objection == "an addition needs a text"
    with pytest.raises(ConflictError, match="not open"):
        await session.send(Preview((Decision("op9.9", "edit", text="x"),)))
    assert (await session.status())["events"] == before
    await session.close()


async def test_a_script_follows_a_run_decides_and_never_controls_it(living: RunDir) -> None:
    session = LiveSession(living, "ann", as_screen=False)
    first = (await session.send(ReadQueue())).open[0]
    assert (session.living, session.controls, session.controller) == (True, False, "")
    made = (await session.send(Decide((Decision(first.id, "approve", reviewer="ann"),))))[0]
    assert session.state.decisions[first.id] == made, "the event came before the answer"
    with connected(living) as screen:
        screen.ask("attach", drive=True, who="bob")
        with pytest.raises(ControlledElsewhereError, match="bob decides on a screen"):
            await session.send(ReadQueue())
        with pytest.raises(ConflictError, match="bob decides on a screen"):
            await session.send(Undo(first.id))
    while True:
        with contextlib.suppress(ControlledElsewhereError):
            await session.send(ReadQueue())
            break
        await asyncio.sleep(0.01)
    assert await session.send(Undo(first.id)) == (first.id,)
    await session.close()


def test_a_decision_of_a_run_that_is_killed_and_resumed_counts_once(workspace: Path) -> None:
    decide = {"id": "d1", "decisions": [a_decision("op1.1")]}
    with running(workspace, "rehearsal", *SMALL, "--review", "wait") as process:
        process.until("StageEntered", stage="review")
        run = Workspace(workspace).run("rehearsal")
        with connected(run) as client:
            since = client.find("attach", drive=True, who="ann")["seq"]
            client.say(json.dumps({"v": PROTOCOL, "do": "decide", **decide}).encode())
            process.child.kill()  # and its answer is not waited for
            process.child.wait()
    with running(workspace, "--resume", "rehearsal") as process:
        process.until("StageEntered", stage="review")
        with connected(run) as client:
            answers = [client.ask("decide", **decide, since=since) for _ in range(2)]
    assert [answer["ok"] for answer in answers] == [True, True]
    assert answers[0]["result"] == answers[1]["result"]
    made = [e for e in run.entries() if isinstance(e.event, ev.OperationDecided)]
    assert [entry.event.decision.operation_id for entry in made] == ["op1.1"]
    assert [entry.request for entry in made] == ["d1"]


def test_only_who_attached_drives_and_is_sent_text(living: RunDir) -> None:
    with connected(living) as client:
        assert "attach first" in client.ask("drive")["move"].lower()
        assert "attach first" in client.ask("subscribe", rollouts=[])["move"].lower()
        attached = client.find("attach", drive=False, who="ann")
        assert attached["driver"] == {"mine": False, "who": ""}
        assert attached["seq"] == attached["events"] > 0
        assert "cannot be read" in client.ask("subscribe", rollouts=3)["cause"]
        assert client.ask("undo", operation="op1.1")["cause"] == "it observes; nobody drives now."


def test_while_a_screen_drives_a_plain_request_may_steer_and_not_decide(living: RunDir) -> None:
    with connected(living) as screen, connected(living) as client:
        assert screen.find("attach", drive=True, who="ann")["driver"]["mine"]
        for do, more in (
            ("review", {}),
            ("decide", {"decisions": [a_decision("op1.1")]}),
            ("undo", {"operation": "op1.1"}),
            ("propose", {"operation": {"id": "", "kind": "add"}, "reviewer": "bob"}),
            ("mend", {"repair": "s1", "text": "{}", "reviewer": "bob"}),
            ("drop", {"repair": "s1", "reason": "no", "reviewer": "bob"}),
            ("commit", {"step": 1, "reviewer": "bob"}),
        ):
            refusal = client.ask(do, **more)
            assert "ann decides on a screen" in refusal["cause"], do
            assert "studio attach rehearsal" in refusal["move"]
        assert client.find("status")["open"] == 3
        assert client.find("pause")["status"] == "paused"
        assert client.ask("resume")["ok"]


def test_a_status_that_nobody_reads_to_its_end_is_no_bug(living: RunDir) -> None:
    ours, theirs = os.pipe()
    os.close(ours)  # as `head` leaves it
    words = ("--workspace", str(living.path.parents[1]), "ctl", "status")
    try:
        asked = run_forked([*STUDIO, *words], stdout=theirs, stderr=subprocess.PIPE)
    finally:
        os.close(theirs)
    assert (asked.returncode, asked.stderr) == (0, b"")


def test_a_review_beside_a_screen_that_drives_ends_or_waits(living: RunDir) -> None:
    workspace = living.path.parents[1]
    with connected(living) as screen:
        screen.ask("attach", drive=True, who="ann")
        refused = run_here(workspace, "review", typed="a\na\n")
        assert refused.returncode == 2
        assert "ann decides on a screen" in refused.stderr and "--wait" in refused.stderr
        words = ("--workspace", str(workspace), "review", "--wait")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        waiting = ForkedStudio([*STUDIO, *words], text=True, **pipes)
        try:
            told = waiting.stderr.readline()
            assert "ann decides on a screen" in told and "Waiting until it is left" in told
            screen.close()
            said, _ = waiting.communicate("q\n", timeout=60)
        finally:
            waiting.kill()
            waiting.communicate()
    assert "op1.1  ADD" in said and "0 decided, 3 open" in said
    assert waiting.returncode == 0


def test_a_process_that_takes_requests_and_answers_none_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_socket, "ANSWER_S", 0.05)
    monkeypatch.setattr(control_socket, "CONNECT_S", 0.05)
    run = RunDir(tmp_path / "mine")
    run.path.mkdir()
    with contextlib.ExitStack() as stack, socket.socket(socket.AF_UNIX) as suspended:
        suspended.bind(str(run.socket))
        suspended.listen(0)
        assert control_socket.is_alive(run)
        with pytest.raises(ConflictError, match="may be suspended"):
            control_socket.ask(run, Status())
        waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
        waiting.setblocking(False)
        with contextlib.suppress(BlockingIOError):  # now its queue is full
            waiting.connect(str(run.socket))
        assert control_socket.is_alive(run)
        with pytest.raises(ConflictError, match="may be suspended"):
            control_socket.ask(run, Status())
