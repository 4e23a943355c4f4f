"""TODO."""

from __future__ import annotations

from collections.abc import Mapping

from engines.core.state.run_state import RunState
from studio.facts.curves import Series, _committed_operations, _policy_after
from studio.facts.training import trained_step
from studio.render.training_lines import figures_text, update_outcome_text
from studio.render.words import count_text, reward_rate_text


def step_summary(state: RunState, number: int, sizes: Mapping[int, int] | None = None) -> str:
    """`step 12, epoch 2: reward 0.630 (n=40), 3 operations committed, v7, 12,300 tokens, $0.04`."""
    step = state.steps.get(number)
    if step is None:
        return "before practice" if number == 0 else f"it has no step {number}"
    parts = [f"reward {reward_rate_text(step.rewards.mean, step.rewards.n)}"]
    trained = trained_step(state, number) if state.trains_at(number) else None
    if trained is not None:
        outcome = update_outcome_text(trained, _policy_after(state, number))
        parts = [figures_text(trained), outcome]
    elif step.committed_version is not None:
        done, size = _committed_operations(step), (sizes or {}).get(step.committed_version)
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
