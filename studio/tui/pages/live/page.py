"""The live page: groups of the batch under way, their rollouts as they stream, what happened.

Owns which rollouts are looked at, and asks the run for the text of those alone. What the lines
say is `studio.tui.pages.live.view`'s and `studio.tui.pages.live.sentences`'s.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import replace
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.events import Hide
from textual.widget import Widget

from engines.core import events as ev
from engines.core.state.run_state import RunState
from engines.core.types import rollout_id
from studio.report.training import is_fine_tuning
from studio.secrets.sanitize import one_line
from studio.session.base import (
    Disconnected,
    EventReceived,
    Message,
    Session,
    SnapshotReceived,
    TextReceived,
)
from studio.tui.drawing import themes
from studio.tui.drawing.canvas import PaneModel, StreamCanvas
from studio.tui.drawing.cells import choose_glyphs
from studio.tui.drawing.layout import Mode
from studio.tui.drawing.lines import Row, line
from studio.tui.keymap import Key, bindings
from studio.tui.page import Page
from studio.tui.pages import training_view
from studio.tui.pages.live import sentences, view
from studio.tui.pages.live.batch import Batch, RolloutStatus
from studio.tui.pages.live.batch_tracker import BatchTracker
from studio.tui.pages.live.streams import Streams
from studio.tui.widgets.activity import Activity
from studio.tui.widgets.chrome import Chrome
from studio.tui.widgets.line_view import LineView
from studio.tui.widgets.row_list import RowList

_ESTIMATE_EVERY_S = 1.0
"""Between two estimates of how many tokens a text under way has: each costs bytes a pane."""
_ZOOMS: tuple[Mode, ...] = ("wall", "group", "solo")
_ZOOM_WORDS = {
    "wall": "wall: every rollout of the batch, a line each",
    "group": "group: the rollouts of one problem side by side",
    "solo": "solo: one rollout alone",
}


class LivePage(Page):
    """Rollouts as they stream."""

    scope = "live"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings("live", "list")]
    DEFAULT_CSS = """
    LivePage { layout: vertical; }
    LivePage #live-top { height: 1fr; }
    LivePage #live-left { width: 34; }
    LivePage #live-groups { height: 1fr; }
    LivePage #live-facts { height: 18; }
    LivePage #live-right { width: 1fr; }
    LivePage #live-now, LivePage #live-strip { height: 1; }
    LivePage #live-training { height: 2; }
    LivePage #live-streams, LivePage #live-told { height: 1fr; }
    LivePage #live-followed { height: 6; }
    LivePage #live-activity { height: 6; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.streams = Streams(self)
        self.zoom: Mode | None = None  # None: as the width suggests
        self.watched = BatchTracker()
        self._position = 0  # of the group that is looked at
        self._past = False  # the rollouts of a run that ended are looked at, not its summary
        self._attached: Session | None = None
        self._narrate: Callable[[ev.DurableEvent | ev.TransientEvent], None] | None = None
        self._estimated_at = float("-inf")
        self._estimates: dict[str, int] = {}

    def compose(self) -> ComposeResult:
        ascii_only = self._uses_ascii
        yield Chrome(id="live-strip")
        yield Chrome(id="live-training")
        with Horizontal(id="live-top"):
            with Vertical(id="live-left", classes="pane"):
                yield RowList(id="live-groups")
                yield LineView(id="live-facts")
            with Vertical(id="live-right"):
                yield Chrome(id="live-now")
                yield StreamCanvas(ascii=ascii_only, id="live-streams")
                yield LineView(id="live-told", classes="pane")
                yield StreamCanvas(ascii=ascii_only, id="live-followed")
        yield Activity(id="live-activity", classes="pane")

    def on_mount(self) -> None:
        self.query_one("#live-facts", LineView).can_focus = False
        self.query_one("#live-followed", StreamCanvas).can_focus = False
        self._followed_canvas.set_mode("solo")

    # -- what there is -------------------------------------------------------------------------

    @property
    def _uses_ascii(self) -> bool:
        wanted = self.host.settings.ascii
        if wanted is not None:
            return wanted
        encoding = getattr(sys.__stderr__, "encoding", None)
        return themes.needs_ascii(self.host.environ, encoding)

    @property
    def shown_batch(self) -> Batch | None:
        """The batch that is looked at."""
        return self.watched.batch if self.session is not None else None

    @property
    def under_way(self) -> Set[str]:
        return self.watched.under_way

    @property
    def current_evaluation(self) -> ev.EvaluationProgressed | None:
        return self.watched.evaluating

    @property
    def canvas(self) -> StreamCanvas:
        return self.query_one("#live-streams", StreamCanvas)

    @property
    def _followed_canvas(self) -> StreamCanvas:
        return self.query_one("#live-followed", StreamCanvas)

    @property
    def canvases(self) -> tuple[StreamCanvas, StreamCanvas]:
        """The rollouts, and the one that is followed on a narrow screen."""
        return self.canvas, self._followed_canvas

    @property
    def activity(self) -> Activity:
        return self.query_one(Activity)

    @property
    def _groups(self) -> RowList:
        return self.query_one("#live-groups", RowList)

    @property
    def _is_narrow(self) -> bool:
        return self.app.size.width < 100

    @property
    def _shows_brief_training(self) -> bool:
        """Whether figures of training stand above the rollouts, for want of a column."""
        trains = self.state is not None and self.state.trains_weights
        return trains and self._is_narrow and self.app.size.height >= 20

    @property
    def mode(self) -> Mode:
        return self.zoom or ("wall" if self._is_narrow else "group")

    @property
    def is_showing_end(self) -> bool:
        """Whether the summary of a run that ended stands where rollouts would."""
        return self.state is not None and bool(self.state.ending) and not self._past

    @property
    def is_showing_streams(self) -> bool:
        return self.shown_batch is not None and not self.is_showing_end

    @property
    def focused_rollout(self) -> RolloutStatus | None:
        """The rollout that keys mean."""
        place = self.shown_batch.place(self.canvas.focused_id or "") if self.shown_batch else None
        return (
            self.shown_batch.rollout_at(*place, self.under_way)
            if self.shown_batch and place
            else None
        )

    def initial_focus(self) -> Widget | None:
        return self.canvas if self.is_showing_streams else self.query_one("#live-told")

    # -- hearing -------------------------------------------------------------------------------

    def handle_message(self, message: Message) -> None:
        match message:
            case TextReceived(pieces=pieces):
                for piece in pieces:
                    if self.streams.add_piece(piece):
                        self.watched.handle_text(piece.rollout)
            case EventReceived(event=event):
                self._handle_event(event)
            case SnapshotReceived(under_way=under_way):
                self._handle_snapshot(under_way)
            case Disconnected(reason=reason):
                self.watched.handle_disconnect()
                self.activity.say(reason, "failed")

    def _handle_snapshot(self, under_way: Collection[str] | None) -> None:
        """The state is another object: everything that was taken from the old one is stale."""
        session = self.session
        anew = session is not self._attached
        self._attached = session
        self._narrate = None
        self._past = False
        if anew:
            self.activity.clear_lines()
            self._position = 0
        self.watched.handle_snapshot(self.state, under_way, anew=anew)
        self.streams.handle_snapshot(anew)
        if session is not None and (anew or self.state is None or self.state.current is None):
            self.run_worker(self._load_history(session, anew), group="recall", exclusive=anew)

    def _handle_event(self, event: ev.DurableEvent | ev.TransientEvent) -> None:
        self.watched.handle_event(event, self.state)
        match event:
            case ev.RolloutStarted(key=key) if key.purpose == "rollout":
                self.streams.reset(rollout_id(key.step, key.position, key.index))
            case ev.RolloutFinished():
                self.streams.mark_ended(rollout_id(event.step, event.position, event.index))
            case ev.StepStarted():
                self._position = 0
            case ev.RunEnded() | ev.RunResumed():
                self._past = False
        trains = self.state is not None and self.state.trains_weights
        shown = self.state is not None and is_fine_tuning(self.state)
        said = sentences.event_texts(event, trains=trains, shown=shown)
        if said is None:
            self._say_progress(event)
        else:
            for text in said:
                self.activity.say(text)

    def _say_progress(self, event: ev.DurableEvent | ev.TransientEvent) -> None:
        """What `studio headless` would say of it."""
        if self.state is None:
            return
        if self._narrate is None:
            from studio.report.progress import LinePrinter

            self._narrate = LinePrinter(self.state, self.activity.say)
        self._narrate(event)

    async def _load_history(self, session: Session, anew: bool) -> None:
        """Let the activity begin with what the journal tells of the time before."""
        from studio.tui.pages.live.event_history import load_event_history

        before = await asyncio.to_thread(load_event_history, session.run)
        if session is self._attached:
            if anew:
                self.activity.prepend_history(before.told)
            self.watched.restore_batch(before.batch, self.state)
            self.host.redraw_soon()

    # -- drawing -------------------------------------------------------------------------------

    def draw(self) -> None:
        state, facts = self.state, self.host.session_status
        self.watched.update(state)
        signs = choose_glyphs(self._uses_ascii)
        self._arrange()
        rows = view.group_rows(self.shown_batch, self.under_way, self.filter_text, signs)
        self._select_visible_group(rows)
        here = self.shown_batch.group(self._position) if self.shown_batch and rows else None
        self._groups.show_rows(rows or _no_groups_rows(self.shown_batch, self.filter_text), here)
        shown = self.query_one("#live-facts", LineView)
        shown.show_lines(
            view.facts_lines(
                state, self.shown_batch, facts, self.current_evaluation, shown.line_width, signs
            )
        )
        self._draw_now_line(state)
        strip = view.strip_line(
            self.shown_batch, self.under_way, self._position, self.app.size.width, signs
        )
        self.query_one("#live-strip", Chrome).show_line(0, strip)
        if self._shows_brief_training and state is not None:
            brief = self.query_one("#live-training", Chrome)
            for number, each in enumerate(
                training_view.brief_lines(state, self.app.size.width, signs)
            ):
                brief.show_line(number, each)
        n = len(self.shown_batch.problems) if self.shown_batch else 0
        self._set_title("#live-left", f"Groups {n}" if n else "Groups")
        left = self.query_one("#live-left")
        under = f"filter: {one_line(self.filter_text, 20)}" if self.filter_text else ""
        if str(left.border_subtitle or "") != under:  # setting one draws all that is in it
            left.border_subtitle = Text(under)
        self._draw_streams()
        self._draw_placeholder(state)
        self.activity.draw()
        self.streams.subscribe()

    def _draw_now_line(self, state: RunState | None) -> None:
        facts, signs = self.host.session_status, choose_glyphs(self._uses_ascii)
        now = sentences.status_line(state, self.shown_batch, facts, self.current_evaluation, signs)
        plain_work = sentences.is_working(state, facts, self.current_evaluation)
        if self._is_narrow and plain_work and self.shown_batch and state is not None:
            now = line((f" {view.stage_line(self.shown_batch, state, facts.eta)}", "title"))
        self.query_one("#live-now", Chrome).show_line(0, now)

    def _draw_streams(self) -> None:
        if not self.is_showing_streams:
            for canvas in self.canvases:
                canvas.set_panes(())
            self.streams.prune(())
            return
        self._update_estimates()
        tries = self._shown_rollouts()
        self.streams.prune([one.id for one in tries])
        mode, canvas = self.mode, self.canvas
        canvas.set_mode(mode)
        canvas.set_panes([self._pane_model(one, mode) for one in tries])
        batch = self.shown_batch
        assert batch is not None
        canvas.set_caption(f"Wall  step {batch.step}" if mode == "wall" else "")
        self._draw_followed()

    def _draw_followed(self) -> None:
        one = self.focused_rollout
        followed = self._followed_canvas
        if one is None or not followed.display:
            followed.set_panes(())
            return
        before = followed.focused_id
        followed.set_panes([self._pane_model(one, "solo")])
        if before != one.id:
            followed.reset(one.id, self.canvas.pane_text(one.id))

    def _shown_rollouts(self) -> Sequence[RolloutStatus]:
        """What the canvas holds: the whole batch on the wall, else one group."""
        batch = self.shown_batch
        assert batch is not None
        if self.mode != "wall":
            return batch.group_rollouts(self._position, self.under_way)
        shown = [batch.place(f"{row.key}r0") for row in self._groups.rows if row.key]
        positions = [place[0] for place in shown if place is not None]
        return [one for at in positions for one in batch.group_rollouts(at, self.under_way)]

    def _pane_model(self, one: RolloutStatus, mode: Mode) -> PaneModel:
        return view.pane_model(
            one, mode, self._estimates.get(one.id), self.streams.has_text(one.id)
        )

    def _update_estimates(self) -> None:
        now = self.host.clock()
        if now - self._estimated_at >= _ESTIMATE_EVERY_S or not self._estimates:
            self._estimated_at = now
            self._estimates = self.streams.estimates()

    def _draw_placeholder(self, state: RunState | None) -> None:
        told = self.query_one("#live-told", LineView)
        if self.is_showing_streams:
            return
        if self.is_showing_end and state is not None:
            self._set_title("#live-told", "How it ended")
            told.show_lines(
                sentences.run_summary_lines(state, told.line_width, choose_glyphs(self._uses_ascii))
            )
        else:
            self._set_title("#live-told", "Rollouts")
            told.show_lines(sentences.empty_lines(state, self.host.session_status, told.line_width))

    def _set_title(self, selector: str, text: str) -> None:
        widget = self.query_one(selector)
        if str(widget.border_title or "") != text:
            widget.border_title = Text(text)

    def _arrange(self) -> None:
        """Which panes there are, from the size of the terminal alone, and what they show."""
        height = self.app.size.height
        narrow, streams = self._is_narrow, self.is_showing_streams
        self.query_one("#live-strip").display = narrow
        self.query_one("#live-training").display = self._shows_brief_training
        self._followed_canvas.styles.height = 4 if self._shows_brief_training and height < 30 else 6
        self.query_one("#live-left").display = not narrow
        self.query_one("#live-activity").display = height >= 20
        self.query_one("#live-activity").styles.height = 6 if height >= 30 else 4
        trains = self.state is not None and self.state.trains_weights
        most, groups = (26, 18) if trains else (19, 20)  # its figures come on top of the stages
        self.query_one("#live-facts").styles.height = max(0, min(most, height - groups))
        self.canvas.display = streams
        self.query_one("#live-told").display = not streams
        self._followed_canvas.display = streams and narrow and height >= 20 and self.mode == "wall"
        self._keep_focus()

    def _keep_focus(self) -> None:
        """Give the focus to what there is where the pane that had it is not drawn any more."""
        focused = self.app.focused
        if not self.is_open or self.app.screen is not self.screen:
            return
        if focused is None or (self in focused.ancestors and not _is_visible(focused)):
            home = self.initial_focus()
            if home is not None:
                home.focus(scroll_visible=False)

    # -- choosing ------------------------------------------------------------------------------

    def _select_visible_group(self, rows: Sequence[Row]) -> None:
        """Let the group that is looked at be one of those shown."""
        if self.shown_batch is None or not rows:
            return
        shown = [row.key for row in rows]
        if (
            self.shown_batch.group(min(self._position, len(self.shown_batch.problems) - 1))
            not in shown
        ):
            place = self.shown_batch.place(f"{shown[0]}r0")
            self._position = place[0] if place else 0

    def _choose(self, position: int, index: int = 0) -> None:
        if self.shown_batch is None:
            return
        self._position = position
        self.draw()
        self.canvas.focus_pane(rollout_id(self.shown_batch.step, position, index))
        self._draw_followed()
        self.streams.subscribe()

    def on_row_list_moved(self, moved: RowList.Moved) -> None:
        place = self.shown_batch.place(f"{moved.key}r0") if self.shown_batch and moved.key else None
        if place is not None and place[0] != self._position:
            self._choose(place[0])

    def on_stream_canvas_focus_changed(self, moved: StreamCanvas.FocusChanged) -> None:
        place = self.shown_batch.place(moved.id) if self.shown_batch else None
        if place is None or moved.id != self.canvas.focused_id:
            return
        if place[0] != self._position:
            self._position = place[0]
            self.draw()
        self._draw_followed()
        self.streams.subscribe()

    def on_stream_canvas_visible_changed(self) -> None:
        self.streams.subscribe()

    def on_hide(self, event: Hide) -> None:
        self.streams.unsubscribe()

    def usable_keys(self, keys: Sequence[Key]) -> Sequence[Key]:
        """What would be of no use now is left away; resuming comes first where it is due."""
        if self._can_resume:
            first = [replace(key, rank=10) for key in keys if key.id == "live.resume"]
            keys = [*first, *(key for key in keys if key.id != "live.resume")]
        if not self.is_showing_streams:
            keys = [key for key in keys if key.id not in ("live.follow", "live.next_group")]
        return keys

    @property
    def _can_resume(self) -> bool:
        """Whether the run could go on, and no process of it is at work."""
        state, session = self.state, self.session
        if state is None or state.started is None or session is None:
            return False
        return not session.living and state.ending != "finished"

    def open_at(self, target: str = "") -> None:
        if target:
            self.go_to(target)

    def go_to(self, name: str) -> bool:
        batch = self.shown_batch
        if batch is None:
            return False
        place = batch.place(name) or batch.place(f"{name}r0")
        if place is None and name in batch.problems:
            place = batch.problems.index(name), 0
        if place is None:
            return False
        self.filter_text, self._past = "", True
        self._choose(*place)
        return True

    def go_back(self) -> bool:
        if self._past and self.state is not None and self.state.ending:
            self._past = False
            return True
        if self.mode == "solo":
            self.zoom = None
            return True
        return super().go_back()

    def text_to_copy(self, whole: bool) -> str:
        if self.app.focused is not self.canvas:
            return super().text_to_copy(whole)
        if whole and self.shown_batch is not None:
            parts = [f"{one.id}\n{self.canvas.pane_text(one.id)}" for one in self._shown_rollouts()]
            return "\n\n".join(parts)
        return self.canvas.pane_text(self.canvas.focused_id or "")

    # -- keys ----------------------------------------------------------------------------------

    def action_open(self) -> None:
        """The group under the cursor, then the rollout: whole where it ended, else alone."""
        if not self.is_showing_streams:
            self._show_last_rollouts()
            return
        if self.app.focused is self._groups and self.mode != "group":
            self.zoom = "group"
        elif self.app.focused is not self._groups:
            one = self.focused_rollout
            if one is not None and one.has_ended:
                self.host.open_page("inspect", one.id)
                return
            self.zoom = "solo"
        self.host.draw_now()
        self.canvas.focus(scroll_visible=False)

    def _show_last_rollouts(self) -> None:
        if self.shown_batch is None:
            self.host.tell("no batch is under way; 6 shows recorded rollouts")
            return
        self._past = True
        self.host.draw_now()
        self.canvas.focus(scroll_visible=False)
        self.host.tell("the last rollouts of the run; esc goes back to its summary")

    def action_zoom(self) -> None:
        if not self.is_showing_streams:
            self._show_last_rollouts()
            return
        self.zoom = _ZOOMS[(_ZOOMS.index(self.mode) + 1) % len(_ZOOMS)]
        self.host.draw_now()
        self.host.tell(_ZOOM_WORDS[self.zoom])

    @property
    def _reading_canvas(self) -> StreamCanvas:
        """The canvas in which a text is read at length."""
        return self._followed_canvas if self._followed_canvas.display else self.canvas

    def action_follow(self) -> None:
        if not self.is_showing_streams:
            self.host.tell("there is nothing to follow")
            return
        if not self._followed_canvas.display and self.mode != "solo":
            self.zoom = "solo"  # only there can a text be scrolled, hence left or followed
            self.host.draw_now()
        on = self._reading_canvas.toggle_follow()
        self.host.tell("following the end of the text" if on else "staying; f follows again")

    def action_next_group(self) -> None:
        self._step_group(1)

    def action_previous_group(self) -> None:
        self._step_group(-1)

    def _step_group(self, by: int) -> None:
        shown = [row.key for row in self._groups.rows if row.key]
        if self.shown_batch is None or not shown or not self.is_showing_streams:
            self.host.tell("there is no group yet")
            return
        here = self.shown_batch.group(self._position)
        at = shown.index(here) if here in shown else 0
        place = self.shown_batch.place(f"{shown[(at + by) % len(shown)]}r0")
        if place is not None:
            self._choose(place[0])

    def action_kill(self) -> None:
        one = self.focused_rollout if self.is_showing_streams else None
        if one is None or one.has_ended:
            self.host.tell("no rollout under way is under the cursor", "failed")
            return
        self.run_worker(self._kill(one.id))

    async def _kill(self, rollout: str) -> None:
        told = [
            line(f"{rollout} ends at once, as an error and not as a loss:"),
            line("it has no reward, and its group goes on without it."),
        ]
        if not await self.host.confirm("Kill this rollout?", told, {"K": "kill it"}):
            return

        async def end(session: Session) -> str:
            answer = await session.control("kill", rollout=rollout)
            if answer.get("killed", True):
                return f"killed {rollout}"
            return f"{rollout} was not under way: it waits its turn, or has ended"

        self.host.ask_run(end)

    def action_resume(self) -> None:
        state, session = self.state, self.session
        if state is None or state.started is None or session is None:
            self.host.tell("no run is open here: 5 lists them, 0 starts one", "failed")
        elif session.living:
            self.host.tell("its process is at work; p goes on where it is paused")
        elif state.ending == "finished":
            self.host.tell("the run is finished; 0 starts another")
        else:
            self.run_worker(self._resume(state, state.started.run))

    async def _resume(self, state: RunState, run: str) -> None:
        arguments = ["--resume", run]
        if state.ending == "budget":
            from studio.report.summary import budget_override

            key = budget_override(state.reason).removesuffix("…")
            more = await self.host.ask("resume with", key)
            if not more or not more.strip() or more.strip() == key:
                self.host.tell("not resumed: the budget is still the one that was reached")
                return
            arguments.append(more.strip())
        self.host.start_run(arguments)

    def action_left(self) -> None:
        self._move(-1, 0)

    def action_right(self) -> None:
        self._move(1, 0)

    def action_up(self) -> None:
        self._move(0, -1)

    def action_down(self) -> None:
        self._move(0, 1)

    def _move(self, across: int, down: int) -> None:
        """Between rollouts; on the wall across is between groups, alone down is in the text."""
        if not self.is_showing_streams:
            return
        if self.mode == "solo" and down:
            self.canvas.scroll_rows(down)
        elif self.mode == "wall" and across:
            self._step_group(across)
        else:
            self.canvas.move_focus(across, down)

    def action_page_down(self) -> None:
        self._scroll_page(1)

    def action_page_up(self) -> None:
        self._scroll_page(-1)

    def _scroll_page(self, by: int) -> None:
        if self.mode == "wall" and not self._followed_canvas.display:
            self.canvas.move_focus(0, by * max(1, self.canvas.size.height // 2))
        else:
            self._reading_canvas.scroll_rows(by * max(1, self._reading_canvas.size.height // 2))

    def action_top(self) -> None:
        self._go_to_end(-1)

    def action_bottom(self) -> None:
        self._go_to_end(1)

    def _go_to_end(self, by: int) -> None:
        if self.mode == "solo":
            self.canvas.scroll_rows(by * 1_000_000)
        elif (
            self.shown_batch is not None
            and self.is_showing_streams
            and (tries := self._shown_rollouts())
        ):
            self.canvas.focus_pane(tries[-1 if by > 0 else 0].id)


def _is_visible(widget: Widget) -> bool:
    return all(node.display for node in widget.ancestors_with_self if isinstance(node, Widget))


def _no_groups_rows(batch: Batch | None, filter_text: str) -> list[Row]:
    said = (
        f"none holds {one_line(filter_text, 16)!r}" if batch and filter_text else "none under way"
    )
    return [Row("", ((said, "dim"),))]
