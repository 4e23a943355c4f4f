"""What a step shows of what went wrong in it, as counts; `studio.report.diagnosis` names causes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from engines.core.events import RolloutFinished
from engines.core.flags import FLAG_NAMES
from engines.core.state.run_state import StepState
from engines.core.types import NO_ANSWER


def count_symptoms(step: StepState, settings: Mapping[str, Any]) -> Counter[str]:
    """Of a step that ends, while it still holds its rollouts; `settings` are the run's."""
    found = Counter[str](
        rollouts=step.rollouts_done,
        judged=step.rewards.n,
        tool_calls=step.tool_calls,
        failed_calls=step.failed_calls,
    )
    for rollout in step.rollouts.values():
        found.update(_rollout_symptoms(rollout, settings))
    for verdict in step.verdicts.values():
        found["no answer"] += (verdict.critique or "").endswith(NO_ANSWER)
        found["unparsable"] += (verdict.error or "").startswith("unparsable")
    found.update(step.groups)
    found["groups"] = step.groups.total()
    for reflection in step.reflections.values():
        found["credits"] += len(reflection.credits)
        found["unused"] += sum(credit.use != "used" for credit in reflection.credits)
    for outcome in step.outcomes:
        if outcome.kind != "weights":
            found["operations"] += 1
            found["kept"] += outcome.applied and outcome.kind == "keep"
            found["rejected"] += not outcome.applied
            found["refused"] += outcome.reason.partition(":")[0] in FLAG_NAMES
    return +found


def _rollout_symptoms(rollout: RolloutFinished, settings: Mapping[str, Any]) -> Iterator[str]:
    limit = settings.get("policy.max_tokens")
    if rollout.status == "truncated" and not rollout.error:
        if rollout.answer != "":  # "" marks a try that had to end before its answer
            yield "cut"
        elif rollout.turns >= (settings.get("agent.max_turns") or 1):
            yield "out of turns"
    if (rollout.error or "").startswith("timeout"):
        yield "timeouts"
        # No reply is longer, so that all of them were cut.
        if limit and 0 < limit * rollout.turns <= rollout.usage.completion_tokens:
            yield "timeouts at limit"
