"""What is known of the group of rollouts that is shown: records, texts under way, true answers.

Methods whose names begin with `load` block, and are called in a thread.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping
from typing import TYPE_CHECKING

from engines.core.errors import StudioError
from engines.core.state.run_state import RunState
from engines.record.run_dir import RunDir, Workspace
from engines.record.step_history import read_history
from studio.secrets.sanitize import sanitize
from studio.session.base import TextPiece
from studio.tui.pages.inspect import view
from studio.tui.pages.inspect.view import GroupSummary, Member

if TYPE_CHECKING:
    from studio.report.rollout import RecordedRollout
    from studio.review.evidence import EvidenceLoader


class GroupRecords:
    """Records are kept while their group is shown, and the journal while its run is."""

    def __init__(self) -> None:
        self.group = ""  # its id, such as s2p0
        self.members: tuple[Member, ...] = ()
        self.rollouts: dict[str, RecordedRollout] = {}  # those that have ended
        self.live: dict[str, str] = {}  # rollout id → text under way
        self._journal: tuple[str, EvidenceLoader] | None = None  # run and what it journalled
        self._experiences: dict[int, int | None] = {}  # library version → how many
        self._answers: tuple[str, Mapping[str, str]] | None = None  # run, and problem → answer

    # -- what is known -------------------------------------------------------------------------

    @property
    def ids(self) -> list[str]:
        return [one.id for one in self.members]

    @property
    def step(self) -> int:
        return int(self.group[1:].partition("p")[0])

    def is_of(self, run: RunDir | None) -> bool:
        """Whether what was read is of this run; so it is before anything was."""
        return self._journal is None or (run is not None and self._journal[0] == str(run.path))

    def problem(self, state: RunState) -> str | None:
        """The problem of the group, as the run names it."""
        position = int(self.group.partition("p")[2])
        step = state.steps.get(self.step)
        return step.problems[position] if step and position < len(step.problems) else None

    def summary(self, state: RunState | None) -> GroupSummary | None:
        """The group with what streams now."""
        if state is None or not self.group or (step := state.steps.get(self.step)) is None:
            return None
        members = tuple(
            Member(one.id, one.index, "streaming") if one.id in self.live else one
            for one in self.members
        )
        problem = sanitize(self.problem(state) or "")
        policy = step.policy_version if state.trains_weights else None
        return GroupSummary(self.group, problem, step.epoch, step.library_version, members, policy)

    def experience_count(self, version: int) -> int | None:
        return self._experiences.get(version)

    def expected_answer(self, state: RunState | None) -> str | None:
        """Of the group's problem, where the data still has it."""
        problem = self.problem(state) if state is not None else None
        return self._answers[1].get(problem) if self._answers and problem is not None else None

    def needs_answers(self, run: RunDir) -> bool:
        """Whether the answers of this run are to be read; True once."""
        if self._answers is not None and self._answers[0] == str(run.path):
            return False
        self._answers = (str(run.path), {})
        return True

    # -- what changes --------------------------------------------------------------------------

    def add_piece(self, piece: TextPiece) -> None:
        if piece.rollout.rpartition("r")[0] == self.group:
            before = self.live.get(piece.rollout, "")
            self.live[piece.rollout] = before[: piece.offset] + piece.text

    def forget_run(self) -> None:
        """Another run is open: nothing that is shown is of it."""
        self.open_group("")
        self._journal, self._answers = None, None
        self._experiences.clear()

    def open_group(self, group: str) -> None:
        self.group = group
        self.members = ()
        self.rollouts.clear()
        self.live.clear()

    # -- reading, in a thread ------------------------------------------------------------------

    def load_group(self, run: RunDir, state: RunState) -> None:
        """Read the journal as far as it goes, and the records of the group."""
        from studio.report.rollout import read_rollout
        from studio.review.evidence import EvidenceLoader

        if self._journal is None or self._journal[0] != str(run.path):
            self._journal = (str(run.path), EvidenceLoader(run))
        size = state.started.group_size if state.started else 0
        names = [f"{self.group}r{index}" for index in range(size)]
        groups = self._journal[1].groups(names)
        for witness in (witness for group in groups for witness in group.witnesses):
            known = self.rollouts.get(witness.id)
            if known is None or (known.rollout, known.verdict) != (
                witness.rollout,
                witness.verdict,
            ):
                self.rollouts[witness.id] = read_rollout(run, witness.rollout, witness.verdict)
        step, current = self.step, state.current
        is_current = current is not None and current.step == step
        going = is_current and state.status in ("running", "paused")
        self.members = tuple(
            view.make_member(self.rollouts.get(name), name, index, going and name in self.live)
            for index, name in enumerate(names)
        )
        version = state.steps[step].library_version if step in state.steps else 0
        if version not in self._experiences and state.started is not None:
            self._experiences[version] = _count_experiences(run, state.started.library, version)

    def load_answers(self, run: RunDir) -> None:
        """True answers, from the data as it is now: what is gone is simply not shown."""
        from studio.tui.pages.start.checks import load_expected_answers

        try:
            found = load_expected_answers(_workspace_of(run), run.run)
        except (StudioError, OSError):
            return
        self._answers = (str(run.path), found)


def load_evidence(run: RunDir, operation: str) -> str:
    """The first rollout behind an operation that a commit has settled; "" where none is known."""
    found = read_history(run).find_operation(operation)
    return next(iter(found.evidence), "") if found else ""


def open_pager(text: str, environ: Mapping[str, str] = os.environ) -> None:
    """Show a text in $PAGER, and wait until it is left.

    Raises:
        OSError: there is no such program.
        ValueError: $PAGER has a quotation mark too few.
    """
    command = shlex.split(environ.get("PAGER", "")) or ["less"]
    subprocess.run(command, input=text, text=True, encoding="utf-8", errors="replace", check=False)


def _count_experiences(run: RunDir, library: str, version: int) -> int | None:
    try:
        return len(_workspace_of(run).library(library).at(version).experiences)
    except (StudioError, OSError):
        return None


def _workspace_of(run: RunDir) -> Workspace:
    return Workspace(run.path.parents[1])
