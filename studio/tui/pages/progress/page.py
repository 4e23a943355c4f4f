"""Progress: reward, held-out sets, commits, tokens and cost over the steps of a run."""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence

from rich.text import Text
from textual.app import ComposeResult
from textual.widget import Widget

from engines.core.errors import StudioError
from engines.core.state.run_state import RunState
from engines.core.types import group_id
from engines.record.run_dir import Workspace
from studio.facts.curves import curves_key, run_curves
from studio.facts.run import load_parent, load_state_with_parents, with_parent
from studio.render.curve_lines import step_summary
from studio.render.words import no_practice_text
from studio.secrets.sanitize import one_line
from studio.tui.drawing.cells import choose_glyphs, fit, pad
from studio.tui.drawing.lines import Line, Row, line, paragraph
from studio.tui.keymap import Key
from studio.tui.page import Page
from studio.tui.pages.picker import Picker
from studio.tui.pages.progress import view
from studio.tui.pages.progress.view import Picture, ShownRun
from studio.tui.pages.text import holds_words
from studio.tui.terminal.look import wants_ascii
from studio.tui.widgets.line_view import LineView


def load_run(workspace: Workspace, run: str) -> ShownRun:
    """A run as its journal has it now.

    Raises StudioError: there is none of this name, or its journal is damaged.
    """
    state = load_state_with_parents(workspace.run(run), workspace)
    sizes = load_sizes(workspace, state)
    return ShownRun(state, run_curves(state, sizes), sizes)


def load_sizes(workspace: Workspace, state: RunState) -> Mapping[int, int]:
    """How many experiences each version of the run's library has; {} where it cannot be read."""
    try:
        history = workspace.library(state.started.library if state.started else "").history()
    except (StudioError, OSError):
        return {}
    return {library.version: len(library.experiences) for library, _ in history}


class RunPicker(Picker):
    _choices: Sequence[tuple[str, str]] | None = None  # None: not read yet

    async def load(self) -> None:
        from studio.workspace.listing import listed_runs, row_text

        found = await asyncio.to_thread(listed_runs, self._page.host.workspace)
        self._choices = [(str(run.row["run"]), row_text(run)) for run in found]
        self._page.draw_if_open()

    def draw(self) -> None:
        self.list.border_title = "lay over it …"
        words = self.line.value.strip()
        found = [(run, about) for run, about in self._choices or () if holds_words(run, words)]
        rows = [
            Row(run, line((pad(one_line(run, 60), 28), "title"), about)) for run, about in found
        ]
        if not rows:
            text = "reading the workspace …" if self._choices is None else "no run holds this"
            rows = [Row("", line((text, "dim")))]
        # The first that is left, unless somebody has moved since.
        self.list.show_rows(rows, rows[0].key if words != self._narrowed else None)
        self._narrowed = words


class PlotPane(LineView):
    """The picture. Keys that move go from point to point."""

    def __init__(self, page: ProgressPage) -> None:
        super().__init__(id="progress-plot", classes="pane")
        self._page = page

    def action_move(self, by: int) -> None:
        self._page.action_step_point(by)

    action_move_across = action_move

    def action_move_to_end(self, by: int) -> None:
        self._page.go_to_step(None if by > 0 else 0)


class ProgressPage(Page):
    """Draws the picture anew only where a step, an evaluation or the size changed."""

    scope = "progress"

    def __init__(self) -> None:
        super().__init__()
        self.plot_pane = PlotPane(self)
        self.detail_pane = LineView(id="progress-detail", classes="pane")
        self.picker = RunPicker(self, self._choose)
        self.over: ShownRun | None = None
        self.at: int | None = None  # the step under the cursor; None: the last one, as it grows
        self._held_out = ""  # the set that is shown; "": the first
        self._sizes: Mapping[int, int] = {}
        self._sizes_of: tuple[str, int] | None = None  # run and version they were read for
        self._forked_from: RunState | None = None  # of a fork
        self._shown: tuple[tuple[object, ...], ShownRun] | None = None
        self.drawn: tuple[tuple[object, ...], Picture] | None = None

    def compose(self) -> ComposeResult:
        for pane in (self.plot_pane, self.detail_pane):
            pane.add_class("picture")
            yield pane
        yield self.picker.line
        yield self.picker.list

    def initial_focus(self) -> Widget:
        return self.picker.line if self.picker.side else self.plot_pane

    def panes(self) -> list[Widget]:
        return [self.picker.line] if self.picker.side else [self.plot_pane, self.detail_pane]

    def footer_keys(self) -> Sequence[Key]:
        return self.picker.keys

    # -- what is shown ---------------------------------------------------------------------

    @property
    def shown(self) -> ShownRun | None:
        """The open run; made anew only where one of its curves changed."""
        state = self.state
        if state is None or state.started is None:
            return None
        key = (*curves_key(state), id(self._sizes))
        if self._shown is None or self._shown[0] != key:
            whole = with_parent(state, self._forked_from)
            self._shown = (key, ShownRun(whole, run_curves(whole, self._sizes), self._sizes))
        return self._shown[1]

    def _read_sizes_if_due(self) -> None:
        """Sizes of versions, where another run is open or the library has a new one."""
        state, workspace = self.state, self.host.workspace
        if state is None or state.started is None:
            return
        wanted, before = (state.started.run, state.library_version), self._sizes_of
        if before is None or before[0] != wanted[0]:
            self._sizes, self.at, self.over, self._forked_from = {}, None, None, None
        self._sizes_of = wanted

        async def read() -> None:

            if self._forked_from is None:
                self._forked_from = await asyncio.to_thread(load_parent, state, workspace)
            self._sizes = await asyncio.to_thread(load_sizes, workspace, state)
            self.draw_if_open()

        if wanted != before:
            self.run_exclusive("sizes", read)

    @property
    def set_names(self) -> list[str]:
        """The held-out sets of both runs."""
        runs = [run for run in (self.shown, self.over) if run is not None]
        return list(dict.fromkeys(one.name for run in runs for one in run.curves.held_out))

    @property
    def held_out(self) -> str:
        """The held-out set that is drawn, "" where none is measured."""
        names = self.set_names
        return self._held_out if self._held_out in names else next(iter(names), "")

    @property
    def steps(self) -> tuple[int, ...]:
        return self.shown.curves.steps if self.shown is not None else ()

    @property
    def step(self) -> int:
        """The step under the cursor: the nearest before it that has a point; 0 without any."""
        steps = self.steps
        if not steps or self.at is None:
            return steps[-1] if steps else 0
        return steps[max(0, bisect_right(steps, self.at) - 1)]

    def draw(self) -> None:
        self._read_sizes_if_due()
        if self.picker.side:
            self.picker.draw()
            return
        shown, pane, width = self.shown, self.plot_pane, self.plot_pane.line_width
        if shown is None or not shown.curves.steps:
            pane.border_title = Text("Progress")
            pane.say_below()
            pane.show_lines(self._empty_lines(width))
            self.detail_pane.show_lines([])
            return
        curves, over = shown.curves, self.over.curves if self.over is not None else None
        title = f"{one_line(curves.run, 40)}: step {curves.last_step} of {curves.steps_planned}"
        if over is not None:
            title += f", over it {one_line(over.run, 40)}"
        pane.border_title = Text(fit(f"Progress  {title}", max(1, width - 4)))
        scripted = [one_line(one.run, 24) for one in (curves, over) if one and one.rehearsal]
        pane.say_below(f"rehearsal, scripted replies: {', '.join(scripted)}" if scripted else "")
        signs = choose_glyphs(wants_ascii(self.host.settings, self.host.environ))
        made_of = (curves, over, self.held_out, (width, pane.size.height), signs)
        if self.drawn is None or self.drawn[0] != made_of:
            self.drawn = (made_of, view.draw_picture(*made_of))
        pane.show_lines(self.drawn[1].with_cursor(self.step)[: max(1, pane.size.height)])
        self.detail_pane.border_title = Text(f"Step {self.step}")
        detail = view.detail_lines(shown, self.over, self.step, self.detail_pane.line_width)
        self.detail_pane.show_lines(detail)

    def _empty_lines(self, width: int) -> list[Line]:
        text = "no step is through yet: the curve begins with the first"
        text = no_practice_text(self.state) or text
        if self.session is None:
            text = "no run is open: 5 lists them, 0 starts one"
        elif self.shown is None:
            text = "reading the run …"
        return paragraph([(text, "dim")], width)

    def action_step_point(self, by: int) -> None:
        """So many points on, or back."""
        steps = self.steps
        if not steps:
            self.host.tell("there is no point yet")
            return
        here = steps.index(self.step)
        there = min(len(steps) - 1, max(0, here + by))
        if there == here:
            self.host.tell(f"this is the {'last' if by > 0 else 'first'} point")
        self.go_to_step(None if there == len(steps) - 1 else steps[there])

    def go_to_step(self, step: int | None) -> None:
        """None: to the last, and on with it as the run goes on."""
        self.at = step
        self.host.draw_now()

    def go_to(self, name: str) -> bool:
        """Put the cursor on a step: `12`, `s12`, `step 12`."""
        found = re.fullmatch(r"(?:step ?|s)?(\d{1,9})", name)
        if found is None or int(found[1]) not in self.steps:
            return False
        self.at = int(found[1])
        return True

    def apply_filter(self, text: str) -> None:
        """`/` finds a step."""
        if text and not self.go_to(text):
            self.host.tell(f"{text}: there is no point of such a step", "failed")
        self.host.draw_now()

    def action_open(self) -> None:
        step, state = self.step, self.state
        if self.picker.side:
            self._choose()
        elif state and (state.curates or (step == state.step and state.under_review)):
            self.host.open_page("review")
        elif state is None or not (known := state.steps.get(step)) or not known.rollouts_done:
            self.host.tell("no rollouts of this step are here", "failed")
        else:
            self.host.open_page("inspect", group_id(step, 0))

    def action_step_set(self, by: int) -> None:
        names = self.set_names
        if names:
            self._held_out = names[(names.index(self.held_out) + by) % len(names)]
            self.host.draw_now()
        self.host.tell(f"held out: {self._held_out or 'not measured'}")

    def action_base(self) -> None:
        self.picker.open("over")

    def action_target(self) -> None:
        taken_away = "the run is shown alone; b lays one over it"
        self.host.tell(taken_away if self.over else "no run is laid over this one: b chooses one")
        self.over = None
        self.host.draw_now()

    def usable_keys(self, keys: Sequence[Key]) -> Sequence[Key]:
        """What there is nothing for is left away."""
        needs = {
            "progress.open": bool(self.steps or (self.state and self.state.curates)),
            "progress.next": bool(self.steps),
            "progress.next_set": len(self.set_names) > 1,
            "progress.base": self.shown is not None,
            "progress.target": self.over is not None,
        }
        return [key for key in keys if needs.get(key.id, True)]

    def _choose(self) -> None:
        if run := self.picker.list.key:
            self.picker.close()
            self.lay_over(run)

    def lay_over(self, run: str) -> None:
        """Read a run, and lay it over the one that is open."""

        async def load() -> None:

            try:
                self.over = await asyncio.to_thread(load_run, self.host.workspace, run)
            except StudioError as error:
                self.host.tell(str(error), "failed")
            self.draw_if_open()

        self.run_exclusive("load", load)

    def go_back(self) -> bool:
        is_open = bool(self.picker.side) or self.over is not None
        if self.picker.side:
            self.picker.close()
        else:
            self.over = None
        return is_open

    def text_to_copy(self, whole: bool) -> str:
        if whole or self.shown is None:
            return super().text_to_copy(whole)
        return step_summary(self.shown.state, self.step, self.shown.sizes)
