"""Runs: every run of the workspace, to attach to, resume, compare and export."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.content import Content
from textual.widget import Widget

from engines.core.errors import StudioError
from studio.secrets.sanitize import sanitize
from studio.tui.drawing.lines import Line, Row, line, note_rows, paragraph
from studio.tui.page import Page, resume_run, write_export
from studio.tui.pages.runs.view import SORTS, Sort, detail_lines, filter_runs, runs_csv, runs_rows
from studio.tui.widgets.line_view import LineView
from studio.tui.widgets.row_list import RowList

if TYPE_CHECKING:
    from studio.workspace.listing import KnownRun

AGAIN_S = 3.0
"""Between two looks at the workspace while the page is open."""


class RunsReader:
    """One look at a time, after which `show` is called; what was there stays until then."""

    def __init__(self, page: Page, show: Callable[[], None]) -> None:
        self._page, self._show = page, show
        self.runs: tuple[KnownRun, ...] | None = None  # None: not read yet
        self.trouble = ""
        self._is_reading = False
        self._due_at = 0.0  # by the clock of the screen

    def poll(self) -> None:
        """Look again while the page is open, since runs go on, also of other processes."""
        if self._page.is_open and self._page.host.clock() >= self._due_at:
            self.reload()

    def reload(self) -> None:
        self._page.run_worker(self.read(), group="runs")

    async def read(self) -> None:
        from studio.workspace.listing import known_runs

        if self._is_reading:
            return
        host = self._page.host
        self._is_reading, began = True, host.clock()
        try:
            self.runs = await asyncio.to_thread(known_runs, host.workspace)
            self.trouble = ""
        except (StudioError, OSError) as error:
            self.trouble = str(error)
        finally:
            self._is_reading = False
        # A workspace that takes long to read is read for a tenth of the time at most.
        self._due_at = host.clock() + max(AGAIN_S, 10 * (host.clock() - began))
        if self._page.children:  # else the screen was left meanwhile
            self._show()


class RunsPage(Page):
    """The list is read in a thread; what was there stays until it has been."""

    scope = "runs"

    def __init__(self) -> None:
        super().__init__()
        self.now: Callable[[], float] = time.time
        self.reader = RunsReader(self, self.draw_if_open)
        self.sort: Sort = SORTS[0]
        self.marked: list[str] = []  # to be compared, two at most
        self.list_pane = RowList(id="runs-list", classes="pane")
        self.detail_pane = LineView(id="runs-detail", classes="pane")

    def compose(self) -> ComposeResult:
        yield self.list_pane
        yield self.detail_pane

    def on_mount(self) -> None:
        self.set_interval(1.0, self.reader.poll)

    @property
    def selected_run(self) -> KnownRun | None:
        return next((run for run in self.reader.runs or () if run.run == self.list_pane.key), None)

    def initial_focus(self) -> Widget | None:
        return self.list_pane

    def open_at(self, target: str = "") -> None:
        super().open_at(target)
        self.reader.reload()

    def draw(self) -> None:
        rows, found = self._rows(), self.list_pane
        self.has_nothing = not self.reader.runs
        room = self.size.height
        # A row a run, while the details keep theirs; what a filter leaves moves nothing.
        most = room - max(5, min(11, room * 2 // 5))
        found.styles.height = max(3, min(most, 3 + len(self.reader.runs or ())))
        found.show_rows(rows or note_rows(self._empty_lines(found.line_width - 2)))
        title = "Runs" if self.reader.runs is None else f"Runs {len(self.reader.runs)}"
        about = [
            f"sort: {self.sort}",
            *([f"compare {' and '.join(self.marked)}"] if self.marked else []),
        ]
        if self.filter_text:
            about.insert(0, f"filter: {sanitize(self.filter_text)}")
            if self.reader.runs is not None:
                title = f"Runs {sum(bool(row.key) for row in rows)} of {len(self.reader.runs)}"
        found.border_title = Content(title)
        found.say_below("   ".join(about))
        self._draw_detail()

    def _rows(self) -> list[Row]:
        """[] where there is nothing to list."""
        shown = filter_runs(self.reader.runs or (), self.filter_text, self.sort)
        here = self.session.run.run if self.session is not None else ""
        return runs_rows(shown, self.list_pane.line_width - 2, self.now(), self.marked, here)

    def _empty_lines(self, width: int) -> list[Line]:
        """What stands where there is no row, and the key that helps."""
        if self.reader.trouble:
            return paragraph([(sanitize(self.reader.trouble), "failed")], width)
        if self.reader.runs is None:
            return [line("reading the workspace ...")]
        if self.filter_text:
            words = sanitize(self.filter_text)
            return [line(f"no run holds {words!r}: ", ("esc", "key"), " clears")]
        return [line("no run yet: ", ("0", "key"), " starts one")]

    def _draw_detail(self) -> None:
        view = self.detail_pane
        lines = detail_lines(self.selected_run, view.line_width, self.now())
        if (why := self.reader.trouble) and self.reader.runs:  # what was read before stays
            lines = [*paragraph([(sanitize(why), "failed")], view.line_width), *lines]
        view.show_lines(lines)

    def on_row_list_moved(self) -> None:
        if self.is_open:
            self._draw_detail()

    def go_to(self, name: str) -> bool:
        if not any(run.run == name for run in self.reader.runs or ()):
            return False
        if self.filter_text:
            self.apply_filter("")
        if not self.list_pane.go_to(name) and (rows := self._rows()):
            self.list_pane.show_rows(rows, name)
        return self.list_pane.key == name

    def action_open(self) -> None:
        if (run := self._readable_run()) is not None:
            self.host.attach(run.run)
            self.host.open_page("live")

    def resume(self) -> None:
        run = self._readable_run()
        if run is None:
            return
        row, shown = run.listed.row, run.listed.shown
        if shown.alive:
            self.host.tell(f"{run.run}: its process lives; enter attaches")
        elif shown.status == "finished":
            text = f"{run.run} is finished: nothing is left to resume; enter opens it"
            self.host.tell(text, "failed")
        else:
            how, why = str(row.get("ending")), str(row.get("reason"))
            self.run_worker(resume_run(self.host, run.run, how, why))

    def action_mark(self) -> None:
        run = self._readable_run()
        if run is None:
            return
        if run.run in self.marked:
            self.marked.remove(run.run)
            self.host.tell(f"{run.run} is no longer marked")
        else:
            self.marked = [*self.marked[-1:], run.run]
            then = "B compares the two" if self.marked[1:] else "B on another compares them"
            self.host.tell(f"{run.run} is marked: {then}")
        self.host.draw_now()

    def action_compare(self) -> None:
        """The two that are marked, else one that is with the one under the cursor."""
        run = self.selected_run if self.marked[1:] else self._readable_run()
        names = [*self.marked, *([run.run] if run is not None else [])][:2]
        by_name = {one.run: one for one in self.reader.runs or ()}
        pair = [by_name[name] for name in dict.fromkeys(names) if name in by_name]
        if len(pair) == 2:
            self.marked = []
            self.host.open_page("diff", " ".join(f"{run.run}@last" for run in pair))
        elif run is not None:
            self.host.tell("space marks one run; B on another compares the two", "failed")

    def action_sort(self) -> None:
        self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]
        self.host.draw_now()

    def action_export(self) -> None:
        if not self.reader.runs:
            self.host.tell("there is no run to write down", "failed")
            return
        shown = filter_runs(self.reader.runs, self.filter_text, self.sort)
        data = runs_csv(shown).encode("utf-8", "replace")
        write = partial(write_export, self.host.workspace, "runs.csv", data)
        self.export_file(write, f"{len(shown)} runs")

    def _readable_run(self) -> KnownRun | None:
        """The run under the cursor, if its journal can be read; tells why not."""
        run = self.selected_run
        if run is None:
            self.host.tell("no run is under the cursor", "failed")
        elif run.listed.shown.status == "damaged":
            text = f"{run.run} is damaged: studio doctor --repair mends what can be"
            self.host.tell(text, "failed")
            return None
        return run
