"""The batch a run is at, as the live page shows it: groups of tries, each with a state.

A view of `engines.core.state.run_state.StepState`. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass

from engines.core import events as ev
from engines.core.state.run_state import RunState
from engines.core.types import GroupOutcome, RecordRef, Reflection, Verdict, group_id, rollout_id
from studio.render.words import acted_text, acts_cell
from studio.secrets.sanitize import one_line

WON = 0.5
"""The least reward that counts as won, as in the evidence of an operation."""
UNDER_WAY = ("streaming", "queued")


@dataclass(frozen=True, slots=True)
class RolloutStatus:
    """One rollout. `state` is the name of a glyph and of a style; "open" waits for a verdict."""

    id: str
    position: int
    index: int
    state: str  # won | lost | streaming | queued | error | open
    tokens: int | None = None  # of its replies; None until it ends
    said: str = ""  # its reward or what came instead, in a word or two
    trouble: str = ""  # why it failed or has no reward; "" for most
    refs: tuple[RecordRef, ...] = ()
    tail: str = ""
    acts: str = ""  # its turns and tool calls, `4/3`; "" until it ends
    acted: str = ""  # the same in words; "" of a single reply

    @property
    def has_ended(self) -> bool:
        return self.state not in UNDER_WAY


@dataclass(frozen=True, slots=True)
class Batch:
    """The rollouts of one step.

    The mappings are the step's own and go on being filled. `fold` gives a finished step new,
    empty ones, so that whoever has these still sees the batch until the next one begins.
    """

    step: int
    problems: tuple[str, ...]
    sizes: tuple[int, ...]  # tries of each problem
    rollouts: Mapping[tuple[int, int], ev.RolloutFinished]
    verdicts: Mapping[tuple[int, int], Verdict]
    reflections: Mapping[int, Reflection]

    @property
    def size(self) -> int:
        return sum(self.sizes)

    @property
    def group_size(self) -> int:
        """Of the largest group."""
        return max(self.sizes, default=0)

    @property
    def acts(self) -> bool:
        """Whether any try that has ended called a tool, or gave more than one reply."""
        return any(rollout.acts for rollout in self.rollouts.values())

    @property
    def outcomes(self) -> Counter[GroupOutcome]:
        """Of the groups that are through."""
        return Counter(reflection.outcome for reflection in self.reflections.values())

    def place(self, rollout: str) -> tuple[int, int] | None:
        """Position and index of a rollout of this batch; None where it is not one."""
        head, _, index = rollout.rpartition("r")
        step, _, position = head.removeprefix("s").partition("p")
        if not (step.isdecimal() and position.isdecimal() and index.isdecimal()):
            return None
        at = int(position), int(index)
        known = at[0] < len(self.problems) and at[1] < self.sizes[at[0]]
        return at if int(step) == self.step and known else None

    def records(self) -> dict[str, tuple[RecordRef, ...]]:
        """Of each problem where a rollout that has ended is recorded, if one is."""
        found = {at: one.refs for (at, _), one in self.rollouts.items() if one.refs}
        return {problem: found.get(at, ()) for at, problem in enumerate(self.problems)}

    def group(self, position: int) -> str:
        return group_id(self.step, position)

    def group_rollouts(self, position: int, under_way: Set[str]) -> tuple[RolloutStatus, ...]:
        """One group, in index order; `under_way` are ids of rollouts that have begun."""
        return tuple(self.rollout_at(position, at, under_way) for at in range(self.sizes[position]))

    def rollout_at(self, position: int, index: int, under_way: Set[str]) -> RolloutStatus:
        name = rollout_id(self.step, position, index)
        found = self.rollouts.get((position, index))
        if found is None:
            state = "streaming" if name in under_way else "queued"
            return RolloutStatus(name, position, index, state)
        state, said, trouble = _describe_ended(found, self.verdicts.get((position, index)))
        tokens, why = found.usage.completion_tokens or None, one_line(trouble, 200)
        return RolloutStatus(
            *(name, position, index, state, tokens, said, why, found.refs, found.tail),
            acts=acts_cell(found),
            acted=acted_text(found),
        )


def current_batch(state: RunState | None) -> Batch | None:
    """The step under way, or None between steps."""
    step = state.current if state is not None else None
    if state is None or state.started is None or step is None:
        return None
    sizes = state.group_sizes(step)
    return Batch(step.step, step.problems, sizes, step.rollouts, step.verdicts, step.reflections)


def _describe_ended(found: ev.RolloutFinished, verdict: Verdict | None) -> tuple[str, str, str]:
    if found.status == "failed":
        return "error", "error", found.error or "it failed"
    cut = " cut" if found.status == "truncated" else ""  # it reached its most tokens
    if verdict is None:
        return "open", f"judging{cut}", ""
    if verdict.reward is None:
        return "open", f"unknown{cut}", verdict.error or "the verifier had no opinion"
    return reward_state(verdict.reward), f"reward {reward_text(verdict.reward)}{cut}", ""


def reward_state(reward: float) -> str:
    return "won" if reward >= WON else "lost"


def reward_text(reward: float) -> str:
    """`1.0`, `0.33`: with a second digit only where it says something."""
    return f"{reward:.1f}" if round(reward, 1) == round(reward, 2) else f"{reward:.2f}"
