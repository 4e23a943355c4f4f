"""A training run as lines: figures of its updates with their rounding, and each one's outcome."""

import math
from collections.abc import Mapping, Sequence

from engines.core.codec import JsonMapping
from engines.core.state.run_state import RunState
from studio.facts.curves import Series, committed_operations, policy_after
from studio.facts.training import TrainedStep, TrainingFacts, trainable_share, trained_step
from studio.render.lines import sparkline
from studio.render.words import count_text, reward_rate_text
from studio.secrets.sanitize import one_line

_SHARES = frozenset({"contrast", "clip_share", "clip_low", "clip_high", "truncated"})


_COUNTS = frozenset({"tokens", "optimiser_steps", "length", "examples", "left_out"})


def value_curve(steps: Sequence[TrainedStep], width: int) -> str:
    """What the steps are measured by; rewards on a scale of 0 to 1, losses from 0 on."""
    high = 1.0 if steps and steps[0].measure == "reward" else None
    return sparkline([step.value for step in steps], width, low=0.0, high=high)


def row_curve(curve: JsonMapping, width: int) -> str:
    """The bars of a catalogue row's `curve`; "" without any point."""
    values = [point[1] for point in curve["points"]]
    high = 1.0 if curve["of"] == "reward" else None
    return sparkline(values, width, low=0.0, high=high)


def figure_text(name: str, value: float) -> str:
    """One figure: a share in per cent, a count as a whole number, others to three digits."""
    if not math.isfinite(value):
        return str(value)
    if name in _SHARES:
        percent = 100 * value
        return f"{percent:.2g} %" if 0 < percent < 9.95 else f"{percent:.0f} %"
    if name in _COUNTS:
        return f"{value:,.0f}"
    if name.startswith("reward"):
        return f"{value:.3f}"
    return f"{value:.3g}" if abs(value) >= 0.001 else f"{value:.2g}"


def value_text(step: TrainedStep) -> str:
    """`0.420 (n=128)`: over how many rollouts or demonstrations it is."""
    shown = "none known" if step.value is None else figure_text(step.measure, step.value)
    return f"{shown} (n={step.n})"


def change_text(known: Sequence[TrainedStep]) -> str:
    """`0.250 -> 0.917 (n=12)`: the first value, if there are several, and the last."""
    first = value_text(known[0]).partition(" (")[0]
    return f"{first} -> {value_text(known[-1])}" if len(known) > 1 else value_text(known[-1])


def outcome_counts_text(training: TrainingFacts) -> str:
    """`28 applied, 1 rejected, 1 rolled back`; what did not happen is left out."""
    words = {"no_update": "without one (no group had contrast)", "library_step": "library steps"}
    counts = training.updates.items()
    texts = [f"{n} {words.get(name, name.replace('_', ' '))}" for name, n in counts if n]
    return ", ".join(texts) or "none yet"


def figures_text(step: TrainedStep) -> str:
    """`reward 0.420 (n=128), kl 0.003, clip 2 %, entropy 0.41, |g| 0.8, length 31`."""
    return ", ".join([f"{step.measure} {value_text(step)}", *brief_figures(step.metrics)])


def brief_figures(metrics: Mapping[str, float]) -> list[str]:
    """`kl 0.003` and so on, the most telling first."""
    names = {"kl": "kl", "clip_share": "clip", "entropy": "entropy", "grad_norm": "|g|",
             "length": "length"}  # fmt: skip
    return [f"{names[key]} {figure_text(key, metrics[key])}" for key in names if key in metrics]


def update_outcome_text(step: TrainedStep, policy_version: int) -> str:
    """What came of the update, and the policy after it: a word for each, never a colour alone."""
    why = f" ({step.reason})" if step.reason else ""
    outcome = {
        "applied": "policy",
        "rolled back": f"rolled back to step {step.back_to}, policy",
        "rejected": f"update rejected{why}, policy stays",
        "failed": f"update failed{why}, policy stays",
        "no update": "no update: no group had contrast, policy stays",
        "library step": "a library step, policy stays",
        "waits": "its update is to be decided, policy",
        "under way": "under way, policy",
    }[step.update]
    return f"{outcome} v{policy_version}"


def engine_text(facts: JsonMapping) -> str:
    """`22,528 of 651,264 parameters are trained (3.5 %); cpu, float32, 1 thread`."""
    trained = ""
    if (share := trainable_share(facts)) is not None:
        counts = f"{facts['trainable']:,} of {facts['parameters']:,}"
        trained = f"{counts} parameters are trained ({figure_text('clip_share', share)})"
    where = [str(facts[name]) for name in ("device", "dtype") if facts.get(name)]
    if isinstance(threads := facts.get("threads"), int):
        where.append(f"{threads} thread{'s' * (threads != 1)}")
    known = "; ".join(filter(None, (trained, ", ".join(where))))
    return one_line(known, 300) or "nothing is known of the engine"


def learned_text(row: JsonMapping) -> str:
    """What practice changed and how far it is: `lib@3`, or `policy v7` of a training run."""
    if row.get("policy_version") is not None:
        return f"policy v{row['policy_version']}"
    return f"{row['library']}@{row['version']}"


def training_lines(training: TrainingFacts, *, place: str = "") -> list[str]:
    """The training section of a summary: rewards with n, updates, weights, checkpoints.

    `place` is the folder of the run, "" where checkpoints are named from there on.
    """
    lines = []
    if measured := training.measured:
        named = training.reward if len(measured) > 1 else {"last": measured[-1]}
        texts = [f"{name} step {s.step} {value_text(s)}" for name, s in named.items() if s]
        lines.append(f"{measured[0].measure:<11} {'; '.join(texts)}")
        curve = value_curve(measured, 60)
        scale = f"0 to {figure_text('loss', training.curve_top)}"
        lines.append(f"curve       {curve}  ({scale}, {len(measured)} steps)")
    outcomes = outcome_counts_text(training)
    lines.append(f"updates     {outcomes}; policy v{training.policy_version}")
    lines += [f"  {text}" for text in setback_lines(training.steps)]
    last = next((step for step in reversed(training.steps) if step.metrics), None)
    if last is not None and (figures := figures_text(last).partition(", ")[2]):
        lines.append(f"figures     step {last.step}: {figures}")
    if training.engine:
        lines.append(f"weights     {engine_text(training.engine)}")
    return [*lines, f"checkpoint  {_checkpoint_text(training, place)}"]


def _checkpoint_text(training: TrainingFacts, place: str) -> str:
    if not training.checkpoints:
        return "none"
    saved = training.checkpoints[-1]
    folder = one_line(f"{place}/{saved.folder}" if place else saved.folder, 300)
    count = len(training.checkpoints)
    more = f" ({count} saved)" if count > 1 else ""
    return f"step {saved.step}, policy v{saved.policy_version}: {folder}{more}"


def setback_lines(steps: Sequence[TrainedStep], most: int = 5) -> list[str]:
    """What did not go as planned, newest first: rollbacks, rejected and failed updates."""
    lines = []
    for step in reversed(steps):
        reason = f": {step.reason}" if step.reason else ""
        if step.update == "rolled back":
            lines.append(f"rolled back to step {step.back_to} at step {step.step}")
        elif step.update in ("rejected", "failed"):
            lines.append(f"update of step {step.step} {step.update}{reason}")
    more = [f"and {len(lines) - most} more"] if len(lines) > most else []
    return [*lines[:most], *more]


def step_summary(state: RunState, number: int, sizes: Mapping[int, int] | None = None) -> str:
    """`step 12, epoch 2: reward 0.630 (n=40), 3 operations committed, v7, 12,300 tokens, $0.04`."""
    step = state.steps.get(number)
    if step is None:
        return "before practice" if number == 0 else f"it has no step {number}"
    parts = [f"reward {reward_rate_text(step.rewards.mean, step.rewards.n)}"]
    trained = trained_step(state, number) if state.trains_at(number) else None
    if trained is not None:
        outcome = update_outcome_text(trained, policy_after(state, number))
        parts = [figures_text(trained), outcome]
    elif step.committed_version is not None:
        done, size = committed_operations(step), (sizes or {}).get(step.committed_version)
        known = "" if size is None else f" ({count_text(size, 'experience')})"
        parts.append(f"{count_text(done, 'operation')} committed")
        parts.append(f"v{step.committed_version}{known}")
    elif step.operations:
        parts.append(f"{count_text(step.operations, 'operation')} proposed, not committed yet")
    lost = step.failed + step.unjudged
    if lost:
        parts.append(f"{count_text(lost, 'rollout')} without a reward")
    parts.append(f"{step.usage.tokens:,} tokens")
    if step.usage.cost_usd:
        parts.append(f"${step.usage.cost_usd:.4f}")
    return f"step {number}, epoch {step.epoch}: {', '.join(parts)}"


def held_out_change_text(series: Series) -> str:
    """`math500 0.310 -> 0.420 (n=100)`: before practice and now, or the only measurement."""
    last = series.points[-1]
    shown = f"{last.value:.3f} (n={last.n})"
    if len(series.points) == 1:
        return f"{series.name} {shown}, measured once"
    return f"{series.name} {series.points[0].value:.3f} -> {shown}"
