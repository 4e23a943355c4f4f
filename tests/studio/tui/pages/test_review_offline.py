"""Review at a run without a process: the real gate, the real journal, keys of a person."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from textual.pilot import Pilot

from engines.core import events as ev
from engines.core.types import Operation, OperationKind
from engines.record.lock import write_lock
from engines.record.run_dir import RunDir, Workspace
from studio.run import detached
from studio.run.detached import RefusedStart
from studio.session.offline import OfflineSession
from studio.session.requests import Propose
from studio.tui.app import StudioApp
from studio.tui.pages.review.page import ReviewPage
from tests.studio.tui.reading import wait_for_loads
from tests.studio.tui.stage import app_on, finished_workspace, held_workspace, picture


@dataclass
class Table:
    """A person at the operations of a run without a process."""

    app: StudioApp
    pilot: Pilot[int]
    page: ReviewPage
    workspace: Workspace
    run: RunDir

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.pilot.press(key)
            await self.rest()

    async def rest(self) -> None:
        await self.pilot.pause()
        await self.app.wait_for_requests()
        await wait_for_loads(self.app)
        self.app.draw_frame()
        await self.pilot.pause()

    @property
    def told(self) -> str:
        return picture(self.app)[-2].strip()

    @property
    def decided(self) -> list[tuple[str, str, str]]:
        """Operation, action and reviewer of every decision in the journal."""
        return [
            (e.decision.operation_id, e.decision.action, e.decision.reviewer)
            for e in (entry.event for entry in self.run.entries())
            if isinstance(e, ev.OperationDecided)
        ]

    @property
    def texts(self) -> list[str]:
        return [e.text for e in self.workspace.library(self.run.run).head().experiences]

    async def propose(self, kind: OperationKind, target: str | None = None, text: str = "") -> str:
        """Put an operation of one's own into the queue; returns its id."""
        assert self.app.session is not None
        session = self.app.session
        made = await session.send(Propose(Operation("", kind, target, text), session.who))
        await self.rest()
        return made.id


@asynccontextmanager
async def a_table(run: RunDir, person: str = "sam") -> AsyncIterator[Table]:
    workspace = Workspace(run.path.parents[1])
    app = app_on(OfflineSession(workspace, run, person), workspace)
    app.person = person
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        async with asyncio.timeout(20):
            while app.attachment.state is None or app.attachment.state.started is None:
                await pilot.pause()
        app.open_page("review")
        page = app.navigation.page("review")
        assert isinstance(page, ReviewPage)
        table = Table(app, pilot, page, workspace, run)
        await table.rest()
        await table.rest()
        yield table


async def test_a_range_put_off_and_committed_is_taken_back_operation_by_operation(
    tmp_path: Path,
) -> None:
    async with a_table(finished_workspace(tmp_path).run("rehearsal")) as table:
        before = table.texts
        proposed = [await table.propose("add", text=text) for text in ("Aa.", "Bb.", "Cc.")]
        assert table.page.shown.operations.keys == tuple(proposed)
        table.page.shown.operations.go_to(proposed[0])
        await table.rest()
        await table.press("v", "j", "a", "enter")  # two of them at once
        table.page.shown.operations.go_to(proposed[2])
        await table.rest()
        await table.press("t")
        assert [action for _, action, _ in table.decided[-3:]] == ["approve", "approve", "defer"]
        await table.press("c")
        assert table.texts == [*before, "Aa.", "Bb."]
        await table.press("u")
        assert f"{proposed[2]} was put off; it is still open" in table.told
        await table.press("u")
        assert "is proposed: delete" in table.told
        inverse = [name for name in table.page.shown.operations.keys if name not in proposed]
        assert len(inverse) == 2 and table.texts == [*before, "Aa.", "Bb."]
        await table.press("u")
        assert table.page.shown.operations.keys == (
            proposed[2],
            *inverse,
        )  # nothing more was proposed
        for name in inverse:
            table.page.shown.operations.go_to(name)
            await table.rest()
            await table.press("a")
        await table.press("c")
        assert table.texts == before


async def test_a_key_pressed_before_the_record_is_open_is_done_once_it_is(
    tmp_path: Path,
) -> None:
    async with a_table(held_workspace(tmp_path).run("mine")) as table:
        session = table.app.session
        assert session is not None
        session.controls = False  # as between the end of a process and the journal read again
        before = len(table.decided)
        await table.press("a")
        assert [action for _, action, _ in table.decided[before:]] == ["approve"]
        assert "press again" not in table.told


async def test_what_the_gate_refuses_is_journalled_and_can_be_taken_back(
    tmp_path: Path,
) -> None:
    async with a_table(held_workspace(tmp_path).run("mine")) as table:
        await table.press("a")
        gone = await table.propose("delete", "E1")
        changed = await table.propose("modify", "E1", "Other words.")
        table.page.shown.operations.go_to(gone)
        await table.rest()
        await table.press("a")
        table.page.shown.operations.go_to(changed)
        await table.rest()
        await table.press("a")
        assert table.decided[-1] == (changed, "reject", "gate")
        known = len(table.decided)
        await table.press("u")
        assert changed not in table.app.attachment.state.decisions  # type: ignore[union-attr]
        assert len(table.decided) == known and f"asked again: {changed}" in table.told


@pytest.mark.parametrize("keys", [("1", "s", "r"), ("5", "s", "r"), ("0", "enter")])
async def test_a_run_is_resumed_right_after_a_decision_from_every_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: tuple[str, ...]
) -> None:
    found: list[int] = []

    def start(arguments: Sequence[str], workspace: Path) -> Started:
        assert list(arguments) == ["--resume", "mine"]
        with write_lock(table.run.path):  # refused while the screen holds the run
            found.append(len(table.decided))
        return Started()

    async with a_table(held_workspace(tmp_path).run("mine")) as table:
        monkeypatch.setattr(detached, "start", start)
        await table.press("a")
        await table.press(keys[0])
        async with asyncio.timeout(20):
            while "mine" not in "\n".join(picture(table.app)[2:]):
                await table.pilot.pause()
        await table.press(*keys[1:])
        async with asyncio.timeout(20):
            while not found:
                await table.pilot.pause()
        assert found == [1]


class Started:
    """A process that is refused: the screen stays where it is."""

    stage = ""

    async def wait_ready(self) -> RefusedStart:
        return RefusedStart("it is not to begin here.", 4)
