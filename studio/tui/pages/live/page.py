"""The live page: groups of the batch under way, their rollouts as they stream, what happened."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
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
from engines.core.text.tool_text import transcript_text
from engines.core.types import RecordRef, rollout_id
from engines.record.derived.run_state import load_closed
from engines.record.journal import read_journal
from engines.record.run_dir import RunDir
from studio.render.words import no_practice_text
from studio.secrets.sanitize import one_line, sanitize
from studio.session.requests import Kill, ReadQuestions
from studio.session.session import (
    Disconnected,
    EventReceived,
    Message,
    Session,
    SnapshotReceived,
    TextPiece,
    TextReceived,
)
from studio.tui.drawing.canvas import Mode, PaneModel, StreamCanvas
from studio.tui.drawing.cells import Glyphs, choose_glyphs
from studio.tui.drawing.lines import line, note_rows, paragraph
from studio.tui.keymap import bindings
from studio.tui.page import Host, Page
from studio.tui.pages.live import view
from studio.tui.pages.live.view import Batch, BatchTracker, RolloutStatus, StageClock, current_batch
from studio.tui.pages.progress.page import ProgressStrip
from studio.tui.terminal.look import wants_ascii
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
            from studio.report.progress import ActivityPrinter

            self._print_line = ActivityPrinter(state, self.activity.say)
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
    from studio.report.progress import ActivityPrinter

    texts: deque[tuple[float, str]] = deque(maxlen=_HISTORY)
    now = 0.0
    batch: Batch | None = None

    def say(text: str) -> None:
        texts.append((now, text))

    try:
        state = load_closed(run.journal)[0].state
        print_line = ActivityPrinter(state, say)
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


_ZOOMS: tuple[Mode, ...] = ("wall", "group", "solo")


class BatchCursor:
    """The cursor of one page: its run and the size of its terminal count."""

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
        """Whether tries of an evaluation are shown instead of a batch."""
        return bool(self._page.session and self._tracker.held_out.tries)

    @property
    def is_showing_streams(self) -> bool:
        return (self.batch is not None or self.is_measuring) and not self.is_showing_end

    @property
    def left_width(self) -> int:
        """Cells of the column of groups."""
        width = self._page.app.size.width
        return 34 if width < 120 else 40 if width < 170 else 56

    @property
    def group(self) -> str | None:
        """The id of the group that is looked at."""
        return self.batch.group(self.position) if self.batch and self.shown_groups else None

    def show_groups(self, ids: Sequence[str]) -> None:
        """Let the group that is looked at be one of these, if there are any."""
        found = map(self.find_group, ids)
        self.shown_groups = tuple(at for at in found if at is not None)
        if self.shown_groups and self.position not in self.shown_groups:
            self.position = self.shown_groups[0]

    def find_group(self, group: str) -> int | None:
        """The position of a group by its id."""
        place = self.batch.place(f"{group}r0") if self.batch and group else None
        return place[0] if place is not None else None

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
        if self.batch is None or not shown or not self.is_showing_streams or self.is_measuring:
            return None
        at = shown.index(self.position) if self.position in shown else 0
        return shown[(at + by) % len(shown)]

    def rollout(self, name: str | None) -> RolloutStatus | None:
        """A rollout of the batch, or a try of the evaluation, as it is now."""
        if held_out := self._tracker.held_out.find(name or ""):
            return held_out.shown
        place = self.batch.place(name or "") if self.batch else None
        if self.batch is None or place is None:
            return None
        return self.batch.rollout_at(*place, self._tracker.under_way)

    def shown_rollouts(self) -> Sequence[RolloutStatus]:
        """What the canvas holds: the whole batch on the wall, else as many groups as fit."""
        batch, under_way = self.batch, self._tracker.under_way
        if self.is_measuring:
            return [one.shown for one in self._tracker.held_out.tries]
        if batch is None:
            return ()
        shown = self.shown_groups if self.mode == "wall" else (self.position,)
        known = [at for at in shown if at < len(batch.problems)]  # they may be of the batch before
        return [one for at in known for one in batch.group_rollouts(at, under_way)]

    def zoom_in(self) -> Mode:
        """To the next zoom, from the last to the first."""
        self.zoom = _ZOOMS[(_ZOOMS.index(self.mode) + 1) % len(_ZOOMS)]
        return self.zoom


CHARS_A_TOKEN = 4
"""Roughly, of English: what a text under way is estimated by."""
_LEAST_TOKENS = 16


_Canvases = Callable[[], tuple[StreamCanvas, StreamCanvas]]


class Streams:
    """Texts of the rollouts that are looked at.

    `canvases` finds the canvas of all rollouts, and that of one, which is followed.
    """

    def __init__(self, page: Page, cursor: BatchCursor, canvases: _Canvases) -> None:
        self._page, self._cursor, self._canvases = page, cursor, canvases
        self._known: dict[str, int] = {}  # rollout → characters heard or read
        self._whole: set[str] = set()  # rollouts of which there is no more to come
        self._awaited: set[str] = set()  # whose text was asked for and has not begun to come
        self._asked: frozenset[str] = frozenset()  # subscribed to
        self._held: frozenset[str] = frozenset()  # ids of panes
        self._reading: set[str] = set()  # under way from the records

    def has_text(self, rollout: str) -> bool:
        return self._known.get(rollout, 0) > 0

    def estimate(self, rollout: str) -> int | None:
        """Tokens of its text so far, about; None while that says nothing."""
        tokens = self._known.get(rollout, 0) // CHARS_A_TOKEN
        return tokens if tokens >= _LEAST_TOKENS else None

    def add_piece(self, piece: TextPiece) -> bool:
        """Take a piece in; False where nobody looks at its rollout."""
        name, offset = piece.rollout, piece.offset
        if name not in self._held:
            return False
        if offset not in (0, self._known.get(name, 0)):
            # Sent before it was asked for anew, or else it is of another text than is here.
            if name not in self._awaited:
                asked = self._asked
                self._subscribe(asked - {name})
                self._subscribe(asked)
            return True
        if offset:
            for canvas in self._canvases():
                canvas.feed(name, piece.text)
        else:
            self._awaited.discard(name)
            self._set_text(name, piece.text)
        self._known[name] = offset + len(piece.text)
        return True

    def _set_text(self, name: str, text: str) -> None:
        for canvas in self._canvases():
            canvas.reset(name, text)

    def reset(self, name: str) -> None:
        """It begins anew: what it said before is worth nothing any more."""
        self._whole.discard(name)
        if self._known.pop(name, 0):
            self._set_text(name, "")

    def mark_ended(self, name: str) -> None:
        """Nothing more will be streamed of it; what was not heard is in the records."""
        if self._known.get(name) and name in self._asked - self._awaited:
            self._whole.add(name)
        self._awaited.discard(name)

    def handle_snapshot(self, anew: bool) -> None:
        """The session knows nothing of what was subscribed to, or is another one."""
        self._asked = frozenset()
        if anew:
            self.prune(())

    def prune(self, held: Collection[str]) -> None:
        """The canvas holds these alone from now on; it forgets the texts of others."""
        now = frozenset(held)
        gone = self._held - now
        self._held = now
        for name in gone:
            self._known.pop(name, None)
        self._whole -= gone
        self._awaited -= gone
        if gone & self._asked and self._page.session is not None:
            # Else they would go on from where they were when they are looked at again.
            self._subscribe(self._asked - gone)

    def subscribe(self) -> None:
        """Ask for the text under way of what is on screen, and read what has ended."""
        if not self._page.is_open or not self._cursor.is_showing_streams:
            self.unsubscribe()
            return
        wanted: set[str] = set()
        ended: dict[str, Sequence[RecordRef]] = {}
        for name in self._canvases()[0].visible_ids:
            one = self._cursor.rollout(name)
            if one is None:
                continue
            if not one.has_ended:
                wanted.add(name)
            elif name not in self._whole and name not in self._reading and one.refs:
                ended[name] = one.refs
        if wanted != self._asked:
            self._subscribe(frozenset(wanted))
        if ended:
            self._reading |= ended.keys()
            self._page.run_worker(self.read_records(ended), group="texts")

    def unsubscribe(self) -> None:
        """Nobody looks: ask for no text."""
        if self._asked:
            self._subscribe(frozenset())

    def _subscribe(self, wanted: frozenset[str]) -> None:
        session = self._page.session
        if session is None:
            return
        self._awaited = (self._awaited & wanted) | (wanted - self._asked)
        self._asked = wanted
        session.subscribe(wanted)

    async def read_records(self, refs: dict[str, Sequence[RecordRef]]) -> None:
        session = self._page.session
        if session is None:
            return
        try:
            texts = await asyncio.to_thread(load_rollout_texts, session.run.records, refs)
        finally:
            self._reading -= refs.keys()
        if session is not self._page.session or not self._page.is_attached:
            return  # another run, or the screen was left meanwhile
        for name, text in texts.items():
            if name in self._held:
                self._set_text(name, text)
                self._known[name] = len(text)
                self._whole.add(name)
        self._page.host.redraw_soon()


def load_rollout_texts(folder: Path, refs: dict[str, Sequence[RecordRef]]) -> dict[str, str]:
    """What each rollout said, from its records; why not, where they cannot be read. Blocks."""
    from engines.record.ledger import read_trajectory

    texts = {}
    for name, of_one in refs.items():
        try:
            texts[name] = transcript_text(read_trajectory(folder, of_one))
        except StudioError as error:
            texts[name] = f"its record cannot be read: {sanitize(str(error))}"
    return texts


_Refs = Mapping[str, Sequence[RecordRef]]  # problem → where a try at it is recorded, if one is
_MOST_CHARS = 4_000


class Questions:
    """What the problems of one run ask: told by its process, else found in its records."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.known: dict[str, str] = {}  # on one line each
        self._session: Session | None = None  # that was asked: another one may know
        # Problems with where they were looked for: once there is a record it may tell.
        self._tried: set[tuple[str, Sequence[RecordRef]]] = set()

    def load(self, wanted: _Refs) -> None:
        """Find out about those that are not known, unless that was tried."""
        if self._page.session is not self._session:
            self._session = self._page.session
            self._tried.clear()
        unknown = {(name, refs) for name, refs in wanted.items() if name not in self.known}
        new = unknown - self._tried
        if new and self._session is not None:
            self._tried |= new
            self._page.run_worker(self._load(dict(new)), group="questions")

    async def _load(self, new: _Refs) -> None:
        session = self._page.session
        if session is None:
            return
        found = dict[str, str]()
        if session.living:
            with contextlib.suppress(StudioError):  # its process may have just ended
                questions = await session.send(ReadQuestions(tuple(sorted(new))))
                found.update(questions)
        left = {name: refs for name, refs in new.items() if refs and name not in found}
        if left:
            found |= await asyncio.to_thread(load_questions, session.run.records, left)
        if session is self._page.session and self._page.is_attached:
            self.known |= {name: one_line(text, _MOST_CHARS) for name, text in found.items()}
            self._page.host.redraw_soon()


def load_questions(folder: Path, refs: _Refs) -> dict[str, str]:
    """What the first turns of these tries asked, as far as their records can be read. Blocks."""
    from engines.record.ledger import read_trajectory

    found: dict[str, str] = {}
    for name, of_one in refs.items():
        try:
            messages = read_trajectory(folder, of_one)
        except StudioError:
            continue  # its pane says so
        if asked := next((m.content for m in messages if m.role == "user"), ""):
            found[name] = asked
    return found


class RolloutWall(Vertical):
    """Panes of rollouts; the page is drawn again where another group is chosen."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("list")]

    def __init__(
        self,
        page: Page,
        tracker: BatchTracker,
        cursor: BatchCursor,
        streams: Streams,
        questions: Questions,
    ) -> None:
        super().__init__(id="live-right")
        self._page, self._tracker, self._cursor = page, tracker, cursor
        self._streams, self._questions = streams, questions
        self._acts = False  # whether tries of the batch call tools
        self.placeholder = LineView(id="live-told", classes="pane")
        self.question = Chrome(id="live-question")  # what the selected problem asks

    def compose(self) -> ComposeResult:
        plain = self.uses_ascii
        self.canvas = StreamCanvas(ascii=plain, id="live-streams")
        # The text of one rollout, under the wall of a narrow screen.
        self.followed = StreamCanvas(ascii=plain, id="live-followed")
        self.followed.can_focus = False
        self.followed.set_mode("solo")
        yield Chrome(id="live-now")
        yield self.question
        yield self.canvas
        yield self.placeholder
        yield self.followed

    @property
    def uses_ascii(self) -> bool:
        return wants_ascii(self._page.host.settings, self._page.host.environ)

    @property
    def canvases(self) -> tuple[StreamCanvas, StreamCanvas]:
        return self.canvas, self.followed

    @property
    def focused_rollout(self) -> RolloutStatus | None:
        return self._cursor.rollout(self.canvas.focused_id)

    def arrange_panes(self) -> None:
        """Which panes there are, from the size of the terminal alone."""
        height, cursor = self.app.size.height, self._cursor
        streams = cursor.is_showing_streams
        self.canvas.display = streams
        self.placeholder.display = not streams
        self.question.display = streams
        has_room = cursor.is_narrow and height >= 20
        self.followed.display = streams and has_room and cursor.mode == "wall"

    def draw(self, state: RunState | None, signs: Glyphs) -> None:
        if not self._cursor.is_showing_streams:
            for canvas in self.canvases:
                canvas.set_panes(())
            self._streams.prune(())
            self._draw_placeholder(state, signs)
            return
        cursor, canvas, batch = self._cursor, self.canvas, self._cursor.batch
        rollouts, mode = cursor.shown_rollouts(), cursor.mode
        self._streams.prune([one.id for one in rollouts])
        canvas.set_mode(mode)
        self._acts = batch is not None and batch.acts
        models = [self._pane_model(one, mode) for one in rollouts]
        canvas.set_panes(models)
        caption = f"Wall  step {batch.step}" if batch else "Wall"
        if self._acts:
            caption += f"  {view.ACTS_MEANING}"
        if cursor.is_measuring and self._tracker.evaluating is not None:
            caption = f"Held-out problems of {one_line(self._tracker.evaluating.data, 40)}"
        canvas.set_caption(caption if mode == "wall" else "")
        self._draw_question()
        self._draw_followed()

    def _draw_question(self) -> None:
        """The whole question of the group or the try that keys mean, in few lines."""
        cursor, known, size = self._cursor, self._questions.known, self.app.size
        problem, name = "", cursor.group or ""
        if cursor.is_measuring:
            one = self._tracker.held_out.find(self.canvas.focused_id or "")
            problem, name = (one.problem, f"problem {one.shown.position + 1}") if one else ("", "")
        elif cursor.batch is not None and cursor.group:
            problem = cursor.batch.problems[cursor.position]
        # The height stays, whoever is asked: another one draws all panes anew.
        height = 1 if size.height < 30 or cursor.mode == "wall" else 2
        asked = known.get(problem, one_line(problem, 40))
        lines = view.question_lines(name, asked, self.size.width or size.width, height)
        self.question.styles.height = height
        for number in range(height):
            self.question.show_line(number, lines[number] if number < len(lines) else ())

    def _draw_followed(self) -> None:
        one, followed = self.focused_rollout, self.followed
        if one is None or not followed.display:
            followed.set_panes(())
            return
        before = followed.focused_id
        followed.set_panes([self._pane_model(one, "solo")])
        if before != one.id:
            followed.reset(one.id, self.canvas.pane_text(one.id, marked=True))

    def _pane_model(self, one: RolloutStatus, mode: Mode) -> PaneModel:
        estimate, has_text = self._streams.estimate(one.id), self._streams.has_text(one.id)
        evaluating, found = self._tracker.evaluating, self._tracker.held_out.find(one.id)
        if evaluating is not None and found is not None:
            asked = self._questions.known.get(found.problem, "")
            return view.held_out_model(found, evaluating, mode, asked, has_text)
        node = self._tracker.places.get(one.id, "")
        return view.pane_model(one, mode, estimate, has_text, acts=self._acts, node=node)

    def _draw_placeholder(self, state: RunState | None, signs: Glyphs) -> None:
        shown = self.placeholder
        if self._cursor.is_showing_end and state is not None:
            title = "How it ended"
            found = view.run_summary_lines(state, shown.line_width, signs)
        else:
            title = "Rollouts"
            found = [line(("rollouts appear here as they stream", "dim"))]
        if str(shown.border_title or "") != title:
            shown.border_title = Text(title)
        shown.show_lines(found)

    def choose(self, position: int, index: int = 0) -> None:
        """Look at a group, and let keys mean one of its rollouts."""
        if (batch := self._cursor.batch) is None:
            return
        self._cursor.position = position
        self._page.draw()
        self.canvas.focus_pane(rollout_id(batch.step, position, index))
        self._draw_followed()
        self._streams.subscribe()

    def choose_next_group(self, by: int) -> None:
        position = self._cursor.next_group(by)
        if self._cursor.is_measuring:
            self.canvas.move_focus(by, 0)
        elif position is None:
            self._page.host.tell("there is no group yet")
        else:
            self.choose(position)

    def on_stream_canvas_focus_changed(self, moved: StreamCanvas.FocusChanged) -> None:
        batch = self._cursor.batch
        place = batch.place(moved.id) if batch else None
        if self._cursor.is_measuring:
            self._page.draw()
        if place is None or moved.id != self.canvas.focused_id:
            return
        if place[0] != self._cursor.position:
            self._cursor.position = place[0]
            self._page.draw()
        self._draw_followed()
        self._streams.subscribe()

    def on_stream_canvas_visible_changed(self) -> None:
        self._streams.subscribe()

    @property
    def _reading_canvas(self) -> StreamCanvas:
        """The canvas in which a text is read at length."""
        return self.followed if self.followed.display else self.canvas

    def toggle_follow(self) -> bool:
        """Stay where the text is, or go on with its end."""
        if not self.followed.display and self._cursor.mode != "solo":
            self._cursor.zoom = "solo"  # only there a text can be scrolled, hence left or followed
            self._page.host.draw_now()
        return self._reading_canvas.toggle_follow()

    def toggle_tools(self) -> bool | None:
        """Fold the tool calls of the text that is read, or unfold them; None where it has none."""
        if not self.followed.display and self._cursor.mode == "wall" and self.canvas.has_tools:
            self._cursor.zoom = "solo"  # on the wall each rollout has one line
            self._page.host.draw_now()
        return self._reading_canvas.toggle_tools()

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
        if self._cursor.mode == "wall" and not self.followed.display:
            self.canvas.move_focus(0, by * max(1, self.canvas.size.height // 2))
        else:
            self._reading_canvas.scroll_rows(by * max(1, self._reading_canvas.size.height // 2))

    def action_move_to_end(self, by: int) -> None:
        if self._cursor.mode == "solo":
            self.canvas.scroll_rows(by * 1_000_000)
        elif self._cursor.is_showing_streams and (shown := self._cursor.shown_rollouts()):
            self.canvas.focus_pane(shown[-1 if by > 0 else 0].id)

    def text_to_copy(self, whole: bool) -> str:
        """The text of the focused rollout, or of all that are shown."""
        if whole and self._cursor.batch is not None:
            shown = self._cursor.shown_rollouts()
            return "\n\n".join(f"{one.id}\n{self.canvas.pane_text(one.id)}" for one in shown)
        return self.canvas.pane_text(self.canvas.focused_id or "")
