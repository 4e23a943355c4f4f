"""Diff: any two versions, epochs, steps, runs or files beside each other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widget import Widget
from textual.widgets import Input
from textual.worker import Worker

from engines.core.errors import StudioError
from studio.secrets.sanitize import one_line
from studio.session.base import EventReceived, Message, SnapshotReceived
from studio.tui.drawing.lines import Line, Row, line, paragraph
from studio.tui.keymap import Key, bindings
from studio.tui.page import Page
from studio.tui.pages.diff import view
from studio.tui.pages.diff.view import Block, Choice, Comparison
from studio.tui.widgets.line_view import LineView
from studio.tui.widgets.pick_line import PICK_KEYS, PickLine
from studio.tui.widgets.row_list import RowList

_MOVES_A_HEAD = ("LessonCommitted", "EvaluationFinished", "StepFinished")
_TYPED = " "  # the row that asks for a reference: no reference is a blank


class DiffPage(Page):
    """Keeps what it shows until something else was found."""

    scope = "diff"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings("diff")]
    DEFAULT_CSS = """
    DiffPage { layout: vertical; }
    DiffPage #diff-head { height: 5; padding: 0 1; }
    DiffPage #diff-body, DiffPage #diff-choices { height: 1fr; }
    DiffPage #diff-choices, DiffPage #diff-pick { display: none; }
    DiffPage.-choosing #diff-choices, DiffPage.-choosing #diff-pick { display: block; }
    DiffPage.-choosing #diff-body { display: none; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: Comparison | None = None
        self.mode: view.Mode = view.MODES[0]
        self.same = True
        self.at = ""  # the change under the cursor
        self.choosing = ""  # "base" or "target" while the list is open
        self._trouble = ""
        self._asked: tuple[str, str] | None = None  # None: a run's start and the head
        self._reading: object | None = None
        self._due = False
        self._run: str | None = None
        self._choices: tuple[Choice, ...] | None = None
        self._laid: tuple[object, list[Block]] = (None, [])
        self._narrowed = ""  # what the list of choices was last narrowed to

    def compose(self) -> ComposeResult:
        head = LineView(id="diff-head")
        head.can_focus = False
        yield head
        yield LineView(id="diff-body", classes="pane")
        yield PickLine("diff-choices", id="diff-pick")
        yield RowList(id="diff-choices", classes="pane")

    @property
    def body(self) -> LineView:
        return self.query_one("#diff-body", LineView)

    @property
    def choice_list(self) -> RowList:
        return self.query_one("#diff-choices", RowList)

    @property
    def pick_line(self) -> PickLine:
        return self.query_one("#diff-pick", PickLine)

    def initial_focus(self) -> Widget:
        return self.pick_line if self.choosing else self.body

    def panes(self) -> list[Widget]:
        return [self.initial_focus()]

    def footer_keys(self) -> Sequence[Key]:
        return PICK_KEYS if self.choosing else ()

    # -- what is compared ------------------------------------------------------------------

    def open_at(self, target: str = "") -> None:
        """Target is "REF_A REF_B", or one reference that is compared with the base."""
        parts = target.split()
        if len(parts) == 2:
            self._asked = (parts[0], parts[1])
        elif len(parts) == 1 and not self.go_to(parts[0]) and set("@/") & set(parts[0]):
            # Anything else is the cursor of another page, which knows nothing of this one.
            self._asked = (self.found.base.reference if self.found else parts[0], parts[0])
        self._due = True

    def handle_message(self, message: Message) -> None:
        if isinstance(message, SnapshotReceived) or (
            isinstance(message, EventReceived) and type(message.event).__name__ in _MOVES_A_HEAD
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
        self._run_in_group("compare", partial(self._load_comparison, asked, token))

    async def _load_comparison(self, asked: tuple[str, str] | None, token: object) -> None:
        from studio.tui.pages.diff import loader

        workspace = self.host.workspace
        run = self._run
        try:
            pair = asked or await asyncio.to_thread(loader.default_references, workspace, run)
            found = await asyncio.to_thread(loader.compare, *pair, workspace) if pair else None
        except StudioError as error:
            self._trouble = str(error)
            if self.found is not None:  # what is shown stays what is asked for
                self._asked = (self.found.base.reference, self.found.target.reference)
        else:
            self._trouble, self.found = "", found
            self._asked = asked
        finally:
            if self._reading is token:
                self._reading = None
        self._draw_if_open()

    def _run_in_group(self, group: str, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Run it beside the screen, in place of what its group was about.

        A callable, since a coroutine that is replaced before it began is never awaited.
        """
        _: Worker[None] = self.run_worker(work, group=group, exclusive=True)

    def _draw_if_open(self) -> None:
        if self.is_open:
            self.host.draw_now()

    # -- drawing ---------------------------------------------------------------------------

    def draw(self) -> None:
        self._reload_if_due()
        head = self.query_one("#diff-head", LineView)
        width, height = head.line_width, head.size.height
        if self.found is not None:
            shown = view.head_lines(self.found, self.drawn_mode, width, height)
            if self._trouble:
                shown = [*paragraph(((one_line(self._trouble, 400), "failed"),), width)[:2], *shown]
            head.show_lines(shown[:height])
        else:
            head.show_lines(self._empty_lines(width))
        if self.choosing:
            self._draw_choices()
        else:
            self._draw_body()

    def _empty_lines(self, width: int) -> list[Line]:
        if self._trouble:
            told, style = (
                f"{one_line(self._trouble, 800)} b chooses what to compare with.",
                "failed",
            )
        elif self._reading is not None:
            told, style = "reading the libraries …", "dim"
        elif self.session is not None:
            told, style = "the run has not begun: there is no version of its library yet", "dim"
        else:
            told, style = "nothing has been learned in this workspace yet: 0 starts a run", "dim"
        return paragraph(((told, style),), width)

    @property
    def drawn_mode(self) -> view.Mode:
        return view.effective_mode(self.mode, self.body.line_width - 1)

    def visible_blocks(self) -> list[Block]:
        """The blocks as they are drawn; laid out anew only where something is different."""
        if self.found is None:
            return []
        room = max(12, self.body.line_width - 1)
        wanted = (self.found, room, self.drawn_mode, self.same, self.filter_text)
        if self._laid[0] != wanted:
            self._laid = (
                wanted,
                view.blocks(
                    self.found,
                    room,
                    self.drawn_mode,
                    same=self.same,
                    words=self.filter_text,
                ),
            )
        return self._laid[1]

    def _draw_body(self) -> None:
        body, found = self.body, self.found
        if found is None:
            body.border_title = body.border_subtitle = None
            body.show_lines([])
            return
        blocks = self.visible_blocks()
        if self.at not in {block.id for block in blocks}:
            self.at = view.find_next_change(blocks, "", 1)
        shown: list[Line] = []
        for block in blocks:
            mark = (">", "focus") if block.id == self.at else (" ", "")
            shown += [
                ((mark if not number else (" ", "")), *row)
                for number, row in enumerate(block.lines)
            ]
        equal = sum(one.sign == "=" for one in found.entries)
        if not blocks and found.weights and not self.filter_text:
            shown = [
                row
                for text in found.weights
                for row in paragraph(((one_line(text, 400), ""),), body.line_width, "  ")
            ]
        elif not blocks:
            shown = paragraph(((self._empty_text(equal), "dim"),), body.line_width)
        title = view.pane_title(found, max(12, body.line_width - 1), self.drawn_mode)
        body.border_title = Text(title)
        hidden = f"{equal} equal hidden (space)" if equal and not self.same else ""
        wanted = f"/ {one_line(self.filter_text, 20)}" if self.filter_text else ""
        body.border_subtitle = Text("  ".join(filter(None, (wanted, hidden))))
        body.show_lines(shown)

    def _empty_text(self, equal: int) -> str:
        if self.filter_text:
            return f"nothing here holds {self.filter_text!r}: esc clears the filter"
        if equal:
            return f"no experience differs; {equal} are equal (space shows them)"
        return "both are empty"

    def _draw_choices(self) -> None:
        which = "compare with" if self.choosing == "base" else "compare"
        self.choice_list.border_title = f"{which} …"
        if self._choices is None:
            self.choice_list.show_rows([Row("", line(("reading what there is …", "dim")))])
            return
        text = self.pick_line.value.strip()
        rows = view.choice_rows(self._choices, text, max(12, self.choice_list.line_width - 2))
        listed = [row.key for row in rows if row.key]
        if not text:
            told = "arrows choose; or type NAME@V, RUN@epoch:N, RUN@step:N or a file"
            rows.insert(0, Row("", line((told, "dim"))))
        elif text not in listed:
            rows.insert(0, Row(_TYPED, line(("as it is typed: ", "dim"), one_line(text, 400))))
        wanted = None
        if text != self._narrowed:  # the likeliest, unless somebody has moved since
            wanted = text if text in listed else next(iter(listed), _TYPED)
        self._narrowed = text
        self.choice_list.show_rows(rows, wanted)

    def _show_change(self) -> None:
        """Bring the change under the cursor into view, all of it where it fits."""
        top = 0
        for block in self.visible_blocks():
            if block.id == self.at:
                height, now = self.body.size.height, round(self.body.scroll_y)
                if top < now or top + len(block.lines) > now + height:
                    self.body.scroll_to(y=max(0, top - height // 4), animate=False, force=True)
                return
            top += len(block.lines)

    # -- keys ------------------------------------------------------------------------------

    def action_next_change(self) -> None:
        self._step_change(1)

    def action_previous_change(self) -> None:
        self._step_change(-1)

    def _step_change(self, step: int) -> None:
        if self.choosing:
            return
        there = view.find_next_change(self.visible_blocks(), self.at, step)
        if not there or there == self.at:
            self.host.tell("no experience differs" if not there else "there is no further change")
            return
        self.at = there
        self._draw_body()
        self._show_change()

    def action_words(self) -> None:
        offered = [
            mode
            for mode in view.MODES
            if view.effective_mode(mode, self.body.line_width - 1) == mode
        ]
        at = offered.index(self.drawn_mode)
        self.mode = offered[(at + 1) % len(offered)]
        self.host.draw_now()
        self._show_change()
        self.host.tell(f"changes {'by ' if self.mode != 'side by side' else ''}{self.mode}")

    def action_same(self) -> None:
        self.same = not self.same
        self.host.draw_now()
        self._show_change()
        self.host.tell("what is equal is shown" if self.same else "what is equal is hidden")

    def action_base(self) -> None:
        self._open_choices("base")

    def action_target(self) -> None:
        self._open_choices("target")

    def _open_choices(self, which: str) -> None:
        self.choosing = which
        self.filter_text = self._narrowed = ""
        self.add_class("-choosing")
        with self.prevent(Input.Changed):
            self.pick_line.value = ""
        self.screen.set_focus(self.pick_line, scroll_visible=False)
        self.call_after_refresh(self._draw_if_open)  # only then the size of the list is known
        self._run_in_group("choices", self._list_choices)
        self.host.draw_now()

    async def _list_choices(self) -> None:
        from studio.tui.pages.diff import loader

        try:
            self._choices = await asyncio.to_thread(
                loader.load_choices, self.host.workspace, self._run
            )
        except StudioError as error:
            self._choices = (Choice("", str(error)),)
        if self.choosing:
            self._draw_if_open()
            if self.found is not None:
                side = self.found.base if self.choosing == "base" else self.found.target
                self.choice_list.go_to(side.reference)

    def action_choose(self) -> None:
        if not self.choosing:
            self.host.tell("b chooses what to compare with, B what is compared")
        elif self.choice_list.key == _TYPED:
            self._choose_reference(self.pick_line.value.strip())
        elif self.choice_list.key:
            self._choose_reference(self.choice_list.key)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        if self.choosing:
            self._draw_choices()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if self.choosing:
            self.action_choose()

    def on_pick_line_left(self, event: PickLine.Left) -> None:
        event.stop()
        if self.choosing:
            self._close_choices()
            self.host.draw_now()

    def action_export(self) -> None:
        if self.found is None:
            self.host.tell("nothing is compared, so there is nothing to write down", "failed")
        elif not self.choosing:
            self._run_in_group("export", partial(self._export, self.found))

    async def _export(self, found: Comparison) -> None:
        from studio.tui.pages import library_loader

        name = view.file_name(found)
        try:
            path = await asyncio.to_thread(
                library_loader.export_text, self.host.workspace, name, found.text + "\n"
            )
        except StudioError as error:
            self.host.tell(str(error), "failed")
        else:
            self.host.tell(f"the difference is written to {path}")

    def _choose_reference(self, reference: str) -> None:
        which = self.choosing
        if self.found is not None:
            base, target = self.found.base.reference, self.found.target.reference
        else:
            base = target = reference
        self._close_choices()
        self.compare((reference, target) if which == "base" else (base, reference))
        self.host.draw_now()

    def _close_choices(self) -> None:
        self.choosing = ""
        self.filter_text = ""
        self.remove_class("-choosing")
        self.screen.set_focus(self.body, scroll_visible=False)
        self.call_after_refresh(self._draw_if_open)

    def go_back(self) -> bool:
        if super().go_back():
            return True
        if self.choosing:
            self._close_choices()
            return True
        if self._trouble and self.found is not None:
            self._trouble = ""
            return True
        return False

    def go_to(self, name: str) -> bool:
        if self.found is None or name not in {one.id for one in self.found.entries}:
            return False
        self.filter_text, self.same, self.at = "", True, name
        if self.is_open:
            self._draw_body()
            self._show_change()
        return True

    def text_to_copy(self, whole: bool) -> str:
        if self.choosing:
            return self.choice_list.key if not whole else super().text_to_copy(whole)
        if self.found is None:
            return ""
        if whole:
            return self.found.text
        here = next((one for one in self.found.entries if one.id == self.at), None)
        return view.entry_text(here) if here is not None else ""
