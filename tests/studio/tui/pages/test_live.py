"""The live page by its keys: what is asked of the run, what is subscribed to, what is shown."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
from textual.pilot import Pilot

from engines.core import events as ev
from engines.core.state.fold import fold
from engines.core.state.run_state import Live, RunState
from engines.core.types import CallKey, Verdict
from engines.record.run_dir import RunDir
from studio.session.session import (
    Disconnected,
    EventReceived,
    SnapshotReceived,
    TextPiece,
    TextReceived,
)
from studio.tui.app import StudioApp
from studio.tui.pages.live.page import LivePage, Streams, load_rollout_texts
from studio.tui.widgets.line_view import Activity, LineView
from tests.studio.tui.stage import FakeSession, app_on, finished_workspace, held_workspace, picture

WIDE, NARROW = (120, 36), (80, 24)


class Watched:
    """The app on a run that is cut in the midst of its first batch."""

    def __init__(self, session: FakeSession, pilot: Pilot[int], events: list[object]) -> None:
        self.session, self.pilot, self.events = session, pilot, events
        self.app = pilot.app
        self.page = self.app.navigation.page("live")
        assert isinstance(self.page, LivePage)

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()
        await self.app.wait_for_requests()
        await self.pilot.pause()

    async def hear(self, *events: object) -> None:
        await self.session.push(*(EventReceived(event) for event in events))
        await self.draw()

    async def stream(self, *pieces: TextPiece) -> None:
        await self.session.push(TextReceived(pieces))
        await self.draw()

    async def read(self) -> None:
        """Wait for texts that are read from the records."""
        await all_read(self.app)
        await self.draw()

    async def draw(self) -> None:
        self.app.draw_now()
        self.page.wall.canvas.flush()
        await self.pilot.pause()

    def events_of(self, position: int) -> list[object]:
        """What the journal has of one group's rollouts, verdicts left out where it has none."""
        kinds = (ev.RolloutFinished, ev.RolloutJudged, ev.GroupReflected)
        found = [event for event in self.events if isinstance(event, kinds)]
        return [event for event in found if event.position == position and event.step == 1]

    @property
    def screen(self) -> str:
        return "\n".join(picture(self.app))

    @property
    def said(self) -> str:
        return self.app.query_one("#bottom").lines[0][0][0].strip()


def started(position: int, index: int) -> ev.RolloutStarted:
    return ev.RolloutStarted(CallKey("rollout", 1, 1, position, index), "")


@asynccontextmanager
async def watching(
    folder: Path, size: tuple[int, int] = WIDE, *, begun: bool = True
) -> AsyncIterator[Watched]:
    """Group 0 is through, group 1 streams, the others wait; or nothing has begun."""
    workspace = held_workspace(folder)
    run = workspace.run("mine")
    session = FakeSession(run)
    events = [entry.event for entry in run.entries()]
    step = next(at for at, event in enumerate(events) if isinstance(event, ev.StepStarted))
    session.state = RunState()
    for event in events[:step]:
        fold(session.state, event)
    app = app_on(session, workspace)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        watched = Watched(session, pilot, events)
        if begun:
            await watched.hear(events[step], *(started(at, i) for at in (0, 1) for i in range(4)))
            await watched.hear(*watched.events_of(0))
        await watched.read()
        yield watched


async def test_only_rollouts_that_are_on_screen_and_under_way_are_subscribed_to(
    tmp_path: Path,
) -> None:
    async with watching(tmp_path) as live:
        assert live.session.subscribed == frozenset()  # all of group 0 have ended
        await live.press("right_square_bracket")
        assert live.session.subscribed == {f"s1p1r{i}" for i in range(4)}
        await live.press("5")
        assert live.session.subscribed == frozenset()
        await live.press("1")
        assert live.session.subscribed == {f"s1p1r{i}" for i in range(4)}


async def test_streamed_text_is_shown_whole_and_inert(tmp_path: Path) -> None:
    async with watching(tmp_path) as live:
        await live.press("right_square_bracket")
        await live.stream(
            TextPiece("s1p1r0", 0, "[red]one "), TextPiece("s1p1r1", 0, "\x1b[2J漢字")
        )
        await live.stream(TextPiece("s1p1r0", 9, "two"))
        assert live.page.wall.canvas.pane_text("s1p1r0") == "[red]one two"
        assert "[red]one two" in live.screen
        assert "\x1b" not in live.screen


async def test_a_text_that_begins_anew_replaces_what_was_there(tmp_path: Path) -> None:
    async with watching(tmp_path) as live:
        await live.press("right_square_bracket")
        await live.stream(TextPiece("s1p1r0", 0, "one two three"))
        await live.stream(TextPiece("s1p1r0", 0, "anew"))
        assert live.page.wall.canvas.pane_text("s1p1r0") == "anew"


async def test_a_piece_that_does_not_go_on_from_what_is_there_is_left_out(tmp_path: Path) -> None:
    async with watching(tmp_path) as live:
        await live.press("right_square_bracket")
        await live.stream(TextPiece("s1p1r0", 0, "one"))
        await live.stream(TextPiece("s1p1r0", 50, "far"))  # sent before it was asked for again
        assert live.page.wall.canvas.pane_text("s1p1r0") == "one"
        await live.stream(TextPiece("s1p1r0", 0, "one and all"))
        assert live.page.wall.canvas.pane_text("s1p1r0") == "one and all"


async def test_a_rollout_that_starts_anew_loses_its_old_text(tmp_path: Path) -> None:
    async with watching(tmp_path) as live:
        await live.press("right_square_bracket")
        await live.stream(TextPiece("s1p1r0", 0, "first try"))
        await live.hear(started(1, 0))
        assert live.page.wall.canvas.pane_text("s1p1r0") == ""
        await live.stream(TextPiece("s1p1r0", 0, "second"))
        assert live.page.wall.canvas.pane_text("s1p1r0") == "second"


async def test_a_text_is_whole_again_after_another_zoom(tmp_path: Path) -> None:
    async with watching(tmp_path) as live:
        await live.press("right_square_bracket")
        await live.stream(TextPiece("s1p1r0", 0, "kept by the run"))
        await live.press("left_square_bracket")
        assert "s1p1r0" not in live.session.subscribed
        await live.press("right_square_bracket")
        assert "s1p1r0" in live.session.subscribed
        await live.stream(TextPiece("s1p1r0", 0, "kept by the run, and more"))
        assert live.page.wall.canvas.pane_text("s1p1r0") == "kept by the run, and more"


async def test_the_text_of_ended_rollouts_comes_from_the_records(tmp_path: Path) -> None:
    async with watching(tmp_path) as live:
        text = live.page.wall.canvas.pane_text("s1p0r0")
        assert text.startswith("Step 1")
        assert "reward" in live.screen


async def test_a_record_that_is_gone_says_so_in_its_pane(tmp_path: Path) -> None:
    async with watching(tmp_path, begun=False) as live:
        for path in live.session.run.records.glob("*.jsonl"):
            path.unlink()
        step = next(event for event in live.events if isinstance(event, ev.StepStarted))
        await live.hear(step, *live.events_of(0))
        await live.read()
        assert "cannot be read" in live.page.wall.canvas.pane_text("s1p0r0")


@pytest.mark.parametrize(
    ("size", "modes"), [(WIDE, "group solo wall"), (NARROW, "wall group solo")]
)
async def test_z_goes_round_the_zooms(tmp_path: Path, size: tuple[int, int], modes: str) -> None:
    async with watching(tmp_path, size) as live:
        seen = []
        for _ in range(3):
            seen.append(live.page.wall.canvas.mode)
            await live.press("z")
        assert seen == modes.split()
        assert live.page.wall.canvas.mode == seen[0]


async def test_brackets_go_round_the_groups(tmp_path: Path) -> None:
    async with watching(tmp_path) as live:
        await live.press("left_square_bracket")
        assert live.page.wall.canvas.focused_id == "s1p5r0"
        await live.press("right_square_bracket", "right_square_bracket")
        assert live.page.wall.canvas.focused_id == "s1p1r0"


async def test_letters_and_arrows_move_over_rollouts(tmp_path: Path) -> None:
    async with watching(tmp_path) as live:
        seen = []
        for key in ("l", "j", "h", "k", "right", "down", "left", "up", "G", "home"):
            await live.press(key)
            seen.append(live.page.wall.canvas.focused_id[-2:])
        assert seen == ["r1", "r3", "r2", "r0", "r1", "r3", "r2", "r0", "r3", "r0"]


async def test_on_the_wall_down_is_the_next_rollout_and_across_the_next_group(
    tmp_path: Path,
) -> None:
    async with watching(tmp_path, NARROW) as live:
        await live.press("j")
        assert live.page.wall.canvas.focused_id == "s1p0r1"
        await live.press("l")
        assert live.page.wall.canvas.focused_id == "s1p1r0"
        await live.press("k")
        assert live.page.wall.canvas.focused_id == "s1p0r3"


async def test_a_narrow_screen_has_a_strip_of_groups_and_follows_the_rollout_at_the_cursor(
    tmp_path: Path,
) -> None:
    async with watching(tmp_path, NARROW) as live:
        strip = live.screen.splitlines()[3]
        assert strip.startswith(" s1p0  -+--  1/4   | s1p1  >>>>  0/0   | s1p2  ....        | [ ]")
        await live.press("right_square_bracket")
        await live.stream(TextPiece("s1p1r0", 0, "one\ntwo"), TextPiece("s1p1r1", 0, "other\ntext"))
        assert "─ p1r0 > (follow) ─" in live.screen and "│one " in live.screen
        await live.stream(TextPiece("s1p1r0", 7, " three"))
        assert "│two three |" in live.screen
        await live.press("j")
        assert "─ p1r1 > (follow) ─" in live.screen and "│other " in live.screen
        await live.press("right_square_bracket")
        assert "s1p1  >>>>  0/0   | s1p2  ....        | s1p3 " in live.screen
        assert "─ p2r0 . (follow) ─" in live.screen and "│queued " in live.screen
        await live.press("z")
        assert "(follow)" not in live.screen and "s1p3  ...." in live.screen


@pytest.mark.parametrize("size", [WIDE, (60, 16)])
async def test_the_wall_of_a_wide_or_a_small_screen_stands_alone(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    async with watching(tmp_path, size) as live:
        if size == WIDE:
            await live.press("z", "z")
        assert live.page.wall.canvas.mode == "wall"
        assert "(follow)" not in live.screen and "[ ] group" not in live.screen


async def test_the_strip_says_why_there_are_no_groups(tmp_path: Path) -> None:
    async with watching(tmp_path, NARROW) as live:
        await live.press("slash", *"zebra", "enter")
        assert "none holds 'zebra'" in live.screen.splitlines()[3]


async def test_space_opens_a_rollout_under_way_alone_and_escape_leaves_it(tmp_path: Path) -> None:
    async with watching(tmp_path) as live:
        await live.press("right_square_bracket", "enter")
        assert (live.page.wall.canvas.mode, live.page.wall.canvas.focused_id) == ("solo", "s1p1r0")
        assert live.session.subscribed == {"s1p1r0"}
        await live.press("escape")
        assert live.page.wall.canvas.mode == "group"


async def test_opening_an_ended_rollout_goes_to_inspect(tmp_path: Path) -> None:
    async with watching(tmp_path) as live:
        opened: list[tuple[str, str]] = []
        live.app.open_page = lambda name, target="", **_: opened.append((name, target))  # type: ignore[method-assign]
        await live.press("l", "enter")
        assert opened == [("inspect", "s1p0r1")]


async def test_the_list_of_groups_chooses_a_group(tmp_path: Path) -> None:
    async with watching(tmp_path) as live:
        live.page.query_one("#live-groups").focus()
        await live.press("j", "j")
        assert live.page.wall.canvas.focused_id == "s1p2r0"
        await live.press("z", "z", "enter")
        assert live.page.wall.canvas.mode == "group"
        assert live.app.focused is live.page.wall.canvas


async def test_f_stays_where_the_text_is_and_follows_it_again(tmp_path: Path) -> None:
    async with watching(tmp_path) as live:
        await live.press("right_square_bracket", "f")
        assert live.page.wall.canvas.mode == "solo"
        assert not live.page.wall.canvas.follow
        await live.press("f")
        assert live.page.wall.canvas.follow


async def test_in_solo_keys_scroll_and_the_end_is_followed_again(tmp_path: Path) -> None:
    async with watching(tmp_path) as live:
        await live.press("right_square_bracket", "enter")
        await live.stream(TextPiece("s1p1r0", 0, "\n".join(f"line {n}" for n in range(200))))
        assert "line 199" in live.screen
        await live.press("home")
        assert "line 0 " in live.screen
        await live.press("ctrl+d", "j")
        assert not live.page.wall.canvas.follow
        await live.press("ctrl+u", "G")
        assert live.page.wall.canvas.follow
        assert "line 199" in live.screen


async def test_kill_asks_first_and_names_the_rollout(tmp_path: Path) -> None:
    async with watching(tmp_path) as live:
        await live.press("right_square_bracket", "l", "K")
        assert live.session.names() == []
        await live.press("escape")
        assert live.session.names() == []
        await live.press("K")
        await live.press("K")
        assert live.session.asked == [("kill", {"rollout": "s1p1r1"})]


async def test_what_has_ended_cannot_be_killed(tmp_path: Path) -> None:
    async with watching(tmp_path) as live:
        await live.press("K", "K")
        assert live.session.names() == []
        assert "under way" in live.said


async def test_p_pauses_and_goes_on_and_capital_p_pauses_now(tmp_path: Path) -> None:
    async with watching(tmp_path) as live:
        await live.press("s", "p")
        assert "p goes on" in live.screen
        await live.press("s", "p", "s", "P")
        assert [name for name in live.session.names()] == ["pause", "resume", "pause"]
        assert live.session.asked[-1] == ("pause", {"now": True})


async def test_s_steps(tmp_path: Path) -> None:
    async with watching(tmp_path) as live:
        await live.press("s", "s")
        assert live.session.asked == [("step", {})]


@pytest.mark.parametrize(("key", "after_step"), [("s", True), ("n", False)])
async def test_x_stops_after_the_step_or_now(tmp_path: Path, key: str, after_step: bool) -> None:
    async with watching(tmp_path) as live:
        await live.press("s", "x")
        await live.press(key)
        assert live.session.asked == [("stop", {"after_step": after_step})]


async def test_x_and_escape_stop_nothing(tmp_path: Path) -> None:
    async with watching(tmp_path) as live:
        await live.press("s", "x")
        await live.press("escape")
        assert live.session.names() == []


async def test_the_filter_keeps_groups_and_escape_clears_it(tmp_path: Path) -> None:
    async with watching(tmp_path) as live:
        live.page.apply_filter("s1p4")
        await live.pilot.pause()
        assert [row.key for row in live.page.query_one("#live-groups").rows] == ["s1p4"]
        assert live.page.wall.canvas.focused_id == "s1p4r0"
        await live.press("escape")
        assert len(live.page.query_one("#live-groups").rows) == 6


async def test_going_to_an_id_shows_that_rollout(tmp_path: Path) -> None:
    async with watching(tmp_path) as live:
        assert live.page.go_to("s1p3r2")
        assert live.page.wall.canvas.focused_id == "s1p3r2"
        assert live.page.go_to(live.page.cursor.batch.problems[5])
        assert live.page.wall.canvas.focused_id == "s1p5r0"
        assert not live.page.go_to("s1p9r0")


async def test_copying_gives_the_rollout_or_all_of_them(tmp_path: Path) -> None:
    async with watching(tmp_path) as live:
        one = live.page.text_to_copy(whole=False)
        assert one == live.page.wall.canvas.pane_text("s1p0r0") != ""
        assert one in live.page.text_to_copy(whole=True)
        assert "s1p0r3" in live.page.text_to_copy(whole=True)


@pytest.mark.parametrize("size", [WIDE, NARROW, (60, 16)])
async def test_every_state_fits_and_no_row_is_wider_than_the_terminal(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    async with watching(tmp_path, size, begun=False) as live:
        assert "first" in live.screen
        step = next(event for event in live.events if isinstance(event, ev.StepStarted))
        await live.hear(step)
        assert "s1p0" in live.screen
        await live.hear(ev.EvaluationProgressed(0, "held-out-set", 3, 20))
        assert "3 of 20" in live.screen
        assert len(picture(live.app)) == size[1]


async def test_a_lesson_under_review_says_how_many_wait_and_where(tmp_path: Path) -> None:
    async with watching(tmp_path) as live:
        for event in live.events[2 + len(live.events_of(0)) :]:
            if isinstance(event, ev.LessonProposed):
                await live.hear(event)
        assert "2 review: 2 operations to decide" in live.screen


async def test_the_end_of_a_run_shows_its_summary_and_z_its_rollouts(tmp_path: Path) -> None:
    async with watching(tmp_path) as live:
        await live.hear(ev.RunEnded("stopped", "by ann"))
        assert "after step 0 of 4" in live.screen
        await live.press("z")
        assert live.page.wall.canvas.display
        assert (
            live.page.wall.canvas.pane_text("s1p0r0") != ""
            or live.page.wall.canvas.focused_id == "s1p0r0"
        )
        await live.press("escape")
        assert "after step 0 of 4" in live.screen


async def test_a_finished_run_shows_before_and_after(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    app = app_on(FakeSession(workspace.run("rehearsal"), living=False), workspace)
    async with app.run_test(size=WIDE) as pilot:
        await pilot.pause()
        shown = "\n".join(picture(app))
        assert "finished after step 4 of 4" in shown
        assert "held-out reward (one version" in shown
        assert "3 what was learned  4 what changed" in shown


async def test_r_resumes_a_run_that_ended_early(tmp_path: Path) -> None:
    async with watching(tmp_path) as live:
        begun: list[list[str]] = []
        live.app.start_run = lambda arguments: begun.append(list(arguments))  # type: ignore[method-assign]
        await live.press("s", "r")
        assert begun == []  # its process lives
        await live.hear(ev.RunEnded("stopped", "by ann"))
        live.session.living = False
        await live.press("s", "r")
        assert begun == [["--resume", "mine"]]


async def test_r_asks_how_much_more_where_a_budget_was_reached(tmp_path: Path) -> None:
    async with watching(tmp_path) as live:
        begun: list[list[str]] = []
        live.app.start_run = lambda arguments: begun.append(list(arguments))  # type: ignore[method-assign]
        await live.hear(ev.RunEnded("budget", "budget.calls=10 is reached"))
        live.session.living = False
        await live.press("s", "r")
        await live.press("enter")
        assert begun == []  # nothing was given
        await live.press("s", "r")
        await live.press("9", "9", "enter")
        assert begun == [["--resume", "mine", "budget.calls=99"]]


async def test_a_process_that_dies_leaves_the_batch_and_says_what_to_do(tmp_path: Path) -> None:
    async with watching(tmp_path) as live:
        live.session.living, live.session.state.live = False, Live()
        await live.session.push(Disconnected("the process of mine ended", ended=True))
        await live.draw()
        assert "r resumes it" in live.screen
        assert live.page.tracker.under_way == set()
        assert "the process of mine ended" in live.page.query_one(Activity).text()


async def test_without_a_run_the_page_says_how_to_get_one(tmp_path: Path) -> None:
    app = app_on(None, held_workspace(tmp_path))
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("1")
        await pilot.pause()
        assert "0 starts" in "\n".join(picture(app))
        await pilot.press("enter", "z", "f", "K", "s", "r", "right_square_bracket", "j", "l", "G")
        assert isinstance(app.navigation.page("live"), LivePage)


async def test_the_activity_begins_with_what_the_journal_tells(tmp_path: Path) -> None:
    async with watching(tmp_path) as live:
        await live.hear(ev.RolloutJudged(1, 1, 0, Verdict(1.0)))
        told = live.page.query_one(Activity).text().splitlines()
        assert any("held" in text for text in told)  # of the process before
        assert told[-1].endswith("s1p1r0 reward 1.0")


async def test_what_came_since_the_screen_attached_is_told_once(tmp_path: Path) -> None:
    async with watching(tmp_path, begun=False) as live:
        held = Disconnected("the connection is lost", ended=False)
        live.session.state.ending = ""
        heard = live.events[live.session.state.events]  # the journal has it already
        snapshot = SnapshotReceived(live.session.state.events)
        live.page._attached = None  # as a session that is opened
        await live.session.push(snapshot, EventReceived(heard), held)
        await live.read()
        told = live.page.query_one(Activity).text()
        assert told.count("6 problems") == 1
        assert "the connection is lost" in told
        live.session.state.ending = "finished"
        await live.session.push(
            held, Disconnected("the run has ended, and its process too", ended=True)
        )
        await live.draw()
        assert live.page.query_one(Activity).text().count("lost") == 1
        assert "the run has ended, and its process too" in live.screen


async def test_the_activity_stays_where_a_person_scrolled_to(tmp_path: Path) -> None:
    async with watching(tmp_path) as live:
        view = live.page.query_one(Activity)
        assert round(view.scroll_y) == len(view.lines) - view.size.height
        view.focus()
        await live.press("home")
        await live.hear(ev.RunPaused())
        assert view.scroll_y == 0
        await live.press("G")
        await live.hear(ev.RunContinued())
        assert round(view.scroll_y) == len(view.lines) - view.size.height


async def test_a_resize_storm_leaves_every_pane_in_place(tmp_path: Path) -> None:
    async with watching(tmp_path) as live:
        for size in (NARROW, (60, 16), (200, 50), (20, 5), WIDE):
            await live.pilot.resize_terminal(*size)
            await live.draw()
        assert live.page.wall.canvas.mode == "group"
        assert isinstance(live.page.query_one("#live-facts"), LineView)
        assert "Groups 6" in live.screen


def test_texts_of_no_record_are_sentences(tmp_path: Path) -> None:
    from engines.core.types import RecordRef
    from studio.tui.pages.live.page import load_rollout_texts

    gone = RecordRef("step-0001.jsonl", 0, 10, "x")
    (said,) = load_rollout_texts(RunDir(tmp_path).records, {"s1p0r0": (gone,)}).values()
    assert said.startswith("its record cannot be read")


async def beats(live: Watched) -> None:
    """What the frame clock does by itself, with no key and no other reason to draw."""
    for _ in range(4):
        await live.pilot.pause()
        live.app.frame_clock.tick()
        await all_read(live.app)
    await live.pilot.pause()


async def all_read(app: StudioApp) -> None:
    """Wait for what is read from the run's folder."""
    busy = [worker for worker in app.workers if worker.group in ("texts", "recall")]
    if busy:
        await app.workers.wait_for_complete(busy)


@pytest.mark.parametrize("zoom", ["group", "wall"])
async def test_tiles_catch_up_with_a_step_that_is_through_before_the_first_frame(
    tmp_path: Path, zoom: str
) -> None:
    async with watching(tmp_path, begun=False) as live:
        live.page.cursor.zoom = zoom
        ended = [event for at in range(6) for event in live.events_of(at)]
        step = next(event for event in live.events if isinstance(event, ev.StepStarted))
        await live.session.push(*(EventReceived(event) for event in (step, *ended)))
        await beats(live)
        assert "queued" not in live.screen.replace(". queued ", "")
        assert "####" in live.screen  # how a reply ends: its text came from the records


async def test_texts_of_what_ended_while_the_line_was_cut_come_from_the_records(
    tmp_path: Path,
) -> None:
    async with watching(tmp_path) as live:
        await live.press("right_square_bracket")
        await live.stream(TextPiece("s1p1r0", 0, "the beginning of"))
        await live.session.push(Disconnected("cut", ended=False))
        for event in live.events_of(1):
            fold(live.session.state, event)
        await live.session.push(SnapshotReceived())
        await beats(live)
        assert live.page.wall.canvas.pane_text("s1p1r0").startswith("Step 1")


async def test_a_text_that_ended_while_another_page_was_open_is_whole(tmp_path: Path) -> None:
    async with watching(tmp_path) as live:
        await live.press("right_square_bracket")
        await live.stream(TextPiece("s1p1r0", 0, "Step 1 (ques"))
        await live.press("2")
        await live.hear(*live.events_of(1))  # it goes on, and nobody is subscribed to it
        await live.press("1")
        await live.read()
        whole = load_rollout_texts(
            live.session.run.records, {"s1p1r0": live.page.cursor.rollout("s1p1r0").refs}
        )
        assert live.page.wall.canvas.pane_text("s1p1r0") == whole["s1p1r0"]
        assert len(whole["s1p1r0"]) > 100


async def test_a_piece_under_way_before_a_text_was_asked_for_anew_is_no_answer(
    tmp_path: Path,
) -> None:
    async with watching(tmp_path) as live:
        await live.press("right_square_bracket")
        await live.stream(TextPiece("s1p1r0", 0, "Step 1"))
        await live.press("2", "1")
        await live.stream(TextPiece("s1p1r0", 6, " (ques"))  # sent before 2 was
        await live.hear(*live.events_of(1))  # so that nobody was sent the rest
        await live.read()
        assert "####" in live.page.wall.canvas.pane_text("s1p1r0")


async def test_a_late_screen_shows_as_streaming_what_the_run_says_is_under_way(
    tmp_path: Path,
) -> None:
    async with watching(tmp_path) as live:
        live.page.cursor.zoom = "wall"
        state = live.session.state
        state.live.name_tries({"s1p0r0", "s1p5r3"}, state.current)
        await live.session.push(SnapshotReceived())
        await live.draw()
        assert live.page.tracker.under_way == {"s1p5r3"}  # the other one has ended
        assert "s1p5  ...>" in live.screen


async def test_a_run_that_is_finished_shows_its_last_rollouts_when_asked(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    app = app_on(FakeSession(workspace.run("rehearsal"), living=False), workspace)
    async with app.run_test(size=WIDE) as pilot:
        await pilot.pause()
        await all_read(app)
        live = Watched(app.session, pilot, [])
        await live.press("z")
        await beats(live)
        assert live.page.wall.canvas.display and "s4p0r0" in live.page.wall.canvas.focused_id
        assert "####" in live.page.wall.canvas.pane_text("s4p0r0")


async def test_what_was_hidden_is_folded_for_the_width_it_gets(tmp_path: Path) -> None:
    async with watching(tmp_path, NARROW) as live:
        await live.pilot.resize_terminal(*WIDE)
        await beats(live)
        assert "1 with winners and losers:" in live.screen
        await live.hear(ev.RunEnded("stopped", "somebody at the screen asked for it"))
        await beats(live)
        assert "somebody at the screen asked for it" in live.screen


async def test_a_page_that_is_opened_shows_nothing_of_what_it_held_before(tmp_path: Path) -> None:
    app = app_on(None, held_workspace(tmp_path))
    async with app.run_test(size=WIDE) as pilot:
        await pilot.press("1")
        await pilot.press("5")
        assert app.navigation.page("live").query_one("#live-told").display
        app.attachment.session = FakeSession(app.workspace.run("mine"))
        app.open_page("live")  # nothing is awaited from here on: this is its first frame
        assert not app.navigation.page("live").query_one("#live-told").display
        assert app.navigation.page("live").wall.canvas.display


async def test_resuming_is_offered_while_the_run_has_no_process(tmp_path: Path) -> None:
    async with watching(tmp_path) as live:
        assert "r resume" not in live.screen.splitlines()[-1]
        live.session.living = False
        await live.session.push(Disconnected("the process of mine ended", ended=True))
        await live.draw()
        for width in (120, 80, 60):
            await live.pilot.resize_terminal(width, 24)
            await live.draw()
            assert "r resume" in live.screen.splitlines()[-1]
        await live.hear(ev.RunEnded("finished", ""))
        assert "r resume" not in live.screen.splitlines()[-1]


async def test_a_rate_falls_on_the_screen_although_nothing_comes_any_more(tmp_path: Path) -> None:
    async with watching(tmp_path) as live:
        now = 1_000.0
        live.app.clock = lambda: now
        await live.hear(*live.events_of(1))
        assert "/s" in live.screen.splitlines()[0]
        now += 90.0
        live.app.frame_clock.tick()
        await live.pilot.pause()
        assert "/s" not in live.screen.splitlines()[0]


async def test_a_screen_that_is_left_while_it_reads_breaks_nothing(tmp_path: Path) -> None:
    class Gone:
        """The page once it was taken down: it has no canvas any more, and nothing is brought."""

        session = FakeSession(held_workspace(tmp_path).run("mine"))
        is_attached = False

    page = cast(LivePage, Gone())
    await Streams(page).read_records({"s1p0r0": ()})


async def test_held_out_tries_stream_in_panes_with_their_problem_and_their_reward(
    tmp_path: Path,
) -> None:
    async with watching(tmp_path) as live:
        live.session.asks = {"q7": "How many apples are left?", "q8": "How many pears?"}
        at = [CallKey("evaluation", 0, 1, position, 0, problem="") for position in (6, 7)]
        so_far = ev.EvaluationProgressed(1, "aime", 5, 20, known=5, right=2.0, k=2)
        await live.hear(so_far, ev.RolloutStarted(at[0], "q7"), ev.RolloutStarted(at[1], "q8"))
        assert live.session.subscribed == {"h1p6r0", "h1p7r0"}
        await live.stream(TextPiece("h1p6r0", 0, "There are 12"))
        for wanted in (
            *("evaluating after step 1: 5 of 20, reward 0.400 (n=5)", "on aime"),
            *("problem 7", "There are 12", "How many apples are left?"),
            "held-out problems are measured",
        ):
            assert wanted in live.screen
        ended = ev.EvaluationProgressed(1, "aime", 6, 20, 6, 3.0, 2, at[0], 1.0)
        await live.hear(ended)
        assert "reward 1.0" in live.screen and "There are 12" in live.screen
        assert live.session.subscribed == {"h1p7r0"}
        await live.press("j", "right_square_bracket")  # no group is chosen meanwhile
        assert "How many pears?" in live.screen
        await live.hear(ev.EvaluationProgressed(1, "aime", 20, 20, 20, 9.0, 2))
        assert "s1p0" in live.screen and "problem 7" not in live.screen
        assert live.session.subscribed == frozenset()


@pytest.mark.parametrize("size", [WIDE, NARROW, (200, 50)])
async def test_groups_show_what_is_asked(tmp_path: Path, size: tuple[int, int]) -> None:
    async with watching(tmp_path, size) as live:
        batch = live.page.cursor.batch
        live.session.asks = {name: f"asked by {at}" for at, name in enumerate(batch.problems)}
        live.page._asked.clear()
        await live.draw()
        await beats(live)
        await live.press("right_square_bracket")
        assert "s1p1  asked by 1" in live.screen
        live.page.apply_filter("asked by 4")
        await live.pilot.pause()
        assert live.page.cursor.shown_groups == (4,)
