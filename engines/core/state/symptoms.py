"""What a step shows of what went wrong in it, as counts; `studio.facts.diagnosis` names causes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from engines.core.flags import FLAG_NAMES, PROVED, UNPROVEN
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
    limit = settings.get("policy.max_tokens") or 0
    for rollout in step.rollouts.values():
        late, tokens = (rollout.error or "").startswith("timeout"), rollout.usage.completion_tokens
        found["timeouts"] += late
        # No reply is longer, so that all of them were cut.
        found["timeouts at limit"] += late and 0 < limit * rollout.turns <= tokens
        # An empty answer marks a try that had no turn or context left for one.
        found["cut"] += rollout.status == "truncated" and rollout.answer != ""
    for verdict in step.verdicts.values():
        found["no answer"] += NO_ANSWER in (verdict.critique or "")
    found.update(step.groups)
    found["groups"] = step.groups.total()
    for reflection in step.reflections.values():
        found["credits"] += len(reflection.credits)
        found["unused"] += sum(credit.use != "used" for credit in reflection.credits)
    for outcome in step.outcomes:
        if outcome.kind != "weights":
            found["operations"] += 1
            found["kept"] += outcome.applied and outcome.kind == "keep"
            fault = outcome.reason.partition(":")[0]
            found["unproven"] += fault == UNPROVEN
            found["refused"] += fault in FLAG_NAMES and fault not in PROVED.values()
            found["rejected"] += not outcome.applied and fault not in FLAG_NAMES
    return +found
