"""What a list of runs shows of one, and what it practises, as JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines.core.state.curve import curve_row
from engines.core.state.run_state import RunState

MOST_TOKENS = 2**63 - 1
"""That JSON writers take. Endpoints were once believed whatever they counted."""


def list_row(state: RunState) -> dict[str, Any]:
    """Rates come with their n."""
    started = state.started
    return {
        "run": started.run if started else "",
        "exp_id": started.exp_id if started else "",
        "status": state.status,
        "ending": state.ending,
        "reason": state.reason,
        "epoch": state.steps[state.step].epoch if state.step in state.steps else 0,
        "epochs": state.epochs,
        "steps": state.steps_finished,
        "library": started.library if started else "",
        "version": state.library_version,
        "policy_version": state.policy_version if state.trains_weights else None,
        "open": len(state.open_operations),
        "later": len(state.put_off_operations),  # of these
        "curates": state.curates,
        "proposed": state.proposed,
        "rewards": {
            str(epoch): {"mean": pooled.mean, "n": pooled.n}
            for epoch, pooled in state.rewards_by_epoch().items()
        },
        "curve": curve_row(state),
        "tokens": min(state.total_usage.tokens, MOST_TOKENS),
        "cost_usd": state.total_usage.cost_usd,
        "losses": sum(state.lost.values()),
        "rehearsal": bool(started and started.rehearsal),
        "practises": _practises(state),
    }


def _practises(state: RunState) -> dict[str, Any] | None:
    """What is practised with which settings; None before the run has begun, and of no practice."""
    if (started := state.started) is None or state.curates:
        return None
    settings = {**started.settings, **state.settings}
    verifier = settings.get("verifier")
    named = verifier.get("name", "") if isinstance(verifier, Mapping) else verifier
    return {
        "model": str(settings.get("policy.model", "")),
        "data": str(settings.get("data.practice", "")),
        "verifier": str(named or ""),
        "reviewer": state.reviewer,
        "seed": started.seed,
        "batch_size": int(settings.get("practice.batch_size") or 0),
        "group_size": started.group_size,
        "steps": started.steps_per_epoch * state.epochs,
        "measured": _measured_sets(state),
        "step": state.step,
    }


def _measured_sets(state: RunState) -> list[dict[str, Any]]:
    by_set: dict[str, list[tuple[float, int]]] = {}
    for found in state.evaluations:
        if found.mean is not None:
            by_set.setdefault(found.data, []).append((found.mean, found.n))
    return [
        {
            "data": data,
            "first": means[0][0],
            "last": means[-1][0],
            "n": means[-1][1],
            "first_n": means[0][1] if len(means) > 1 else None,
        }
        for data, means in by_set.items()
    ]
