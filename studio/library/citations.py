"""Which rollouts of a run cite which experience, as `[E14]` in what the model wrote.

A model that was not asked to cite may never do it: then there is no use to show.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from threading import Lock

import orjson

from engines.core.errors import StudioError
from engines.core.text.citations import find_cited_ids
from engines.core.types import RecordRef
from engines.record import lines
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
    """The citations of one run; no record is read twice."""

    def __init__(self, run: RunDir) -> None:
        self._records = run.records
        self._history = HistoryReader(run)
        self._reading = Lock()  # pages refresh it in worker threads
        self._cited: dict[str, tuple[tuple[RecordRef, ...], frozenset[str]]] = {}
        self.rollouts: dict[str, Citation] = {}  # also those that cite nothing
        self.unread = 0  # rollouts whose record is gone or damaged

    def refresh(self) -> None:
        """Read what the run has journalled since."""
        with self._reading:
            self.unread = 0
            for step in self._history.read().steps.values():
                epoch = step.started.epoch if step.started else 0
                for rollout in step.rollouts.values():
                    refs, cited = rollout.finished.refs, rollout.finished.cited
                    if cited is None:  # a journal from before it told of them
                        self._read(rollout.id, refs)
                    else:
                        self._cited[rollout.id] = (refs, frozenset(cited))
                    self.rollouts[rollout.id] = Citation(rollout.id, epoch, rollout.reward)

    def by_experience(self, experiences: Collection[str]) -> dict[str, tuple[Citation, ...]]:
        """The uses of each of these that is cited at all, in the order they were journalled."""
        wanted = frozenset(experiences)
        found: dict[str, list[Citation]] = {}
        for rollout, (_, names) in self._cited.items():
            for name in names & wanted:
                found.setdefault(name, []).append(self.rollouts[rollout])
        return {name: tuple(uses) for name, uses in found.items()}

    def _read(self, name: str, refs: tuple[RecordRef, ...]) -> None:
        if name in self._cited and self._cited[name][0] == refs:
            return
        cited: frozenset[str] = frozenset()
        try:
            for ref in refs:
                path = self._records / ref.file
                reply = orjson.loads(lines.read_at(path, ref.offset, ref.length, ref.digest))
                written = reply["reply"]
                cited |= find_cited_ids(written["text"]) | find_cited_ids(
                    written.get("reasoning", "")
                )
        except (OSError, StudioError):
            self.unread += 1
        self._cited[name] = (refs, cited)
