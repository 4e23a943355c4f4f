"""`MetricLimits`: rejects a weight update whose figures are out of bounds, and nothing else."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from engines.core.library import Library
from engines.core.types import Decision, Operation

_NAMES = {
    "kl": "the KL divergence",
    "kl_step": "the KL divergence of the step",
    "grad_norm": "the gradient norm",
}


class MetricLimits:
    """Rejects updates that lead too far.

    `max_kl` is the most mean KL divergence from the reference, in nats a token, and the most of
    one step, which tells where the other cannot; `max_grad_norm` the most gradient norm before
    clipping. None: any finite one. Both KL figures are of what an update leads to, so one that
    was rejected leaves no trace in the next one's.
    """

    name = "bounds"

    def __init__(self, max_kl: float | None = None, max_grad_norm: float | None = None) -> None:
        self._limits = {"kl": max_kl, "kl_step": max_kl, "grad_norm": max_grad_norm}
        self.metrics_of: Callable[[Operation], Mapping[str, float]] = lambda _: {}  # the gate's

    async def review(
        self, operations: Sequence[Operation], library: Library
    ) -> AsyncIterator[Decision]:
        for operation in operations:
            found = self.metrics_of(operation) if operation.kind == "weights" else {}
            if reason := self._objection(found):
                yield Decision(operation.id, "reject", reason=reason, reviewer=self.name)

    def _objection(self, found: Mapping[str, float]) -> str:
        for name, limit in self._limits.items():
            value = found.get(name)
            if value is None:
                continue
            if not math.isfinite(value):
                return f"{_NAMES[name]} ({name}) is not finite"
            if limit is not None and value > limit:
                return f"{_NAMES[name]} ({name}) is {value:.4g}, above its limit of {limit:.4g}"
        return ""
