"""The rollouts of the live page: their canvas, the one that is followed, what stands instead."""

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical

from engines.core.state.run_state import RunState
from engines.core.types import rollout_id
from studio.secrets.sanitize import one_line
from studio.tui.drawing.canvas import Mode, StreamCanvas
from studio.tui.drawing.cells import Glyphs
from studio.tui.drawing.lines import line
from studio.tui.drawing.pane import PaneModel
from studio.tui.keymap import bindings
from studio.tui.page import Page
from studio.tui.pages.live import view
from studio.tui.pages.live.batch import BatchTracker, RolloutStatus
from studio.tui.pages.live.cursor import BatchCursor
from studio.tui.pages.live.streams import Questions, Streams
from studio.tui.terminal.look import wants_ascii
from studio.tui.widgets.chrome import Chrome
from studio.tui.widgets.line_view import LineView


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
