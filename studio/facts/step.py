"""All that is told of one step: groups, the reflector's calls, operations, decisions, the commit.

Reads the run's journal and records; changes nothing.
"""

from dataclasses import dataclass, field, replace

from engines.core import events as ev
from engines.core.errors import ConflictError
from engines.core.library import OperationOutcome
from engines.core.state.run_state import AnsweredReply, StepHistory
from engines.core.types import Decision, Lesson, Reflection, group_id
from engines.record.run_dir import RunDir
from engines.record.step_history import read_step
from studio.facts.rollout import ModelCall, read_calls
from studio.facts.subject import LIFTED, Subject


@dataclass(frozen=True, slots=True)
class GroupFacts(Subject):
    """One group, with what the reflector took from it."""

    id: str
    problem: str
    rewards: tuple[float | None, ...]  # None: it has none
    calls: tuple[ModelCall, ...]
    reflection: Reflection = field(metadata=LIFTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts(Subject):
    """Everything about one step."""

    run: str
    step: int
    epoch: int
    library_version: int  # as it began, as is the next one
    policy_version: int
    trains: bool
    groups: tuple[GroupFacts, ...]
    consolidation: tuple[ModelCall, ...]
    lesson: Lesson = field(metadata=LIFTED)
    choice: ev.LessonsCompared | None
    choice_text: str
    own: tuple[ev.OperationProposed, ...]  # operations that people proposed
    repaired: tuple[AnsweredReply, ...]
    decisions: tuple[Decision, ...]
    outcomes: tuple[OperationOutcome, ...]
    committed_version: int | None
    committed_policy: int | None


def step_facts(run: RunDir, number: int) -> StepFacts:
    """Return everything about one step. Raises ConflictError: the run has no such step."""
    step = read_step(run, number)
    if step.started is None:
        last = run.state().step
        move = f"Choose 1 to {last}." if last else "It has not begun any."
        raise ConflictError(f"run {run.run}, step {number}", "it has not begun that step.", move)
    # Without one yet it is told like one that is empty.
    lesson = step.lesson or Lesson(number, step.started.library_version)
    committed = step.committed
    return StepFacts(
        run=run.run,
        step=number,
        epoch=step.started.epoch,
        library_version=step.started.library_version,
        policy_version=step.started.policy_version,
        trains=run.state().trains_weights and step.trains,
        groups=tuple(
            _group_facts(run, step, reflection)
            for reflection in sorted(step.reflections, key=lambda r: r.position)
        ),
        consolidation=read_calls(run, lesson.refs),
        lesson=replace(lesson, fates=step.fates),
        choice=step.choice,
        choice_text=step.choice.text if step.choice else "",
        own=tuple(step.proposed),
        repaired=tuple(step.answers),
        decisions=tuple(step.decisions),
        outcomes=committed.outcomes if committed else (),
        committed_version=committed.library_version if committed else None,
        committed_policy=committed.policy_version if committed else None,
    )


def _group_facts(run: RunDir, step: StepHistory, reflection: Reflection) -> GroupFacts:
    position, rewards = reflection.position, step.rewards
    indexes = sorted({index for _, index in rewards})
    return GroupFacts(
        id=group_id(step.step, position),
        problem=step.problems[position],
        rewards=tuple(rewards.get((position, index)) for index in indexes),
        calls=read_calls(run, reflection.refs),
        reflection=reflection,
    )
