"""Inspect: one rollout whole, among those of its group, or a winner and a loser side by side."""

from collections.abc import Callable, Sequence

from textual.app import ComposeResult, SuspendNotSupported
from textual.containers import Container
from textual.content import Content
from textual.widget import Widget

from studio.render.words import no_practice_text
from studio.secrets.sanitize import one_line, sanitize
from studio.session.session import EventReceived, Message, Session, SnapshotReceived, TextReceived
from studio.tui.drawing.cells import fit
from studio.tui.drawing.lines import Line, line, note_rows, paragraph
from studio.tui.keymap import Key
from studio.tui.page import Page
from studio.tui.pages.inspect import view
from studio.tui.pages.inspect.records import GroupRecords, Transcripts, find_rollouts, open_pager
from studio.tui.pages.inspect.view import Part
from studio.tui.widgets.line_view import LineView, RowList


class InspectPage(Page):
    """Records are read in a thread, and kept while their group is shown."""

    scope = "inspect"

    def __init__(self) -> None:
        super().__init__()
        self.records = GroupRecords(self)
        self.transcripts = Transcripts(self.records)
        self.run_pager: Callable[[str], None] = open_pager
        self.list_pane = RowList(id="inspect-list", classes="pane")
        self.facts_pane = LineView(id="inspect-facts", classes="pane")
        self.facts_pane.can_focus = False
        self.text_pane = RowList(id="inspect-text", classes="pane")
        self.other_pane = RowList(id="inspect-other", classes="pane")
        self._last_width = 0

    def compose(self) -> ComposeResult:
        with Container(id="inspect-side"):
            yield self.list_pane
            yield self.facts_pane
        yield self.text_pane
        yield self.other_pane

    def initial_focus(self) -> Widget:
        return self.text_pane if self.records.split else self.list_pane

    # -- what is shown ---------------------------------------------------------------------

    def open_at(self, target: str = "") -> None:
        """Target is a rollout, a group, an operation (its evidence) or a problem's id."""
        self.records.open_target(target)
        # Not at once: the page that is left lets go of its own rollouts when it is hidden.
        self.call_after_refresh(self.records.subscribe, anew=True)

    def go_to(self, name: str) -> bool:
        if self.state is None or not (found := find_rollouts(self.state, name)):
            return False
        self.records.open_target(found)
        return True

    def handle_message(self, message: Message) -> None:
        match message:
            case SnapshotReceived():
                if not self.records.is_of(self.session.run if self.session is not None else None):
                    self.records.forget_run()
            case TextReceived(pieces=pieces):
                for piece in pieces:
                    self.records.add_piece(piece)
            case EventReceived() if self.state is not None:
                self.records.note_ended(self.state)

    def on_hide(self) -> None:
        self.records.unsubscribe()

    def draw(self) -> None:
        self.records.reload_if_due()
        records, found, group = self.records, self.list_pane, self.records.summary
        self.set_class(records.split is not None, "-split")
        self.has_nothing = group is None
        if group is None:
            empty = _empty_lines(records, self.session, found.line_width - 2)
            found.show_rows(note_rows(empty))
            self.text_pane.show_rows([])
            self.transcripts.forget_rows()
            self.facts_pane.show_lines([])
            found.border_title = Content("Rollouts")
            self.text_pane.border_title = Content("Rollout")
            return
        title = f"{group.id} {one_line(group.question, 80)}".rstrip()
        found.border_title = Content(fit(title, max(4, found.line_width - 2)))
        found.say_below("reading ..." if records.is_reading else "")
        found.show_rows(view.group_rows(group, found.line_width - 2), records.chosen)
        whole = records.rollouts.get(records.chosen)
        width = self.facts_pane.line_width
        lines = view.answer_lines(whole, records.expected_answer, group, width)
        if records.trouble:
            lines = [*paragraph([(sanitize(records.trouble), "failed")], width), *lines]
        self.facts_pane.show_lines(lines)
        left, right = records.split or (records.chosen, "")
        self.transcripts.draw(self.text_pane, left, group)
        if right:
            self.transcripts.draw(self.other_pane, right, group)

    def on_row_list_moved(self, event: RowList.Moved) -> None:
        here = event.rows is self.list_pane and event.is_current
        if here and event.key and event.key != self.records.chosen:
            self.choose(event.key)

    def choose(self, name: str) -> None:
        """Show this rollout; beside another, if two are shown."""
        self.records.chosen = name
        self.text_pane.action_move_to_end(-1)
        if self.records.split is not None:
            self._choose_split()
            self._lay_out()
        self.host.draw_now()

    def action_step_rollout(self, by: int) -> None:
        names = self.records.ids
        if not names:
            self.host.tell("no group is shown", "failed")
            return
        at = names.index(self.records.chosen) if self.records.chosen in names else 0
        self.choose(names[(at + by) % len(names)])

    def action_step_group(self, by: int) -> None:
        if group := self.records.next_group(by):
            self.records.open_target(group)
        else:
            self.host.tell(f"there is no {'later' if by > 0 else 'earlier'} group", "failed")

    def _choose_split(self) -> bool:
        """Show a winner beside a loser, the chosen rollout among them; False where none is."""
        group = self.records.summary
        found = self.transcripts.compare(group) if group is not None else None
        self.records.split = found[:2] if found is not None else None
        return found is not None

    def action_split(self) -> None:
        if self.records.split is not None:
            self.records.split, self.transcripts.shows_parting = None, False
        elif not self._choose_split():
            self.host.tell("this group has no winner beside a loser", "failed")
            return
        self._lay_out()
        if self.records.split is not None and self.app.focused is self.list_pane:
            self.text_pane.focus(scroll_visible=False)

    def _lay_out(self) -> None:
        """Place the panes for one rollout or two; they are drawn when their widths are known."""
        self.set_class(self.records.split is not None, "-split")
        self.transcripts.shows_parting |= self.records.split is not None
        self.call_after_refresh(self._show_parting)

    def _show_parting(self) -> bool:
        """Draw, and bring the step where they part into view; False where it is not known."""
        self.host.draw_now()
        group = self.records.summary
        if group is None or not self.transcripts.shows_parting:
            return False
        name, other = self.records.split or (self.records.chosen, "")
        found = self.transcripts.go_to_parting(self.text_pane, name, group)
        return (
            bool(other) and self.transcripts.go_to_parting(self.other_pane, other, group)
        ) or found

    def on_resize(self) -> None:
        # Lines break elsewhere now. A page that was hidden and is as wide as before stays put.
        if self.transcripts.shows_parting and self.size.width not in (0, self._last_width):
            self.call_after_refresh(self._show_parting)
        self._last_width = self.size.width or self._last_width

    def action_parting(self) -> None:
        """The step at which the rollout parts from one of the other side."""
        self.transcripts.shows_parting = True
        if not self._show_parting():
            self.transcripts.shows_parting = self.records.split is not None
            self.host.tell("no winner and loser of this group part here", "failed")
            return
        if self.app.focused is self.list_pane:
            self.text_pane.focus(scroll_visible=False)
        self.host.tell("they part at the step marked >")

    def go_back(self) -> bool:
        if self.records.split is not None:
            self.action_split()
            return True
        if self.transcripts.shows_parting and not self.filter_text:
            self.transcripts.shows_parting = False
            self.host.draw_now()
            return True
        return super().go_back()

    # -- reading in a text -----------------------------------------------------------------

    def _focused_text_pane(self) -> RowList | None:
        focused = self.app.focused
        return next((one for one in (self.text_pane, self.other_pane) if one is focused), None)

    def _shown_name(self, pane: RowList) -> str:
        return (self.records.split or (self.records.chosen,))[-1 if pane is self.other_pane else 0]

    def _shown_parts(self, pane: RowList) -> tuple[Part, ...]:
        group = self.records.summary
        return self.transcripts.parts(self._shown_name(pane), group) if group is not None else ()

    def action_tokens(self) -> None:
        self.transcripts.shows_calls = not self.transcripts.shows_calls
        self.host.draw_now()
        if self.transcripts.shows_calls:
            self.text_pane.action_move_to_end(1)

    def action_fold(self) -> None:
        """The part under the cursor; from the list of rollouts all that begin folded."""
        group, pane = self.records.summary, self._focused_text_pane()
        if group is None:
            return
        if pane is None:
            parts = self.transcripts.parts(self.records.chosen, group)
            self.transcripts.fold_all(parts, ("system", "think"))
            self.host.draw_now()
            return
        key, before = view.part_key(pane.key), pane.key
        self.transcripts.fold(key)
        self.host.draw_now()
        if pane.key != before:  # the row is folded away: stay at its part
            first = next((row.key for row in pane.rows if view.part_key(row.key) == key), "")
            pane.go_to(first)

    def action_tools(self) -> None:
        """All tool calls and results, in whichever pane has the focus."""
        pane = self._focused_text_pane() or self.text_pane
        part = view.part_key(pane.key)
        unfolded = self.transcripts.fold_all(self._shown_parts(pane), view.TOOLS)
        if unfolded is None:
            self.host.tell("this rollout called no tool", "failed")
            return
        self.host.draw_now()
        pane.go_to(next((row.key for row in pane.rows if view.part_key(row.key) == part), ""))
        self.host.tell("tool calls unfolded; Z folds them" if unfolded else "tool calls folded")

    def usable_keys(self, keys: Sequence[Key]) -> Sequence[Key]:
        parts = self._shown_parts(self._focused_text_pane() or self.text_pane)
        acts = any(part.label in view.TOOLS for part in parts)
        return super().usable_keys([key for key in keys if acts or key.id != "inspect.tools"])

    def apply_filter(self, text: str) -> None:
        """`/` finds, as in a pager: a rollout is read whole, and nothing of it is hidden."""
        again = text == self.transcripts.wanted
        self.transcripts.wanted = self.filter_text = text
        if self.records.summary is None:
            return
        self.host.draw_now()
        pane = self._focused_text_pane() or self.text_pane
        shown = self.transcripts.mark_parts(self._shown_name(pane), self.records.summary).parts
        number, count = self.transcripts.go_to_hit(pane, shown, again=again)
        if not count:
            if text:
                self.host.tell(f"{text}: not in this rollout", "failed")
            return
        round_again = " (from the top again)" if again and number == 1 < count else ""
        self.host.tell(f"{number} of {count}{round_again}: / and enter goes to the next")
        pane.focus(scroll_visible=False)

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
        return view.whole_text(self._shown_parts(self._focused_text_pane() or self.text_pane))

    def text_to_copy(self, whole: bool) -> str:
        """A part, or the whole rollout."""
        pane = self._focused_text_pane()
        if pane is None or self.records.summary is None:
            return super().text_to_copy(whole)
        if whole:
            return self.whole_text()
        key = view.part_key(pane.key)
        return next((part.text for part in self._shown_parts(pane) if part.key == key), "")


def _empty_lines(records: GroupRecords, session: Session | None, width: int) -> list[Line]:
    if records.trouble:
        return paragraph([(sanitize(records.trouble), "failed")], width)
    if session is None:
        keys = line(("5", "key"), " lists them"), line(("0", "key"), " starts one")
        return [line("no run is open:"), *keys]
    if records.is_reading:
        return [line("reading the records ...")]
    text = "no rollout yet: it stands here once the first is under way"
    return paragraph([(no_practice_text(session.state) or text, "")], width)
