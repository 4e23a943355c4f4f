"""The batch a run is at, as the live page shows it: groups of tries, each with a state.

A view of `engines.core.state.run_state.StepState`. Pure.
"""

import re
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

from engines.core import events as ev
from engines.core.state.run_state import Live, RunState
from engines.core.types import GroupOutcome, RecordRef, Reflection, Verdict, group_id, rollout_id
from studio.render.words import acted_text, acts_cell, count_text, reward_text
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
    reward: float | None = None
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
        match = re.fullmatch(r"s(\d{1,9})p(\d{1,9})r(\d{1,9})", rollout)
        if match is None:
            return None
        step, position, index = map(int, match.groups())
        known = position < len(self.problems) and index < self.sizes[position]
        return (position, index) if step == self.step and known else None

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
        place = position, index
        found, verdict = self.rollouts.get(place), self.verdicts.get(place)
        is_under_way = name in under_way
        return describe_rollout(name, position, index, found, verdict, is_under_way=is_under_way)


def current_batch(state: RunState | None) -> Batch | None:
    """The step under way, or None between steps."""
    step = state.current if state is not None else None
    if state is None or state.started is None or step is None:
        return None
    sizes = state.group_sizes(step)
    return Batch(step.step, step.problems, sizes, step.rollouts, step.verdicts, step.reflections)


def describe_rollout(
    name: str,
    position: int,
    index: int,
    rollout: ev.RolloutFinished | None,
    verdict: Verdict | None,
    *,
    is_under_way: bool,
) -> RolloutStatus:
    """A rollout by what is known of it: None where it has not ended, or was not judged."""
    if rollout is None:
        state = "streaming" if is_under_way else "queued"
        return RolloutStatus(name, position, index, state)
    cut = " cut" if rollout.status == "truncated" else ""  # it reached its most tokens
    reward = verdict.reward if verdict is not None else None
    trouble = ""
    if rollout.status == "failed":
        state, said, trouble = "error", "error", rollout.error or "it failed"
    elif reward is not None:
        state, said = reward_state(reward), f"reward {reward_text(reward)}{cut}"
    elif verdict is None:
        state, said = "open", f"judging{cut}"
    else:
        state, said = "open", f"unknown{cut}"
        trouble = verdict.error or "the verifier had no opinion"
    return RolloutStatus(
        id=name,
        position=position,
        index=index,
        state=state,
        tokens=rollout.usage.completion_tokens or None,
        reward=reward,
        said=said,
        trouble=one_line(trouble, 200),
        refs=rollout.refs,
        tail=rollout.tail,
        acts=acts_cell(rollout),
        acted=acted_text(rollout),
    )


def reward_state(reward: float) -> str:
    return "won" if reward >= WON else "lost"


MOST_SHOWN = 12
"""Tries that have a pane; the others are only counted."""


@dataclass(frozen=True, slots=True)
class HeldOutTry:
    """One try, and the problem it is at."""

    problem: str
    shown: RolloutStatus


class HeldOut:
    """Follows one evaluation. A try that has ended keeps its pane until another begins."""

    def __init__(self) -> None:
        self.progress: ev.EvaluationProgressed | None = None  # None: nothing is measured
        self.tries: list[HeldOutTry] = []  # in the order of their panes
        self._begun: dict[str, ev.RolloutStarted | None] = {}  # that have or had a pane

    def clear(self) -> None:
        self.progress, self._begun = None, {}
        self.tries.clear()

    def update(self, live: Live) -> None:
        """Follow what goes on now."""
        before, self.progress = self.progress, live.evaluation
        if self.progress is None:
            self.clear()
            return
        if before is None or (before.data, before.step) != (self.progress.data, self.progress.step):
            self.tries.clear()
        for number, each in enumerate(self.tries):
            name = each.shown.id
            if not each.shown.has_ended and name not in live.tries:
                self.tries[number] = _end_try(each, live.rewards.get(name))
        for name, started in live.tries.items():
            is_new = self._begun.get(name) is not started
            if started is not None and is_new and started.key.purpose == "evaluation":
                status = RolloutStatus(name, started.key.position, started.key.index, "streaming")
                self._show(HeldOutTry(started.problem, status))
        self._begun = dict(live.tries)

    def find(self, name: str) -> HeldOutTry | None:
        return next((one for one in self.tries if one.shown.id == name), None)

    def _show(self, one: HeldOutTry) -> None:
        """Give it the pane of one that ended, or a new one while there is room."""
        names = [each.shown.id for each in self.tries]
        ended = (at for at, each in enumerate(self.tries) if each.shown.has_ended)
        at = names.index(one.shown.id) if one.shown.id in names else next(ended, len(names))
        if at < MOST_SHOWN:
            self.tries[at : at + 1] = [one]


def _end_try(one: HeldOutTry, reward: float | None) -> HeldOutTry:
    said = "not judged" if reward is None else f"reward {reward_text(reward)}"
    state = "error" if reward is None else reward_state(reward)
    return replace(one, shown=replace(one.shown, state=state, said=said))


class BatchTracker:
    """Follows one run: between two steps it goes on showing the batch before."""

    def __init__(self) -> None:
        self.batch: Batch | None = None
        self.held_out = HeldOut()
        self._tries: dict[str, ev.RolloutStarted | None] = {}
        self._live = Live()

    @property
    def under_way(self) -> Set[str]:
        """Ids of rollouts that have begun and not ended."""
        return self._live.tries.keys()

    @property
    def evaluating(self) -> ev.EvaluationProgressed | None:
        """How far the evaluation under way is; None where there is none."""
        return self.held_out.progress

    @property
    def nodes(self) -> tuple[str, ...] | None:
        """Where workers of a cluster are ready; None: there is no cluster."""
        return self._live.nodes.nodes if self._live.nodes is not None else None

    @property
    def places(self) -> dict[str, str]:
        """Rollouts under way on a cluster, and the node of each."""
        return {name: placed.node for name, placed in self._live.placed.items()}

    @property
    def doing(self) -> str:
        """What is done before the first step, or with a lesson before anybody decides."""
        stage = self._live.stage
        if stage is None:
            return ""
        match stage.stage:
            case "restore":
                return f"restoring the weights after step {stage.step} …"
            case "choice":
                return f"trying {stage.detail['lessons']} lessons to choose one"
            case "gate":
                tries = f"{stage.detail['made']} of at most {stage.detail['most']} tries"
                return f"trying {count_text(stage.detail['operations'], 'operation')}: {tries}"
        return ""

    def update(self, state: RunState | None) -> None:
        """Take the batch under way from the state; between two steps the one before stays."""
        self.batch = current_batch(state) or self.batch
        self._live = state.live if state is not None else Live()
        self.held_out.update(self._live)

    def take_changes(self) -> tuple[set[str], set[str]]:
        """Return the rollouts that have begun since the last look, and those that have ended."""
        before, self._tries = self._tries, dict(self._live.tries)
        begun = {name for name, one in self._tries.items() if before.get(name, self) is not one}
        return begun, before.keys() - self._tries.keys()

    def handle_snapshot(self, state: RunState | None, *, anew: bool) -> None:
        """The state is another object, of another run where `anew`."""
        if anew:
            self.batch = None
        self.held_out.clear()  # one under way is told of anew
        self.update(state)
        self.take_changes()

    def restore_batch(self, batch: Batch | None, state: RunState | None) -> None:
        """Take the journal's last batch between two steps: only there it is still known whole.

        A batch that the state does not know of will be told by its own events.
        """
        if batch is None or state is None or state.current is not None:
            return
        if batch.step in state.steps and (self.batch is None or self.batch.step <= batch.step):
            self.batch = batch

    def has_ended(self, rollout: str) -> bool:
        place = self.batch.place(rollout) if self.batch else None
        return self.batch is not None and place in self.batch.rollouts

    def handle_text(self, rollout: str) -> None:
        """A text grows, so its rollout is under way, whether its beginning was heard or not."""
        if self.batch is not None and self.batch.place(rollout) and not self.has_ended(rollout):
            self._live.tries.setdefault(rollout, None)
            self._tries.setdefault(rollout, None)
