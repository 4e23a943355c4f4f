"""All that is told of one run, as its journal adds up: the end of a run, `runs show`, a report.

Pure from the folded state, but for the loaders, which read journals and look which files there are.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from shlex import quote
from typing import Any, get_args

from engines.core import errors
from engines.core import events as ev
from engines.core.codec import fields_of
from engines.core.frozen import frozen
from engines.core.library import Library
from engines.core.state.run_state import (
    ReviewerStats,
    RunState,
    Stage,
    StepState,
    comparable_evaluations,
)
from engines.core.types import GroupOutcome, LostWork, Names, Operation, UnparsedReply, Usage
from engines.pipeline.evaluation.statistics import Interval
from engines.record.run_dir import RunDir, Workspace
from studio.facts import evaluation, next_command
from studio.facts.library import Difference, library_difference
from studio.facts.subject import LIFTED, Subject
from studio.facts.training import TrainingFacts, training_facts
from studio.secrets.sanitize import one_line

REHEARSAL = "replies were scripted (rehearsal): this shows the loop, not a model's skill"
PARTLY = "the policy is a model, what it was told or judged by was scripted (rehearsal)"
LOGGED = "the policy's replies came from a log, what judged or read them was scripted (rehearsal)"

GROUP_OUTCOMES: tuple[GroupOutcome, ...] = (
    "used", "critique", "all-right", "all-equal", "all-wrong", "failed", "unjudged",
)  # fmt: skip


@frozen
class EpochFacts(Subject):
    """The practice reward of one epoch, pooled over its steps."""

    epoch: int
    mean_reward: float | None
    n: int
    interval: Interval | None = None  # over problems; None where only the journal's sums were read


@frozen
class StepRow(Subject):
    """One step among the others of its run."""

    step: int
    epoch: int
    learns: str
    finished: bool
    problems: int
    mean_reward: float | None
    n: int
    failed: int
    rollouts_done: int
    turns: int
    tool_calls: int
    failed_calls: int
    unjudged: int
    doubts: int
    operations: int
    groups: Mapping[GroupOutcome, int]
    applied: Mapping[str, int]  # by kind of operation
    library_version: int | None  # that it committed
    tokens: int

    @property
    def acts(self) -> bool:
        """Tell if any rollout is more than a single reply."""
        return bool(self.tool_calls or self.turns > self.rollouts_done)

    @property
    def turns_per_rollout(self) -> float:
        return self.turns / max(1, self.rollouts_done)

    @property
    def tool_calls_per_rollout(self) -> float:
        return self.tool_calls / max(1, self.rollouts_done)

    @property
    def changed(self) -> int:
        """The operations that changed the library."""
        return sum(n for kind, n in self.applied.items() if kind not in ("keep", "weights"))


@frozen
class ActsFacts(Subject):
    """Turns and tool calls of all rollouts, where any of them is more than a single reply."""

    turns: int
    tool_calls: int
    failed_calls: int
    rollouts: int

    @property
    def turns_per_rollout(self) -> float:
        return self.turns / self.rollouts

    @property
    def tool_calls_per_rollout(self) -> float:
        return self.tool_calls / self.rollouts


@frozen
class ReviewerFacts(Subject):
    """The committed decisions of one reviewer; seconds of those that somebody measured."""

    n: int
    approved: int
    edited: int
    rejected: int
    accept_rate: float | None
    approved_flagged: int
    timed: int
    median_s: float | None
    mean_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts(Subject):
    """Everything a run's journal adds up to."""

    run: str
    exp_id: str
    standing: next_command.RunStatus = field(metadata=LIFTED)
    ending: str
    reason: str
    curates: str
    rehearsal: bool
    scripted: str | None
    cassette: str
    reviewer: str
    seed: int | None  # None: it has not begun
    forked_from: str | None
    forked_steps: int
    steps_finished: int
    steps_planned: int
    library: str | None
    library_before: int
    library_after: int
    policy_before: int
    learned: evaluation.Learned
    groups: Mapping[GroupOutcome, int]
    nothing_read: str
    doubted: int
    doubts: Mapping[str, str]
    training: TrainingFacts | None
    epochs: tuple[EpochFacts, ...]
    steps: tuple[StepRow, ...]
    acts: ActsFacts | None
    evaluations: tuple[evaluation.EvaluationFacts, ...]
    changes: tuple[evaluation.ChangeFacts, ...]
    comparable: int  # evaluations that the best step was chosen among
    best_step: int | None
    cells: tuple[evaluation.CellFacts, ...]
    diagnosis: tuple[evaluation.EpochDiagnosis, ...]
    open: tuple[Operation, ...]
    repairs: tuple[UnparsedReply, ...]
    repaired: Mapping[str, str]
    withheld: int
    curation: Mapping[str, ReviewerFacts]
    agent: Mapping[str, Any]
    lost: Mapping[str, int]
    losses: tuple[LostWork, ...]
    remarks: Names
    usage: Usage
    spent_on: Mapping[Stage, Usage]
    places: Mapping[str, str]

    @property
    def practises(self) -> bool:
        """Tell if rollouts are made: not in a curation run, nor on demonstrations."""
        return not self.curates and not (self.training and self.training.demonstrations)

    @property
    def losses_in_all(self) -> int:
        return sum(self.lost.values())


def run_facts(
    state: RunState, run: str = "", *, alive: bool = False, places: Mapping[str, str] | None = None
) -> RunFacts:
    """Return the facts of a folded run; `alive`: it has a process."""
    started, learned = state.started, evaluation.learned_by(state)
    run = started.run if started else run
    return RunFacts(
        run=run,
        exp_id=started.exp_id if started else run,
        standing=next_command.run_status(state, run, alive=alive),
        **fields_of(state, "ending", "reason", "curates", "cassette", "reviewer", "withheld"),
        **fields_of(state, "steps_finished", "doubts", "best_step", "repaired", "lost", "remarks"),
        rehearsal=bool(started and started.rehearsal),
        scripted=origin_note(state),
        seed=started.seed if started else None,
        forked_from=started.forked_from if started else None,
        forked_steps=started.forked_steps if started else 0,
        steps_planned=started.steps_per_epoch * state.epochs if started else 0,
        library=started.library if started else None,
        library_before=started.library_version if started else 0,
        library_after=state.library_version,
        policy_before=started.policy_version if started else 0,
        learned=learned,
        groups=group_counts(state),
        nothing_read=run_nothing_read(state),
        doubted=sum(step.doubts for step in state.steps.values()),
        training=training_facts(state) if state.trains_weights else None,
        epochs=tuple(
            EpochFacts(epoch, rewards.mean, rewards.n)
            for epoch, rewards in state.rewards_by_epoch().items()
        ),
        steps=tuple(_step_row(step) for step in state.steps.values()),
        acts=_acts(state),
        evaluations=tuple(evaluation.evaluation_facts(e, learned) for e in state.evaluations),
        changes=tuple(
            evaluation.change_facts(change, learned)
            for change in evaluation.rate_changes(state.evaluations)
        ),
        comparable=len(comparable_evaluations(state.evaluations)),
        cells=evaluation.cell_facts(state),
        diagnosis=evaluation.epoch_diagnoses(state),
        open=state.open_operations,
        repairs=tuple(state.repairs.values()),
        curation={name: _reviewer_facts(stats) for name, stats in state.curation.items()},
        agent=state.agent_facts,
        losses=tuple(state.losses),
        usage=state.total_usage,
        spent_on={name: state.spent_on[name] for name in get_args(Stage) if name in state.spent_on},
        places=places or {},
    )


def _step_row(step: StepState) -> StepRow:
    return StepRow(
        **fields_of(step, "step", "epoch", "learns", "finished", "failed", "rollouts_done"),
        **fields_of(step, "turns", "tool_calls", "failed_calls", "unjudged", "doubts"),
        **fields_of(step, "operations", "groups"),
        problems=len(step.problems),
        mean_reward=step.rewards.mean,
        n=step.rewards.n,
        applied=Counter(outcome.kind for outcome in step.outcomes if outcome.applied),
        library_version=step.committed_version,
        tokens=step.usage.tokens,
    )


def _acts(state: RunState) -> ActsFacts | None:
    steps = state.steps.values()
    turns = sum(step.turns for step in steps)
    tool_calls = sum(step.tool_calls for step in steps)
    rollouts = sum(step.rollouts_done for step in steps)
    if not rollouts or not (tool_calls or turns > rollouts):
        return None
    return ActsFacts(turns, tool_calls, sum(step.failed_calls for step in steps), rollouts)


def _reviewer_facts(stats: ReviewerStats) -> ReviewerFacts:
    return ReviewerFacts(
        **fields_of(stats, "n", "approved", "edited", "rejected", "accept_rate"),
        **fields_of(stats, "median_s", "mean_s"),
        approved_flagged=stats.flagged,
        timed=len(stats.times_s),
    )


def origin_note(state: RunState) -> str | None:
    """Say where replies come from and what a run with them shows; None where models were asked."""
    started, notes = state.started, list[str]()
    if started is not None and started.rehearsal:
        notes.append(_scripted_text(started))
    if state.cassette:
        cassette = one_line(state.cassette, 80)
        notes.append(f"replies were played from the cassette {cassette}: nothing was asked or paid")
    return "; ".join(notes) or None


def _scripted_text(started: ev.RunStarted) -> str:
    policy = str(started.settings.get("policy.model", "rehearsal")).partition(":")
    if "rehearsal" in policy:
        return REHEARSAL
    return LOGGED if policy[0] == "replay" else PARTLY


def group_counts(state: RunState) -> dict[GroupOutcome, int]:
    """Count the groups with each outcome, zeros included."""
    counts = state.group_outcomes()
    return {name: counts[name] for name in GROUP_OUTCOMES}


def run_nothing_read(state: RunState) -> str:
    """Say why no step of the run proposed anything; "" where one did, or where weights learn."""
    groups = group_counts(state)
    read = [s for s in state.steps.values() if s.groups["used"] + s.groups["critique"]]
    if state.trains_weights or any(step.operations for step in state.steps.values()):
        return ""
    if not read or not read[0].committed or state.started is None:
        return evaluation.nothing_read_text(groups, state.settings)
    n = groups["used"] + groups["critique"]
    where = f"studio runs show {quote(state.started.run)} --step {read[0].step}"
    count = f"{n:,} group{'s' * (n != 1)} read"
    return f"{count}, and no operation came of it: {where} tells what the reflector said"


@frozen
class RunProgress:
    """How far a run has come; `steps` is 0 while nothing is known."""

    epoch: int
    epochs: int
    step: int
    steps: int


def run_progress(state: RunState) -> RunProgress:
    if state.started is None:
        return RunProgress(0, 0, 0, 0)
    step = state.steps.get(state.step)
    steps = state.started.steps_per_epoch * state.epochs
    return RunProgress(step.epoch if step else 0, state.epochs, state.step, steps)


@frozen
class LibraryChange(Subject):
    """The library of a run as it began, and as it ended."""

    name: str
    difference: Difference = field(metadata={"untold": True})
    before: int
    after: int
    experiences: tuple[Mapping[str, str], ...]  # id and text
    added: Names
    modified: Names
    removed: Names
    unchanged: int
    tokens_per_call_before: int
    tokens_per_call_after: int


@frozen
class EndFacts(Subject):
    """The end of a run: the run, and what became of its library."""

    facts: RunFacts = field(metadata=LIFTED)
    library: LibraryChange
    kind: str = "Summary"


def end_facts(facts: RunFacts, before: Library, after: Library) -> EndFacts:
    difference = library_difference(before, after)
    ids: dict[str, list[str]] = {sign: [] for sign in "+~-*="}
    for each in difference.experiences:
        ids[each.sign].append(each.id)
    change = LibraryChange(
        name=after.name,
        difference=difference,
        before=before.version,
        after=after.version,
        experiences=tuple({"id": e.id, "text": e.text} for e in after.experiences),
        added=tuple(ids["+"]),
        modified=tuple(ids["~"]),
        removed=tuple(ids["-"]),
        unchanged=len(ids["*"] + ids["="]),
        tokens_per_call_before=difference.a.tokens_per_call,
        tokens_per_call_after=difference.b.tokens_per_call,
    )
    return EndFacts(facts, change)


def load_run_facts(run: RunDir, workspace: Workspace, *, alive: bool) -> RunFacts:
    """Read a run with the steps it adopted of its parents."""
    state = load_state_with_parents(run, workspace)
    return run_facts(state, run.run, alive=alive, places=existing_places(run, workspace, state))


def existing_places(run: RunDir, workspace: Workspace, state: RunState) -> dict[str, str]:
    """Return the files and folders of a run that there are."""
    places = {
        "folder": run.path,
        "run_file": run.run_file,
        "agent": run.agent_file,
        "best_agent": run.best_agent_file,
        "records": run.records,
    }
    if state.started is not None:
        places["library"] = workspace.library(state.started.library).path
    return {name: str(path) for name, path in places.items() if path.exists()}


def load_state_with_parents(run: RunDir, workspace: Workspace) -> RunState:
    """Return the run's state, preceded by steps and evaluations of the runs it was forked from.

    Losses, calls and costs stay the run's own: the adopted steps were paid for there. The part of a
    parent that is gone or damaged is left out.
    """
    state = run.state()
    return with_parent(state, load_parent(state, workspace))


def load_parent(state: RunState, workspace: Workspace) -> RunState | None:
    """Return the run that this one was forked from, with its own parents; None where it is gone."""
    if state.started is None or state.started.forked_from is None:
        return None
    try:
        return load_state_with_parents(workspace.run(state.started.forked_from), workspace)
    except errors.StudioError:
        return None


def with_parent(state: RunState, parent: RunState | None) -> RunState:
    """Return the run preceded by what it adopted of its parent."""
    if parent is None or state.started is None:
        return state
    adopted = state.started.forked_steps
    before = [e for e in parent.evaluations if e.step <= adopted]
    return replace(
        state,
        steps={n: step for n, step in parent.steps.items() if n <= adopted} | state.steps,
        training={n: step for n, step in parent.training.items() if n <= adopted} | state.training,
        evaluations=[*before, *state.evaluations],
    )
