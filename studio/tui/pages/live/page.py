"""The live page: groups of the batch under way, their rollouts as they stream, what happened."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.events import Hide
from textual.widget import Widget

from engines.core import errors
from engines.core import events as ev
from engines.core.state.fold import fold
from engines.core.state.run_state import RunState
from engines.core.text.tool_text import transcript_text
from engines.core.types import RecordRef, rollout_id
from engines.record.derived.run_state import load_closed
from engines.record.journal import read_journal
from engines.record.run_dir import RunDir
from studio.render.words import no_practice_text
from studio.secrets.sanitize import one_line, sanitize
from studio.session import requests
from studio.session import session as sessions
from studio.session.session import Session, TextPiece
from studio.tui.drawing.canvas import Mode, PaneModel, StreamCanvas
from studio.tui.drawing.lines import line, note_rows, paragraph
from studio.tui.keymap import bindings
from studio.tui.page import Host, Page
from studio.tui.pages.live import view
from studio.tui.pages.live.view import Batch, BatchTracker, RolloutStatus, StageClock, current_batch
from studio.tui.pages.progress.page import ProgressStrip
from studio.tui.terminal.textual_parts import is_visible
from studio.tui.widgets.line_view import Activity, Chrome, LineView, RowList

_ZOOMS: dict[Mode, str] = {
    "wall": "wall: every rollout of the batch, a line each",
    "group": "group: the rollouts of one problem side by side",
    "solo": "solo: one rollout alone",
}
_QUESTION_CHARS = 4_000
_HISTORY = 200
"""Things that happened before the screen was opened: the journal has the rest."""
_Event = ev.DurableEvent | ev.TransientEvent


class BatchCursor:
    """What of the batch is looked at: a group, at some zoom."""

    def __init__(self, page: Page, tracker: BatchTracker) -> None:
        self._page, self._tracker = page, tracker
        self.zoom: Mode | None = None  # None: as the width suggests
        self.position = 0  # of the group that is looked at
        self.shows_past = False  # the rollouts of a run that ended, instead of its summary
        self.shown_groups: tuple[int, ...] = ()  # positions that the filter leaves

    @property
    def batch(self) -> Batch | None:
        return self._tracker.batch if self._page.session is not None else None

    @property
    def is_narrow(self) -> bool:
        return self._page.app.size.width < 100

    @property
    def mode(self) -> Mode:
        return self.zoom or ("wall" if self.is_narrow else "group")

    @property
    def is_showing_end(self) -> bool:
        """Whether the summary of a run that ended is shown instead of rollouts."""
        state = self._page.state
        return state is not None and bool(state.ending) and not self.shows_past

    @property
    def is_measuring(self) -> bool:
        """Whether rollouts of an evaluation are shown instead of a batch."""
        return bool(self._page.session and self._tracker.held_out.rollouts)

    @property
    def is_showing_streams(self) -> bool:
        return (self.batch is not None or self.is_measuring) and not self.is_showing_end

    @property
    def group(self) -> str | None:
        """The id of the group that is looked at."""
        return self.batch.group(self.position) if self.batch and self.shown_groups else None

    def show_groups(self, positions: Sequence[int]) -> None:
        """Let the group that is looked at be one of these, if there are any."""
        self.shown_groups = tuple(positions)
        if self.shown_groups and self.position not in self.shown_groups:
            self.position = self.shown_groups[0]

    def find(self, name: str) -> tuple[int, int] | None:
        """The place of a rollout, a group or a problem: position and index."""
        batch = self.batch
        if batch is None:
            return None
        place = batch.place(name) or batch.place(f"{name}r0")
        if place is None and name in batch.problems:
            return batch.problems.index(name), 0
        return place

    def next_group(self, by: int) -> int | None:
        """The position of the shown group before or behind; None where none is shown."""
        shown = self.shown_groups
        if not shown or not self.is_showing_streams:
            return None
        at = shown.index(self.position) if self.position in shown else 0
        return shown[(at + by) % len(shown)]

    def rollout(self, name: str) -> RolloutStatus | None:
        """A rollout of the batch or of the evaluation, as it is now."""
        if measured := self._tracker.held_out.find(name):
            return measured
        place = self.batch.place(name) if self.batch else None
        if self.batch is None or place is None:
            return None
        return self.batch.rollout_at(*place, self._tracker.under_way)

    def shown_rollouts(self) -> Sequence[RolloutStatus]:
        """The rollouts that have a pane: all of the batch on the wall, else one group."""
        batch = self.batch
        if self.is_measuring:
            return self._tracker.held_out.rollouts
        if batch is None:
            return ()
        rollouts: list[RolloutStatus] = []
        for position in self.shown_groups if self.mode == "wall" else (self.position,):
            if position < len(batch.problems):  # it may be of the batch before
                rollouts += batch.group_rollouts(position, self._tracker.under_way)
        return rollouts


class Streams:
    """Brings texts to the canvas: streamed, and from the records once a rollout has ended."""

    def __init__(self, page: "LivePage") -> None:
        self._page = page
        self._subscribed: frozenset[str] = frozenset()

    def add_piece(self, piece: TextPiece) -> bool:
        """Take a piece in; False where nobody looks at its rollout."""
        canvas = self._page.wall.canvas
        pane = canvas.pane(piece.rollout)
        if pane is None:
            return False
        if piece.offset == 0:
            canvas.reset(piece.rollout, piece.text)
        elif piece.offset == pane.received:  # else it was sent before all was asked for again
            canvas.feed(piece.rollout, piece.text)
        return True

    def reset(self, name: str) -> None:
        """It begins again: what it said before is worth nothing any more."""
        canvas = self._page.wall.canvas
        if (pane := canvas.pane(name)) is not None:
            pane.is_read = False
            canvas.reset(name)

    def handle_snapshot(self, anew: bool) -> None:
        """The session knows nothing of what was subscribed to, or is another one."""
        self._subscribed = frozenset()
        if anew:
            self._page.wall.canvas.set_panes(())

    def subscribe(self) -> None:
        """Ask for the text under way of what is on screen, and read what has ended."""
        page, running = self._page, set[str]()
        ended: dict[str, Sequence[RecordRef]] = {}
        names = page.wall.canvas.visible_ids
        for name in names if page.is_open and page.cursor.is_showing_streams else ():
            rollout, pane = page.cursor.rollout(name), page.wall.canvas.pane(name)
            if rollout is None or pane is None:
                continue
            if not rollout.has_ended:
                running.add(name)
            elif not pane.is_read and rollout.refs:
                ended[name] = rollout.refs
                pane.is_read = True
        if page.session is not None and running != self._subscribed:
            self._subscribed = frozenset(running)
            page.session.subscribe(self._subscribed)
        if ended:
            page.run_worker(self.read_records(ended), group="texts")

    async def read_records(self, refs: dict[str, Sequence[RecordRef]]) -> None:
        session = self._page.session
        if session is None:
            return
        texts = await asyncio.to_thread(load_rollout_texts, session.run.records, refs)
        if session is not self._page.session or not self._page.is_attached:
            return  # another run, or the screen was left meanwhile
        for name, text in texts.items():
            self._page.wall.canvas.reset(name, text)
        self._page.host.redraw_soon()


def load_rollout_texts(folder: Path, refs: dict[str, Sequence[RecordRef]]) -> dict[str, str]:
    """Return the text of each rollout, or why its record cannot be read. Blocks."""
    from engines.record.ledger import read_trajectory

    texts = {}
    for name, records in refs.items():
        try:
            texts[name] = transcript_text(read_trajectory(folder, records))
        except errors.StudioError as error:
            texts[name] = f"its record cannot be read: {sanitize(str(error))}"
    return texts


class RolloutWall(Vertical):
    """Panes of rollouts; the page is drawn again where another group is chosen."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("list")]

    def __init__(self, page: "LivePage") -> None:
        super().__init__(id="live-right")
        self._page, self._cursor = page, page.cursor
        self.canvas = StreamCanvas(id="live-streams")
        self.placeholder = LineView(id="live-told", classes="pane")
        self.question = Chrome(id="live-question")  # what the selected problem asks

    def compose(self) -> ComposeResult:
        self._page.host.frame_clock.canvas = self.canvas
        yield Chrome(id="live-now")
        yield self.question
        yield self.canvas
        yield self.placeholder

    @property
    def focused_rollout(self) -> RolloutStatus | None:
        return self._cursor.rollout(self.canvas.focused_id)

    def draw(self, state: RunState | None) -> None:
        cursor, canvas = self._cursor, self.canvas
        canvas.display = self.question.display = cursor.is_showing_streams
        self.placeholder.display = not cursor.is_showing_streams
        if not cursor.is_showing_streams:
            canvas.set_panes(())
            self._draw_placeholder(state)
            return
        batch = cursor.batch
        caption = f"Wall  step {batch.step}" if batch else "Wall"
        if batch is not None and batch.acts:
            caption += f"  {view.ACTS_MEANING}"
        if cursor.is_measuring and (evaluating := self._page.tracker.evaluating):
            caption = f"Held-out problems of {one_line(evaluating.data, 40)}"
        canvas.set_mode(cursor.mode, caption, follows_below=cursor.is_narrow)
        canvas.set_panes([self._pane_model(rollout) for rollout in cursor.shown_rollouts()])
        self._draw_question()

    def _draw_question(self) -> None:
        """The whole question of the group or the rollout that keys mean, in few lines."""
        cursor, size = self._cursor, self.app.size
        problem, name = "", cursor.group or ""
        if cursor.is_measuring:
            rollout = self.focused_rollout
            problem, name = (rollout.problem, view.held_out_title(rollout)) if rollout else ("", "")
        elif cursor.batch is not None and cursor.group:
            problem = cursor.batch.problems[cursor.position]
        # The height stays, whoever is asked: another one draws all panes anew.
        height = 1 if size.height < 30 or cursor.mode == "wall" else 2
        question = self._page.questions.get(problem, one_line(problem, 40))
        lines = view.question_lines(name, question, self.size.width or size.width, height)
        self.question.styles.height = height
        for number in range(height):
            self.question.show_line(number, lines[number] if number < len(lines) else ())

    def _pane_model(self, rollout: RolloutStatus) -> PaneModel:
        tracker, batch, title = self._page.tracker, self._cursor.batch, ""
        node, pane = tracker.places.get(rollout.id, ""), self.canvas.pane(rollout.id)
        footer = f"on {one_line(node, 40)}" if node else ""
        if rollout.problem:
            title = view.held_out_title(rollout)
            footer = f"asked: {self._page.questions.get(rollout.problem, '')}"
        return view.pane_model(
            rollout,
            self._cursor.mode,
            pane is not None and pane.received > 0,
            acts=batch is not None and batch.acts,
            title=title,
            footer=footer,
        )

    def _draw_placeholder(self, state: RunState | None) -> None:
        title, lines = "Rollouts", [line(("rollouts appear here as they stream", "dim"))]
        if self._cursor.is_showing_end and state is not None:
            title = "How it ended"
            lines = view.run_summary_lines(state, self.placeholder.line_width)
        if str(self.placeholder.border_title or "") != title:
            self.placeholder.border_title = Text(title)
        self.placeholder.show_lines(lines)

    def choose(self, position: int, index: int = 0) -> None:
        """Look at a group, and let keys mean one of its rollouts."""
        if (batch := self._cursor.batch) is None:
            return
        self._cursor.position = position
        self._page.draw()
        self.canvas.focus_pane(rollout_id(batch.step, position, index))

    def choose_next_group(self, by: int) -> None:
        position = self._cursor.next_group(by)
        if self._cursor.is_measuring:
            self.canvas.move_focus(by, 0)
        elif position is None:
            self._page.host.tell("there is no group yet")
        else:
            self.choose(position)

    def on_stream_canvas_changed(self) -> None:
        """Other panes are in view, or keys mean another one, perhaps of another group."""
        place = self._cursor.find(self.canvas.focused_id)
        if place is not None and not self._cursor.is_measuring:
            self._cursor.position = place[0]
        self._page.draw_if_open()

    def toggle_follow(self) -> bool:
        """Stay where the text is, or go on with its end."""
        self._show_alone()  # only there a text can be scrolled, hence left or followed
        return self.canvas.toggle_follow()

    def toggle_tools(self) -> bool | None:
        """Fold the tool calls of the text that is read, or unfold them; None where it has none."""
        if self._cursor.mode == "wall" and self.canvas.has_tools:
            self._show_alone()  # on the wall each rollout has one line
        return self.canvas.toggle_tools()

    def _show_alone(self) -> None:
        if self._cursor.mode != "solo":
            self._cursor.zoom = "solo"
            self._page.host.draw_now()

    def move(self, across: int, down: int) -> None:
        """Between rollouts; on the wall across is between groups, alone down is in the text."""
        if not self._cursor.is_showing_streams:
            return
        if self._cursor.mode == "solo" and down:
            self.canvas.scroll_rows(down)
        elif self._cursor.mode == "wall" and across:
            self.choose_next_group(across)
        else:
            self.canvas.move_focus(across, down)

    def action_move(self, by: int) -> None:
        self.move(0, by)

    def action_move_page(self, by: int) -> None:
        if self._cursor.mode != "group":
            self.move(0, by * max(1, self.canvas.size.height // 2))

    def action_move_to_end(self, by: int) -> None:
        rollouts = self._cursor.shown_rollouts() if self._cursor.is_showing_streams else ()
        if self._cursor.mode == "solo":
            self.canvas.scroll_rows(by * 1_000_000)
        elif rollouts:
            self.canvas.focus_pane(rollouts[-1 if by > 0 else 0].id)

    def text_to_copy(self, whole: bool) -> str:
        """The text of the focused rollout, or of all that are shown."""
        if not whole:
            return self.canvas.pane_text(self.canvas.focused_id)
        rollouts = self._cursor.shown_rollouts()
        return "\n\n".join(f"{each.id}\n{self.canvas.pane_text(each.id)}" for each in rollouts)


class LivePage(Page):
    scope = "live"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings("live", "list")]

    def __init__(self) -> None:
        super().__init__()
        self.tracker = BatchTracker()
        self.cursor = BatchCursor(self, self.tracker)
        self.streams = Streams(self)
        self.wall = RolloutWall(self)
        self.activity = Activity(id="live-activity", classes="pane")
        self.questions: dict[str, str] = {}  # problem → what it asks, on one line
        self._asked: set[str] = set()  # problems that the process was asked about
        self._attached: Session | None = None
        self._print_line: Callable[[_Event], object] | None = None
        self._place = (0, "")  # step and ending of the run at the last look
        self._clock = StageClock()
        self._progress = ProgressStrip(id="live-progress")
        self._strip = Chrome(id="live-strip")  # the groups where there is no room for their list
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
        yield self.activity

    def initial_focus(self) -> Widget:
        return self.wall.canvas if self.cursor.is_showing_streams else self.wall.placeholder

    # -- drawing -------------------------------------------------------------------------

    def draw(self) -> None:
        """Show the run as it is now."""
        state, cursor = self.state, self.cursor
        self.tracker.update(state)
        self.has_nothing = cursor.batch is None and not cursor.is_measuring
        self._arrange()
        self._progress.draw(state)
        self._load_questions()
        self._draw_groups(state)
        self._draw_facts(state)
        self.wall.draw(state)
        self.activity.draw()
        self.streams.subscribe()

    def _draw_groups(self, state: RunState | None) -> None:
        """The groups of the batch that hold the filter's text, and their number."""
        batch, cursor, width = self.cursor.batch, self.cursor, self._groups.line_width - 2
        rows = view.group_rows(
            batch,
            self.tracker.under_way,
            self.filter_text,
            questions=self.questions,
            width=width,
        )
        places = (cursor.find(row.key) for row in rows)
        cursor.show_groups([place[0] for place in places if place is not None])
        if cursor.is_measuring:
            rows = []
        if rows:
            chosen = cursor.shown_groups.index(cursor.position)
            strip = view.strip_line(rows, chosen, self.app.size.width)
        else:
            nothing = no_practice_text(state) or "none under way"
            if cursor.is_measuring:
                nothing = "held-out problems are measured"
            elif batch and self.filter_text:
                nothing = f"none holds {one_line(self.filter_text, 16)!r}"
            rows = note_rows(paragraph([(nothing, "dim")], width))
            strip = ((" ", ""), *rows[0].line)
        self._groups.show_rows(rows, cursor.group)
        self._strip.show_line(0, strip)
        title = f"Groups {len(batch.problems)}" if batch and batch.problems else "Groups"
        if self._groups.size and (more := self._groups.more_text()):
            title += f"  {more}"
        under = f"filter: {one_line(self.filter_text, 20)}" if self.filter_text else ""
        # Setting one draws all that is in the pane.
        if str(self._left.border_title or "") != title:
            self._left.border_title = Text(title)
        if str(self._left.border_subtitle or "") != under:
            self._left.border_subtitle = Text(under)

    def _draw_facts(self, state: RunState | None) -> None:
        """The figures of the run, and the line that says what it does now."""
        batch, status, width = self.cursor.batch, self.host.session_status, self._facts.line_width
        facts = view.node_lines(self.tracker.nodes, self.tracker.places, width)
        facts += view.facts_lines(state, batch, status, width=width)
        self._facts.show_lines(facts)
        evaluating, doing = self.tracker.evaluating, self.tracker.doing
        now = view.status_line(state, batch, status, evaluating, doing=doing)
        now = self._clock.add_time(now, self.host.clock())
        self.query_one("#live-now", Chrome).show_line(0, now)

    def _arrange(self) -> None:
        """Which panes there are, from the size of the terminal and of the batch."""
        size = self.app.size
        self._left.display = not self.cursor.is_narrow
        has_strip = self.cursor.is_narrow and size.height >= 20
        self._strip.display = has_strip and self.cursor.is_showing_streams
        self._left.styles.width = 34 if size.width < 120 else 40 if size.width < 170 else 56
        self.activity.display = size.height >= 20
        self.activity.styles.height = 6 if size.height >= 30 else 4
        # Groups have a line each while the figures and stages keep theirs; 15 rows are of others.
        least, most = (13, 26) if self.state is not None and self.state.trains_weights else (9, 19)
        batch = None if self.cursor.is_measuring else self.cursor.batch
        groups = min(12, len(batch.problems) if batch else 5)
        room = max(least, size.height - 15 - groups)
        self._facts.styles.height = max(0, min(most, size.height - 17, room))
        # Give the focus to what there is where the pane that had it is not drawn any more.
        focused = self.app.focused
        is_lost = focused is None or (self in focused.ancestors and not is_visible(focused))
        if is_lost and self.is_open and self.app.screen is self.screen:
            self.initial_focus().focus(scroll_visible=False)

    def on_row_list_moved(self, moved: RowList.Moved) -> None:
        place = self.cursor.find(moved.key) if moved.is_current else None
        if place is not None and place[0] != self.cursor.position:
            self.wall.choose(place[0])

    def on_hide(self, event: Hide) -> None:
        self.streams.subscribe()  # to nothing, as it is not open any more

    def _load_questions(self) -> None:
        """Ask the run's process what the problems in view ask, once for each."""
        problems = {rollout.problem for rollout in self.tracker.held_out.rollouts}
        if self.cursor.batch is not None:
            problems |= set(self.cursor.batch.problems)
        new = problems - self._asked
        session = self.session
        if session is not None and session.living and new:
            self._asked |= new
            self.run_worker(self._read_questions(session, sorted(new)), group="questions")

    async def _read_questions(self, session: Session, problems: Sequence[str]) -> None:
        questions: Mapping[str, str] = {}
        with contextlib.suppress(errors.StudioError):  # its process may have just ended
            questions = await session.send(requests.ReadQuestions(tuple(problems)))
        for problem, question in questions.items():
            self.questions[problem] = one_line(question, _QUESTION_CHARS)
        if questions and self.is_attached:
            self.host.redraw_soon()

    # -- what comes from the run -----------------------------------------------------------

    def handle_message(self, message: sessions.Message) -> None:
        match message:
            case sessions.TextReceived(pieces=pieces):
                for piece in pieces:
                    if self.streams.add_piece(piece):
                        self.tracker.handle_text(piece.rollout)
            case sessions.EventReceived(event=event):
                self._handle_event(event)
            case sessions.SnapshotReceived(events=events):
                self._handle_snapshot(events)
            case sessions.Disconnected(reason=reason, ended=ended):
                self.tracker.update(self.state)
                # Of a run that is over only the end of its process is told, and not as a failure.
                is_over = self.state is not None and bool(self.state.ending)
                if ended or not is_over:
                    self.activity.say(reason, "" if is_over else "failed")

    def _handle_snapshot(self, events: int | None) -> None:
        """The state is another object: everything that was taken from the old one is stale."""
        session, state = self.session, self.state
        anew = session is not self._attached
        self._attached = session
        self._print_line = None
        self.cursor.shows_past = False
        if anew:
            self.activity.clear_lines()
            self.cursor.position = 0
            self._asked.clear()
        self.tracker.handle_snapshot(state, anew=anew)
        self._place = (state.step, state.ending) if state is not None else (0, "")
        self.streams.handle_snapshot(anew)
        if session is None or session.label:
            return  # of a replay the journal holds what has not been shown yet
        if anew or state is None or state.current is None:
            work = self._load_history(session, anew, events)
            self.run_worker(work, group="recall", exclusive=anew)

    def _handle_event(self, event: _Event) -> None:
        state = self.state
        self.tracker.update(state)
        for name in self.tracker.take_begun():
            self.streams.reset(name)
        if state is None:
            return
        step, ending = self._place
        self._place = (state.step, state.ending)
        if state.step != step:
            self.cursor.position = 0
        if state.ending != ending:
            self.cursor.shows_past = False
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
        if session is self._attached and self.is_attached and self.children:
            if anew:
                self.activity.prepend_history(texts)
            self.tracker.restore_batch(batch, self.state)
            self.host.redraw_soon()

    # -- keys ----------------------------------------------------------------------------

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
        if self.app.focused is self._groups:
            self.cursor.zoom = "group"
        else:
            rollout = self.wall.focused_rollout
            if rollout is not None and rollout.has_ended:
                self.host.open_page("inspect", rollout.id)
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
        if not self.cursor.is_showing_streams:
            self._show_last_rollouts()
            return
        zooms = list(_ZOOMS)
        self.cursor.zoom = zooms[(zooms.index(self.cursor.mode) + 1) % len(zooms)]
        self.host.draw_now()
        self.host.tell(_ZOOMS[self.cursor.mode])

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
        rollout = self.wall.focused_rollout if self.cursor.is_showing_streams else None
        if rollout is None or rollout.has_ended:
            self.host.tell("no rollout under way is under the cursor", "failed")
            return
        self.run_worker(_kill_rollout(self.host, rollout.id))


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
        if await session.send(requests.Kill(rollout, session.who)):
            return f"killed {rollout}"
        return f"{rollout} was not under way: it is queued, or has ended"

    host.ask_run(end)


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
    except errors.StudioError as error:  # a damaged journal: 5 says so, with the move
        say(str(error))
    return tuple(texts), batch
