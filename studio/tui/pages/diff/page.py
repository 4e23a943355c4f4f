"""Diff: any two versions, epochs, steps, runs or files beside each other."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Literal

from rich.text import Text
from textual.app import ComposeResult
from textual.widget import Widget

from engines.core.errors import StudioError
from engines.core.events import EvaluationFinished, LessonCommitted, StepFinished
from studio.render.library_lines import weights_lines
from studio.secrets.sanitize import one_line
from studio.session.session import EventReceived, Message, SnapshotReceived
from studio.tui.drawing.lines import Line, Row, line, paragraph
from studio.tui.keymap import Key
from studio.tui.page import Page, write_export
from studio.tui.pages.diff import view
from studio.tui.pages.diff.view import Block, Choice, Compared, choice_rows
from studio.tui.pages.picker import Picker
from studio.tui.widgets.line_view import LineView


class ComparisonBody:
    """Lays the changes out anew only where something is different."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.pane = LineView(id="diff-body", classes="pane")
        self.found: Compared | None = None
        self.at = ""  # the change under the cursor
        self.shows_equal = True
        self._mode: view.Mode = view.MODES[0]
        self._laid: tuple[object, list[Block]] = (None, [])

    @property
    def _room(self) -> int:
        """Cells of a change beside the cursor's mark."""
        return max(12, self.pane.line_width - 1)

    @property
    def mode(self) -> view.Mode:
        """How changes are drawn: as was chosen, where there is room for it."""
        return view.effective_mode(self._mode, self._room)

    def choose_next_mode(self) -> None:
        offered = [mode for mode in view.MODES if view.effective_mode(mode, self._room) == mode]
        self._mode = offered[(offered.index(self.mode) + 1) % len(offered)]

    @property
    def blocks(self) -> list[Block]:
        if self.found is None:
            return []
        made_of = (self.found, self._room, self.mode, self.shows_equal, self._page.filter_text)
        if self._laid[0] != made_of:
            self._laid = (made_of, view.blocks(*made_of))
        return self._laid[1]

    def draw(self) -> None:
        pane, found = self.pane, self.found
        if found is None:
            pane.border_title = None
            pane.say_below()
            pane.show_lines([])
            return
        blocks = self.blocks
        if self.at not in {block.id for block in blocks}:
            self.at = view.find_next_change(blocks, "", 1)
        equal = sum(not one.differs for one in found.entries)
        pane.border_title = Text(view.pane_title(found, self._room, self.mode))
        hidden = f"{equal} equal hidden (=)" if equal and not self.shows_equal else ""
        words = self._page.filter_text
        filtered = f"/ {one_line(words, 20)}" if words else ""
        pane.say_below("  ".join(filter(None, (filtered, hidden))))
        lines: list[Line] = []
        if blocks:
            for block in blocks:
                mark = (">", "focus") if block.id == self.at else (" ", "")
                lines += [(mark, *block.lines[0]), *(((" ", ""), *row) for row in block.lines[1:])]
        elif found.facts.changes_weights and not words:
            for text in weights_lines(found.facts):
                lines += paragraph([(one_line(text, 400), "")], pane.line_width, "  ")
        else:
            lines = paragraph([(self._empty_text(equal), "dim")], pane.line_width)
        pane.show_lines(lines)

    def _empty_text(self, equal: int) -> str:
        if self._page.filter_text:
            return f"nothing here holds {self._page.filter_text!r}: esc clears the filter"
        if equal:
            return f"the same library: no experience differs, {equal} are equal (= shows them)"
        return "both are empty"

    def scroll_to_change(self) -> None:
        """Bring the change under the cursor into view, all of it where it fits."""
        top = 0
        for block in self.blocks:
            if block.id == self.at:
                height, now = self.pane.size.height, round(self.pane.scroll_y)
                if top < now or top + len(block.lines) > now + height:
                    self.pane.scroll_to(y=max(0, top - height // 4), animate=False, force=True)
                return
            top += len(block.lines)

    def go_to_change(self, name: str) -> None:
        self.at = name
        self.draw()
        self.scroll_to_change()


_TYPED = " "  # the row that asks for a reference: no reference is a blank


class ReferencePicker(Picker):
    """Its side is "base" or "target": which of the two references is chosen."""

    shown = ""  # what is compared now on that side
    _choices: tuple[Choice, ...] | None = None  # None: not read yet

    @property
    def reference(self) -> str:
        """What is under the cursor, or was typed."""
        return self.line.value.strip() if self.list.key == _TYPED else self.list.key

    async def load(self) -> None:
        from studio.tui.pages.diff import loader

        session, workspace = self._page.session, self._page.host.workspace
        run = session.run.run if session is not None else None
        try:
            self._choices = await asyncio.to_thread(loader.load_choices, workspace, run)
        except StudioError as error:
            self._choices = (Choice("", str(error)),)
        if self.side:
            self._page.draw_if_open()
            self.list.go_to(self.shown)

    def draw(self) -> None:
        self.list.border_title = "compare with …" if self.side == "base" else "compare …"
        if self._choices is None:
            self.list.show_rows([Row("", line(("reading what there is …", "dim")))])
            return
        text = self.line.value.strip()
        rows = choice_rows(self._choices, text, max(12, self.list.line_width - 2))
        listed = [row.key for row in rows if row.key]
        if not text:
            hint = "arrows choose; or type NAME@V, RUN@epoch:N, RUN@step:N or a file"
            rows.insert(0, Row("", line((hint, "dim"))))
        elif text not in listed:
            rows.insert(0, Row(_TYPED, line(("as it is typed: ", "dim"), one_line(text, 400))))
        wanted = None
        if text != self._narrowed:  # the likeliest, unless somebody has moved since
            wanted = text if text in listed else next(iter(listed), _TYPED)
        self._narrowed = text
        self.list.show_rows(rows, wanted)


_MOVES_A_HEAD = LessonCommitted | EvaluationFinished | StepFinished


class DiffPage(Page):
    scope = "diff"

    def __init__(self) -> None:
        super().__init__()
        self.head = LineView(id="diff-head")
        self.head.can_focus = False
        self.body = ComparisonBody(self)
        self.picker = ReferencePicker(self, self.action_choose)
        self._trouble = ""
        self._asked: tuple[str, str] | None = None  # None: a run's start and the head
        self._reading: object | None = None
        self._due = False
        self._run: str | None = None

    def compose(self) -> ComposeResult:
        yield self.head
        yield self.body.pane
        yield self.picker.line
        yield self.picker.list

    def initial_focus(self) -> Widget:
        return self.picker.line if self.picker.side else self.body.pane

    def panes(self) -> list[Widget]:
        return [self.initial_focus()]

    def footer_keys(self) -> Sequence[Key]:
        return self.picker.keys

    def usable_keys(self, keys: Sequence[Key]) -> Sequence[Key]:
        """Where nothing is compared, it is to be chosen."""
        return keys if self.found else [key for key in keys if key.id.endswith(("base", "target"))]

    # -- what is compared ------------------------------------------------------------------

    @property
    def found(self) -> Compared | None:
        return self.body.found

    def open_at(self, target: str = "") -> None:
        """Target is "REF_A REF_B", or one reference that is compared with the base."""
        parts = target.split()
        if len(parts) == 2:
            self._asked = (parts[0], parts[1])
        elif len(parts) == 1 and not self.go_to(parts[0]) and set("@/") & set(parts[0]):
            # Anything else is the cursor of another page, which knows nothing of this one.
            self._asked = (self.found.base if self.found else parts[0], parts[0])
        self._due = True

    def handle_message(self, message: Message) -> None:
        if isinstance(message, SnapshotReceived) or (
            isinstance(message, EventReceived) and isinstance(message.event, _MOVES_A_HEAD)
        ):
            self._due = True

    def _reload_if_due(self) -> None:
        """Compare again where a head moved, or another run is open."""
        run = self.session.run.run if self.session is not None else None
        if run != self._run:
            if self._run is not None:
                self._asked = None
            self._run, self._due = run, True
        if self._due and self.is_open:
            self._due = False
            self.compare(self._asked)

    def compare(self, asked: tuple[str, str] | None) -> None:
        """Compare these references, or what is compared where nobody asked."""
        self._reading = token = object()
        self.run_exclusive("compare", partial(self._load_comparison, asked, token))

    async def _load_comparison(self, asked: tuple[str, str] | None, token: object) -> None:
        from studio.tui.pages.diff import loader

        workspace = self.host.workspace
        try:
            pair = asked or await asyncio.to_thread(loader.default_references, workspace, self._run)
            found = await asyncio.to_thread(loader.compare, *pair, workspace) if pair else None
        except StudioError as error:
            self._trouble = str(error)
            if self.found is not None:  # what is shown stays what is asked for
                self._asked = (self.found.base, self.found.target)
        else:
            self._trouble, self.body.found = "", found
            self._asked = asked
        finally:
            if self._reading is token:
                self._reading = None
        self.draw_if_open()

    def draw(self) -> None:
        self._reload_if_due()
        width, height = self.head.line_width, self.head.size.height
        if self.found is not None:
            shown = view.head_lines(self.found, self.body.mode, width, height)
            if self._trouble:
                shown = [*paragraph(((one_line(self._trouble, 400), "failed"),), width)[:2], *shown]
            self.head.show_lines(shown[:height])
        else:
            self.head.show_lines(self._empty_lines(width))
        if self.picker.side:
            self.picker.draw()
        else:
            self.body.draw()

    def _empty_lines(self, width: int) -> list[Line]:
        style = "dim"
        if self._trouble:
            text = f"{one_line(self._trouble, 800)} b chooses what to compare with."
            style = "failed"
        elif self._reading is not None:
            text = "reading the libraries …"
        elif self.session is not None:
            text = "the run has not begun: there is no version of its library yet"
        else:
            text = "nothing has been learned in this workspace yet: 0 starts a run"
        return paragraph([(text, style)], width)

    def action_step_change(self, by: int) -> None:
        if self.picker.side:
            return
        self._trouble = ""  # it was read
        there = view.find_next_change(self.body.blocks, self.body.at, by)
        if there and there != self.body.at:
            self.body.go_to_change(there)
        else:
            self.host.draw_now()
            self.host.tell("there is no further change" if there else "no experience differs")

    def action_words(self) -> None:
        self.body.choose_next_mode()
        mode = self.body.mode
        self._draw_and_tell(f"changes {'by ' if mode != 'side by side' else ''}{mode}")

    def action_same(self) -> None:
        shown = self.body.shows_equal = not self.body.shows_equal
        self._draw_and_tell("what is equal is shown" if shown else "what is equal is hidden")

    def _draw_and_tell(self, text: str) -> None:
        self._trouble = ""
        self.host.draw_now()
        self.body.scroll_to_change()
        self.host.tell(text)

    def action_base(self) -> None:
        self._choose_side("base")

    def action_target(self) -> None:
        self._choose_side("target")

    def _choose_side(self, side: Literal["base", "target"]) -> None:
        self._trouble = ""
        self.picker.shown = getattr(self.found, side) if self.found is not None else ""
        self.picker.open(side)

    def action_choose(self) -> None:
        side, reference = self.picker.side, self.picker.reference
        if not side:
            self.host.tell("b chooses what to compare with, B what is compared")
        elif self.picker.list.key:
            base = target = reference
            if self.found is not None:
                base, target = self.found.base, self.found.target
            self.picker.close()
            one, arrow, other = reference.partition(view.ARROW)
            chosen = (reference, target) if side == "base" else (base, reference)
            self.compare((one, other) if arrow else chosen)
            self.host.draw_now()

    def action_export(self) -> None:
        found = self.found
        if found is None:
            self.host.tell("nothing is compared, so there is nothing to write down", "failed")
        elif not self.picker.side:
            data = f"{found.text}\n".encode("utf-8", "replace")
            write = partial(write_export, self.host.workspace, view.file_name(found), data)
            self.export_file(write, "the difference is")

    def go_back(self) -> bool:
        if super().go_back():
            return True
        if self.picker.side:
            self.picker.close()
        elif self._trouble and self.found is not None:
            self._trouble = ""
        else:
            return False
        return True

    def go_to(self, name: str) -> bool:
        entries = self.found.entries if self.found is not None else ()
        here = [view.key_of(one) for one in entries if one.id == name]
        if not here:
            return False
        self.filter_text, self.body.shows_equal, self.body.at = "", True, here[-1]
        if self.is_open:
            self.body.go_to_change(here[-1])
        return True

    def text_to_copy(self, whole: bool) -> str:
        if self.picker.side:
            return self.picker.list.key if not whole else super().text_to_copy(whole)
        if self.found is None:
            return ""
        if whole:
            return self.found.text
        here = next((one for one in self.found.entries if view.key_of(one) == self.body.at), None)
        return view.entry_text(here) if here is not None else ""
