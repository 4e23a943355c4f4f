"""The rollouts behind an operation, as a reviewer reads them: question, reward, last words."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from threading import Lock
from typing import TYPE_CHECKING

from engines.core import errors, types
from engines.core import events as ev
from engines.core.frozen import frozen
from engines.core.state.run_state import StepHistory
from engines.core.text.similarity import Change
from engines.record.derived.run_state import HistoryReader
from engines.record.ledger import read_trajectory
from engines.record.run_dir import RunDir
from studio.review.divergence import MOST_OF_A_SIDE, Piece, choose_pair, said_pieces

if TYPE_CHECKING:  # it loads the reflector, which a screen waits for at its start
    from studio.session.unparsed_replies import ReplySource

PartingWords = tuple[str, str, tuple[Change, ...]]
"""Sign and id of a rollout, and the step at which it parts from the other."""
_COMPARED = 8
"""Groups whose winners and losers are compared: a weight update may rest on hundreds."""
_KEPT_STEPS = 16
"""Whose rollouts are not read again for the next operation that rests on them."""


@frozen
class EvidenceRollout:
    rollout: ev.RolloutFinished
    verdict: types.Verdict | None
    doubt: str = ""  # why the reflector found the verdict to contradict the attempt

    @property
    def id(self) -> str:
        return types.rollout_id(self.rollout.step, self.rollout.position, self.rollout.index)

    @property
    def sign(self) -> str:
        reward = self.verdict.reward if self.verdict else None
        return "?" if reward is None else "+" if reward >= 0.5 else "-"


@frozen
class GroupEvidence:
    """The rollouts of a group that are evidence; `won` of all its `n` had a reward ≥ 0.5."""

    id: str
    question: str
    won: int
    n: int
    witnesses: tuple[EvidenceRollout, ...]
    parting: tuple[PartingWords, ...] = ()  # of a winner and a loser; () where none were compared


class EvidenceLoader:
    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._reading = Lock()  # the readers; pages use them in worker threads
        self._reader = lru_cache(_KEPT_STEPS)(partial(HistoryReader, run.journal))  # of a step

    def _members(self, step: int, position: int | None = None) -> list[EvidenceRollout]:
        """The rollouts of a step's group as far as it is now, in index order; None: of all."""
        with self._reading:
            history = self._reader(step).read().steps.get(step) or StepHistory(step)
            return [
                EvidenceRollout(
                    rollout.finished, rollout.verdict, history.doubts.get(rollout.id, "")
                )
                for at, rollout in sorted(history.rollouts.items())
                if position in (None, at[0])
            ]

    def operation_groups(self, operation: types.Operation) -> tuple[GroupEvidence, ...]:
        """Evidence by group, in the order of the operation, and where winners and losers part.

        A weight update names no rollouts: it rests on all groups of its step.
        """
        rollouts: Sequence[str] = operation.evidence
        if operation.kind == "weights":
            rollouts = [each.id for each in self._members(types.operation_step(operation.id))]
        found = self.groups(rollouts)
        compared = [replace(group, parting=self._parting(group)) for group in found[:_COMPARED]]
        return (*compared, *found[_COMPARED:])

    def groups(self, rollouts: Sequence[str]) -> tuple[GroupEvidence, ...]:
        """Rollouts by group, in the order given."""
        groups: dict[str, list[str]] = {}
        for name in rollouts:
            groups.setdefault(name.rpartition("r")[0], []).append(name)
        return tuple(self._group(name, members) for name, members in groups.items())

    def reply_source(self, repair: types.UnparsedReply) -> "ReplySource":
        from studio.session.unparsed_replies import find_reply_source

        return find_reply_source(self._run, repair)

    def messages(self, witness: EvidenceRollout) -> tuple[types.Message, ...]:
        return read_trajectory(self._run.records, witness.rollout.refs)

    def _parting(self, group: GroupEvidence) -> tuple[PartingWords, ...]:
        sides: dict[str, dict[str, Sequence[Piece]]] = {"+": {}, "-": {}}
        for witness in group.witnesses:
            if len(side := sides.get(witness.sign, {})) < MOST_OF_A_SIDE and witness.sign in sides:
                try:
                    side[witness.id] = said_pieces(self.messages(witness))
                except errors.StudioError:
                    continue  # its record is gone; another one may part as well
        found = choose_pair(sides["+"], sides["-"], group.question)
        if found is None:
            return ()
        winner, loser, parts = found
        won, lost = parts.winner.words(sides["+"][winner]), parts.loser.words(sides["-"][loser])
        return ("+", winner, won), ("-", loser, lost)

    def _group(self, name: str, wanted: list[str]) -> GroupEvidence:
        step, _, position = name.removeprefix("s").partition("p")
        known = step.isdecimal() and position.isdecimal()
        members = self._members(int(step), int(position)) if known else []
        return GroupEvidence(
            name,
            self._question(members),
            sum(witness.sign == "+" for witness in members),
            len(members),
            tuple(witness for witness in members if witness.id in wanted),
        )

    def _question(self, members: list[EvidenceRollout]) -> str:
        for witness in members:
            try:
                asked = [m.content for m in self.messages(witness) if m.role == "user"]
            except errors.StudioError:
                continue  # its record is gone; another member may have one
            if asked:
                return asked[0]
        return "(its record is gone)"
