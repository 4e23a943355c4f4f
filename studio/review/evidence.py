"""The rollouts behind an operation, as a reviewer reads them: question, reward, last words.

Reads a run's journal and records; changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engines.core import events as ev
from engines.core.errors import ConflictError, StudioError
from engines.core.types import Message, Operation, UnparsedReply, Verdict, group_id, rollout_id
from engines.record.ledger import read_trajectory
from engines.record.run_dir import RunDir
from studio.session.unparsed_replies import ReplySource, find_reply_source


@dataclass(frozen=True, slots=True)
class EvidenceRollout:
    """One rollout that an operation rests on."""

    rollout: ev.RolloutFinished
    verdict: Verdict | None

    @property
    def id(self) -> str:
        return rollout_id(self.rollout.step, self.rollout.position, self.rollout.index)

    @property
    def sign(self) -> str:
        reward = self.verdict.reward if self.verdict else None
        return "?" if reward is None else "+" if reward >= 0.5 else "-"


@dataclass(frozen=True, slots=True)
class GroupEvidence:
    """The rollouts of a group that are evidence; `won` of all its `n` had a reward ≥ 0.5."""

    id: str
    question: str
    won: int
    n: int
    witnesses: tuple[EvidenceRollout, ...]


class EvidenceLoader:
    """Finds evidence in one run's journal and records."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._rollouts: dict[str, ev.RolloutFinished] = {}
        self._verdicts: dict[str, Verdict] = {}
        self._members: dict[str, list[str]] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read what the run has journalled since."""
        for entry in self._run.entries():
            event = entry.event
            if isinstance(event, ev.RolloutFinished):
                name = rollout_id(event.step, event.position, event.index)
                if name not in self._rollouts:
                    self._members.setdefault(group_id(event.step, event.position), []).append(name)
                self._rollouts[name] = event
            elif isinstance(event, ev.RolloutJudged):
                self._verdicts[rollout_id(event.step, event.position, event.index)] = event.verdict

    def operation_groups(self, operation: Operation) -> tuple[GroupEvidence, ...]:
        """Evidence by group, in the order of the operation.

        A weight update names no rollouts: it rests on all groups of its step.
        """
        if operation.kind == "weights":
            return self._step_groups(operation.id)
        return self.groups(operation.evidence)

    def _step_groups(self, update: str) -> tuple[GroupEvidence, ...]:
        step = update.removeprefix("op").partition(".")[0]
        self.refresh()
        names = [name for name in self._members if name.partition("p")[0] == f"s{step}"]
        names.sort(key=lambda name: int(name.partition("p")[2]))
        return tuple(self._group(name, self._members[name]) for name in names)

    def groups(self, rollouts: Sequence[str]) -> tuple[GroupEvidence, ...]:
        """Rollouts by group, in the order given."""
        if not self._rollouts.keys() >= set(rollouts):
            self.refresh()  # a living run has gone on since
        groups: dict[str, list[str]] = {}
        for name in rollouts:
            groups.setdefault(name.rpartition("r")[0], []).append(name)
        return tuple(self._group(name, members) for name, members in groups.items())

    def reply_source(self, repair: UnparsedReply) -> ReplySource:
        """What a reply that could not be parsed was drawn from.

        Raises:
            ConflictError: the run's journal knows nothing of it.
        """
        return find_reply_source(self._run, repair)

    def find_rollout(self, name: str) -> EvidenceRollout:
        """One rollout by its id.

        Raises:
            ConflictError: the run has no such rollout.
        """
        if name not in self._rollouts:
            known = list(self._rollouts)
            raise ConflictError(
                f"run {self._run.run}, rollout {name}",
                "it has no such rollout.",
                f"They are called {known[0]} to {known[-1]}." if known else "It has none yet.",
            )
        return self._make_rollout(name)

    def messages(self, witness: EvidenceRollout) -> tuple[Message, ...]:
        """The witness's whole trajectory."""
        return read_trajectory(self._run.records, witness.rollout.refs)

    def _group(self, name: str, wanted: list[str]) -> GroupEvidence:
        members = sorted(
            (self._make_rollout(member) for member in self._members.get(name, [])),
            key=lambda witness: witness.rollout.index,
        )
        return GroupEvidence(
            name,
            self._question(members),
            sum(witness.sign == "+" for witness in members),
            len(members),
            tuple(witness for witness in members if witness.id in wanted),
        )

    def _make_rollout(self, name: str) -> EvidenceRollout:
        return EvidenceRollout(self._rollouts[name], self._verdicts.get(name))

    def _question(self, members: list[EvidenceRollout]) -> str:
        for witness in members:
            try:
                asked = [m.content for m in self.messages(witness) if m.role == "user"]
            except StudioError:
                continue  # its record is gone; another member may have one
            if asked:
                return asked[0]
        return "(its record is gone)"
