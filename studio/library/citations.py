"""Which rollouts of a run cite which experience, as `[E14]` in what the model wrote.

A model that was not asked to cite may never do it: then there is no use to show.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import orjson

from engines.core.types import rollout_id
from engines.record.journal import HEAD_BYTES, Place, is_unchanged, read
from engines.record.run_dir import RunDir

_ASKED = re.compile(rb'"kind":"(?:StepStarted|Rollout\w+)"')


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
        self._journal = run.journal
        self._reading = Lock()  # pages refresh it in worker threads
        self._last: Place | None = None
        self._epoch = 0
        self._cited: dict[str, tuple[str, ...]] = {}
        self.rollouts: dict[str, Citation] = {}  # also those that cite nothing

    def refresh(self) -> None:
        """Read what the run has journalled since."""
        with self._reading:
            if self._last is not None and not is_unchanged(self._journal, self._last):
                self._last, self._cited, self.rollouts = None, {}, {}  # a repair cut it
            read(self._journal, self._take, self._last)

    def _take(self, path: Path, place: Place) -> None:
        self._last, body = place, place.line.body
        if not _ASKED.search(body, 0, HEAD_BYTES):
            return
        data = orjson.loads(body)  # making events of all takes five times as long
        if (kind := data["kind"]) == "StepStarted":
            self._epoch = data["epoch"]
            return
        name = rollout_id(data["step"], data["position"], data["index"])
        if kind == "RolloutFinished":
            self._cited[name] = tuple(data.get("cited") or ())
        reward = data["verdict"]["reward"] if kind == "RolloutJudged" else None
        self.rollouts[name] = Citation(name, self._epoch, reward)

    def by_experience(self, experiences: Collection[str]) -> dict[str, tuple[Citation, ...]]:
        """The uses of each of these that is cited at all, in the order they were journalled."""
        wanted = frozenset(experiences)
        found: dict[str, list[Citation]] = {}
        for rollout, names in self._cited.items():
            for name in wanted.intersection(names):
                found.setdefault(name, []).append(self.rollouts[rollout])
        return {name: tuple(uses) for name, uses in found.items()}
