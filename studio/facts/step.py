"""All that is told of one step, and of one rollout: groups, calls of models, decisions, the commit.

Reads the run's journal and records; changes nothing.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from engines.core import codec, errors, events, types
from engines.core import events as ev
from engines.core.frozen import frozen
from engines.core.library import OperationOutcome
from engines.core.state.run_state import AnsweredReply, StepHistory
from engines.core.types import Names
from engines.record.derived.run_state import HistoryReader, read_history, read_step
from engines.record.ledger import Record, read_record
from engines.record.run_dir import RunDir
from studio.facts.subject import LIFTED, Subject


@frozen
class GroupFacts(Subject):
    """One group, with what the reflector took from it."""

    id: str
    problem: str
    rewards: tuple[float | None, ...]  # None: it has none
    calls: "tuple[ModelCall, ...]"
    reflection: types.Reflection = field(metadata=LIFTED)


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
    consolidation: "tuple[ModelCall, ...]"
    lesson: types.Lesson = field(metadata=LIFTED)
    choice: ev.LessonsCompared | None
    choice_text: str
    own: tuple[ev.OperationProposed, ...]  # operations that people proposed
    repaired: tuple[AnsweredReply, ...]
    decisions: tuple[types.Decision, ...]
    outcomes: tuple[OperationOutcome, ...]
    committed_version: int | None
    committed_policy: int | None


def step_facts(run: RunDir, number: int) -> StepFacts:
    """Return everything about one step. Raises ConflictError: the run has no such step."""
    step = read_step(run.journal, number)
    if step.started is None:
        last = run.state().step
        move = f"Choose 1 to {last}." if last else "It has not begun any."
        raise errors.ConflictError(
            f"run {run.run}, step {number}", "it has not begun that step.", move
        )
    # Without one yet it is told like one that is empty.
    lesson = step.lesson or types.Lesson(number, step.started.library_version)
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


def _group_facts(run: RunDir, step: StepHistory, reflection: types.Reflection) -> GroupFacts:
    position, rewards = reflection.position, step.rewards
    indexes = sorted({index for _, index in rewards})
    return GroupFacts(
        id=types.group_id(step.step, position),
        problem=step.problems[position],
        rewards=tuple(rewards.get((position, index)) for index in indexes),
        calls=read_calls(run, reflection.refs),
        reflection=reflection,
    )


@frozen
class ModelCall(Subject):
    """One paid call of a model, as its record holds it."""

    purpose: str
    turn: int
    index: int
    position: int
    model: str
    prompt: Names  # the messages that are new since the call before
    reply: str
    usage: types.Usage
    finish: str  # the endpoint's word for why the reply ended
    elapsed_s: float
    temperature: float | None  # None: the endpoint's own
    record: str  # its place below the run's folder

    @property
    def tokens(self) -> int:
        return self.usage.tokens


def read_calls(run: RunDir, refs: Sequence[types.RecordRef]) -> tuple[ModelCall, ...]:
    """Return the calls that these records hold. Raises DamagedError, ConflictError."""
    return tuple(_make_call(read_record(run.records, ref), ref) for ref in refs)


def _make_call(record: Record, ref: types.RecordRef) -> ModelCall:
    return ModelCall(
        **codec.fields_of(record.key, "purpose", "turn", "index", "position"),
        model=record.reply.model or record.policy,
        prompt=tuple(message.content for message in record.messages),
        reply=record.reply.text,
        usage=record.reply.usage,
        finish=record.reply.finish,
        elapsed_s=record.elapsed_s,
        temperature=record.sampling.temperature,
        record=f"records/{ref.file}@{ref.offset}",
    )


@frozen
class RolloutFacts(Subject):
    """A rollout that ended, with everything its records hold."""

    id: str
    finished: events.RolloutFinished = field(metadata=LIFTED)
    verdict: types.Verdict | None
    messages: tuple[types.Message, ...]
    calls: tuple[ModelCall, ...]  # of models

    @property
    def tokens(self) -> int:
        return self.finished.usage.tokens

    @property
    def reward(self) -> float | None:
        """The reward; None where there is no verdict, or one without an opinion."""
        return self.verdict.reward if self.verdict else None

    @property
    def finish_reason(self) -> str:
        """The endpoint's word for why the last reply ended; "" where no call was answered."""
        return self.calls[-1].finish if self.calls else ""

    @property
    def records(self) -> Names:
        return tuple(f"records/{ref.file}@{ref.offset}" for ref in self.finished.refs)


def read_rollout(
    run: RunDir, finished: events.RolloutFinished, verdict: types.Verdict | None
) -> RolloutFacts:
    """Return a rollout with what its records hold. Raises DamagedError, ConflictError."""
    messages: tuple[types.Message, ...] = ()
    calls = []
    for ref in finished.refs:
        record = read_record(run.records, ref)
        messages = record.extend(messages)
        if not record.is_tool_result:
            calls.append(_make_call(record, ref))
    name = types.rollout_id(finished.step, finished.position, finished.index)
    return RolloutFacts(name, finished, verdict, messages, tuple(calls))


def rollout_facts(run: RunDir, name: str) -> RolloutFacts:
    """Return the facts of a rollout by its id. Raises ConflictError: there is none such."""
    step = re.fullmatch(r"s(\d{1,9})p\d+r\d+", name)
    candidates = HistoryReader(run.journal, int(step[1])).read().rollouts if step else ()
    for rollout in candidates:
        if rollout.id == name:
            return read_rollout(run, rollout.finished, rollout.verdict)
    names = [rollout.id for rollout in read_history(run.journal).rollouts]
    move = f"The last that ended is {names[-1]}." if names else "It has none yet."
    raise errors.ConflictError(f"run {run.run}, rollout {name}", "it has no such rollout.", move)
