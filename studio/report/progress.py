"""Shows a person how a run goes while it goes: lines in a pipe, a display on a terminal.

Owns stderr. Listens to events and reads the folded state; decides nothing.
"""

import statistics
import time
from collections.abc import Callable
from shlex import quote
from typing import TYPE_CHECKING, TextIO

from engines.core import events as ev
from engines.core.library import OperationOutcome
from engines.core.state.run_state import RunState, StepState
from engines.core.types import Lesson, Verdict, group_id, rollout_id
from studio.facts.evaluation import cell_name, diagnose_epoch, nothing_read_text
from studio.facts.run import run_progress
from studio.facts.training import is_fine_tuning, measured_steps, trained_step, trained_steps
from studio.render.evaluation_lines import diagnosis_lines, finished_text
from studio.render.run_lines import NO_WORKER
from studio.render.training_lines import (
    change_text,
    engine_text,
    figures_text,
    update_outcome_text,
    value_curve,
)
from studio.render.words import (
    count_text,
    decided_text,
    mean_reward_text,
    reward_text,
    step_name,
    usage_text,
)
from studio.secrets.sanitize import one_line

if TYPE_CHECKING:
    from rich.text import Text


SHOWN_FAILURES = 3
"""Failed rollouts of a step that are printed one by one: an outage has hundreds."""


_DECIDED = ("approved", "edited", "rejected", "deferred")


class LinePrinter:
    """A plain line for each thing that matters, as `say` prints it."""

    def __init__(self, state: RunState, say: Callable[[str], None]) -> None:
        self._state = state
        self._say = say
        self._waited_for = 0  # the step whose waiting update was printed last

    def __call__(self, event: ev.DurableEvent | ev.TransientEvent) -> None:
        for line in self._event_lines(event):
            self._say(line)

    def _event_lines(self, event: ev.DurableEvent | ev.TransientEvent) -> list[str]:
        state = self._state
        match event:
            case ev.EngineOpened():
                return [f"weights: {engine_text(event.facts)}"]
            case ev.StepStarted() | ev.LessonProposed() if state.step_trains:
                return []  # one line a step, once it is known what came of its update
            case ev.LessonCommitted() if state.step_trains and event.step in state.steps:
                return [training_line(state, event.step)]
            case ev.StageEntered():
                return self._stage_lines(event)
            case ev.CheckpointSaved():
                saved = f"checkpoint of step {event.step} (policy v{event.policy_version})"
                return [f"{saved}: {one_line(event.folder, 200)}"]
            case ev.StepStarted():
                where, problems = run_progress(state), count_text(len(event.problems), "problem")
                begun = f"step {event.step} of {where.steps}, epoch {event.epoch} of {where.epochs}"
                return [f"{begun}: {problems}, library v{event.library_version}"]
            case ev.LessonsCompared():
                return [f"step {event.step}: {event.text}"]
            case ev.LessonProposed():
                step = state.steps[event.step]
                lines = [
                    step_line(step, event.lesson),
                    nothing_read_text(step.groups, state.settings),
                ]
                return [f"step {event.step}: {line}" for line in lines if line]
            case ev.LessonCommitted():
                done = commit_line(event.outcomes, event.library_version)
                return [f"{step_name(event.step)}: {done}"]
            case ev.EvaluationProgressed(done=0):
                return [f"evaluating {event.data}: {count_text(event.total, 'rollout')} …"]
            case ev.EvaluationFinished():
                return [f"held-out {event.data}: mean reward {finished_text(event)}"]
            case ev.StepFinished() if told := diagnose_epoch(state, event.step):
                return [f"epoch {event.epoch}: {text}" for text in diagnosis_lines(told)]
            case ev.CellMeasured(result=found):
                of = f"held-out {found.data}, {cell_name(event.trained, event.with_library, found)}"
                return [f"{of}: mean reward {finished_text(found)}"]
            case ev.RunEnded(how="budget" | "failed" | "waiting"):
                return [f"ended early: {one_line(event.reason, 300)}"]
            case ev.NodesChanged(nodes=nodes, lost=str(lost)) if lost:
                left = [] if nodes else [NO_WORKER]
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
            found = trained_step(state, event.step)
            figures = f": {figures_text(found)}" if found else ""
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


def training_line(state: RunState, step: int) -> str:
    """A training step in one line: reward with its n, figures of its update, and its outcome."""
    found = trained_step(state, step)
    assert found is not None
    outcome = update_outcome_text(found, state.policy_version)
    return f"step {step}/{run_progress(state).steps} {figures_text(found)}, {outcome}"


def _review_command(state: RunState) -> str:
    return f"studio review {quote(state.started.run) if state.started else ''}".rstrip()


def _reviewer_text(reviewer: str) -> str:
    return f" by {one_line(reviewer, 60)}" if reviewer else ""


def _is_first_unjudged(step: StepState, event: ev.RolloutJudged) -> bool:
    """A failed rollout does not count: a line has said that it failed."""
    rollout = step.rollouts.get((event.position, event.index))
    return step.unjudged == 1 and (rollout is None or rollout.status != "failed")


class Display:
    """A few lines redrawn in place on a terminal, above them what `LinePrinter` says."""

    def __init__(
        self, state: RunState, stream: TextIO, clock: Callable[[], float] = time.monotonic
    ) -> None:
        from rich.console import Console
        from rich.live import Live

        self._state = state
        self._clock = clock
        self._console = Console(file=stream, highlight=False, markup=False, emoji=False)
        self._print_lines = LinePrinter(
            state, lambda line: self._console.print(line, soft_wrap=True)
        )
        self._steps = StepClock()
        self._steps.update(state, clock())
        self._place = (state.step, state.under_review)
        self._live = Live(console=self._console, get_renderable=self._block_text, transient=True)

    def __enter__(self) -> "Display":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __call__(self, event: ev.DurableEvent | ev.TransientEvent) -> None:
        self._steps.update(self._state, self._clock())
        self._print_lines(event)
        place = (self._state.step, self._state.under_review)
        if place != self._place:
            self._place = place
            self._live.refresh()  # the block must not lag behind the line above it

    def _block_text(self) -> "Text":
        from rich.text import Text

        eta = self._steps.remaining_text(self._state)
        return Text("\n".join(display_lines(self._state, eta)))


def display_lines(state: RunState, eta: str = "") -> list[str]:
    """The redrawn block: where the run stands, the batch's stages, reward, spending."""
    where, step = run_progress(state), state.current
    head = f"epoch {where.epoch}/{where.epochs}  step {where.step}/{where.steps}  {state.status}"
    if state.started and state.started.rehearsal:
        head += "  rehearsal"
    if state.cassette:
        head += "  cassette"
    if (evaluating := state.live.evaluation) is not None:
        bar = progress_bar(evaluating.done, evaluating.total)
        return [head, f"held-out {evaluating.data}  {bar}"]
    if step is None or state.started is None:
        return [head]
    groups = len(step.problems)
    rollouts = sum(state.group_sizes(step))
    # Nobody knows how long a person takes: it would stand still meanwhile.
    eta = f"  ETA {eta}" if eta and not state.undecided_operations else ""
    if is_fine_tuning(state):
        lines = [head, f"learning from {count_text(groups, 'demonstration')}{eta}"]
    else:
        lines = [
            head,
            f"rollouts  {progress_bar(step.rollouts_done, rollouts)}",
            f"verdicts  {progress_bar(len(step.verdicts), rollouts)}",
            f"groups    {progress_bar(len(step.reflections), groups)}",
            f"reward so far {mean_reward_text(step.rewards)}  {usage_text(state.total_usage)}{eta}",
        ]
    if state.trains_weights and (known := measured_steps(trained_steps(state))):
        change = f"{change_text(known)} in {count_text(len(known), 'step')}"
        curve = f"{known[0].measure:<9} {value_curve(known, 40)}"
        lines.append(f"{curve} {change}, policy v{state.policy_version}")
    if state.undecided_operations:
        lines.append(f"REVIEW {len(state.undecided_operations)}: studio review {state.started.run}")
    return lines


def progress_bar(done: int, total: int, width: int = 24) -> str:
    filled = width * done // total if total else 0
    return f"[{'#' * filled}{'.' * (width - filled)}] {done}/{total}"


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


_LEAST_STEP_S = 1.0


class StepClock:
    """Times the steps whose beginning it sees; a person's time to decide is not the run's."""

    def __init__(self) -> None:
        self.began: float | None = None  # of the work under way; None while a person decides
        self._step: int | None = None  # under way, 0: none is; None: nothing was seen yet
        self._deciding = False
        self._whole = False  # the step under way was seen from its beginning
        self._worked_s = 0.0
        self._steps_s: list[float] = []

    def update(self, state: RunState, now: float) -> None:
        """Look where the run stands now; call it as often as that may have changed."""
        step, before = state.current, self._step
        number = 0 if step is None else state.step
        if number != before:
            is_through = before in state.steps and state.steps[before].finished
            if self.began is not None and self._whole and is_through:
                self._steps_s.append(self._worked_s + now - self.began)
            # Of a step that is under way already it is not known since when.
            self._whole = bool(number) and before is not None
            self._step, self._worked_s, self._deciding = number, 0.0, False
            self.began = now if self._whole else None
        if step is None:
            return
        if state.live.stage_name == "review" and not self._deciding:
            self._deciding = True  # the clock stops until the commit
            if self.began is not None:
                self._worked_s += now - self.began
            self.began = None
        elif step.committed and self._deciding:
            self._deciding, self.began = False, now

    def remaining_s(self, state: RunState) -> tuple[float, float] | None:
        """Seconds left, from and to: the median step's, or the range until three are known."""
        if not self._steps_s or state.started is None or state.ending:
            return None
        steps = state.started.steps_per_epoch * state.epochs - state.steps_finished
        if len(self._steps_s) >= 3:
            typical = statistics.median(self._steps_s[-20:])
            return typical * steps, typical * steps
        return min(self._steps_s) * steps, max(self._steps_s) * steps

    def remaining_text(self, state: RunState) -> str:
        """The same in words: `12m 30s`, `2m 00s to 5m 10s`, `< 1 min`; "" where nobody knows."""
        left = self.remaining_s(state)
        # Of steps that take no time it cannot be said how long the next one takes.
        if left is None or min(self._steps_s[-20:]) < _LEAST_STEP_S:
            return ""
        low, high = left
        if high < 60:
            return "< 1 min"
        if low == high:
            return duration_text(high)
        return f"{duration_text(low) if low >= 60 else '< 1 min'} to {duration_text(high)}"


def duration_text(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}m {rest:02d}s" if minutes < 60 else f"{minutes // 60}h {minutes % 60:02d}m"


_STAGES = {
    "restore": "restoring the weights after it …",
    "consolidation": "drawing operations from its groups",
    "choice": "trying {lessons} lessons to choose one",
    "gate": "trying what it proposes: {made} of at most {most} tries",
    "review": "its operations can be reviewed: press 2",
    "hold": "no rule settled {undecided}, a person is waited for: press 2",
    "ready": "everything is decided, c commits",
    "commit": "committing",
}
_TRAINING_STAGES = {
    "consolidation": "computing its weight update",
    "review": "its weight update can be reviewed: press 2",
    "hold": "its weight update is to be decided: press 2",
}


class ActivityPrinter(LinePrinter):
    """Says more of each rollout than a pipe wants to hear, as the Live page does."""

    def _event_lines(self, event: ev.DurableEvent | ev.TransientEvent) -> list[str]:
        trains, shown = self._state.step_trains, is_fine_tuning(self._state)
        lines = activity_lines(event, trains=trains, shown=shown)
        return super()._event_lines(event) if lines is None else lines


def activity_lines(
    event: ev.DurableEvent | ev.TransientEvent, *, trains: bool = False, shown: bool = False
) -> list[str] | None:
    """What the activity says of it; None where `LinePrinter` has the words.

    `trains`: the run updates weights, so that a group gives no proposals; `shown`: it learns from
    demonstrations, so that there are no groups to tell of.
    """
    match event:
        case ev.StageEntered():
            stages = {**_STAGES, **_TRAINING_STAGES} if trains else _STAGES
            if event.stage not in stages:
                return []
            stage = stages[event.stage].format(**{"undecided": 0, **event.detail})
            return [f"step {event.step}: {stage}"]
        case ev.StepStarted() if trains:
            problems = count_text(len(event.problems), "problem")
            return [f"step {event.step}: {problems}, policy v{event.policy_version}"]
        case ev.GroupReflected() if shown:
            return []
        case ev.GroupReflected(reflection=found) if trains and found.outcome == "used":
            name = rollout_id(found.step, found.position, 0).removesuffix("r0")
            return [f"{name}: winners and losers, so it has contrast"]
        case ev.RunPaused():
            return ["paused: what is under way ends, nothing new begins (s p goes on)"]
        case ev.GroupReflected():
            return _reflection_texts(event)
        case ev.RolloutJudged(verdict=found) if found.reward is not None:
            name = rollout_id(event.step, event.position, event.index)
            why = f" ({one_line(found.critique, 80)})" if found.critique else ""
            return [f"{name} reward {reward_text(found.reward)}{why}"]
        case ev.OperationDecided() | ev.OperationsDecided():
            return [
                f"{made.operation_id} "
                + decided_text(made.action, one_line(made.reviewer, 40), one_line(made.reason, 160))
                for made in event.decisions
            ]
        case ev.DecisionUndone():
            return [f"{event.operation_id}: its decision was taken back"]
        case ev.OperationProposed():
            return [f"{event.operation.id} proposed by {one_line(event.reviewer, 40)}"]
        case ev.RunResumed():
            return ["resumed"]
        case ev.RunEnded(how="finished" | "stopped" | "held"):
            return [event.how]
    return None


def _reflection_texts(event: ev.GroupReflected) -> list[str]:
    found, n = event.reflection, len(event.reflection.proposals)
    drawn = f"{n} proposal{'s' * (n != 1)} drawn from it"
    why = f": {one_line(found.losses[0].reason, 160)}" if found.losses else ""
    outcomes = {
        "used": f"winners and losers, {drawn}",
        "critique": f"no good try, read for what the verifier says, {drawn}",
        "all-equal": "all equally good, nothing to compare, skipped",
        "all-right": "all right, nothing to learn, skipped",
        "all-wrong": "all wrong, nothing to compare, skipped",
        "unjudged": "no reward known, skipped",
    }
    said = outcomes.get(found.outcome, f"failed{why}")
    doubted = (
        f"{d.rollout}: its verdict is doubted: {one_line(d.reason, 160)}" for d in found.doubts
    )
    return [f"{group_id(found.step, found.position)}: {said}", *doubted]
