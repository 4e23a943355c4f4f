"""Diff: any two versions, epochs, steps, runs or files beside each other."""

from collections.abc import Sequence
from functools import partial
from typing import Literal

from rich.text import Text
from textual.app import ComposeResult
from textual.widget import Widget

from engines.core.events import EvaluationFinished, LessonCommitted, StepFinished
from studio.render.library_lines import weights_lines
from studio.secrets.sanitize import one_line
from studio.session.session import EventReceived, Message, SnapshotReceived
from studio.tui.drawing.lines import Row, line, note_rows, paragraph
from studio.tui.keymap import Key
from studio.tui.page import Page, write_export
from studio.tui.pages.diff import view
from studio.tui.pages.diff.view import Choice, Compared
from studio.tui.pages.loader import Loader, Picker
from studio.tui.widgets.line_view import LineView, RowList

_TYPED = " "  # the row that asks for a reference: no reference is a blank
_MOVES_A_HEAD = LessonCommitted | EvaluationFinished | StepFinished


class ReferencePicker(Picker):
    """Its side is "base" or "target": which of the two references is chosen."""

    def __init__(self, page: "DiffPage") -> None:
        super().__init__(page, page.action_choose)
        self._diff = page
        self._choices = Loader[str, tuple[Choice, ...]](
            page, lambda run: view.load_choices(page.host.workspace, run), self._show_read
        )

    @property
    def reference(self) -> str:
        """What is under the cursor, or was typed."""
        return self.line.value.strip() if self.list.key == _TYPED else self.list.key

    def load(self) -> None:
        self._choices.request(self._diff.run, again=True)

    def _show_read(self) -> None:
        self._diff.draw_if_open()
        if self.side and self._diff.found is not None:
            self.list.go_to(getattr(self._diff.found, self.side))

    def draw(self) -> None:
        self.list.border_title = "compare with …" if self.side == "base" else "compare …"
        if self._choices.value is None:
            text = one_line(self._choices.trouble, 400) or "reading what there is …"
            self.list.show_rows([Row("", line((text, "dim")))])
            return
        text = self.line.value.strip()
        rows = view.choice_rows(self._choices.value, text, max(12, self.list.line_width - 2))
        listed = [row.key for row in rows if row.key]
        if not text:
            hint = "arrows choose; or type NAME@V, RUN@epoch:N, RUN@step:N or a file"
            rows.insert(0, Row("", line((hint, "dim"))))
        elif text not in listed:
            rows.insert(0, Row(_TYPED, line(("as it is typed: ", "dim"), one_line(text, 400))))
        likeliest = text if text in listed else next(iter(listed), _TYPED)
        self.show_narrowed(rows, likeliest)


class DiffPage(Page):
    scope = "diff"

    def __init__(self) -> None:
        super().__init__()
        self.head = LineView(id="diff-head")
        self.head.can_focus = False
        self.pane = RowList(id="diff-body", classes="pane")
        self.shows_equal = True
        self._mode: view.Mode = "side by side"
        self.picker = ReferencePicker(self)
        self.comparison = Loader[tuple[tuple[str, str] | None, str], Compared | None](
            self, self._compare
        )
        self._asked: tuple[str, str] | None = None  # None: a run's start and the head
        self._is_due = False
        self._run: str | None = None

    def compose(self) -> ComposeResult:
        yield self.head
        yield self.pane
        yield self.picker.line
        yield self.picker.list

    def initial_focus(self) -> Widget:
        return self.picker.line if self.picker.side else self.pane

    def panes(self) -> list[Widget]:
        return [self.initial_focus()]

    def footer_keys(self) -> Sequence[Key]:
        return self.picker.keys

    def usable_keys(self, keys: Sequence[Key]) -> Sequence[Key]:
        """Where nothing is compared, it is to be chosen."""
        return keys if self.found else [key for key in keys if key.id.endswith(("base", "target"))]

    # -- what is compared ------------------------------------------------------------------

    @property
    def run(self) -> str:
        return self.session.run.run if self.session is not None else ""

    @property
    def found(self) -> Compared | None:
        return self.comparison.value

    @property
    def mode(self) -> view.Mode:
        """How changes are drawn: as was chosen, where there is room for it."""
        return self._mode if self.pane.line_width - 2 >= view.TWO_COLUMNS else "words"

    def open_at(self, target: str = "") -> None:
        """Target is "REF_A REF_B", or one reference that is compared with the base."""
        parts = target.split()
        if len(parts) == 2:
            self._asked = (parts[0], parts[1])
        elif len(parts) == 1 and not self.go_to(parts[0]) and set("@/") & set(parts[0]):
            # Anything else is the cursor of another page, which knows nothing of this one.
            self._asked = (self.found.base if self.found else parts[0], parts[0])
        self._is_due = True

    def handle_message(self, message: Message) -> None:
        if isinstance(message, SnapshotReceived) or (
            isinstance(message, EventReceived) and isinstance(message.event, _MOVES_A_HEAD)
        ):
            self._is_due = True

    def _compare(self, key: tuple[tuple[str, str] | None, str]) -> Compared | None:
        asked, run = key
        workspace = self.host.workspace
        pair = asked or view.default_references(workspace, run)
        return view.compare(*pair, workspace) if pair else None

    def draw(self) -> None:
        if self.run != self._run:
            if self._run is not None:
                self._asked = None
            self._run, self._is_due = self.run, True
        if self._is_due:
            self._is_due = False
            self.comparison.request((self._asked, self.run), again=True)
        width, trouble = self.head.line_width, one_line(self.comparison.trouble, 800)
        lines = paragraph([(trouble, "failed")], width)[:2] if trouble else []
        if self.found is not None:
            lines += view.head_lines(self.found, self.mode, width)
        elif not trouble:
            lines = paragraph([(self._empty_text(), "dim")], width)
        self.head.show_lines(lines[: self.head.size.height])
        if self.picker.side:
            self.picker.draw()
        else:
            self._draw_changes()

    def _empty_text(self) -> str:
        if self.comparison.is_reading:
            return "reading the libraries …"
        if self.session is not None:
            return "the run has not begun: there is no version of its library yet"
        return "nothing has been learned in this workspace yet: 0 starts a run"

    def _draw_changes(self) -> None:
        pane, found, words = self.pane, self.found, self.filter_text
        if found is None:
            pane.border_title = None
            pane.say_below()
            pane.show_rows([])
            return
        width = max(12, pane.line_width - 2)
        pane.border_title = Text(view.pane_title(found, width, self.mode))
        equal = sum(not each.differs for each in found.entries)
        hidden = f"{equal} equal hidden (=)" if equal and not self.shows_equal else ""
        filtered = f"/ {one_line(words, 20)}" if words else ""
        pane.say_below("  ".join(filter(None, (filtered, hidden))))
        rows = view.change_rows(found, width, self.mode, self.shows_equal, words)
        if not rows:
            nothing = [f"nothing differs here, {equal} are equal (= shows them)"]
            if words:
                nothing = [f"nothing here holds {words!r}: esc clears the filter"]
            elif found.facts.changes_weights:
                nothing = weights_lines(found.facts)
            lines = (paragraph([(one_line(text, 400), "")], width, "  ") for text in nothing)
            rows = note_rows(row for each in lines for row in each)
        first = next(iter(self._changes), "") if not pane.key else None
        pane.show_rows(rows, first)

    @property
    def _changes(self) -> list[str]:
        """The keys of what differs, in order."""
        entries = self.found.entries if self.found is not None else ()
        return [view.key_of(each) for each in entries if each.differs]

    def action_step_change(self, by: int) -> None:
        if self.picker.side:
            return
        keys, changes = self.pane.keys, set(self._changes)
        at = keys.index(self.pane.key) if self.pane.key in keys else 0
        others = keys[at + 1 :] if by > 0 else keys[:at][::-1]
        there = next((key for key in others if key in changes), "")
        if there:
            self.pane.go_to(there)
        else:
            self.host.tell("there is no further change")

    def action_words(self) -> None:
        self._mode = "words" if self.mode == "side by side" else "side by side"
        self.host.draw_now()
        narrow = "" if self.mode == self._mode else ": two columns have no room here"
        self.host.tell(f"changes by {self.mode}{narrow}".replace("by side by", "side by"))

    def action_same(self) -> None:
        self.shows_equal = not self.shows_equal
        self.host.draw_now()
        self.host.tell("what is equal is shown" if self.shows_equal else "what is equal is hidden")

    def action_base(self) -> None:
        self._choose_side("base")

    def action_target(self) -> None:
        self._choose_side("target")

    def _choose_side(self, side: Literal["base", "target"]) -> None:
        self.comparison.trouble = ""
        self.picker.open(side)

    def action_choose(self) -> None:
        side, reference = self.picker.side, self.picker.reference
        if not side:
            self.host.tell("b chooses what to compare with, B what is compared")
        elif self.picker.list.key:
            base = target = reference
            if self.found is not None:
                base, target = self.found.base, self.found.target
            older, arrow, newer = reference.partition(view.ARROW)
            self._asked = (reference, target) if side == "base" else (base, reference)
            if arrow:
                self._asked = (older, newer)
            self._is_due = True
            self.picker.close()

    def action_export(self) -> None:
        found = self.found
        if found is None:
            self.host.tell("nothing is compared, so there is nothing to write down", "failed")
        elif not self.picker.side:
            data = f"{found.text}\n".encode("utf-8", "replace")
            write = partial(write_export, self.host.workspace, found.file_name, data)
            self.export_file(write, "the difference is")

    def go_back(self) -> bool:
        if super().go_back():
            return True
        if self.picker.side:
            self.picker.close()
        elif self.comparison.trouble and self.found is not None:
            self.comparison.trouble = ""
            self._asked = (self.found.base, self.found.target)
            self.host.draw_now()
        else:
            return False
        return True

    def go_to(self, name: str) -> bool:
        entries = self.found.entries if self.found is not None else ()
        here = [view.key_of(each) for each in entries if each.id == name]
        if not here:
            return False
        self.filter_text, self.shows_equal = "", True
        self._draw_changes()
        return self.pane.go_to(here[-1])

    def text_to_copy(self, whole: bool) -> str:
        if self.picker.side:
            return self.picker.list.key if not whole else super().text_to_copy(whole)
        if self.found is None:
            return ""
        if whole:
            return self.found.text
        key = self.pane.key
        here = next((each for each in self.found.entries if view.key_of(each) == key), None)
        return view.entry_text(here) if here is not None else ""
