"""How a training run is drawn: its curve and figures beside the rollouts, its update in review.

Pure. Which figures there are and the outcome of each update is `studio.facts.training`'s.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from engines.core.state.run_state import RunState
from engines.core.types import Operation, operation_step
from studio.facts import training
from studio.render import lines, training_lines
from studio.secrets.sanitize import sanitize
from studio.tui.drawing.cells import fit, pad
from studio.tui.drawing.lines import BLANK, Line, crop_line, line, paragraph

_LABEL = 7
_BOUNDS = {
    "kl": "reject_kl_above",
    "kl_step": "reject_kl_above",
    "grad_norm": "reject_grad_norm_above",
}
_FIRST = ("reward", "kl", "grad_norm", "clip_share", "entropy", "loss")
"""What an update is decided by; the other figures are folded away."""
_TREND = 8
"""Steps of a figure's own curve."""
BECAME_STYLES = {
    "applied": "approved",
    "rejected": "rejected",
    "rolled back": "flag",
    "failed": "failed",
    "waits": "open",
}
WHOLE = "a weight update is approved or rejected as a whole"


def panel_lines(state: RunState, width: int) -> list[Line]:
    """Curve, figures of the last update, what went wrong, the last checkpoint.

    The rows stand still while a run goes on; only what went wrong comes below them.
    """
    steps = training.trained_steps(state)
    known = training.measured_steps(steps)
    out = [line(("training", "title"), (f"  policy v{state.policy_version}", ""))]
    if not known:
        out += paragraph(
            [("no step is through yet: the curve begins with the first", "dim")], width
        )
        if state.engine_facts:
            out += paragraph([(training_lines.engine_text(state.engine_facts), "dim")], width)
        return [crop_line(each, width) for each in out]
    last = known[-1]
    best = training.best_step(known)
    value = training_lines.figure_text(best.measure, best.value or 0.0)
    saved = "none yet"
    if state.checkpoints:
        saved = f"step {state.checkpoints[-1].step}, v{state.checkpoints[-1].policy_version}"
    out += [
        line((training_lines.value_curve(known, width), "bar")),
        _row(last.measure, training_lines.change_text(known), width),
        _row("best", f"{value} in step {best.step} of {len(known)}", width),
        _last_update_line(last, width),
        *_figure_lines(known, width),
        _row("saved", saved, width),
    ]
    if last.update != "rolled back":  # which the row of the last update says
        for text in training_lines.setback_lines(steps, len(steps))[:1]:
            style = "flag" if text.startswith("rolled back") else "failed"
            out += paragraph([(text, style)], width, "  ")
    return [crop_line(each, width) for each in out]


def _row(label: str, text: str, width: int, style: str = "") -> Line:
    return line((label.ljust(_LABEL), "dim"), (fit(text, max(1, width - _LABEL)), style))


def _last_update_line(step: training.TrainedStep, width: int) -> Line:
    """What came of the last step's update, in a word."""
    text = {
        "no update": "no contrast, none",
        "waits": "needs your review (2)",
        "under way": "not computed yet",
        "rolled back": f"rolled back to {step.back_to}",
    }.get(step.update, step.update)
    return _row("update", f"{step.step} {text}", width, BECAME_STYLES.get(step.update, "dim"))


def _figure_lines(known: list[training.TrainedStep], width: int) -> list[Line]:
    """The figures of the last update that was computed, two in a row."""
    metrics = next((step.metrics for step in reversed(known) if step.metrics), None)
    if metrics is None:
        return [line(("no figures yet", "dim")), *[BLANK] * 3]
    left = (("KL", "kl"), ("entropy", "entropy"), ("length", "length"), ("lr", "learning_rate"))
    right = (("clipped", "clip_share"), ("|g|", "grad_norm"), ("cut", "truncated"),
             ("contrast", "contrast"))  # fmt: skip
    room = max(7, width // 2 - 8)
    return [
        line(
            (f"{word:<8}", "dim"),
            (pad(_metric_text(metrics, name), room), ""),
            (f"{other:<9}", "dim"),
            (_metric_text(metrics, beside), ""),
        )
        for (word, name), (other, beside) in zip(left, right, strict=True)
    ]


def _metric_text(metrics: Mapping[str, float], name: str) -> str:
    return training_lines.figure_text(name, metrics[name]) if name in metrics else "-"


def update_lines(
    operation: Operation,
    state: RunState,
    width: int,
    whole: bool = False,
) -> list[Line]:
    """What an update is decided by, a figure a row: against the step before, its bound, its curve.

    With `whole` all figures; without, `z` is named that shows them.
    """
    step = operation_step(operation.id)
    metrics = state.training.get(step)
    found = state.steps.get(step)
    update = found.lesson.update if found is not None and found.lesson is not None else None
    out: list[Line] = []
    if update is not None and update.rollback_to is not None:
        text = f"ROLLBACK  approved, it goes back to the weights of step {update.rollback_to}"
        out += paragraph([(text, "flag")], width, "  ")
    if not metrics:
        text = sanitize(operation.text) or "no figures came with it"
        return [*out, *paragraph([(text, "")], width)]
    names = [name for name in _FIRST if name in metrics]
    others = [name for name in metrics if name not in names]
    others.sort(key=[*training.FIGURE_NAMES, *sorted(metrics)].index)
    past = [figures for number, figures in sorted(state.training.items()) if number < step]
    for name in (*names, *(others if whole else ())):
        values = [figures[name] for figures in past if name in figures]
        out.append(_update_row(name, metrics[name], values, state.settings, width - 69))
    if others:
        text = "z shows fewer" if whole else f"and {len(others)} more figures (z)"
        out.append(line((text, "dim")))
    return [crop_line(each, width) for each in out]


def _update_row(
    name: str,
    value: float,
    past: Sequence[float],
    settings: Mapping[str, Any],
    room: int,
) -> Line:
    """`KL  0.007  up from 0.006  good: at most 0.5  ▁▂▃`; a word beside every colour.

    `room` is what there is for the curve.
    """
    word = pad(sanitize(training.FIGURE_NAMES.get(name, name)), 14)
    shown = training_lines.figure_text(name, value)
    change = "the first"
    if past:
        was = training_lines.figure_text(name, past[-1])
        way = "same as" if was == shown else "up from" if value > past[-1] else "down from"
        change = f"{way} {was}"
    cells = max(1, min(_TREND, room))
    curve = lines.sparkline([*past, value][-cells:], cells)
    verdict, style = "", ""
    if name in _BOUNDS:
        limit = settings.get(f"grpo.{_BOUNDS[name]}")
        verdict, style = "no bound is set", "dim"
        if limit is not None:
            verdict, style = f"good: at most {limit:g}", "won"
            if not value <= limit:  # also what is no number
                verdict, style = f"OUT OF BOUNDS: above {limit:g}", "flag"
    return line((word, "dim"), f"{shown:>9}  ", pad(change, 18), (pad(verdict, 26), style),
                (curve, "bar"))  # fmt: skip
