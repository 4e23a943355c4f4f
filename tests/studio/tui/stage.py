"""Runs to look at, a session in memory that remembers what it was asked, and what is drawn."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest import MonkeyPatch
from textual._styles_cache import StylesCache
from textual.app import App
from textual.cache import LRUCache
from textual.widgets import TextArea

from engines.core import events as ev
from engines.core.errors import ConflictError
from engines.core.library import Library
from engines.core.state.fold import fold
from engines.core.state.run_state import Live, RunState
from engines.core.types import Decision, DecisionPreview, Operation
from engines.record.run_dir import RunDir, Workspace
from engines.training_free.consolidation import Resubmission
from studio.session.requests import ReviewQueue
from studio.session.session import Disconnected, EventReceived, Message, Session, SnapshotReceived
from studio.tui.app import StudioApp
from studio.tui.settings import ScreenSettings
from tests.support.answering import Answering
from tests.support.made_once import made_once

_SMALL = ("practice.batch_size=6", "practice.group_size=4", "data.truncate=12", "seed=3")


def held_workspace(folder: Path) -> Workspace:
    """A copy of a workspace whose run `mine` is held after step 1, its operations open."""
    return copy_workspace(_held(), folder)


def finished_workspace(folder: Path) -> Workspace:
    """A copy of one whose run `rehearsal` is finished: two epochs, evaluated, versions."""
    return copy_workspace(_finished(), folder)


def copy_workspace(made: Path, folder: Path) -> Workspace:
    shutil.copytree(made, folder / "practice")
    return Workspace(folder / "practice")


def _held() -> Path:
    made = ("--name", "mine", "--review", "wait", "review.hold_s=0.001")
    settings = (*_SMALL, "evaluation.do_eval=false", "practice.epochs=2")

    def make(folder: Path) -> None:
        workspace = folder / "practice"
        _studio("headless", "rehearsal", *made, *settings, workspace=workspace, code=3)

    return made_once("stage-held", make) / "practice"


def _finished() -> Path:
    settings = (*_SMALL, "practice.epochs=2", "evaluation.limit=20")

    def make(folder: Path) -> None:
        _studio("headless", "rehearsal", *settings, workspace=folder / "practice", code=0)

    return made_once("stage-finished", make) / "practice"


def _studio(*arguments: str, workspace: Path, code: int) -> None:
    """In a process of its own, since a test of the screen runs in an event loop already."""
    command = [sys.executable, "-m", "studio", "--workspace", str(workspace), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr


class FakeSession(Answering):
    """A session whose run is a folded journal in memory.

    Every request lands in `asked` as (name, arguments). Decisions change the state as the
    gate would have them, but reach no disk.
    """

    def __init__(self, run: RunDir, *, living: bool = True, drives: bool = True) -> None:
        self.run = run
        self.living, self.controls, self.controller = living, drives, "" if drives else "ann"
        self.pace_tokens_per_s: float | None = None
        self.label = ""
        self.asked: list[tuple[str, Any]] = []
        self.refusal: ConflictError | None = None  # what every deciding request raises
        self.objected = DecisionPreview()
        self.budget: dict[str, float] = {}
        self.subscribed: frozenset[str] = frozenset()
        self.closed = False
        self.asks: dict[str, str] = {}  # questions of problems, as the process tells them
        self.state = RunState()
        for entry in run.entries():
            if living and isinstance(entry.event, ev.RunEnded):
                continue  # its process goes on
            fold(self.state, entry.event)
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()

    async def push(self, *messages: Message) -> None:
        """Let the app hear something; events are folded, as a session does."""
        for message in messages:
            if isinstance(message, EventReceived):
                fold(self.state, message.event)
            elif isinstance(message, Disconnected):
                self.state.live = Live()
            self._messages.put_nowait(message)
        while not self._messages.empty():
            await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def messages(self) -> AsyncIterator[Message]:
        yield SnapshotReceived()
        while (message := await self._messages.get()) is not None:
            yield message

    def subscribe(self, rollouts: Collection[str]) -> None:
        self.subscribed = frozenset(rollouts)

    async def review_queue(self) -> ReviewQueue:
        state = self.state
        draft = tuple((e.id, e.text) for e in self.library.experiences)
        return ReviewQueue(
            state.open_operations,
            tuple(state.decisions.values()),
            draft,
            state.flagged_stale,
            tuple(state.repairs.values()),
            state.base_version,
        )

    @property
    def library(self) -> Library:
        """The library with the standing decisions applied."""
        assert self.state.started is not None
        folder = Workspace(self.run.path.parents[1]).library(self.state.started.library)
        return folder.at(self.state.base_version).commit(self.state.reviewed_operations).library

    async def decide(self, decision: Decision) -> Decision:
        self._ask("decide", decision)
        await self._tell(ev.OperationDecided(self.state.step, decision))
        return decision

    async def decide_all(self, decisions: Sequence[Decision]) -> list[Decision]:
        if len(decisions) == 1:
            return [await self.decide(decisions[0])]
        for decision in decisions:
            self._ask("decide", decision)
        await self._tell(ev.OperationsDecided(self.state.step, tuple(decisions)))
        return [decision for decision in decisions]

    async def preview(self, decision: Decision) -> DecisionPreview:
        self.asked.append(("weigh", decision))
        return self.objected

    async def undo(self, operation_id: str) -> tuple[str, ...]:
        self._ask("undo", operation_id)
        decision = self.state.decisions.get(operation_id)
        gone = decision is not None and self.state.is_withdrawn_by_undo(operation_id, decision)
        await self._tell(ev.DecisionUndone(self.state.step, operation_id, withdrawn=gone))
        return (operation_id,)

    async def propose(self, operation: Operation) -> Operation:
        self._ask("propose", operation)
        number = len(self.state.own) + 1
        made = replace(operation, id=f"op{self.state.step}.h{number}")
        await self._tell(ev.OperationProposed(self.state.step, made, "ann"))
        return made

    async def try_operations(self, names: Sequence[str]) -> dict[str, Any]:
        self._ask("try_operations", list(names))
        left = [name for name in names if self.state.effect_of(name) is None]
        return {"operations": len(left), "most_rollouts": 40, "smallest_effect": 0.2}

    async def resubmit(self, repair_id: str, text: str, reviewer: str) -> Resubmission:
        self._ask("mend", (repair_id, text, reviewer))
        return Resubmission()

    async def drop(self, repair_id: str, reason: str, reviewer: str) -> str:
        self._ask("drop", (repair_id, reason, reviewer))
        return repair_id

    async def commit(self) -> str:
        self._ask("commit", None)
        return "committed"

    async def questions(self, problems: Collection[str]) -> dict[str, str]:
        return {name: text for name, text in self.asks.items() if name in problems}

    async def control(self, do: str, **arguments: Any) -> dict[str, Any]:
        if do == "status":  # the screen asks that by itself
            return {"budget": self.budget}
        self.asked.append((do, arguments))
        if do == "pause":
            await self._tell(ev.RunPaused())
        elif do in ("resume", "step"):
            await self._tell(ev.RunContinued(1 if do == "step" else None))
        return {"ok": True}

    async def take_control(self) -> None:
        self.asked.append(("drive", None))
        self.controls, self.controller = True, ""

    async def release_lock(self) -> None:
        self.asked.append(("let_go", None))

    async def close(self) -> str:
        self.closed = True
        self._messages.put_nowait(None)
        return f"studio attach {self.run.run}"

    def _ask(self, name: str, argument: object) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.asked.append((name, argument))

    async def _tell(self, event: ev.DurableEvent) -> None:
        fold(self.state, event)
        self._messages.put_nowait(EventReceived(event))

    def names(self) -> list[str]:
        """What was asked, by name."""
        return [name for name, _ in self.asked]


def app_on(
    session: Session | None, workspace: Workspace, settings: ScreenSettings | None = None
) -> StudioApp:
    """The app with its clock frozen and a terminal that can do everything."""
    environ = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8"}
    return StudioApp(
        workspace,
        session=session,
        settings=settings or ScreenSettings(theme="studio-dark"),
        environ=environ,
        clock=lambda: 1_000.0,
    )


def app_before_lesson(folder: Path) -> tuple[StudioApp, FakeSession, list[ev.DurableEvent]]:
    """The app on a run whose first lesson is still to come, and what comes; it starts no other."""
    workspace = finished_workspace(folder)
    session = FakeSession(workspace.run("rehearsal"))
    coming = [e.event for e in session.run.entries() if not isinstance(e.event, ev.RunEnded)]
    session.state = RunState()
    while not isinstance(coming[0], ev.LessonProposed):
        fold(session.state, coming.pop(0))
    app = app_on(session, workspace)
    app.start_run = lambda arguments: None  # type: ignore[method-assign]
    app.attach = lambda run: None  # type: ignore[method-assign]
    return app, session, coming


def check_painted(app: App[Any]) -> None:
    """What is on the screen is what would be drawn if nothing were kept of what was."""
    shown = picture(app)
    with MonkeyPatch.context() as patch:  # what is kept goes on being kept
        for widget in app.screen.walk_children(with_self=True):
            patch.setattr(widget, "_styles_cache", StylesCache())
            if isinstance(widget, TextArea):
                patch.setattr(widget, "_line_cache", LRUCache(1024))
        assert shown == picture(app)


def picture(app: App[Any]) -> list[str]:
    """What is on the screen, a line of text each."""
    strips = app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip).rstrip() for strip in strips]
