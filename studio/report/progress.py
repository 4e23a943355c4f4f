"""Shows a person how a run goes while it goes, in plain lines.

Owns stderr. Listens to events and reads the folded state; decides nothing.
"""

import statistics
from shlex import quote

from engines.core import events as ev
from engines.core.library import OperationOutcome
from engines.core.state.run_state import RunState, StepState
from engines.core.types import Lesson, Tell, Verdict, group_id, rollout_id
from studio.facts import evaluation, run, training
from studio.render import evaluation_lines, run_lines, training_lines
from studio.render.words import (
    count_text,
    decided_text,
    mean_reward_text,
    reward_text,
    step_name,
    usage_text,
)
from studio.secrets.sanitize import one_line

SHOWN_FAILURES = 3
"""Failed rollouts of a step that are printed one by one: an outage has hundreds."""


_DECIDED = ("approved", "edited", "rejected", "deferred")


class LinePrinter:
    """A plain line for each thing that matters, as `say` prints it.

    With `detailed` also of each rollout, group and decision, which a pipe does not want to hear.
    """

    def __init__(self, state: RunState, say: Tell, *, detailed: bool = False) -> None:
        self._state = state
        self._say = say
        self._detailed = detailed
        self._waited_for = 0  # the step whose waiting update was printed last

    def __call__(self, event: ev.DurableEvent | ev.TransientEvent) -> None:
        lines = self._event_lines(event)
        if self._detailed:
            lines += _detail_lines(event, self._state)
        for line in lines:
            self._say(line)

    def _event_lines(self, event: ev.DurableEvent | ev.TransientEvent) -> list[str]:
        state = self._state
        match event:
            case ev.EngineOpened():
                return [f"weights: {training_lines.engine_text(event.facts)}"]
            case ev.StepStarted() | ev.LessonProposed() if state.step_trains:
                return []  # one line a step, once it is known what came of its update
            case ev.LessonCommitted() if state.step_trains and event.step in state.steps:
                trained = training.trained_step(state, event.step)
                assert trained is not None
                outcome = training_lines.update_outcome_text(trained, state.policy_version)
                begin = f"step {event.step}/{run.run_progress(state).steps}"
                return [f"{begin} {training_lines.figures_text(trained)}, {outcome}"]
            case ev.StageEntered():
                return self._stage_lines(event)
            case ev.CheckpointSaved():
                saved = f"checkpoint of step {event.step} (policy v{event.policy_version})"
                return [f"{saved}: {one_line(event.folder, 200)}"]
            case ev.StepStarted():
                where, problems = (
                    run.run_progress(state),
                    count_text(len(event.problems), "problem"),
                )
                begun = f"step {event.step} of {where.steps}, epoch {event.epoch} of {where.epochs}"
                return [f"{begun}: {problems}, library v{event.library_version}"]
            case ev.LessonsCompared():
                return [f"step {event.step}: {event.text}"]
            case ev.LessonProposed():
                step = state.steps[event.step]
                lines = [
                    step_line(step, event.lesson),
                    evaluation.nothing_read_text(step.groups, state.settings),
                ]
                return [f"step {event.step}: {line}" for line in lines if line]
            case ev.LessonCommitted():
                done = commit_line(event.outcomes, event.library_version)
                return [f"{step_name(event.step)}: {done}"]
            case ev.EvaluationProgressed(done=0):
                return [f"evaluating {event.data}: {count_text(event.total, 'rollout')} …"]
            case ev.EvaluationFinished():
                return [
                    f"held-out {event.data}: mean reward {evaluation_lines.finished_text(event)}"
                ]
            case ev.StepFinished() if told := evaluation.diagnose_epoch(state, event.step):
                return [
                    f"epoch {event.epoch}: {text}"
                    for text in evaluation_lines.diagnosis_lines(told)
                ]
            case ev.CellMeasured(result=found):
                cell = evaluation.cell_name(event.trained, event.with_library, found)
                of = f"held-out {found.data}, {cell}"
                return [f"{of}: mean reward {evaluation_lines.finished_text(found)}"]
            case ev.RunEnded(how="budget" | "failed" | "waiting"):
                return [f"ended early: {one_line(event.reason, 300)}"]
            case ev.NodesChanged(nodes=nodes, lost=str(lost)) if lost:
                left = [] if nodes else [run_lines.NO_WORKER]
                return [one_line(lost, 300), *left]
            case ev.RunPaused():
                return ["paused (studio ctl resume goes on)"]
            case ev.RunContinued():
                return ["going on"]
            case ev.RolloutJudged(verdict=Verdict(reward=None, error=str() as error)):
                # The first of a step is printed at once, so that nobody pays for a run of them.
                if _is_first_unjudged(state.steps[event.step], event):
                    return [f"step {event.step}: a try could not be judged: {one_line(error, 200)}"]
            case ev.RolloutFinished(status="failed"):
                failed = state.steps[event.step].failed
                if failed > SHOWN_FAILURES:
                    return []
                more = "; further ones are only counted" if failed == SHOWN_FAILURES else ""
                why = one_line(event.error or "", 160)
                return [f"step {event.step}: a rollout failed: {why}{more}"]
        return _review_lines(event)

    def _stage_lines(self, event: ev.StageEntered) -> list[str]:
        state, left, line = self._state, len(self._state.undecided_operations), ""
        if event.stage in ("review", "hold") and left and state.step_trains:
            unasked = event.stage == "review" and state.reviewer != "wait"
            if unasked or self._waited_for == event.step:
                return []
            self._waited_for = event.step
            found = training.trained_step(state, event.step)
            figures = f": {training_lines.figures_text(found)}" if found else ""
            line = f"its weight update is to be decided ({_review_command(state)}){figures}"
        elif event.stage == "review" and left and state.reviewer == "wait":
            line = f"{count_text(left, 'operation')} to review ({_review_command(state)})"
        elif event.stage == "hold" and left:
            move = f"{_review_command(state)}, or a rule with do: defer"
            line = f"no rule settled {count_text(left, 'operation')}; a person is to decide: {move}"
        elif event.stage == "restore":
            line = "restoring the weights after it …"
        elif event.stage == "ready":
            counted = ", ".join(f"{event.detail.get(name, 0)} {name}" for name in _DECIDED)
            line = f"all is decided ({counted}); the screen that decides commits it"
        return [f"step {event.step}: {line}"] if line else []


def _review_lines(event: ev.DurableEvent | ev.TransientEvent) -> list[str]:
    """What people did to operations and replies, and what moved under them."""
    match event:
        case ev.OperationProposed(operation=proposed):
            what = f"{proposed.kind} {proposed.target or ''}".rstrip()
            text = f": {one_line(proposed.text, 160)}" if proposed.text else ""
            by = _reviewer_text(event.reviewer)
            return [f"operation {proposed.id}: {what}, proposed{by}{text}"]
        case ev.ReplyMended():
            n, by = count_text(len(event.operations), "operation"), _reviewer_text(event.reviewer)
            return [f"reply {event.repair}: mended{by}; it holds {n}"]
        case ev.ReplyDropped():
            why = f": {one_line(event.reason, 160)}" if event.reason else ""
            return [f"reply {event.repair}: dropped{_reviewer_text(event.reviewer)}{why}"]
        case ev.EffectMeasured(effect=effect):
            tried = ", ".join(event.operations)
            return [f"step {event.step}: {tried} tried: {effect.verdict}, {effect.text}"]
        case ev.LessonReturned():
            moved = f"the library moved from v{event.based_on} to v{event.head} meanwhile"
            return [f"step {event.step}: {moved}; its operations are reviewed again"]
    return []


def _review_command(state: RunState) -> str:
    return f"studio review {quote(state.started.run) if state.started else ''}".rstrip()


def _reviewer_text(reviewer: str) -> str:
    return f" by {one_line(reviewer, 60)}" if reviewer else ""


def _is_first_unjudged(step: StepState, event: ev.RolloutJudged) -> bool:
    """A failed rollout does not count: a line has said that it failed."""
    rollout = step.rollouts.get((event.position, event.index))
    return step.unjudged == 1 and (rollout is None or rollout.status != "failed")


def step_line(step: StepState, lesson: Lesson) -> str:
    """What came of a step, which may be through by now: then it holds its lesson no longer."""
    groups = ", ".join(f"{n} {name}" for name, n in sorted(step.groups.items()))
    parts = [
        f"reward {mean_reward_text(step.rewards)}; groups: {groups}",
        f"{count_text(step.operations, 'operation')} proposed",
    ]
    if step.doubts:
        parts.append(f"{count_text(step.doubts, 'verdict')} doubted")
    if withheld := len(lesson.withheld):
        parts.append(f"{count_text(withheld, 'idea')} withheld: rejected before")
    dropped = sum(fate.fate == "dropped" for fate in lesson.fates)
    if dropped and not step.operations:
        parts.append(f"{count_text(dropped, 'proposal')} dropped")
    lost = [loss for loss in lesson.losses if loss.kind == "consolidation"]
    parts += [f"its consolidation failed: {one_line(loss.reason, 160)}" for loss in lost[:1]]
    return "; ".join([*parts, usage_text(step.usage)])


def commit_line(outcomes: tuple[OperationOutcome, ...], version: int) -> str:
    applied = [outcome for outcome in outcomes if outcome.applied]
    words = {"add": "added", "modify": "reworded", "delete": "deleted", "keep": "kept"}
    words |= {"pin": "pinned", "unpin": "unpinned"}
    counts = {word: sum(o.kind == kind for o in applied) for kind, word in words.items()}
    counts["rejected"] = len(outcomes) - len(applied)
    counted = ", ".join(f"{n} {word}" for word, n in counts.items() if n)
    return f"library v{version}: {counted or 'no change'}"


class StepClock:
    """Times the steps whose beginning it sees; a person's time to decide is not the run's."""

    def __init__(self) -> None:
        self._step: int | None = None  # under way, 0: none is; None: nothing was seen yet
        self._began: float | None = None  # None: nobody works, or a person decides
        self._worked_s: float | None = None  # in this step; None: its beginning was not seen
        self._steps_s: list[float] = []

    def update(self, state: RunState, now: float) -> None:
        """Look where the run stands now; call it as often as that may have changed."""
        step, before = state.current, self._step
        number = 0 if step is None else state.step
        if number != before:
            is_through = before in state.steps and state.steps[before].finished
            if self._worked_s is not None and self._began is not None and is_through:
                self._steps_s.append(self._worked_s + now - self._began)
            # Of a step that is under way already it is not known since when.
            self._worked_s = 0.0 if number and before is not None else None
            self._step, self._began = number, now
        if step is None or self._worked_s is None:
            return
        if self._began is not None and state.live.stage_name == "review" and not step.committed:
            self._worked_s += now - self._began
            self._began = None  # the clock stops until the commit
        elif step.committed and self._began is None:
            self._began = now

    def remaining_text(self, state: RunState) -> str:
        """The time left by the median step, such as `12m 30s`; "" where nobody knows."""
        if not self._steps_s or state.started is None or state.ending:
            return ""
        steps = state.started.steps_per_epoch * state.epochs - state.steps_finished
        left_s = statistics.median(self._steps_s[-20:]) * steps
        return duration_text(left_s) if left_s >= 60 else "< 1 min"


def duration_text(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}m {rest:02d}s" if minutes < 60 else f"{minutes // 60}h {minutes % 60:02d}m"


def _detail_lines(event: ev.DurableEvent | ev.TransientEvent, state: RunState) -> list[str]:
    """What the activity of the screen says besides."""
    match event:
        case ev.GroupReflected() if not training.is_fine_tuning(state):
            return _reflection_lines(event)
        case ev.RolloutJudged(verdict=verdict) if verdict.reward is not None:
            name = rollout_id(event.step, event.position, event.index)
            why = f" ({one_line(verdict.critique, 80)})" if verdict.critique else ""
            return [f"{name} reward {reward_text(verdict.reward)}{why}"]
        case ev.OperationDecided() | ev.OperationsDecided():
            lines = []
            for decision in event.decisions:
                reviewer, reason = one_line(decision.reviewer, 40), one_line(decision.reason, 160)
                text = decided_text(decision.action, reviewer, reason)
                lines.append(f"{decision.operation_id} {text}")
            return lines
        case ev.DecisionUndone():
            return [f"{event.operation_id}: its decision was taken back"]
        case ev.RunEnded(how="finished" | "stopped" | "held"):
            return [event.how]
    return []


def _reflection_lines(event: ev.GroupReflected) -> list[str]:
    reflection = event.reflection
    drawn = f", {count_text(len(reflection.proposals), 'proposal')} drawn from it"
    drawn = drawn if reflection.proposals else ""
    why = f": {one_line(reflection.losses[0].reason, 160)}" if reflection.losses else ""
    outcomes = {
        "used": f"winners and losers{drawn}",
        "critique": f"no good rollout, read for what the verifier says{drawn}",
        "all-equal": "all equally good, nothing to compare, skipped",
        "all-right": "all right, nothing to learn, skipped",
        "all-wrong": "all wrong, nothing to compare, skipped",
        "unjudged": "no reward known, skipped",
    }
    outcome = outcomes.get(reflection.outcome, f"failed{why}")
    lines = [f"{group_id(reflection.step, reflection.position)}: {outcome}"]
    for doubt in reflection.doubts:
        reason = one_line(doubt.reason, 160)
        lines.append(f"{doubt.rollout}: its verdict is doubted: {reason}")
    return lines
