"""Progress: reward, held-out sets, commits, tokens and cost over the steps of a run."""

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text
from textual.app import ComposeResult
from textual.widget import Widget

from engines.core.errors import StudioError
from engines.core.frozen import frozen
from engines.core.state.list_row import Point
from engines.core.state.run_state import RunState
from engines.core.types import group_id
from engines.record.run_dir import Workspace
from studio.facts.curves import RunCurves, Series, curves_key, mean_window, run_curves, running_mean
from studio.facts.run import load_parent, load_state_with_parents, with_parent
from studio.render import evaluation_lines, training_lines, words
from studio.render.lines import sparkline
from studio.secrets.sanitize import one_line
from studio.tui.drawing import plot as signs
from studio.tui.drawing.cells import fit, pad
from studio.tui.drawing.lines import Line, crop_line, line, paragraph, width_of
from studio.tui.drawing.plot import Plot, join_cells, nice_step, put_labels, split_at, value_range
from studio.tui.keymap import Key
from studio.tui.page import Page
from studio.tui.pages.lists import Choice, Loader, Picker
from studio.tui.widgets.line_view import Chrome, LineView


@dataclass(frozen=True, slots=True, eq=False)
class ShownRun:
    """A run as the page shows it; `sizes` are the experiences of each version of its library."""

    state: RunState
    curves: RunCurves
    sizes: Mapping[int, int]


def load_run(workspace: Workspace, run: str) -> ShownRun:
    """A run as its journal has it now. Blocks.

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


def load_choices(workspace: Workspace) -> list[Choice]:
    """The runs of a workspace, and what to say of each. Blocks."""
    from studio.workspace.listing import listed_runs, row_text

    return [Choice(str(run.row["run"]), row_text(run)) for run in listed_runs(workspace)]


class PlotPane(LineView):
    """The picture. Keys that move go from point to point."""

    def __init__(self, page: "ProgressPage") -> None:
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
        self.picker = Picker(
            self,
            lambda _: load_choices(self.host.workspace),
            self.choose_run,
            {"over": "lay over it …"},
        )
        self._over = Loader[str, ShownRun](self, lambda run: load_run(self.host.workspace, run))
        self.at: int | None = None  # the step under the cursor; None: the last one, as it grows
        self._held_out = ""  # the set that is shown; "": the first
        self._parts = Loader[tuple[str, int], tuple[RunState | None, Mapping[int, int]]](
            self, self._load_parts
        )
        self._run = ""
        self._shown: tuple[tuple[object, ...], ShownRun] | None = None
        self.drawn: tuple[tuple[object, ...], Picture] | None = None

    def compose(self) -> ComposeResult:
        for pane in (self.plot_pane, self.detail_pane):
            pane.add_class("picture")
            yield pane
        yield self.picker
        yield self.picker.list

    def initial_focus(self) -> Widget:
        return self.picker if self.picker.side else self.plot_pane

    def panes(self) -> list[Widget]:
        return [self.picker] if self.picker.side else [self.plot_pane, self.detail_pane]

    def footer_keys(self) -> Sequence[Key]:
        return self.picker.keys

    # -- what is shown ---------------------------------------------------------------------

    @property
    def over(self) -> ShownRun | None:
        """The run that is laid over the open one."""
        return self._over.value

    @property
    def shown(self) -> ShownRun | None:
        """The open run; made anew only where one of its curves changed."""
        state = self.state
        if state is None or state.started is None:
            return None
        parent, sizes = self._parts.value or (None, {})
        key = (*curves_key(state), id(sizes))
        if self._shown is None or self._shown[0] != key:
            whole = with_parent(state, parent)
            self._shown = (key, ShownRun(whole, run_curves(whole, sizes), sizes))
        return self._shown[1]

    def _load_parts(self, key: tuple[str, int]) -> tuple[RunState | None, Mapping[int, int]]:
        """The run that the open one began from, if any, and the sizes of versions."""
        state, workspace = self.state, self.host.workspace
        if state is None:
            return None, {}
        return load_parent(state, workspace), load_sizes(workspace, state)

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
        state = self.state
        if state is not None and state.started is not None:
            if state.started.run != self._run:
                self._run, self.at = state.started.run, None
                self._parts.forget()
                self._over.forget()
            self._parts.request((state.started.run, state.library_version))
        if self.picker.side:
            self.picker.draw()
            return
        self.has_nothing = not (self.steps or (state and state.curates))
        shown, pane, width = self.shown, self.plot_pane, self.plot_pane.line_width
        if shown is None or not shown.curves.steps:
            pane.border_title = Text("Progress")
            pane.say_below()
            pane.show_lines(paragraph([(self._empty_text(), "dim")], width))
            self.detail_pane.show_lines([])
            return
        curves, over = shown.curves, self.over.curves if self.over is not None else None
        title = f"{one_line(curves.run, 40)}: step {curves.last_step} of {curves.steps_planned}"
        if over is not None:
            title += f", over it {one_line(over.run, 40)}"
        pane.border_title = Text(fit(f"Progress  {title}", max(1, width - 4)))
        scripted = [one_line(run.run, 24) for run in (curves, over) if run and run.rehearsal]
        below = f"rehearsal, scripted replies: {', '.join(scripted)}" if scripted else ""
        if self._over.trouble:
            below = one_line(self._over.trouble, width - 4)
        pane.say_below(below)
        made_of = (curves, over, self.held_out, (width, pane.size.height))
        if self.drawn is None or self.drawn[0] != made_of:
            self.drawn = (made_of, draw_picture(*made_of))
        pane.show_lines(self.drawn[1].with_cursor(self.step)[: max(1, pane.size.height)])
        self.detail_pane.border_title = Text(f"Step {self.step}")
        detail = detail_lines(shown, self.over, self.step, self.detail_pane.line_width)
        self.detail_pane.show_lines(detail)

    def _empty_text(self) -> str:
        if self.session is None:
            return "no run is open: 5 lists them, 0 starts one"
        if self.shown is None:
            return "reading the run …"
        text = "no step is through yet: the curve begins with the first"
        return words.no_practice_text(self.state) or text

    def action_step_point(self, by: int) -> None:
        """So many points on, or back."""
        steps = self.steps
        if not steps:
            self.host.tell("there is no point yet")
            return
        there = max(0, steps.index(self.step) + by)
        self.go_to_step(steps[there] if there < len(steps) - 1 else None)

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
            self.choose_run()
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
        self.picker.open("over", self._run)

    def action_target(self) -> None:
        self.host.tell("the run is shown alone; b lays one over it")
        self._over.forget()
        self.host.draw_now()

    def choose_run(self) -> None:
        """Lay the run under the cursor over the one that is open."""
        if run := self.picker.name_chosen.strip():
            self.picker.close()
            self._over.request(run, again=True)

    def go_back(self) -> bool:
        is_open = bool(self.picker.side) or self.over is not None
        if self.picker.side:
            self.picker.close()
        else:
            self._over.forget()
        return is_open

    def text_to_copy(self, whole: bool) -> str:
        if whole or self.shown is None:
            return super().text_to_copy(whole)
        return training_lines.step_summary(self.shown.state, self.step, self.shown.sizes)


SIDE = 9
"""Cells on each side of a plot: what its height means, and its last value."""
_FIXED = 3
"""Rows beside the plots and the legend: axis, steps and versions."""
_CELLS_A_POINT = 3
"""Points further apart are seen and joined by a line, nearer ones are dots with their mean."""
_CELLS_AN_EPOCH = 4
NOT_MEASURED = (
    "held out: not measured. evaluation.do_eval=true measures while practising, "
    "studio eval afterwards."
)


@frozen
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
    shown: RunCurves, over: RunCurves | None, held_out: str, size: tuple[int, int]
) -> Picture:
    """Reward and the held-out set of this name, then smaller plots of what else is known."""
    width, height = max(1, size[0] - 2 * SIDE), size[1]
    runs = [shown, *([over] if over else [])]
    first = min((run.steps[0] for run in runs if run.steps), default=1)
    steps = (min(first, 1), max(last_shown_step(run) for run in runs))
    extras = [*shown.updates, shown.tokens, *([shown.cost] if shown.cost else [])]
    rows = max(2, height // 8)
    legend = _legend(runs, held_out, width, size[0])[: 2 if height > 8 else 1]
    fixed = _FIXED + len(legend)
    extras = extras[: max(0, height - fixed - 4) // rows]
    drawn = [points for run in runs for points in (run.practice.points, _points(run, held_out))]
    bounds = value_range(drawn, share=shown.practice.unit == "reward")
    main = Plot(width, max(1, height - fixed - rows * len(extras)), steps, bounds)
    _draw_curves(runs, held_out, main)
    low, high = bounds
    labels = {main.row(value): f"{value:.2f}" for value in (low, (low + high) / 2, high)}
    last = {main.row(p.value): f"{p.value:.3f}" for p in shown.practice.points[-1:]}
    lines = [*legend, *beside(main, labels, last), _axis_line(shown, main), ()]
    lines.append(_commits_line(shown, main))
    labels_row = len(lines) - 2
    for series in extras:
        lines += _draw_extra(series, (width, rows), steps)
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


def _draw_extra(series: Series, size: tuple[int, int], steps: tuple[int, int]) -> list[Line]:
    """A smaller plot with its scale, its name and its last value."""
    low, high = value_range([series.points], share=False)
    plot = Plot(*size, steps, (low, high))
    plot.line(series.points, "bar")
    last = series.points[-1].value if series.points else 0.0
    labels = {0: _value_text(series, high), plot.height - 1: _value_text(series, low)}
    return beside(plot, labels, {0: series.name, 1: _value_text(series, last)})


def _value_text(series: Series, value: float) -> str:
    if series.unit == "USD":
        return f"${value:.4f}" if value < 1 else f"${value:,.2f}"
    if series.unit == "tokens":
        return f"{value:,.0f}" if value < 1e6 else f"{value / 1e6:,.2f}M"
    return training_lines.figure_text(series.name, value)


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
    for commit in run.commits:
        column = plot.column(commit.step)
        if commit.outcome != "applied":
            cells[column] = (signs.REFUSED, "flag")
        elif cells[column][0] != signs.REFUSED:
            cells[column] = (signs.COMMIT, "title")
    return (*line((" " * (SIDE - 1) + signs.CORNER, "dim")), *join_cells(cells))


def _commits_line(run: RunCurves, plot: Plot) -> Line:
    """Versions below their steps, the newest first where not all have room."""
    applied = [commit for commit in run.commits if commit.outcome == "applied"]
    labels = []
    for commit in sorted(applied, key=lambda commit: commit.step, reverse=True):
        text = f"library v{commit.version}" if commit.beside_weights else f"v{commit.version}"
        labels.append((plot.column(commit.step), text, ""))
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
    spans = [((f" {sign}", style), (f" {word} ", "")) for sign, style, word in entries if word]
    return paragraph([span for entry in spans for span in entry], width)


def detail_lines(shown: ShownRun, over: ShownRun | None, step: int, width: int) -> list[Line]:
    """The exact figures of one step, the same step of the other run, and held-out sets."""
    out = paragraph(
        [(training_lines.step_summary(shown.state, step, shown.sizes), "")], width, "  "
    )
    if over is not None:
        texts = (
            training_lines.step_summary(over.state, step, over.sizes),
            _measured_text(over, step),
        )
        text = f"{one_line(over.curves.run, 40)}: {'; '.join(filter(None, texts))}"
        out += paragraph([(text, "edited")], width, "  ")
    if measured := _measured_text(shown, step):
        out += paragraph([(f"held out: {measured}", "approved")], width, "  ")
    elif not shown.curves.held_out:
        out += paragraph([(NOT_MEASURED, "dim")], width, "  ")
    return out


def _measured_text(run: ShownRun, step: int) -> str:
    found = (e for e in run.state.evaluations if e.step == step)
    return one_line("; ".join(f"{e.data} {evaluation_lines.finished_text(e)}" for e in found), 400)


class ProgressStrip(Chrome):
    """One row where there is room for it."""

    def draw(self, state: RunState | None) -> None:
        size = self.app.size
        runs = state is not None and state.started is not None and not state.curates
        self.display = runs and size.height >= 20
        if state is not None and self.display:
            self.show_line(0, strip_line(run_curves(state), size.width))


_MOST_BARS = 60


def strip_line(curves: RunCurves, width: int) -> Line:
    """The reward of each step as bars, the last one with its n, and the held-out sets."""
    name, points = curves.practice.name, curves.practice.points
    text = "no step is through yet"
    if points:
        of = f"step {points[-1].step} of {curves.steps_planned}"
        text = f"{words.reward_rate_text(points[-1].value, points[-1].n)}, {of}"
    measured = "; ".join(training_lines.held_out_change_text(series) for series in curves.held_out)
    right = line((f"  held out {one_line(measured, 400)}", "approved") if measured else "")
    room = min(_MOST_BARS, width - len(f" {name}  {text}") - width_of(right))
    high = 1.0 if curves.practice.unit == "reward" else None
    bars = sparkline([point.value for point in points], max(8, room), low=0.0, high=high)
    return crop_line((*line((f" {name} ", "title"), (bars, "bar"), f" {text}"), *right), width)
