"""What is shown of progress: a strip, a picture of all curves, one step in figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from engines.core.state.list_row import Point
from engines.core.state.run_state import RunState
from studio.facts.curves import (
    RunCurves,
    Series,
    curves_key,
    mean_window,
    run_curves,
    running_mean,
)
from studio.render.curve_lines import held_out_change_text, step_summary
from studio.render.evaluation_lines import finished_text
from studio.render.lines import sparkline
from studio.render.training_lines import figure_text
from studio.render.words import reward_rate_text
from studio.secrets.sanitize import one_line
from studio.tui.drawing import plot as signs
from studio.tui.drawing.cells import Glyphs, fit, pad
from studio.tui.drawing.lines import Line, crop_line, line, paragraph, spread, width_of
from studio.tui.drawing.plot import Plot, join_cells, nice_step, put_labels, split_at, value_range
from studio.tui.widgets.chrome import Chrome

SIDE = 9
"""Cells on each side of a plot: what its height means, and its last value."""
_FIXED = 3
"""Rows beside the plots and the legend: axis, steps and versions."""
_LABEL_CELLS = 20
"""Versions this far apart have room for `v3: 12 experiences`."""
_TALL = 18
"""With so many rows the smaller plots have several each."""
_CELLS_A_POINT = 3
"""Points further apart are seen and joined by a line, nearer ones are dots with their mean."""
_CELLS_AN_EPOCH = 4
NOT_MEASURED = (
    "held out: not measured. evaluation.do_eval=true measures while practising, "
    "studio eval afterwards."
)


@dataclass(frozen=True, slots=True, eq=False)
class ShownRun:
    """A run as the page shows it; `sizes` are the experiences of each version of its library."""

    state: RunState
    curves: RunCurves
    sizes: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Picture:
    """The drawn rows, of which one says where the cursor stands."""

    lines: tuple[Line, ...]
    labels_row: int
    plot: Plot
    labels: tuple[tuple[int, str, str], ...]  # of steps: column, text, style

    def with_cursor(self, step: int) -> list[Line]:
        here = (self.plot.column(step), f"{signs.CURSOR} step {step}", "title")
        out = list(self.lines)
        row = put_labels([here, *self.labels], self.plot.width + SIDE)
        out[self.labels_row] = ((" " * SIDE, ""), *row)
        return out


def last_shown_step(curves: RunCurves) -> int:
    """Where the range of steps ends: at the plan, halved while most of it is empty.

    So most new steps leave every cell but their own as it was.
    """
    last = curves.last_step
    if curves.is_over or not curves.steps_planned:
        return max(1, last)
    end = curves.steps_planned
    while end > 8 and last * 4 <= end:
        end = (end + 1) // 2
    return max(end, last)


def draw_picture(
    shown: RunCurves, over: RunCurves | None, held_out: str, size: tuple[int, int], glyphs: Glyphs
) -> Picture:
    """Reward and the held-out set of this name, then smaller plots of what else is known."""
    width, height = max(1, size[0] - 2 * SIDE), size[1]
    runs = [shown, *([over] if over else [])]
    first = min((run.steps[0] for run in runs if run.steps), default=1)
    steps = (min(first, 1), max(last_shown_step(run) for run in runs))
    extras = [*shown.updates, shown.tokens, *([shown.cost] if shown.cost else [])]
    rows = max(2, height // 8) if height >= _TALL else 1
    legend = _legend(runs, held_out, width, size[0])[: 2 if height > 8 else 1]
    fixed = _FIXED + len(legend)
    extras = extras[: max(0, height - fixed - 4) // rows]
    drawn = [points for run in runs for points in (run.practice.points, _points(run, held_out))]
    bounds = value_range(drawn, share=shown.practice.unit == "reward")
    main = Plot(width, max(1, height - fixed - rows * len(extras)), steps, bounds, glyphs)
    _draw_curves(runs, held_out, main)
    low, high = bounds
    labels = {main.row(value): f"{value:.2f}" for value in (low, (low + high) / 2, high)}
    last = {main.row(p.value): f"{p.value:.3f}" for p in shown.practice.points[-1:]}
    lines = [*legend, *beside(main, labels, last), _axis_line(shown, main), ()]
    lines.append(_commits_line(shown, main))
    labels_row = len(lines) - 2
    for series in extras:
        lines += _draw_extra(series, Plot(width, rows, steps, _range_of(series), glyphs))
    by = nice_step(steps[1] - steps[0], width // 10)
    ticks = (steps[0], *range(by * (steps[0] // by + 1), steps[1] + 1, by))
    named = tuple((main.column(step), str(step), "dim") for step in ticks)
    return Picture(tuple(lines), labels_row, main, named)


def _draw_curves(runs: Sequence[RunCurves], held_out: str, plot: Plot) -> None:
    is_dense = _is_dense(runs, plot.width)
    starts = runs[0].epochs[1:]
    for number, run in enumerate(runs):
        points: Sequence[Point] = run.practice.points
        if is_dense:
            if len(runs) == 1:
                plot.dots(points, "dim")
            every = max(1, len(points) // (4 * plot.width))
            points = running_mean(points, mean_window(len(points)), every)
        if number:
            plot.signs(points, signs.OTHER, "edited")
            continue
        for piece in split_at(points, starts):
            plot.line(piece, "bar", over=is_dense)
        if not is_dense:
            plot.points(points, "bar")
    for number, run in enumerate(runs):
        for point in _points(run, held_out):
            plot.interval(point, "edited" if number else "approved", other=bool(number))
    if len(starts) * _CELLS_AN_EPOCH <= plot.width:
        for first in starts:
            between = (plot.column(first - 1) + plot.column(first)) // 2
            plot.upright(between, signs.EPOCH, "dim")


def _is_dense(runs: Sequence[RunCurves], width: int) -> bool:
    return any(len(run.practice.points) * _CELLS_A_POINT > width for run in runs)


def _points(run: RunCurves, held_out: str) -> tuple[Point, ...]:
    return next((one.points for one in run.held_out if one.name == held_out), ())


def _range_of(series: Series) -> tuple[float, float]:
    return value_range([series.points], share=False)


def _draw_extra(series: Series, plot: Plot) -> list[Line]:
    """A smaller plot with its name and its last value, and where it has room its scale."""
    plot.line(series.points, "bar")
    last = _value_text(series, series.points[-1].value if series.points else 0.0)
    if plot.height == 1:
        return beside(plot, {0: series.name}, {0: last})
    low, high = (_value_text(series, value) for value in _range_of(series))
    return beside(plot, {0: high, plot.height - 1: low}, {0: series.name, 1: last})


def _value_text(series: Series, value: float) -> str:
    if series.unit == "USD":
        return f"${value:.4f}" if value < 1 else f"${value:,.2f}"
    if series.unit == "tokens":
        return f"{value:,.0f}" if value < 1e6 else f"{value / 1e6:,.2f}M"
    return figure_text(series.name, value)


def beside(plot: Plot, labels: Mapping[int, str], values: Mapping[int, str]) -> list[Line]:
    """The rows of a plot between what their height means and values such as the last, by row."""
    out = []
    for number, row in enumerate(plot.lines()):
        edge = signs.EDGE if number in labels else signs.BETWEEN
        label = f"{fit(labels.get(number, ''), SIDE - 2):>{SIDE - 2}} {edge}"
        value = pad(f" {values.get(number, '')}", SIDE)
        out.append(line((label, "dim"), *row, (value, "title")))
    return out


def _axis_line(run: RunCurves, plot: Plot) -> Line:
    """The line below the plot, with a sign at each commit."""
    cells = [(signs.AXIS, "dim")] * plot.width
    at = plot.columns([commit.step for commit in run.commits])
    for column, commit in zip(at, run.commits, strict=True):
        if commit.outcome != "applied":
            cells[column] = (signs.REFUSED, "flag")
        elif cells[column][0] != signs.REFUSED:
            cells[column] = (signs.COMMIT, "title")
    return (*line((" " * (SIDE - 1) + signs.CORNER, "dim")), *join_cells(cells))


def _commits_line(run: RunCurves, plot: Plot) -> Line:
    """Versions below their steps, the newest first where not all have room."""
    applied = [*run.moves, *(commit for commit in run.commits if commit.outcome == "applied")]
    applied.sort(key=lambda commit: commit.step)
    at = plot.columns([commit.step for commit in applied])
    labels = []
    has_room = all(after - before >= _LABEL_CELLS for before, after in pairwise(at))
    for column, commit in reversed(dict(zip(at, applied, strict=True)).items()):
        n = commit.size if has_room else None
        size = "" if n is None else f": {n} experience{'s' * (n != 1)}"
        of = "library " if commit.beside_weights else ""
        labels.append((column, f"{of}v{commit.version}{size}", ""))
    name = "policy" if run.trains_weights else "library"
    return line((f"{name:>{SIDE - 2}}  ", "dim"), *put_labels(labels, plot.width + SIDE))


def _legend(runs: Sequence[RunCurves], held_out: str, plot: int, width: int) -> list[Line]:
    """What each sign on a plot of so many cells is: in words, so that no colour is needed."""
    shown, over = runs[0], runs[1] if len(runs) > 1 else None
    name, dense = shown.practice.name, _is_dense(runs, plot)
    mean = f"running mean of {mean_window(len(shown.practice.points))} steps"
    curve = (mean if dense else f"{name} of each step") if over is None else ""
    outcomes = {commit.outcome for commit in shown.commits}
    entries = (
        ("dots", "dim", f"{name} of a step" if dense and over is None else ""),
        (signs.AXIS * 2, "bar", curve or f"{one_line(shown.run, 24)} ({mean if dense else name})"),
        (f"{signs.OTHER} {signs.OTHER}", "edited", one_line(over.run, 24) if over else ""),
        (signs.MEAN + signs.BETWEEN, "approved",
         f"held out {one_line(held_out, 24)}, 95 % interval" if held_out else ""),
        (signs.COMMIT, "title", "commit" if "applied" in outcomes else ""),
        (signs.REFUSED, "flag", "not applied" if outcomes - {"applied"} else ""),
        (signs.EPOCH, "dim", "epoch" if len(shown.epochs) > 1 else ""),
    )  # fmt: skip
    out: list[Line] = [()]
    for sign, style, word in entries:
        entry = line((f" {sign}", style), f" {word} ") if word else ()
        if out[-1] and width_of(out[-1]) + width_of(entry) > width:
            out.append(())
        out[-1] = (*out[-1], *entry)
    return [crop_line(each, width) for each in out]


def detail_lines(shown: ShownRun, over: ShownRun | None, step: int, width: int) -> list[Line]:
    """The exact figures of one step, the same step of the other run, and held-out sets."""
    out = paragraph([(step_summary(shown.state, step, shown.sizes), "")], width, "  ")
    if over is not None:
        texts = (step_summary(over.state, step, over.sizes), _measured_text(over, step))
        text = f"{one_line(over.curves.run, 40)}: {'; '.join(filter(None, texts))}"
        out += paragraph([(text, "edited")], width, "  ")
    if measured := _measured_text(shown, step):
        out += paragraph([(f"held out: {measured}", "approved")], width, "  ")
    elif not shown.curves.held_out:
        out += paragraph([(NOT_MEASURED, "dim")], width, "  ")
    return out


def _measured_text(run: ShownRun, step: int) -> str:
    found = (e for e in run.state.evaluations if e.step == step)
    return one_line("; ".join(f"{e.data} {finished_text(e)}" for e in found), 400)


class ProgressStrip(Chrome):
    """Two rows where there is room, one on a low screen, none on a very low one."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._known: tuple[tuple[object, ...], RunCurves] | None = None

    def draw(self, state: RunState | None, *, has_room: bool = True) -> None:
        """Show a run; its curves are made anew only after a step or an evaluation."""
        size = self.app.size
        rows = 2 if size.height >= 30 else 1 if size.height >= 20 else 0
        runs = state is not None and state.started and not state.curates
        self.display = bool(runs and rows and has_room)
        self.styles.height = max(1, rows)
        if state is None or not self.display:
            return
        key = curves_key(state)
        if self._known is None or self._known[0] != key:
            self._known = (key, run_curves(state))
        for number, each in enumerate(strip_lines(self._known[1], size.width)[:rows]):
            self.show_line(number, each)


_MOST_BARS = 60


def strip_lines(curves: RunCurves, width: int) -> list[Line]:
    """The reward of each step as bars with the last one and its n; below it the held-out sets."""
    name, points = curves.practice.name, curves.practice.points
    text = "no step is through yet"
    if points:
        of = f"step {points[-1].step} of {curves.steps_planned}"
        text = f"{reward_rate_text(points[-1].value, points[-1].n)}, {of}"
    room = min(_MOST_BARS, width - len(f" {name}  {text}"))
    high = 1.0 if curves.practice.unit == "reward" else None
    bars = sparkline([point.value for point in points], room, low=0.0, high=high)
    first = crop_line(line((f" {name} ", "title"), (bars, "bar"), f" {text}"), width)
    measured = "; ".join(held_out_change_text(series) for series in curves.held_out)
    left = line((f" held out {one_line(measured, 400)}", "approved"))
    if not measured:
        left = line((" held out: not measured", "dim"))
    applied = [commit for commit in curves.commits if commit.outcome == "applied"]
    changed = [commit for commit in applied if not commit.beside_weights]
    right = "7 shows more "
    if changed:
        kind = "policy" if curves.trains_weights else "library"
        count = f"{len(changed)} commit{'s' * (len(changed) != 1)}"
        right = f"  {kind} v{changed[-1].version}, {count}  {right}"
    return [first, spread(left, line((right, "dim")), width)]
