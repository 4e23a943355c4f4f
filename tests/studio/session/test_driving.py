"""A whole run that a screen drives: attached over its socket, decided, committed, ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from engines.core import events as ev
from engines.core.errors import DamagedError
from engines.core.types import Decision
from engines.pipeline.context import RunContext
from engines.pipeline.reviewers import HumanReviewer
from engines.record.run_dir import RunDir, Workspace
from studio.session.live import LiveSession
from studio.session.offline import OfflineSession
from studio.session.requests import Commit, Decide, ReadQueue, Resume, Stop
from studio.session.server import serve
from studio.session.session import Disconnected, EventReceived, TextReceived
from tests.support.harness import ScriptedPerson, practised

SMALL = (
    "practice.epochs=1",
    "practice.batch_size=4",
    "practice.group_size=3",
    "data.truncate=8",
)


def paused_at_first(practice: RunContext) -> RunContext:
    """Nothing begins before the screen says so, so that it sees all of it."""
    practice.control._open.clear()
    return practice


class Run:
    """A run in a task, behind its socket for as long as it goes on."""

    def __init__(self, workspace: Path, *overrides: str) -> None:
        self.dir = RunDir(workspace / "runs" / "rehearsal")
        self.begun = asyncio.Event()
        self.task = asyncio.create_task(self._go_on(workspace, overrides))

    async def _go_on(self, workspace: Path, overrides: tuple[str, ...]) -> None:
        opened: asyncio.Queue[RunContext] = asyncio.Queue()

        def change(practice: RunContext) -> RunContext:
            opened.put_nowait(practice)
            return paused_at_first(practice)

        running = asyncio.create_task(
            practised(workspace, *SMALL, *overrides, reviewers=(HumanReviewer(),), change=change)
        )
        self.practice = await opened.get()
        async with serve(self.practice, self.dir.socket, batch_s=0.0):
            self.begun.set()
            self.done = await running


class Person:
    """Sits at a screen and approves whatever is asked."""

    def __init__(self, run: Run, session: LiveSession) -> None:
        self.run, self.session = run, session
        self.texts: dict[str, str] = {}
        self.whole: dict[str, str] = {}  # as it stood when its rollout was over
        self.said: list[str] = []
        self.parted: list[Disconnected] = []

    async def works(self, until: Callable[[], bool]) -> None:
        async for message in self.session.messages():
            match message:
                case TextReceived():
                    for rollout, offset, text in (
                        (piece.rollout, piece.offset, piece.text) for piece in message.pieces
                    ):
                        known = self.texts.get(rollout, "")
                        self.texts[rollout] = known + text if offset == len(known) else text
                case EventReceived(event=ev.RolloutFinished() as done):
                    name = f"s{done.step}p{done.position}r{done.index}"
                    self.whole[name] = self.texts.get(name, "")
                case EventReceived(event=ev.LessonProposed()):
                    asyncio.create_task(self._reviews()).add_done_callback(_raised)
                case Disconnected():
                    self.parted.append(message)
            if until():
                return

    async def _reviews(self) -> None:
        undecided = self.session.state.undecided_operations
        for operation in undecided:
            await self.session.send(Decide((Decision(operation.id, "approve", reviewer="ann"),)))
        if undecided:
            self.said.append(await self.session.send(Commit(self.session.state.step, "ann")))


def _raised(task: asyncio.Task[None]) -> None:
    task.result()


async def test_a_run_is_driven_to_its_end_and_every_token_was_seen(tmp_path: Path) -> None:
    run = Run(tmp_path)
    await run.begun.wait()
    session = LiveSession(run.dir, "ann")
    person = Person(run, session)
    session.subscribe([f"s{s}p{p}r{i}" for s in (1, 2) for p in range(4) for i in range(3)])
    working = asyncio.create_task(person.works(lambda: bool(person.parted)))
    async with asyncio.timeout(60):
        await session.send(Resume())
        await working
        await run.task
    assert person.parted[0].ended or session.state.ending in ("", "finished")
    assert run.done.state.status == "finished"
    commits = [e.event for e in run.dir.entries() if isinstance(e.event, ev.LessonCommitted)]
    assert len(commits) == 2
    assert person.said == [
        f"committed: library rehearsal is at v{done.library_version}"
        for done in commits
        if done.outcomes
    ]
    # What was seen of each rollout ends in the words that its journal keeps.
    finished = [e.event for e in run.dir.entries() if isinstance(e.event, ev.RolloutFinished)]
    assert len(finished) == len(person.whole) == 24
    for event in finished:
        seen = person.whole[f"s{event.step}p{event.position}r{event.index}"]
        assert seen and " ".join(seen.split()).endswith(" ".join(event.tail.split())[-20:])
    await session.close()


async def test_a_stopped_run_is_decided_on_in_its_journal_by_the_same_screen(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path)
    await run.begun.wait()
    workspace = Workspace(tmp_path)
    session = LiveSession(
        run.dir, "ann", fallback=lambda: OfflineSession(workspace, run.dir, "ann")
    )
    stopping: list[asyncio.Task[dict[str, object]]] = []

    async def listens() -> None:
        async for message in session.messages():
            match message:
                case EventReceived(event=ev.LessonProposed()):
                    stopping.append(asyncio.create_task(session.send(Stop(reviewer="ann"))))
                case Disconnected(ended=True):
                    return

    async with asyncio.timeout(60):
        listening = asyncio.create_task(listens())
        await session.send(Resume())
        await run.task
        await listening
        assert (await stopping[0])["status"] == "stopping"
        assert run.done.state.reason == "by ann"
        first = session.state.undecided_operations[0]
        decision = (await session.send(Decide((Decision(first.id, "approve", reviewer="ann"),))))[0]
        assert decision.assigned == "E1"
        assert "studio headless --resume" in await session.close()
    assert [d.action for d in run.dir.state().decisions.values()] == ["approve"]


async def test_what_a_finished_run_left_open_is_decided_and_committed(tmp_path: Path) -> None:
    later = ScriptedPerson(lambda operation: Decision(operation.id, "defer", reviewer="bob"))
    done = await practised(tmp_path, *SMALL, reviewers=(later,))
    assert done.state.status == "finished" and done.library.version == 0
    stored = OfflineSession(Workspace(tmp_path), done.run, "ann")
    opened = (await stored.send(ReadQueue())).open
    await stored.send(Decide((Decision(opened[0].id, "approve", reviewer="ann"),)))
    agent = done.run.agent_file.read_bytes()
    done.run.agent_file.write_bytes(agent + b"# mine\n")
    commit = Commit(stored.state.step, "ann")
    with pytest.raises(DamagedError, match=r"agent\.yaml: it was altered"):
        await stored.send(
            Commit(stored.state.step, stored.who)
        )  # it would be sealed as if it were the studio's
    assert done.run.state().library_version == 0
    done.run.agent_file.write_bytes(agent)
    assert await stored.send(commit) == "committed: library rehearsal is at v1"
    assert stored.state == done.run.state()
    assert stored.state.library_version == 1
    assert [op.id for op in stored.state.open_operations] == [op.id for op in opened[1:]]
    assert await stored.send(commit) == "nothing is decided, so nothing was committed"
    await stored.send(Decide((Decision(opened[1].id, "reject", reviewer="ann"),)))
    assert await stored.send(commit) == "nothing was committed: library rehearsal stays at v1"
    await stored.close()
