"""Review: decide each operation with what it changes, rests on and resembles before one's eyes.

The page hears the keys; a part with a module of its own answers each.
"""

import asyncio
from collections.abc import Sequence

from textual.app import ComposeResult
from textual.events import Resize
from textual.widget import Widget
from textual.widgets import TextArea

from engines.core.types import DecisionAction
from studio.session.session import Disconnected, Message, Session
from studio.tui.keymap import Key
from studio.tui.pages.review import decisions, view
from studio.tui.widgets import edit_box, line_view

_OF_REPLAYS = tuple(
    f"review.{name}" for name in ("next", "previous", "evidence", "open", "words", "more", "sort")
)


class ReviewPage(decisions.RewordingPage):
    scope = "review"

    def __init__(self) -> None:
        super().__init__()
        self._of: Session | None = None  # what the parts were last reset for

    def compose(self) -> ComposeResult:
        self.shown.arrange()  # before there is anything that would be styled again
        yield from self.shown.compose()

    def on_resize(self, event: Resize) -> None:
        self.shown.arrange()
        self.queue.made_of = ()
        self.host.redraw_soon()

    def handle_message(self, message: Message) -> None:
        self.change.lost_line = ""
        if isinstance(message, Disconnected) and not message.ended:
            self.change.lost_line = message.reason

    def _reset_for(self, session: Session | None) -> None:
        """Another run is shown, or none."""
        self._of = session
        self.queue.reset()
        self.change.reset()
        self.loader.reset(session)
        if session is not None:
            self.filter_text = self.host.drafts.filter
        if self.shown.editing is not None:
            self.shown.close_box()

    def draw(self) -> None:
        if self.session is not self._of:
            self._reset_for(self.session)
        self.queue.draw()
        if key := self.shown.operations.key:  # drafts read anew do not know that it stands there
            self.host.drafts.cursor = key
        self.has_nothing = not self.queue.items
        self.change.draw_legend()
        self.change.draw()

    def on_row_list_moved(self, event: line_view.RowList.Moved) -> None:
        event.stop()
        if event.rows is self.shown.operations:
            self.host.drafts.cursor = event.key
            self.queue.mark_range()
            self.change.draw()

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        event.stop()
        self.keep_draft()

    def on_edit_box_left(self, event: edit_box.EditBox.Left) -> None:
        event.stop()
        self.leave_box()

    def on_edit_box_answered(self, event: edit_box.EditBox.Answered) -> None:
        """A key came while the text in the box may not change."""
        event.stop()
        if event.goes_back:
            self.shown.forget_objection()
        else:
            self.host.tell("nothing was typed: a question or a check is open", "flag")

    def on_edit_box_handed_in(self, event: edit_box.EditBox.HandedIn) -> None:
        event.stop()
        self.hand_in(event.text, anyway=event.anyway)

    def initial_focus(self) -> Widget:
        return self.shown.operations if self.shown.editing is None else self.shown.box

    def panes(self) -> list[Widget]:
        return self.shown.focusable

    def usable_keys(self, keys: Sequence[Key]) -> Sequence[Key]:
        """Nothing is decided on a terminal that shows too little of it."""
        if self.host.is_small or self.has_nothing:
            return ()
        if self.session is not None and self.session.label:
            return [key for key in keys if key.id in _OF_REPLAYS]
        return keys

    def footer_keys(self) -> Sequence[Key]:
        return self.shown.box_keys

    def go_to(self, name: str) -> bool:
        return self.queue.go_to(name)

    def apply_filter(self, text: str) -> None:
        self.host.drafts.filter = text
        super().apply_filter(text)

    def go_back(self) -> bool:
        if self.queue.has_range:
            self.queue.leave_range()
        elif self.queue.marked_items:
            self.queue.forget_marks()
        elif self.shown.opened_evidence and self.queue.item is not None:
            self.action_show("evidence")
        else:
            return super().go_back()
        return True

    def action_decide(self, action: DecisionAction) -> None:
        if self.queue.has_range and action != "defer":
            self.run_worker(self.decide_range(action))
        else:
            self.decide(action)

    def action_describe(self, what: str) -> None:
        """Ask for the reason of a rejection, or for a note."""
        if (here := self.painted_operation()) is not None:
            asks = self.reject_because if what == "reject" else self.ask_note
            self.run_worker(asks(*here))

    async def action_reword(self, how: str) -> None:
        """Change a wording in the box or in $EDITOR, merge it, mark it for that, or let it go."""
        match how:
            case "merge":
                self.merge()
            case "mark":
                self.mark()
            case "drop":
                self.drop()
            case _:
                self.edit(in_editor=how == "editor")
        await asyncio.sleep(0)  # the box opens: the next key is the text's first letter

    def action_approve_safe(self) -> None:
        self.run_worker(self.approve_safe())

    def action_range(self) -> None:
        self.queue.toggle_range()

    def action_go_to_open(self, by: int) -> None:
        self.queue.go_to_undecided(by)

    def action_show(self, what: str) -> None:
        """Another order of the list, another form of the change, or the evidence whole."""
        shown = self.shown
        if what == "evidence" and self.queue.item is None:
            self.host.tell("there is nothing to decide here")
            return
        if what == "evidence":
            shown.open_evidence(not shown.opened_evidence)
            self.change.draw()
            opened = shown.evidence if shown.opened_evidence else shown.operations
            opened.focus(scroll_visible=False)
            return
        if what == "sort":
            self.queue.sort = view.SORTS[(view.SORTS.index(self.queue.sort) + 1) % len(view.SORTS)]
            self.host.tell(f"sorted: {self.queue.sort}")
        elif what == "more":
            self.change.shows_all = not self.change.shows_all
        else:
            self.change.mode = view.MODES[
                (view.MODES.index(self.change.mode) + 1) % len(view.MODES)
            ]
            self.host.tell(f"the change by {self.change.mode}")
        self.draw()

    def action_open(self) -> None:
        name = view.rollout_of(self.shown.evidence.key)
        if not name:
            self.host.tell("no rollout is behind it, or it is still being read")
            return
        if self.queue.item is not None:
            self.host.drafts.cursor = self.queue.item.id
        self.host.open_page("inspect", name)
