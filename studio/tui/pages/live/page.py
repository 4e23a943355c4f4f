"""The live page: groups of the batch under way, their rollouts as they stream, what happened."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.events import Hide
from textual.widget import Widget

from engines.core import events as ev
from engines.core.errors import StudioError
from engines.core.state.fold import fold
from engines.core.state.run_state import RunState
from engines.record.derived.run_state import load_closed
from engines.record.journal import read_journal
from engines.record.run_dir import RunDir
from studio.render.words import no_practice_text
from studio.secrets.sanitize import one_line
from studio.session.requests import Kill
from studio.session.session import (
    Disconnected,
    EventReceived,
    Message,
    Session,
    SnapshotReceived,
    TextReceived,
)
from studio.tui.drawing.cells import Glyphs, choose_glyphs
from studio.tui.drawing.lines import line, note_rows, paragraph
from studio.tui.keymap import bindings
from studio.tui.page import Host, Page
from studio.tui.pages.live import view
from studio.tui.pages.live.batch import Batch, BatchTracker, current_batch
from studio.tui.pages.live.view import StageClock
from studio.tui.pages.live.wall import BatchCursor, Questions, RolloutWall, Streams
from studio.tui.pages.progress.page import ProgressStrip
from studio.tui.terminal.textual_parts import is_visible
from studio.tui.widgets.line_view import Activity, Chrome, LineView, RowList

_ZOOM_WORDS = {
    "wall": "wall: every rollout of the batch, a line each",
    "group": "group: the rollouts of one problem side by side",
    "solo": "solo: one rollout alone",
}


class LivePage(Page):
    scope = "live"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings("live", "list")]

    def __init__(self) -> None:
        super().__init__()
        self.tracker = BatchTracker()
        self.cursor = BatchCursor(self, self.tracker)
        self.streams = Streams(self, self.cursor, lambda: self.wall.canvases)
        self.feed = Feed(self, self.tracker, self.cursor, self.streams)
        self.questions, self._clock = Questions(self), StageClock()
        self.wall = RolloutWall(self, self.tracker, self.cursor, self.streams, self.questions)
        self._progress = ProgressStrip(id="live-progress")
        self._strip = Chrome(id="live-strip")
        self._groups, self._facts = RowList(id="live-groups"), LineView(id="live-facts")
        self._facts.can_focus = False
        self._left = Vertical(self._groups, self._facts, id="live-left", classes="pane")

    def on_mount(self) -> None:
        self.set_interval(1.0, self._tick)

    def _tick(self) -> None:
        """Time goes by on the screen although nothing comes."""
        if self.is_open and self._clock.is_running:
            self.host.redraw_soon()

    def compose(self) -> ComposeResult:
        yield self._progress
        yield self._strip
        with Horizontal(id="live-top"):
            yield self._left
            yield self.wall
        yield Activity(id="live-activity", classes="pane")

    def initial_focus(self) -> Widget:
        return self.wall.canvas if self.cursor.is_showing_streams else self.wall.placeholder

    def handle_message(self, message: Message) -> None:
        self.feed.handle_message(message)

    def draw(self) -> None:
        state, cursor = self.state, self.cursor
        self.tracker.update(state)
        self.has_nothing = cursor.batch is None and not cursor.is_measuring
        signs = choose_glyphs(self.wall.uses_ascii)
        self._arrange()
        self._progress.draw(state)
        batch, under_way = cursor.batch, self.tracker.under_way
        asked, width = self.questions.known, self._groups.line_width - 2
        rows = view.group_rows(
            batch, under_way, self.filter_text, signs, questions=asked, width=width
        )
        cursor.show_groups([row.key for row in rows])
        curated = no_practice_text(state)
        if not rows:
            nothing = curated or "none under way"
            if batch and self.filter_text:
                nothing = f"none holds {one_line(self.filter_text, 16)!r}"
            rows = note_rows(paragraph([(nothing, "dim")], width))
        chosen = cursor.group
        tries = self.tracker.held_out.tries if cursor.is_measuring else []
        if tries:
            rows = view.held_out_rows(tries, asked, width, signs)
            chosen = self.wall.canvas.focused_id
        self._groups.show_rows(rows, chosen)
        known = batch.records() if batch else {}
        self.questions.load({**known, **dict.fromkeys((one.problem for one in tries), ())})
        self._draw_facts(state, signs)
        strip = view.strip_line(batch, under_way, cursor.position, self.app.size.width, signs)
        self._strip.show_line(0, line((f" {curated}", "dim")) if curated else strip)
        self._draw_titles(batch)
        self.wall.draw(state, signs)
        self.feed.activity.draw()
        self.streams.subscribe()

    def _draw_facts(self, state: RunState | None, signs: Glyphs) -> None:
        """The figures of the run, and the line that says what it does now."""
        batch, evaluating = self.cursor.batch, self.tracker.evaluating
        status, width = self.host.session_status, self._facts.line_width
        facts = view.node_lines(self.tracker.nodes, self.tracker.places, width)
        facts += view.facts_lines(state, batch, status, width=width, signs=signs)
        self._facts.show_lines(facts)
        now = view.status_line(state, batch, status, evaluating, doing=self.tracker.doing)
        now = self._clock.add_time(now, self.host.clock())
        is_plain = view.is_working(state, status, evaluating)
        if self.cursor.is_narrow and is_plain and batch and state is not None:
            now = line((f" {view.stage_line(batch, state, status.eta)}", "title"))
        self.query_one("#live-now", Chrome).show_line(0, now)

    def _draw_titles(self, batch: Batch | None) -> None:
        left, count = self._left, len(batch.problems) if batch else 0
        title = f"Groups {count}" if count else "Groups"
        if self.cursor.is_measuring:
            title = "Held-out problems"
        if self._groups.size and (more := self._groups.more_text()):
            title += f"  {more}"
        under = f"filter: {one_line(self.filter_text, 20)}" if self.filter_text else ""
        # Setting one draws all that is in the pane.
        if str(left.border_title or "") != title:
            left.border_title = Text(title)
        if str(left.border_subtitle or "") != under:
            left.border_subtitle = Text(under)

    def _arrange(self) -> None:
        """Which panes there are, from the size of the terminal and of the batch."""
        height, narrow = self.app.size.height, self.cursor.is_narrow
        activity = self.feed.activity
        self._strip.display, self._left.display = narrow, not narrow
        self._left.styles.width = self.cursor.left_width
        activity.display = height >= 20
        activity.styles.height = 6 if height >= 30 else 4
        # Groups have a line each while the figures and stages keep theirs; 15 rows are of others.
        trains = self.state is not None and self.state.trains_weights
        least, most = (13, 26) if trains else (9, 19)
        batch = None if self.cursor.is_measuring else self.cursor.batch
        groups = min(12, len(batch.problems) if batch else 5)
        self._facts.styles.height = max(0, min(most, height - 17, max(least, height - 15 - groups)))
        self.wall.arrange_panes()
        self._keep_focus()

    def _keep_focus(self) -> None:
        """Give the focus to what there is where the pane that had it is not drawn any more."""
        focused = self.app.focused
        if not self.is_open or self.app.screen is not self.screen:
            return
        if focused is None or (self in focused.ancestors and not is_visible(focused)):
            self.initial_focus().focus(scroll_visible=False)

    def on_row_list_moved(self, moved: RowList.Moved) -> None:
        position = self.cursor.find_group(moved.key) if moved.is_current else None
        if position is not None and position != self.cursor.position:
            self.wall.choose(position)
        elif self.cursor.is_measuring and moved.is_current:
            self.wall.canvas.focus_pane(moved.key)

    def on_hide(self, event: Hide) -> None:
        self.streams.unsubscribe()

    def go_to(self, name: str) -> bool:
        place = self.cursor.find(name)
        if place is None:
            return False
        self.filter_text, self.cursor.shows_past = "", True
        self.wall.choose(*place)
        return True

    def go_back(self) -> bool:
        if self.cursor.shows_past and self.state is not None and self.state.ending:
            self.cursor.shows_past = False
        elif self.cursor.mode == "solo":
            self.cursor.zoom = None
        else:
            return super().go_back()
        return True

    def text_to_copy(self, whole: bool) -> str:
        if self.app.focused is self.wall.canvas:
            return self.wall.text_to_copy(whole)
        return super().text_to_copy(whole)

    def action_open(self) -> None:
        """The group under the cursor, then the rollout: whole where it ended, else alone."""
        if not self.cursor.is_showing_streams:
            self._show_last_rollouts()
            return
        in_groups = self.app.focused is self._groups
        if in_groups and self.cursor.mode != "group":
            self.cursor.zoom = "group"
        elif not in_groups:
            one = self.wall.focused_rollout
            if one is not None and one.has_ended:
                self.host.open_page("inspect", one.id)
                return
            self.cursor.zoom = "solo"
        self.host.draw_now()
        self.wall.canvas.focus(scroll_visible=False)

    def _show_last_rollouts(self) -> None:
        if self.cursor.batch is None:
            self.host.tell("no batch is under way; 6 shows recorded rollouts")
            return
        self.cursor.shows_past = True
        self.host.draw_now()
        self.wall.canvas.focus(scroll_visible=False)
        self.host.tell("the last rollouts of the run; esc goes back to its summary")

    def action_zoom(self) -> None:
        if self.cursor.is_showing_streams:
            words = _ZOOM_WORDS[self.cursor.zoom_in()]
            self.host.draw_now()
            self.host.tell(words)
        else:
            self._show_last_rollouts()

    def action_follow(self) -> None:
        if not self.cursor.is_showing_streams:
            self.host.tell("there is nothing to follow")
            return
        on = self.wall.toggle_follow()
        self.host.tell("following the end of the text" if on else "staying; f follows again")

    def action_tools(self) -> None:
        unfolded = self.wall.toggle_tools() if self.cursor.is_showing_streams else None
        if unfolded is None:
            self.host.tell("no tool call is shown here", "failed")
        else:
            self.host.tell("tool calls unfolded; Z folds them" if unfolded else "tool calls folded")

    def action_choose_group(self, by: int) -> None:
        self.wall.choose_next_group(by)

    def action_move_across(self, by: int) -> None:
        """Also from the list of groups, which knows no left and right."""
        self.wall.move(by, 0)

    def action_kill(self) -> None:
        one = self.wall.focused_rollout if self.cursor.is_showing_streams else None
        if one is None or one.has_ended:
            self.host.tell("no rollout under way is under the cursor", "failed")
            return
        self.run_worker(_kill_rollout(self.host, one.id))


async def _kill_rollout(host: Host, rollout: str) -> None:
    """Ask the person first: it cannot be taken back."""
    lines = [
        line(f"{rollout} ends at once, as an error and not as a loss:"),
        line("it has no reward, and its group goes on without it."),
    ]
    if not await host.confirm("Kill this rollout?", lines, {"K": "kill it"}):
        host.tell(f"{rollout} goes on")
        return

    async def end(session: Session) -> str:
        if await session.send(Kill(rollout, session.who)):
            return f"killed {rollout}"
        return f"{rollout} was not under way: it is queued, or has ended"

    host.ask_run(end)


_Event = ev.DurableEvent | ev.TransientEvent
_HISTORY = 200
"""Things that happened before the screen was opened: the journal has the rest."""


class Feed:
    """What comes from the run that is shown."""

    def __init__(
        self, page: Page, tracker: BatchTracker, cursor: BatchCursor, streams: Streams
    ) -> None:
        self._page, self._tracker, self._cursor, self._streams = page, tracker, cursor, streams
        self._attached: Session | None = None
        self._print_line: Callable[[_Event], object] | None = None
        self._place = (0, "")  # step and ending of the run at the last look

    @property
    def activity(self) -> Activity:
        return self._page.query_one(Activity)

    def handle_message(self, message: Message) -> None:
        match message:
            case TextReceived(pieces=pieces):
                for piece in pieces:
                    if self._streams.add_piece(piece):
                        self._tracker.handle_text(piece.rollout)
            case EventReceived(event=event):
                self._handle_event(event)
            case SnapshotReceived(events=events):
                self._handle_snapshot(events)
            case Disconnected(reason=reason, ended=ended):
                self._tracker.update(self._page.state)
                # Of a run that is over only the end of its process is told, and not as a failure.
                is_over = self._page.state is not None and bool(self._page.state.ending)
                if ended or not is_over:
                    self.activity.say(reason, "" if is_over else "failed")

    def _handle_snapshot(self, events: int | None) -> None:
        """The state is another object: everything that was taken from the old one is stale."""
        session, state = self._page.session, self._page.state
        anew = session is not self._attached
        self._attached = session
        self._print_line = None
        self._cursor.shows_past = False
        if anew:
            self.activity.clear_lines()
            self._cursor.position = 0
        self._tracker.handle_snapshot(state, anew=anew)
        self._place = (state.step, state.ending) if state is not None else (0, "")
        self._streams.handle_snapshot(anew)
        if session is not None and session.label:
            return  # of a replay the journal holds what has not been shown yet
        if session is not None and (anew or state is None or state.current is None):
            work = self._load_history(session, anew, events)
            self._page.run_worker(work, group="recall", exclusive=anew)

    def _handle_event(self, event: _Event) -> None:
        state, tracker = self._page.state, self._tracker
        tracker.update(state)
        begun, ended = tracker.take_changes()
        for name in begun:
            self._streams.reset(name)
        for name in ended:
            self._streams.mark_ended(name)
        place = (state.step, state.ending) if state is not None else (0, "")
        if place[0] != self._place[0]:
            self._cursor.position = 0
        if place[1] != self._place[1]:
            self._cursor.shows_past = False
        self._place = place
        if state is None:
            return
        if self._print_line is None:
            from studio.report.progress import LinePrinter

            self._print_line = LinePrinter(state, self.activity.say, detailed=True)
        self._print_line(event)

    async def _load_history(self, session: Session, anew: bool, events: int | None) -> None:
        """Let the activity begin with what the journal holds of the time before: so many events.

        What came since is told by its own events, also where the journal has it by now.
        """
        texts, batch = await asyncio.to_thread(load_event_history, session.run, events)
        # Else the screen was left.
        if session is self._attached and self._page.is_attached and self._page.children:
            if anew:
                self.activity.prepend_history(texts)
            self._tracker.restore_batch(batch, self._page.state)
            self._page.host.redraw_soon()


def load_event_history(
    run: RunDir, events: int | None = None
) -> tuple[tuple[tuple[float, str], ...], Batch | None]:
    """What happened in the first so many events, and the last batch of all of them. Blocks.

    Only the growing part of a long journal is read, which holds a step at least. Of what happened
    the newest things, oldest first, each with its seconds since the epoch.
    """
    from studio.report.progress import LinePrinter

    texts: deque[tuple[float, str]] = deque(maxlen=_HISTORY)
    now = 0.0
    batch: Batch | None = None

    def say(text: str) -> None:
        texts.append((now, text))

    try:
        state = load_closed(run.journal)[0].state
        print_line = LinePrinter(state, say, detailed=True)
        for entry in read_journal(run.journal, since=state.events):
            now = entry.at
            fold(state, entry.event)
            if state.current is not None and (batch is None or batch.step != state.step):
                batch = current_batch(state)  # its mappings go on being filled until it is through
            if events is None or state.events <= events:
                print_line(entry.event)
    except StudioError as error:  # a damaged journal: 5 says so, with the move
        say(str(error))
    return tuple(texts), batch
