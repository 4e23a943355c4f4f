"""A policy round another one, which passes on whatever it does not change."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from engines.core.protocols import Policy
from engines.core.types import Job
from engines.policies.limits.congestion import Congestion, with_congestion
from engines.policies.limits.throttle import bind_to_job


@dataclass(frozen=True, slots=True)
class WrappedPolicy:
    """Its subclasses own `complete`. Bound to a job or to slots, it is the same round `inner`."""

    inner: Policy

    @property
    def name(self) -> str:
        return self.inner.name

    def with_congestion(self, congestion: Congestion) -> Self:
        return self._around(with_congestion(self.inner, congestion))

    def for_job(self, job: Job) -> Self:
        return self._around(bind_to_job(self.inner, job))

    def _around(self, inner: Policy) -> Self:
        return self if inner is self.inner else replace(self, inner=inner)

    async def ping(self) -> None:
        await self.inner.ping()

    async def aclose(self) -> None:
        await self.inner.aclose()
