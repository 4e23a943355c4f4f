"""The rollouts of the live page: which are looked at, their texts, and the panes they stand in."""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical

from engines.core.errors import StudioError
from engines.core.state.run_state import RunState
from engines.core.text.tool_text import transcript_text
from engines.core.types import RecordRef, rollout_id
from studio.secrets.sanitize import one_line, sanitize
from studio.session.requests import ReadQuestions
from studio.session.session import Session, TextPiece
from studio.tui.drawing.canvas import Mode, StreamCanvas
from studio.tui.drawing.cells import Glyphs
from studio.tui.drawing.lines import line
from studio.tui.drawing.pane import PaneModel
from studio.tui.keymap import bindings
from studio.tui.page import Page
from studio.tui.pages.live import view
from studio.tui.pages.live.batch import Batch, BatchTracker, RolloutStatus
from studio.tui.terminal.look import wants_ascii
from studio.tui.widgets.line_view import Chrome, LineView

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
