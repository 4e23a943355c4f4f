"""Every run of a workspace as lines: the table, and what stands behind the chosen one.

Pure: from what `studio.workspace.listing.known_runs` found, and the time of day.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from studio.render.training_lines import learned_text, row_curve
from studio.render.words import to_decide_text
from studio.secrets.sanitize import one_line, sanitize
from studio.tui.drawing.cells import cell_width as cells
from studio.tui.drawing.cells import fit, pad
from studio.tui.drawing.lines import Line, Row, Span, labelled_lines, line
from studio.tui.pages.text import holds_words

if TYPE_CHECKING:
    from studio.workspace.listing import KnownRun, MeasuredSet

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
