"""Any keys with any events in between: what must hold whatever a person and a run do."""

from __future__ import annotations

import asyncio
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from textual.pilot import Pilot

from engines.core import events as ev
from engines.core.state.fold import fold
from engines.core.types import Decision
from studio.session.session import (
    ControllerChanged,
    Disconnected,
    EventReceived,
    Message,
    SnapshotReceived,
    TextPiece,
    TextReceived,
)
from studio.tui.app import StudioApp
from studio.tui.keymap import KEYS
from studio.tui.pages.review.page import ReviewPage
from studio.tui.widgets.prompt import Confirm
from tests.studio.tui.reading import wait_for_loads
from tests.studio.tui.stage import FakeSession, app_before_lesson, check_painted, picture

SIZES = ((120, 36), (80, 24), (60, 16), (140, 40), (30, 8))
LEAVES = {"global.detach", "global.interrupt", "global.start"}
PRESSED = sorted(
    {key.keys.partition(",")[0] for key in KEYS if key.id not in LEAVES} | {"x", "7", "backspace"}
)
OFTEN = (
    ("escape", "escape", "2", "a"), ("escape", "2", "j", "r"), ("2", "n", "t"), ("2", "u"),
    ("escape", "2", "A", "enter"), ("escape", "2", "v", "j", "r", "enter"), ("ctrl+r",),
    ("escape", "2", "e", "x", "enter"), ("2", "R", "x", "enter"), ("2", "c", "enter"),
    ("escape", "slash", "x", "enter"), ("2", "m", "x", "enter"), ("T",),
)  # fmt: skip
"""What people press, so that random keys reach what lies behind several of them."""
ASKED_BY = {
    "approve": {"a", "enter", "y", "u", "ctrl+r"},
    "reject": {"r", "enter", "u", "ctrl+r"},
    "defer": {"t", "enter", "u", "ctrl+r"},
    "edit": {"enter", "y", "u", "ctrl+r"},
}
"""Enter ends questions, the box and the palette; u and ctrl+r decide again as before."""

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("keys"), st.sampled_from(OFTEN)),
        st.tuples(st.just("keys"), st.tuples(st.sampled_from(PRESSED))),
        st.tuples(st.just("events"), st.integers(1, 9)),
        st.tuples(st.just("stream"), st.integers(0, 30)),
        st.tuples(st.just("message"), st.sampled_from(["mine", "mine", "theirs", "cut", "again"])),
        st.tuples(st.just("resize"), st.sampled_from(SIZES)),
    ),
    min_size=15,
    max_size=30,
)


@dataclass
class Watched:
    """The app on a run that is cut in its first batch; what was decided and what was painted."""

    app: StudioApp
    pilot: Pilot[int]
    session: FakeSession
    coming: list[ev.DurableEvent]
    painted: set[str] = field(default_factory=set)
    decisions: int = 0
    key: str = ""

    @property
    def page(self) -> ReviewPage:
        page = self.app.navigation.page("review")
        assert isinstance(page, ReviewPage)
        return page

    async def take(self, step: tuple[str, object]) -> None:
        self.key = ""
        match step:
            case "keys", tuple(keys):
                for key in keys:
                    if not self.app._exit:
                        self.key = key
                        await self.pilot.press(key)
                        await self.rest()
                        self.check()
                return
            case "events", int(n):
                for _ in range(min(n, len(self.coming))):
                    await self.session.push(EventReceived(self.coming.pop(0)))
            case "stream", int(at):
                await self.session.push(
                    TextReceived((TextPiece(f"s1p{at % 6}r{at % 4}", at, "so "),))
                )
            case "message", str(which):
                await self.session.push(self._message(which))
            case "resize", (int(width), int(height)):
                await self.pilot.resize_terminal(width, height)
        await self.rest()
        self.check()

    def _message(self, which: str) -> Message:
        if which in ("mine", "theirs"):
            self.session.controls = which == "mine"
            self.session.controller = "" if which == "mine" else "ann"
            return ControllerChanged(self.session.controls, self.session.controller)
        return Disconnected("the line is gone", False) if which == "cut" else SnapshotReceived()

    async def rest(self) -> None:
        await self.pilot.pause()
        if not self.app.is_running or self.app._exit:
            return
        await self.app.wait_for_requests()
        await wait_for_loads(self.app)
        self.app.draw_frame()
        self.app.draw_now()
        await self.pilot.pause()

    def check(self) -> None:
        """What must hold after each step."""
        assert self.app._exception is None
        if not self.app.is_running or self.app._exit:
            return
        check_painted(self.app)
        page, state = self.page, self.session.state
        made = [asked for name, asked in self.session.asked if name == "decide"]
        for decision in made[self.decisions :]:
            self._check_decision(decision)
        self.decisions = len(made)
        page.draw()
        names = [item.id for item in page.queue.items]
        assert page.shown.operations.key in names or (page.shown.operations.key == "" and not names)
        undecided = {op.id for op in state.undecided_operations}
        assert undecided <= {op.id for op in state.open_operations}
        found = {
            item.id for item in page.queue.items if item.operation is not None and item.is_open
        }
        assert found == undecided or (page.filter_text and found <= undecided)
        if self.app.size.width >= 80 and len(self.app.screen_stack) == 1:
            shown = re.search(r"2 Review(?: (\d+)!?)?", picture(self.app)[1])
            assert shown is not None
            assert int(shown[1] or 0) == (len(undecided) or len(state.open_operations))
        if isinstance(token := page.shown.change.painted, tuple):
            self.painted.add(token[0])
        if isinstance(self.app.screen, Confirm):  # it lists what would be decided
            self.painted |= {item.id for item in page.queue.items if item.is_safe}
            self.painted |= {item.id for item in page.queue.range_items}

    def _check_decision(self, decision: Decision) -> None:
        assert self.key in ASKED_BY[decision.action], f"{decision.action} by {self.key!r}"
        assert decision.operation_id in self.painted, f"{decision.operation_id} was never shown"
        assert self.session.controls


async def _played(steps: list[tuple[str, object]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        app, session, coming = app_before_lesson(Path(folder))
        fold(session.state, coming.pop(0))
        async with app.run_test(size=(120, 36)) as pilot:
            watched = Watched(app, pilot, session, coming)
            watched.page.in_editor = lambda text: None
            app.navigation.page("start").action_check = lambda: None  # type: ignore[attr-defined]
            await watched.take(("keys", ("2",)))
            for step in steps:
                await watched.take(step)
                if app._exit:
                    break


@pytest.mark.nightly
@settings(
    max_examples=3,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(STEPS)
def test_no_keys_and_events_lead_astray(steps: list[tuple[str, object]]) -> None:
    asyncio.run(_played(steps))
