"""Inspect: one rollout whole, among those of its group, or a winner and a loser side by side."""

import os
import shlex
import subprocess
from collections.abc import Callable, Collection, Mapping

from textual.app import ComposeResult, SuspendNotSupported
from textual.containers import Container
from textual.content import Content
from textual.widget import Widget

from studio.render.words import no_practice_text
from studio.secrets.sanitize import one_line, sanitize
from studio.session.session import EventReceived, Message, Session, SnapshotReceived, TextReceived
from studio.tui.drawing.cells import fit
from studio.tui.drawing.lines import Line, Row, line, note_rows, paragraph
from studio.tui.page import Page
from studio.tui.pages.inspect import view
from studio.tui.pages.inspect.records import GroupRecords, find_rollouts
from studio.tui.pages.inspect.view import GroupSummary, MarkedParts, Part
from studio.tui.widgets.line_view import LineView, RowList


def open_pager(text: str, environ: Mapping[str, str] = os.environ) -> None:
    """Show a text in $PAGER, and wait until it is left.

    Raises:
        OSError: there is no such program.
        ValueError: $PAGER has a quotation mark too few.
    """
    command = shlex.split(environ.get("PAGER", "")) or ["less"]
    subprocess.run(command, input=text, text=True, encoding="utf-8", errors="replace", check=False)


class InspectPage(Page):
    scope = "inspect"

    def __init__(self) -> None:
        super().__init__()
        self.records = GroupRecords(self)
        self.run_pager: Callable[[str], None] = open_pager
        self.shows_parting = False
        self._of: Session | None = None  # whose records are shown
        self._shows_calls = False  # tokens and times of each call
        self._turned: frozenset[str] = frozenset()  # parts that a person folded or unfolded
        self._hit = 0  # the number of the one the search stands on
        self.list_pane = RowList(id="inspect-list", classes="pane")
        self.facts_pane = LineView(id="inspect-facts", classes="pane")
        self.facts_pane.can_focus = False
        self.text_pane = RowList(id="inspect-text", classes="pane")
        self.other_pane = RowList(id="inspect-other", classes="pane")

    def compose(self) -> ComposeResult:
        with Container(id="inspect-side"):
            yield self.list_pane
            yield self.facts_pane
        yield self.text_pane
        yield self.other_pane

    def initial_focus(self) -> Widget:
        return self.text_pane if self.records.split else self.list_pane

    # -- what is shown ---------------------------------------------------------------------

    def _forget_other_run(self) -> None:
        if self.session is not self._of:
            self._of = self.session
            self.records.forget_run()

    def open_at(self, target: str = "") -> None:
        """Target is a rollout, a group, an operation (its evidence) or a problem's id."""
        self._forget_other_run()
        self.records.open_target(target)
        # Not at once: the page that is left lets go of its own rollouts when it is hidden.
        self.call_after_refresh(self.records.subscribe, anew=True)

    def go_to(self, name: str) -> bool:
        if self.state is None or not (place := find_rollouts(self.state, name)):
            return False
        self.records.open_target(place)
        return True

    def handle_message(self, message: Message) -> None:
        match message:
            case SnapshotReceived():
                self.records.is_stale = self.records.group is not None
            case TextReceived(pieces=pieces):
                for piece in pieces:
                    self.records.add_piece(piece)
            case EventReceived() if self.state is not None:
                self.records.note_ended(self.state)

    def on_hide(self) -> None:
        self.records.unsubscribe()

    def draw(self) -> None:
        self._forget_other_run()
        records, pane = self.records, self.list_pane
        records.reload_if_due()
        self.set_class(records.split is not None, "-split")
        group = records.group
        self.has_nothing = group is None
        if group is None:
            pane.show_rows(note_rows(self._empty_lines(pane.line_width - 2)))
            self.text_pane.show_rows([])
            self.facts_pane.show_lines([])
            pane.border_title = Content("Rollouts")
            self.text_pane.border_title = Content("Rollout")
            return
        title = f"{group.id} {one_line(group.question, 80)}".rstrip()
        pane.border_title = Content(fit(title, max(4, pane.line_width - 2)))
        pane.say_below("reading ..." if records.is_reading else "")
        pane.show_rows(view.group_rows(group, pane.line_width - 2, records.live), records.chosen)
        whole = group.rollouts.get(records.chosen)
        width = self.facts_pane.line_width
        lines = view.answer_lines(whole, records.expected_answer, group, width)
        if records.trouble:
            lines = [*paragraph([(sanitize(records.trouble), "failed")], width), *lines]
        self.facts_pane.show_lines(lines)
        for each in (self.text_pane, *([self.other_pane] if records.split else [])):
            self._draw_text(each, group)

    def _empty_lines(self, width: int) -> list[Line]:
        if self.records.trouble:
            return paragraph([(sanitize(self.records.trouble), "failed")], width)
        if self.session is None:
            keys = line(("5", "key"), " lists them"), line(("0", "key"), " starts one")
            return [line("no run is open:"), *keys]
        if self.records.is_reading:
            return [line("reading the records ...")]
        text = "no rollout yet: it stands here once the first is under way"
        return paragraph([(no_practice_text(self.session.state) or text, "")], width)

    def _draw_text(self, pane: RowList, group: GroupSummary) -> None:
        """Show a rollout in a pane."""
        name = self._shown_name(pane)
        marked, whole, title = self._marked_parts(pane), group.rollouts.get(name), f"{name}   "
        if whole is not None:
            turns = len({call.turn for call in whole.calls})
            title += f"turns {turns}   {whole.finish_reason}   "
        pane.border_title = Content(sanitize(title + group.version_text))
        hits, pair = view.find_hits(marked.parts, self.filter_text), None
        about = f"{len(hits)} x {sanitize(self.filter_text)}" if hits else ""
        if marked.step is not None and (pair := self._compare()) is not None:
            about = about or f"> parts here from {pair[1] if name == pair[0] else pair[0]}"
        pane.say_below(about)
        rows = view.rollout_rows(
            marked.parts, pane.line_width - 2, self._turned, hits or marked.hits, marked.step
        )
        if not rows:
            rows = [Row("", line("not begun yet" if name else "nothing is chosen"))]
        follows = name in self.records.live and pane.rows and pane.key == pane.rows[-1].key
        pane.show_rows(rows, rows[-1].key if follows else None)

    def on_row_list_moved(self, event: RowList.Moved) -> None:
        here = event.rows is self.list_pane and event.is_current
        if here and event.key and event.key != self.records.chosen:
            self.choose(event.key)

    def choose(self, name: str) -> None:
        """Show this rollout; beside another, if two are shown."""
        self.records.chosen = name
        self.text_pane.action_move_to_end(-1)
        if self.records.split is not None:
            pair = self._compare()
            self.records.split = pair[:2] if pair is not None else None
            self.call_after_refresh(self._show_parting)
        self.host.draw_now()

    def action_step_rollout(self, by: int) -> None:
        names = self.records.ids
        if not names:
            self.host.tell("no group is shown", "failed")
            return
        self.choose(names[(names.index(self.records.chosen) + by) % len(names)])

    def action_step_group(self, by: int) -> None:
        if group := self.records.next_group(by):
            self.records.open_target(group)
        else:
            self.host.tell(f"there is no {'later' if by > 0 else 'earlier'} group", "failed")

    # -- where they part -------------------------------------------------------------------

    def _compare(self) -> "view.Pair | None":
        return self.records.compare(calls=self._shows_calls)

    def action_split(self) -> None:
        """Show a winner beside a loser, the chosen rollout among them; or it alone again."""
        pair = self._compare() if self.records.split is None else None
        if self.records.split is None and pair is None:
            self.host.tell("this group has no winner beside a loser", "failed")
            return
        self.records.split = pair[:2] if pair is not None else None
        self.shows_parting = pair is not None
        self.set_class(self.shows_parting, "-split")
        if pair is not None and self.app.focused is self.list_pane:
            self.text_pane.focus(scroll_visible=False)
        self.call_after_refresh(self._show_parting)  # when their widths are known

    def _show_parting(self) -> bool:
        """Draw, and bring the step where they part into view; False where it is not known."""
        self.host.draw_now()
        moved = []
        for pane in (self.text_pane, self.other_pane):
            marked = self._marked_parts(pane)
            if marked.step is not None:
                row = view.find_hit_row(marked.step, marked.parts, pane.line_width - 2)
                moved.append(pane.go_to(row, margin=8))
        return any(moved)

    def action_parting(self) -> None:
        """The step at which the rollout parts from one of the other side."""
        self.shows_parting = True
        if self._show_parting():
            if self.app.focused is self.list_pane:
                self.text_pane.focus(scroll_visible=False)
            self.host.tell("they part at the step marked >")
        else:
            self.shows_parting = False
            self.host.tell("no winner and loser of this group part here", "failed")

    def go_back(self) -> bool:
        if self.records.split is not None:
            self.action_split()
        elif self.shows_parting and not self.filter_text:
            self.shows_parting = False
            self.host.draw_now()
        else:
            return super().go_back()
        return True

    # -- reading in a text -----------------------------------------------------------------

    @property
    def _reading_pane(self) -> RowList:
        """The text that has the focus, else the first one."""
        return self.other_pane if self.app.focused is self.other_pane else self.text_pane

    def _shown_name(self, pane: RowList) -> str:
        shown = self.records.split or (self.records.chosen, "")
        return shown[1 if pane is self.other_pane else 0]

    def _shown_parts(self, pane: RowList) -> tuple[Part, ...]:
        return self.records.parts(self._shown_name(pane), calls=self._shows_calls)

    def _marked_parts(self, pane: RowList) -> MarkedParts:
        """The parts of a rollout, marked where it parts from another if that is shown."""
        name, parts = self._shown_name(pane), self._shown_parts(pane)
        pair = self._compare() if self.shows_parting and parts else None
        if pair is not None and name == pair[0]:
            return view.mark_parting(parts, pair[2].winner, "added")
        if pair is not None and name == pair[1]:
            return view.mark_parting(parts, pair[2].loser, "removed")
        return MarkedParts(parts)

    def action_tokens(self) -> None:
        self._shows_calls = not self._shows_calls
        self.host.draw_now()
        if self._shows_calls:
            self.text_pane.action_move_to_end(1)

    def action_fold(self) -> None:
        """The part under the cursor; from the list of rollouts all that begin folded."""
        pane = self._reading_pane
        if self.app.focused is not pane:
            self._fold_all(pane, ("system", "think"))
        else:
            self._turned ^= {view.part_key(pane.key)}
            self._draw_folded(pane)

    def action_tools(self) -> None:
        """All tool calls and results, in whichever pane has the focus."""
        unfolded = self._fold_all(self._reading_pane, view.TOOLS)
        if unfolded is None:
            self.host.tell("this rollout called no tool", "failed")
        else:
            self.host.tell("tool calls unfolded; Z folds them" if unfolded else "tool calls folded")

    def _fold_all(self, pane: RowList, labels: Collection[str]) -> bool | None:
        """Fold or unfold all parts of these labels; whether they are unfolded, None of none."""
        keys = frozenset(part.key for part in self._shown_parts(pane) if part.label in labels)
        is_unfolded = keys <= self._turned  # all of them begin folded
        self._turned = self._turned - keys if is_unfolded else self._turned | keys
        self._draw_folded(pane)
        return not is_unfolded if keys else None

    def _draw_folded(self, pane: RowList) -> None:
        """Draw; where the row under the cursor is folded away, it stays at its part."""
        before = pane.key
        self.host.draw_now()
        if pane.key != before:
            part = view.part_key(before)
            pane.go_to(next((row.key for row in pane.rows if view.part_key(row.key) == part), ""))

    def apply_filter(self, text: str) -> None:
        """`/` finds, as in a pager: a rollout is read whole, and nothing of it is hidden."""
        again, self.filter_text = text == self.filter_text, text
        self.host.draw_now()
        pane = self._reading_pane
        parts = self._marked_parts(pane).parts
        if hits := view.find_hits(parts, text):
            self._hit = (self._hit + 1) % len(hits) if again else 0
            pane.go_to(view.find_hit_row(hits[self._hit], parts, pane.line_width - 2))
            pane.focus(scroll_visible=False)
            self.host.tell(f"{self._hit + 1} of {len(hits)}: / and enter goes to the next")
        elif text and parts:
            self.host.tell(f"{text}: not in this rollout", "failed")

    def action_pager(self) -> None:
        text = self.whole_text()
        if not text:
            self.host.tell("no rollout is shown", "failed")
            return
        try:
            with self.app.suspend():
                self.run_pager(text)
        except SuspendNotSupported:
            self.host.tell("a pager needs a terminal of its own, and there is none here", "failed")
        except (OSError, ValueError) as error:
            self.host.tell(f"$PAGER cannot be run: {error}", "failed")

    def whole_text(self) -> str:
        """The rollout in the focused text pane, all parts unfolded."""
        return view.whole_text(self._shown_parts(self._reading_pane))

    def text_to_copy(self, whole: bool) -> str:
        """A part, or the whole rollout."""
        pane = self._reading_pane
        if self.app.focused is not pane:
            return super().text_to_copy(whole)
        if whole:
            return self.whole_text()
        key = view.part_key(pane.key)
        return next((part.text for part in self._shown_parts(pane) if part.key == key), "")
