"""Which rollouts of a run cite which experience, as `[E14]` in what the model wrote.

A model that was not asked to cite may never do it: then there is no use to show.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from threading import Lock

from engines.record.run_dir import RunDir
from engines.record.step_history import HistoryReader


@dataclass(frozen=True, slots=True)
class Citation:
    """One rollout that cites an experience; `reward` None where it has none."""

    rollout: str
    epoch: int
    reward: float | None

    @property
    def sign(self) -> str:
        return "?" if self.reward is None else "+" if self.reward >= 0.5 else "-"


class Citations:
    """The citations of one run, as its journal tells them."""

    def __init__(self, run: RunDir) -> None:
        self._history = HistoryReader(run)
        self._reading = Lock()  # pages refresh it in worker threads
        self._cited: dict[str, tuple[str, ...]] = {}
        self.rollouts: dict[str, Citation] = {}  # also those that cite nothing

    def refresh(self) -> None:
        """Read what the run has journalled since."""
        with self._reading:
            for step in self._history.read().steps.values():
                epoch = step.started.epoch if step.started else 0
                for rollout in step.rollouts.values():
                    self._cited[rollout.id] = rollout.finished.cited or ()
                    self.rollouts[rollout.id] = Citation(rollout.id, epoch, rollout.reward)

    def by_experience(self, experiences: Collection[str]) -> dict[str, tuple[Citation, ...]]:
        """The uses of each of these that is cited at all, in the order they were journalled."""
        wanted = frozenset(experiences)
        found: dict[str, list[Citation]] = {}
        for rollout, names in self._cited.items():
            for name in wanted.intersection(names):
                found.setdefault(name, []).append(self.rollouts[rollout])
        return {name: tuple(uses) for name, uses in found.items()}
