"""Runs: every run of the workspace, to attach to, resume, compare and export."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Literal

from textual.app import ComposeResult
from textual.content import Content
from textual.widget import Widget

from engines.record.run_dir import Workspace
from studio.render.training_lines import learned_text, row_curve
from studio.render.words import to_decide_text
from studio.secrets.sanitize import one_line, sanitize
from studio.tui.drawing.cells import cell_width as cells
from studio.tui.drawing.cells import fit, pad
from studio.tui.drawing.lines import (
    Line,
    Row,
    Span,
    holds_words,
    labelled_lines,
    line,
    note_rows,
    paragraph,
)
from studio.tui.page import Page, resume_run, write_export
from studio.tui.pages.loader import Loader
from studio.tui.widgets.line_view import LineView, RowList

if TYPE_CHECKING:
    from studio.workspace.listing import KnownRun, MeasuredSet


AGAIN_S = 3.0
"""Between two looks at the workspace while a page that shows its runs is open."""


def load_runs(workspace: Workspace) -> tuple[KnownRun, ...]:
    """All runs of a workspace. Blocks."""
    from studio.workspace.listing import known_runs

    return known_runs(workspace)


class RunsPage(Page):
    """The list is read in a thread; what was there stays until it has been."""

    scope = "runs"

    def __init__(self) -> None:
        super().__init__()
        self.now: Callable[[], float] = time.time
        self.reader: Loader[Workspace, tuple[KnownRun, ...]] = Loader(self, load_runs)
        self.sort: Sort = SORTS[0]
        self.marked: list[str] = []  # to be compared, two at most
        self.list_pane = RowList(id="runs-list", classes="pane")
        self.detail_pane = LineView(id="runs-detail", classes="pane")

    def compose(self) -> ComposeResult:
        yield self.list_pane
        yield self.detail_pane

    def on_mount(self) -> None:
        self.set_interval(AGAIN_S, self.poll)

    def poll(self) -> None:
        """Look again while the page is open, since runs go on, also of other processes."""
        if self.is_open and not self.reader.is_reading:
            self.reader.request(self.host.workspace, again=True)

    @property
    def selected_run(self) -> KnownRun | None:
        return next((run for run in self.reader.value or () if run.run == self.list_pane.key), None)

    def initial_focus(self) -> Widget | None:
        return self.list_pane

    def open_at(self, target: str = "") -> None:
        super().open_at(target)
        self.reader.request(self.host.workspace, again=True)

    def draw(self) -> None:
        rows, found = self._rows(), self.list_pane
        self.has_nothing = not self.reader.value
        room = self.size.height
        # A row a run, while the details keep theirs; what a filter leaves moves nothing.
        most = room - max(5, min(11, room * 2 // 5))
        found.styles.height = max(3, min(most, 3 + len(self.reader.value or ())))
        found.show_rows(rows or note_rows(self._empty_lines(found.line_width - 2)))
        title = "Runs" if self.reader.value is None else f"Runs {len(self.reader.value)}"
        about = [
            f"sort: {self.sort}",
            *([f"compare {' and '.join(self.marked)}"] if self.marked else []),
        ]
        if self.filter_text:
            about.insert(0, f"filter: {sanitize(self.filter_text)}")
            if self.reader.value is not None:
                title = f"Runs {sum(bool(row.key) for row in rows)} of {len(self.reader.value)}"
        found.border_title = Content(title)
        found.say_below("   ".join(about))
        self._draw_detail()

    def _rows(self) -> list[Row]:
        """[] where there is nothing to list."""
        shown = filter_runs(self.reader.value or (), self.filter_text, self.sort)
        here = self.session.run.run if self.session is not None else ""
        return runs_rows(shown, self.list_pane.line_width - 2, self.now(), self.marked, here)

    def _empty_lines(self, width: int) -> list[Line]:
        """What stands where there is no row, and the key that helps."""
        if self.reader.trouble:
            return paragraph([(sanitize(self.reader.trouble), "failed")], width)
        if self.reader.value is None:
            return [line("reading the workspace ...")]
        if self.filter_text:
            words = sanitize(self.filter_text)
            return [line(f"no run holds {words!r}: ", ("esc", "key"), " clears")]
        return [line("no run yet: ", ("0", "key"), " starts one")]

    def _draw_detail(self) -> None:
        view = self.detail_pane
        lines = detail_lines(self.selected_run, view.line_width, self.now())
        if (why := self.reader.trouble) and self.reader.value:  # what was read before stays
            lines = [*paragraph([(sanitize(why), "failed")], view.line_width), *lines]
        view.show_lines(lines)

    def on_row_list_moved(self) -> None:
        if self.is_open:
            self._draw_detail()

    def go_to(self, name: str) -> bool:
        if self.filter_text and any(run.run == name for run in self.reader.value or ()):
            self.apply_filter("")
        return self.list_pane.go_to(name)

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
        here = self._readable_run() if not self.marked[1:] else None
        pair = list(dict.fromkeys([*self.marked, *([here.run] if here is not None else [])]))
        if len(pair) == 2:
            self.marked = []
            self.host.open_page("diff", " ".join(f"{name}@last" for name in pair))
        elif here is not None:
            self.host.tell("space marks one run; B on another compares the two", "failed")

    def action_sort(self) -> None:
        self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]
        self.host.draw_now()

    def action_export(self) -> None:
        if not self.reader.value:
            self.host.tell("there is no run to write down", "failed")
            return
        shown = filter_runs(self.reader.value, self.filter_text, self.sort)
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


Sort = Literal["time", "reward", "cost", "name"]
SORTS: tuple[Sort, ...] = ("time", "reward", "cost", "name")
_LEAST_STATE = 26
_ENDED = ("stopped", "failed", "interrupted", "held")


@dataclass(frozen=True, slots=True)
class _Column:
    heading: str
    most: int  # cells
    rank: int  # the lowest goes first where there is no room; 9 stays
    right: bool = False


_COLUMNS = (
    _Column("run", 24, 9),
    _Column("model", 20, 3),
    _Column("data", 18, 2),
    _Column("epochs", 7, 5),
    _Column("lib", 9, 1),
    _Column("by step", 12, 7),
    _Column("mean@1", 8, 8, right=True),
    _Column("held-out", 8, 7, right=True),
    _Column("spent", 9, 4, right=True),
    _Column("when", 11, 6),
)


def filter_runs(runs: Iterable[KnownRun], filter_text: str, sort: Sort) -> list[KnownRun]:
    """Those that hold every word of the filter, in order; newest first where nothing else says."""
    found = [run for run in runs if holds_words(_search_text(run), filter_text)]
    if sort == "reward":
        found.sort(key=lambda run: -1.0 if (mean := _reward(run)) is None else mean, reverse=True)
    elif sort == "cost":
        found.sort(
            key=lambda run: (-(run.listed.row.get("cost_usd") or 0.0), -run.listed.row["tokens"])
        )
    elif sort == "name":
        found.sort(key=lambda run: run.run)
    return found


def runs_rows(
    runs: Sequence[KnownRun], width: int, now: float, marked: Collection[str] = (), here: str = ""
) -> list[Row]:
    """The table: a heading, then a row a run; `width` cells, without what the list draws before.

    `marked` are those that are to be compared, `here` the one that is open.
    """
    if not runs:
        return []
    table = [_cells(run, now) for run in runs]
    columns, widths = _fit_columns(table, width - 2)
    state_room = max(_LEAST_STATE, width - 2 - sum(widths[at] + 2 for at in columns))
    heading = "  " + "".join(
        _align(_COLUMNS[at].heading, widths[at], _COLUMNS[at].right) + "  " for at in columns
    )
    rows = [Row("", ((heading + "state", "dim"),))]
    for run, texts in zip(runs, table, strict=True):
        mark = "m" if run.run in marked else "@" if run.run == here else " "
        spans: list[Span] = [(mark + " ", "flag" if mark == "m" else "")]
        for at in columns:
            style = "title" if at == 0 else "dim" if texts[at] == "-" else ""
            spans.append((_align(texts[at], widths[at], _COLUMNS[at].right) + "  ", style))
        text, style = state_span(run)
        rows.append(Row(run.run, line(*spans, (fit(text, state_room), style))))
    return rows


def state_span(run: KnownRun) -> Span:
    """Where a run stands and the key that goes on from there."""
    row, shown = run.listed.row, run.listed.shown
    waiting = to_decide_text(row["open"], row.get("later", 0))
    if shown.status == "damaged":
        return "damaged: studio doctor", "failed"
    if shown.curation_status:
        return (f"curation: {waiting}", "flag") if row["open"] else ("curation", "won")
    if shown.alive and shown.status == "held":
        return f"HELD: {waiting}", "flag"
    if shown.alive:
        return f"{shown.status}, its process lives", "streaming"
    if row.get("ending") == "budget":
        return "budget reached (s r: more)", "flag"
    if row["open"] and shown.status in ("held", "finished", "interrupted"):
        return f"{'finished' if shown.status == 'finished' else 'no process'}: {waiting}", "flag"
    if shown.status in _ENDED:
        return f"{shown.status} (s r resumes)", "failed" if shown.status == "failed" else ""
    return shown.status, "won" if shown.status == "finished" else ""


def detail_lines(run: KnownRun | None, width: int, now: float) -> list[Line]:
    """What stands behind the run under the cursor, whole."""
    if run is None:
        return []
    row, back, shown = run.listed.row, run.background, run.listed.shown
    text, style = state_span(run)
    head = line((one_line(run.run, 60), "title"), "  ", (text, style))
    if shown.status == "damaged":
        doctor = "studio doctor says what is wrong; studio doctor --repair mends what can be."
        damage = labelled_lines("damage", sanitize(shown.next), width)
        return [head, *damage, *labelled_lines("next", doctor, width)]
    out = [head]
    if back is not None:
        of = f"batch {back.batch_size}, groups of {back.group_size}, seed {back.seed}"
        judged = f"judged by {back.verifier}, reviewed by {back.reviewer}"
        practised = f"{back.model} on {back.data}; {of}; {judged}"
        out += labelled_lines("practises", one_line(practised, 400), width)
    if shown.curation_status:
        said = f"{sanitize(str(row['curates']))}; {shown.curation_status}; {learned_text(row)}"
        return [*out, *labelled_lines("curates", said, width)]
    scripted = "rehearsal, " if row["rehearsal"] else ""
    epochs = [
        f"epoch {number}: {pooled['mean']:.3f} (n={pooled['n']})"
        for number, pooled in row["rewards"].items()
        if pooled["n"]
    ]
    rewards = f"{scripted}{', '.join(epochs)}" if epochs else "none yet"
    out += labelled_lines("rewards", rewards, width)
    if back is not None and back.measured:
        sets = "; ".join(_held_out_text(measured) for measured in back.measured)
        out += labelled_lines("held out", one_line(f"{scripted}{sets}", 400), width)
    lost = f", {row['losses']} loss{'es' * (row['losses'] > 1)}" if row["losses"] else ""
    money = "" if row["cost_usd"] is None else f", ${row['cost_usd']:.4f}"
    steps = f"step {back.step} of {back.steps}" if back else f"step {row['steps']}"
    spent = f"{row['tokens']:,} tokens{money}{lost}; {steps}; {learned_text(row)}"
    out += labelled_lines("spent", sanitize(spent), width)
    began, last = time_text(row.get("began"), now), time_text(row.get("last"), now)
    out += labelled_lines("when", f"began {began}, last heard of {last}", width)
    if row.get("reason"):
        out += labelled_lines("ended", one_line(str(row["reason"]), 600), width)
    if row["rehearsal"]:
        out.append(((fit("~ rehearsal: replies were scripted", width), "dim"),))
    return out


def _held_out_text(measured: MeasuredSet) -> str:
    """Before and after, each with its own n; one figure where it was measured once."""
    last = f"{measured.last:.3f} (n={measured.n})"
    if measured.first_n is None:
        return f"{measured.data} {last}, measured once"
    return f"{measured.data} {measured.first:.3f} (n={measured.first_n}) -> {last}"


def time_text(at: float | None, now: float) -> str:
    """`today 15:50`, `Nov 18`, `2025-11-18`; local time. "-" where it is not known."""
    if at is None:
        return "-"
    then, today = datetime.fromtimestamp(at), datetime.fromtimestamp(now)
    if then.date() == today.date():
        return then.strftime("today %H:%M")
    return then.strftime("%b %d" if then.year == today.year else "%Y-%m-%d")


def runs_csv(runs: Sequence[KnownRun]) -> str:
    """The list as comma-separated values, a row a run, with the days on which runs began."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*(column.heading for column in _COLUMNS), "state"])
    writer.writerows([*_cells(run, now=0.0), state_span(run)[0]] for run in runs)
    return out.getvalue()


def _cells(run: KnownRun, now: float) -> tuple[str, ...]:
    row, back = run.listed.row, run.background
    scripted = "~" if row["rehearsal"] else ""
    reward, cost = _reward(run), row.get("cost_usd")
    texts = (
        run.run,
        back.model if back else "-",
        back.data if back else "-",
        "-" if run.listed.shown.curation_status else f"{row['epoch']}/{row['epochs']}",
        f"v{row['version']}" if row.get("policy_version") is None else learned_text(row),
        row_curve(row["curve"], 12) or "-",
        "-" if reward is None else f"{scripted}{reward:.3f}",
        f"{scripted}{back.measured[0].last:.3f}" if back and back.measured else "-",
        f"${cost:.2f}" if cost is not None else _tokens_text(int(row["tokens"])),
        time_text(row.get("began"), now),
    )
    return tuple(one_line(text, 80) for text in texts)


def _fit_columns(table: Sequence[Sequence[str]], room: int) -> tuple[list[int], list[int]]:
    """Which columns fit beside the state, and how wide each is."""
    widths = [
        min(column.most, max(cells(column.heading), *(cells(row[at]) for row in table)))
        for at, column in enumerate(_COLUMNS)
    ]
    kept = list(range(len(_COLUMNS)))
    while len(kept) > 1 and sum(widths[at] + 2 for at in kept) + _LEAST_STATE > room:
        kept.remove(min(kept, key=lambda at: _COLUMNS[at].rank))
    return kept, widths


def _align(text: str, width: int, right: bool) -> str:
    text = fit(text, width)
    return " " * (width - cells(text)) + text if right else pad(text, width)


def _reward(run: KnownRun) -> float | None:
    known = [pooled["mean"] for pooled in run.listed.row["rewards"].values() if pooled["n"]]
    return known[-1] if known else None


def _tokens_text(tokens: int) -> str:
    """`412k tok`: a cost that is not known is never shown as zero money."""
    if tokens < 10_000:
        return f"{tokens} tok" if tokens else "-"
    return f"{tokens / 1e3:.0f}k tok" if tokens < 10_000_000 else f"{tokens / 1e6:.0f}M tok"


def _search_text(run: KnownRun) -> str:
    back, shown = run.background, run.listed.shown
    about = f"{back.model} {back.data}" if back else ""
    return f"{run.run} {run.listed.row['library']} {shown.curation_status or shown.status} {about}"
