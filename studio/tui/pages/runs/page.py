"""Runs: every run of the workspace, to attach to, resume, compare and export."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from engines.core.frozen import frozen
from engines.record.run_dir import Workspace
from studio.render import library_lines, training_lines, words
from studio.secrets.sanitize import one_line
from studio.tui import header, page
from studio.tui.drawing.cells import cell_width as cells
from studio.tui.drawing.cells import fit
from studio.tui.drawing.lines import Line, Row, Span, holds_words, labelled_lines, line, width_of
from studio.tui.pages.lists import ListPage, Loader

if TYPE_CHECKING:
    from studio.workspace.listing import KnownRun, MeasuredSet

_AGAIN_S = 3.0
"""Between two looks at the workspace while a page that shows its runs is open."""


def load_runs(workspace: Workspace) -> tuple[KnownRun, ...]:
    """All runs of a workspace. Blocks."""
    from studio.workspace.listing import known_runs

    return known_runs(workspace)


class WorkspacePage(ListPage):
    """A page that lists runs of the workspace, which go on, also those of other processes."""

    def __init__(self) -> None:
        super().__init__()
        self.reader: Loader[Workspace, tuple[KnownRun, ...]] = Loader(self, load_runs)

    def on_mount(self) -> None:
        self.set_interval(_AGAIN_S, self.poll)

    def poll(self) -> None:
        if self.is_open and not self.reader.is_reading:
            self.reader.request(self.host.workspace, again=True)

    def open_at(self, target: str = "") -> None:
        super().open_at(target)
        self.reader.request(self.host.workspace, again=True)


class RunsPage(WorkspacePage):
    scope = "runs"
    sorts = ("time", "reward", "cost", "name")

    def __init__(self) -> None:
        super().__init__()
        self.marked: list[str] = []  # to be compared, two at most

    @property
    def selected_run(self) -> KnownRun | None:
        return next((run for run in self.reader.value or () if run.run == self.list_pane.key), None)

    def _listed_runs(self) -> list[KnownRun]:
        return filter_runs(self.reader.value or (), self.filter_text, self.sort)

    def draw(self) -> None:
        runs, listed = self.reader.value or (), self._listed_runs()
        self.has_nothing = not runs
        self.fit_height(len(runs))
        open_run = self.session.run.run if self.session is not None else ""
        self.show_list(
            runs_rows(listed, self.list_width, self.marked, open_run),
            self.reader,
            f"Runs {len(listed)} of {len(runs)}" if self.filter_text else f"Runs {len(runs)}",
            nothing=line("no run yet: ", ("0", "key"), " starts one"),
            notes=[f"compare {' and '.join(self.marked)}"] if self.marked else [],
        )
        self.draw_detail()

    def draw_detail(self) -> None:
        pane, run = self.detail_pane, self.selected_run
        pane.show_lines(detail_lines(run, pane.line_width) if run else [])

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
            self.run_worker(page.resume_run(self.host, run.run, how, why))

    def action_mark(self) -> None:
        run = self._readable_run()
        if run is None:
            return
        if run.run in self.marked:
            self.marked.remove(run.run)
        else:
            self.marked = [*self.marked[-1:], run.run]
        self.host.draw_now()
        self.host.tell(f"{len(self.marked)} marked: B compares two, or one with that under it")

    def action_compare(self) -> None:
        """The two that are marked, else one that is with the one under the cursor."""
        run = self._readable_run()
        if run is None:
            return
        pair = self.marked if len(self.marked) == 2 else [*self.marked, run.run]
        if len({*pair}) == 2:
            self.marked = []
            self.host.open_page("diff", " ".join(f"{name}@last" for name in pair))
        else:
            self.host.tell("space marks one run; B on another compares the two", "failed")

    def action_export(self) -> None:
        if not self.reader.value:
            self.host.tell("there is no run to write down", "failed")
            return
        listed = self._listed_runs()
        read = partial(runs_csv(listed).encode, "utf-8", "replace")
        self.export_file("runs.csv", read, f"{len(listed)} runs")

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


_LEAST_STATE = 26
_ENDED = ("stopped", "failed", "interrupted", "held")


@frozen
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
    _Column("when", 10, 6),
)


def filter_runs(runs: Iterable[KnownRun], filter_text: str, sort: str) -> list[KnownRun]:
    """Those that hold every word of the filter, in order; newest first where nothing else says."""
    listed = [run for run in runs if holds_words(_search_text(run), filter_text)]
    match sort:
        case "reward":
            listed.sort(key=lambda run: -1.0 if (mean := _reward(run)) is None else mean)
            listed.reverse()
        case "cost":
            listed.sort(
                key=lambda run: (run.listed.row.get("cost_usd") or 0.0, run.listed.row["tokens"]),
                reverse=True,
            )
        case "name":
            listed.sort(key=lambda run: run.run)
    return listed


def runs_rows(
    runs: Sequence[KnownRun], width: int, marked: Collection[str] = (), here: str = ""
) -> list[Row]:
    """The table: a heading, then a row a run; `width` cells, without what the list draws before.

    `marked` are those that are to be compared, `here` the one that is open.
    """
    if not runs:
        return []
    headings = [column.heading for column in _COLUMNS]
    table = [_cells(run) for run in runs]
    widths = [
        min(column.most, max(map(cells, texts)))
        for column, texts in zip(_COLUMNS, zip(headings, *table, strict=True), strict=True)
    ]
    columns = list(range(len(_COLUMNS)))
    while len(columns) > 1 and sum(widths[at] + 2 for at in columns) + _LEAST_STATE + 2 > width:
        columns.remove(min(columns, key=lambda at: _COLUMNS[at].rank))

    def spans(texts: Sequence[str], style: str) -> list[Span]:
        out = []
        for at in columns:
            text = fit(texts[at], widths[at])
            gap = " " * (widths[at] - cells(text))
            out.append((f"{gap}{text}  " if _COLUMNS[at].right else f"{text}{gap}  ", style))
        return out

    rows = [Row("", line("  ", *spans(headings, "dim"), ("state", "dim")))]
    for run, texts in zip(runs, table, strict=True):
        mark = "m " if run.run in marked else "@ " if run.run == here else "  "
        shown = line((mark, "flag"), *spans(texts, ""))
        text, style = state_span(run)
        rows.append(Row(run.run, (*shown, (fit(text, width - width_of(shown)), style))))
    return rows


def state_span(run: KnownRun) -> Span:
    """Where a run stands and the key that goes on from there."""
    row, shown = run.listed.row, run.listed.shown
    status, waiting = shown.status, words.to_decide_text(row["open"], row.get("later", 0))
    if status == "damaged":
        return "damaged: studio doctor", "failed"
    if shown.curation_status:
        return (f"curation: {waiting}", "flag") if row["open"] else ("curation", "won")
    if shown.alive and status == "held":
        return f"HELD: {waiting}", "flag"
    if shown.alive:
        return f"{status}, its process lives", "streaming"
    if row["ending"] == "budget":
        return "budget reached (s r: more)", "flag"
    if row["open"] and status in ("held", "finished", "interrupted"):
        return f"{'finished' if status == 'finished' else 'no process'}: {waiting}", "flag"
    if status in _ENDED:
        return f"{status} (s r resumes)", "failed" if status == "failed" else ""
    return status, "won" if status == "finished" else ""


def detail_lines(run: KnownRun, width: int) -> list[Line]:
    """What stands behind a run, whole."""
    row, back, shown = run.listed.row, run.background, run.listed.shown
    facts: dict[str, str] = {}
    if shown.status == "damaged":
        facts["damage"] = shown.next
        facts["next"] = "studio doctor says what is wrong; studio doctor --repair mends it."
    elif shown.curation_status:
        facts["curates"] = (
            f"{row['curates']}; {shown.curation_status}; {training_lines.learned_text(row)}"
        )
    else:
        scripted = "rehearsal, " if row["rehearsal"] else ""
        epochs = [
            f"epoch {number}: {pooled['mean']:.3f} (n={pooled['n']})"
            for number, pooled in row["rewards"].items()
            if pooled["n"]
        ]
        steps = f"step {row['steps']}"
        if back is not None:
            sizes = f"batch {back.batch_size}, groups of {back.group_size}, seed {back.seed}"
            judged = f"judged by {back.verifier}, reviewed by {back.reviewer}"
            facts["practises"] = f"{back.model} on {back.data}; {sizes}; {judged}"
            steps = f"step {back.step} of {back.steps}"
        facts["rewards"] = scripted + ", ".join(epochs) if epochs else "none yet"
        if back is not None and back.measured:
            facts["held out"] = scripted + "; ".join(map(_held_out_text, back.measured))
        spent = [f"{row['tokens']:,} tokens"]
        if row["cost_usd"] is not None:
            spent.append(f"${row['cost_usd']:.4f}")
        if row["losses"]:
            spent.append(f"{row['losses']} lost")
        facts["spent"] = f"{', '.join(spent)}; {steps}; {training_lines.learned_text(row)}"
        last = library_lines.date_text(row["last"])
        facts["when"] = f"began {library_lines.date_text(row['began'])}, last heard of {last}"
        facts["ended"] = str(row["reason"] or "")
    out = [line((one_line(run.run, 60), "title"), "  ", state_span(run))]
    for label, text in facts.items():
        if text:
            out += labelled_lines(label, one_line(text, 600), width)
    return out


def _held_out_text(measured: MeasuredSet) -> str:
    """Before and after, each with its own n; one figure where it was measured once."""
    last = f"{measured.last:.3f} (n={measured.n})"
    if measured.first_n is None:
        return f"{measured.data} {last}, measured once"
    return f"{measured.data} {measured.first:.3f} (n={measured.first_n}) -> {last}"


def runs_csv(runs: Sequence[KnownRun]) -> str:
    """The list as comma-separated values, a row a run, with the days on which runs began."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*(column.heading for column in _COLUMNS), "state"])
    writer.writerows([*_cells(run), state_span(run)[0]] for run in runs)
    return out.getvalue()


def _cells(run: KnownRun) -> tuple[str, ...]:
    row, back = run.listed.row, run.background
    scripted = "~" if row["rehearsal"] else ""
    reward, cost = _reward(run), row.get("cost_usd")
    texts = (
        run.run,
        back.model if back else "-",
        back.data if back else "-",
        "-" if run.listed.shown.curation_status else f"{row['epoch']}/{row['epochs']}",
        f"v{row['version']}"
        if row.get("policy_version") is None
        else training_lines.learned_text(row),
        training_lines.row_curve(row["curve"], 12) or "-",
        "-" if reward is None else f"{scripted}{reward:.3f}",
        f"{scripted}{back.measured[0].last:.3f}" if back and back.measured else "-",
        f"${cost:.2f}" if cost is not None else f"{header.tokens_text(row['tokens'])} tok",
        library_lines.date_text(row.get("began", 0.0))[:10] or "-",
    )
    return tuple(one_line(text, 80) for text in texts)


def _reward(run: KnownRun) -> float | None:
    known = [pooled["mean"] for pooled in run.listed.row["rewards"].values() if pooled["n"]]
    return known[-1] if known else None


def _search_text(run: KnownRun) -> str:
    back, shown = run.background, run.listed.shown
    about = f"{back.model} {back.data}" if back else ""
    return f"{run.run} {run.listed.row['library']} {shown.curation_status or shown.status} {about}"
