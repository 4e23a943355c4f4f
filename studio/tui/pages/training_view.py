"""How a training run is drawn: its curve and figures beside the rollouts, its update in review.

Pure: from the folded state to lines. Which figures there are and what became of each update is
`studio.report.training`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines.core.state.run_state import RunState
from engines.core.types import Operation
from studio.report.training import (
    LEVELS,
    LEVELS_ASCII,
    WORDS,
    TrainedStep,
    engine_text,
    figure_text,
    is_fine_tuning,
    learnt_steps,
    loss_curve,
    loss_text,
    measured_steps,
    reward_curve,
    reward_text,
    setback_lines,
    trained_steps,
    training_lines,
)
from studio.secrets.sanitize import sanitize
from studio.tui.drawing.cells import GLYPHS_ASCII, GLYPHS_UNICODE, Glyphs, fit, pad
from studio.tui.drawing.lines import BLANK, Line, crop_line, line, paragraph

_LABEL = 7
_BRIEF = {"kl": "kl", "clip_share": "clip", "entropy": "ent", "grad_norm": "|g|", "length": "len"}
_BOUNDS = {
    "kl": "reject_kl_above",
    "kl_step": "reject_kl_above",
    "grad_norm": "reject_grad_norm_above",
}
_FIRST = ("reward", "kl", "clip_share", "grad_norm", "entropy", "length", "contrast", "truncated")
"""Of the figures in review: where only the top of the table is seen, it is these."""
_COLUMN, _GAP = 35, 3
BECAME_STYLES = {
    "applied": "approved",
    "rejected": "rejected",
    "rolled back": "flag",
    "failed": "failed",
    "waits": "open",
}
WHOLE = "a weight update is approved or rejected as a whole"


def levels(signs: Glyphs) -> str:
    """The bars of a curve, in ASCII where the borders are."""
    return LEVELS_ASCII if signs == GLYPHS_ASCII else LEVELS


def panel_lines(state: RunState, width: int, signs: Glyphs = GLYPHS_UNICODE) -> list[Line]:
    """Curve, figures of the last update, what went wrong, the last checkpoint.

    The rows stand still while a run goes on; only what went wrong comes below them.
    """
    steps = trained_steps(state)
    shown = is_fine_tuning(state)
    known = learnt_steps(steps) if shown else measured_steps(steps)
    out = [line(("training", "title"), (f"  policy v{state.policy_version}", ""))]
    if not known:
        told = "no step is through yet: the curve begins with the first"
        out += paragraph([(told, "dim")], width)
        if state.engine_facts:
            out += paragraph([(engine_text(state.engine_facts), "dim")], width)
        return [crop_line(each, width) for each in out]
    last = known[-1]
    saved = state.checkpoints[-1] if state.checkpoints else None
    if shown:
        out += [
            line((loss_curve(known, width, levels(signs)), "bar")),
            _row("loss", _first_and_last_text(known), width),
            _row("steps", f"{len(known)}, on demonstrations", width),
        ]
    else:
        best = max(known, key=lambda step: (step.reward or 0.0, -step.step))
        out += [
            line((reward_curve(known, width, levels(signs)), "bar")),
            _row("reward", _first_and_last_text(known), width),
            _row("best", f"{best.reward:.3f} in step {best.step} of {len(known)}", width),
        ]
    out += [
        _last_update_line(last, width),
        *_figure_lines(known, width),
        _row(
            "saved", f"step {saved.step}, v{saved.policy_version}" if saved else "none yet", width
        ),
    ]
    odd = [text for text in setback_lines(steps, len(steps)) if last.became != "rolled back"]
    # A rollback is the graver one: it stands also while later updates are rejected.
    if last.became not in ("failed", "rejected"):
        odd.sort(key=lambda text: not text.startswith("rolled back"))
    for text in odd[:1]:
        out += paragraph([(text, _style_of(text))], width, "  ")
    return [crop_line(each, width) for each in out]


def _first_and_last_text(known: list[TrainedStep]) -> str:
    """`0.250 -> 0.917 (n=12)`, the first and the last reward, or the losses of demonstrations."""
    if known[-1].shown:
        first = f"{figure_text('loss', known[0].metrics['loss'])} -> " if len(known) > 1 else ""
        return f"{first}{loss_text(known[-1])}"
    first = f"{known[0].reward:.3f} -> " if len(known) > 1 else ""
    return f"{first}{reward_text(known[-1])}"


def _steps_text(n: int) -> str:
    return "1 step" if n == 1 else f"{n} steps"


def _style_of(text: str) -> str:
    return "flag" if text.startswith("rolled back") else "failed" if "failed" in text else "dim"


def _row(label: str, text: str, width: int, style: str = "") -> Line:
    return line((label.ljust(_LABEL), "dim"), (fit(text, max(1, width - _LABEL)), style))


def _last_update_line(step: TrainedStep, width: int) -> Line:
    """What came of the last step's update, in a word."""
    told = {
        "no update": "no contrast, none",
        "waits": "waits for review (2)",
        "rolled back": f"rolled back to {step.back_to}",
    }.get(step.became, step.became)
    style = BECAME_STYLES.get(step.became, "dim")
    return _row("update", f"{step.step} {told}", width, style)


def _figure_lines(known: list[TrainedStep], width: int) -> list[Line]:
    """The figures of the last update that was computed, two in a row."""
    found = next((step for step in reversed(known) if step.metrics), None)
    if found is None:
        return [line(("no figures yet", "dim")), *[BLANK] * 3]
    left = (("KL", "kl"), ("entropy", "entropy"), ("length", "length"), ("lr", "learning_rate"))
    right = (("clipped", "clip_share"), ("|g|", "grad_norm"), ("cut", "truncated"),
             ("contrast", "contrast"))  # fmt: skip
    room = max(7, width // 2 - 8)
    return [
        line(
            (f"{word:<8}", "dim"),
            (pad(_metric_text(found.metrics, name), room), ""),
            (f"{other:<9}", "dim"),
            (_metric_text(found.metrics, beside), ""),
        )
        for (word, name), (other, beside) in zip(left, right, strict=True)
    ]


def _metric_text(metrics: Mapping[str, float], name: str) -> str:
    return figure_text(name, metrics[name]) if name in metrics else "-"


def brief_lines(state: RunState, width: int, signs: Glyphs = GLYPHS_UNICODE) -> list[Line]:
    """The same in two lines, for a screen without room for a panel."""
    steps = trained_steps(state)
    shown = is_fine_tuning(state)
    known = learnt_steps(steps) if shown else measured_steps(steps)
    version = f"policy v{state.policy_version}"
    if not known:
        told = f" training  {version}, no step is through yet"
        engine = f" {engine_text(state.engine_facts)}" if state.engine_facts else ""
        return [line((fit(told, width), "title")), line((fit(engine, width), "dim"))]
    last = known[-1]
    told = (
        f"{' loss' * shown} {_first_and_last_text(known)} in {_steps_text(len(known))}, {version}"
    )
    room = max(4, width - 1 - len(told))
    curve = loss_curve if shown else reward_curve
    head = line((" ", ""), (curve(known, room, levels(signs)), "bar"), (told, ""))
    found = next((step for step in reversed(known) if step.metrics), None)
    figures = found.metrics if found else {}
    texts = [f"{word} {figure_text(k, figures[k])}" for k, word in _BRIEF.items() if k in figures]
    odd = setback_lines(steps, 1)
    second = [(f" {', '.join(texts)}", "dim")]
    if odd and last.became in ("rolled back", "rejected", "failed"):
        second.insert(0, (f" {odd[0]};", _style_of(odd[0])))
    elif last.became == "waits":
        second.insert(0, (" its update waits for review (2);", "open"))
    elif state.checkpoints:
        second.append((f", checkpoint of step {state.checkpoints[-1].step}", "dim"))
    return [crop_line(head, width), crop_line(tuple(second), width)]


def step_of(operation: Operation) -> int:
    """The step whose update waits under this id, `op3.w`."""
    number = operation.id.removeprefix("op").partition(".")[0]
    return int(number) if number.isdecimal() else 0


def update_lines(operation: Operation, state: RunState, width: int) -> list[Line]:
    """A weight update as a table: each figure beside that of the update before; bounds on top."""
    step = step_of(operation)
    metrics = state.training.get(step)
    found = state.steps.get(step)
    lesson = found.lesson if found is not None else None
    out: list[Line] = []
    if lesson is not None and lesson.update is not None and lesson.update.rollback_to is not None:
        told = (
            f"ROLLBACK  approved, it goes back to the weights of step {lesson.update.rollback_to}"
        )
        out += paragraph([(told, "flag")], width, "  ")
    if not metrics:
        return [
            *out,
            *paragraph([(sanitize(operation.text) or "no figures came with it", "")], width),
        ]
    before = next((n for n in sorted(state.training, reverse=True) if n < step), None)
    old = state.training[before] if before is not None else {}
    heading = f"step {before}" if before is not None else "none before"
    bounds = [
        _check_bound(name, metrics[name], state.settings) for name in _BOUNDS if name in metrics
    ]
    for text, over in (bound for bound in bounds if bound is not None):
        out.append(line((fit(text, width), "flag" if over else "dim")))
    heading = f"step {before}" if before is not None else "before"
    names = [name for name in _FIRST if name in metrics]
    names += [name for name in (*WORDS, *sorted(set(metrics) - set(WORDS)))
              if name in metrics and name not in names]  # fmt: skip
    columns = 2 if width >= 2 * _COLUMN + _GAP else 1
    head = f"{'':<15}{f'step {step}':>10}{heading:>10}"
    out.append(line(((" " * _GAP).join([head] * columns), "dim")))
    for at in range(0, len(names), columns):
        cells = [_cell(name, metrics, old) for name in names[at : at + columns]]
        gap = ((" " * _GAP, ""),)
        out.append(tuple(span for n, cell in enumerate(cells) for span in (*gap[:n], *cell)))
    return [crop_line(each, width) for each in out]


def _cell(name: str, metrics: Mapping[str, float], old: Mapping[str, float]) -> Line:
    was = figure_text(name, old[name]) if name in old else "-"
    word = pad(sanitize(WORDS.get(name, name)), 15)
    return line((word, "dim"), f"{figure_text(name, metrics[name]):>10}", (f"{was:>10}", "dim"))


def _check_bound(name: str, value: float, settings: Mapping[str, Any]) -> tuple[str, bool] | None:
    """A bound of the run file in words, and whether the figure is beyond it."""
    section = settings.get("grpo")
    nested = section.get(_BOUNDS[name]) if isinstance(section, Mapping) else None
    limit = settings.get(f"grpo.{_BOUNDS[name]}", nested)
    if not isinstance(limit, int | float):
        return None
    over = not value <= limit  # also what is no number
    told = f"{WORDS[name]} {figure_text(name, value)}, at most {limit:g} is approved"
    return (f"OUT OF BOUNDS: {told}" if over else f"within bounds: {told}"), over


def training_summary_lines(
    state: RunState, width: int, signs: Glyphs = GLYPHS_UNICODE
) -> list[Line]:
    """The whole training of a run that ended: curve, updates, weights, last checkpoint."""
    out = []
    for text in training_lines(state, levels(signs)):
        style = _style_of(text.strip()) if text.startswith("  ") else ""
        out += paragraph([("  " + text, style)], width, " " * min(14, width // 3))
    return out
