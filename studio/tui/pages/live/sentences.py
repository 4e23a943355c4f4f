"""What the live page says in sentences: what goes on and for how long, and how it ended."""

from __future__ import annotations

from engines.core import events as ev
from engines.core.state.run_state import RunState
from engines.core.types import group_id, rollout_id
from studio.facts.next_command import curation_text
from studio.facts.run import run_progress
from studio.render.words import (
    count_text,
    decided_text,
    lost_text,
    no_practice_text,
    to_decide_text,
    unparsed_replies_text,
    usage_text,
)
from studio.secrets.sanitize import one_line
from studio.tui.drawing.cells import GLYPHS_UNICODE, Glyphs
from studio.tui.drawing.lines import BLANK, Line, line, paragraph, plain_text
from studio.tui.header import SessionStatus
from studio.tui.pages import training_view
from studio.tui.pages.live.batch import Batch, reward_text
from studio.tui.pages.live.view import mean_text


def status_line(
    state: RunState | None,
    batch: Batch | None,
    line_facts: SessionStatus,
    evaluating: ev.EvaluationProgressed | None,
    *,
    timing: str = "",
    doing: str = "",
) -> Line:
    """One sentence: what the run is doing, or what it waits for, and the key that helps.

    `timing` is what is known of an evaluation's time; `doing` is what goes on between two steps.
    """
    if line_facts.starting:
        return line((f" starting the run: {starting_text(line_facts)}", "title"))
    if line_facts.opening:
        return line((" opening the run …", "title"))
    if state is None or state.started is None:
        return line((" no run is open: ", "dim"), ("0", "key"), (" starts or resumes one", "dim"))
    if state.ending:
        return ending_line(state)
    if line_facts.parted:
        said = " the connection to the run's process is lost; trying again, and no record is lost"
        return line((said, "failed"))
    if line_facts.replay and not line_facts.living:
        return line((" the replay is over; the run itself may have gone on", "dim"))
    if not line_facts.living:
        said = " no process of it runs; what is recorded is safe: "
        return line((said, "failed"), ("s r", "key"), " resumes it")
    waiting = len(state.undecided_operations)
    if waiting:
        flagged = sum(op.is_flagged for op in state.undecided_operations)
        what = "operation" if waiting == 1 else "operations"
        what = "weight update" if state.step_trains else what
        more = f", {flagged} flagged" if flagged else ""
        return line(" ", ("2", "key"), (f" review: {waiting} {what} to decide{more}", "flag"))
    if state.status == "reviewing":
        if line_facts.ready:
            said = " everything is decided: "
            return line((said, "title"), ("c", "key"), " commits, ", ("2", "key"), " shows it")
        what = "weight update" if state.step_trains else "lesson"
        return line((f" committing the {what} of step {state.step} …", "title"))
    if state.status == "paused":
        busy = " paused: what is under way ends, nothing new begins; "
        return line((busy, "flag"), ("s p", "key"), " goes on")
    if evaluating is not None:
        when = f"after step {evaluating.step}" if evaluating.step else "baseline"
        done = f"{evaluating.done} of {evaluating.total}"
        mean = f", reward {mean_text(evaluating)}" if evaluating.known else ""
        on = f", on {one_line(evaluating.data, 40)}"  # last: where it is cut, the panes name it
        return line((f" evaluating {when}: ", "title"), f"{done}{mean}{timing}{on}")
    return line((f" {doing or _progress_text(state, batch)}", "title"))


def starting_text(line_facts: SessionStatus) -> str:
    """What a process that starts does; it says so itself as soon as it takes time."""
    return one_line(line_facts.starting_stage, 160) or "reading the run file …"


def is_working(
    state: RunState | None, line_facts: SessionStatus, evaluating: ev.EvaluationProgressed | None
) -> bool:
    """Whether it just goes on with its rollouts: nothing is waited for or out of the ordinary."""
    return (
        state is not None
        and state.status == "running"
        and not state.ending
        and line_facts.living
        and not line_facts.parted
        and evaluating is None
        and state.current is not None
    )


def _progress_text(state: RunState, batch: Batch | None) -> str:
    step = state.current
    if step is None or batch is None:
        return "waiting for the next step …" if state.step else "waiting for the first step …"
    if step.committed:
        if state.step_trains:
            return f"step {step.step} is through: policy v{state.policy_version}"
        return f"step {step.step} is committed as v{step.committed_version}"
    n, used = len(batch.problems), batch.outcomes["used"]
    if n and len(batch.reflections) == n:
        source, groups = f"{n} demonstrations", f"{used} group{'s' * (used != 1)}"
        if not state.step_trains:
            return f"step {step.step}: drawing operations from {groups} …"
        if batch.size:
            source = f"{groups} with contrast"
        return f"step {step.step}: computing a weight update from {source} …"
    if not batch.rollouts:
        if not batch.size:
            return f"step {step.step}: {n} demonstrations"
        problems = count_text(n, "problem")
        return f"step {step.step}: waiting for the first of {batch.size} rollouts, {problems} …"
    reward = step.rewards.mean
    so_far = "" if reward is None else f", reward so far {reward:.3f} (n={step.rewards.n})"
    if (ended := len(batch.rollouts)) < batch.size:
        return f"step {step.step}: {ended} of {batch.size} rollouts ended{so_far}"
    if len(batch.verdicts) < batch.size:
        return (
            f"step {step.step}: judging, {len(batch.verdicts)} of {batch.size} verdicts{so_far} …"
        )
    done = f"{len(batch.reflections)} of {n} groups"
    return f"step {step.step}: reflecting, {done}{so_far} …"


def ending_line(state: RunState) -> Line:
    why = f": {one_line(state.reason, 160)}" if state.reason else ""
    match state.ending:
        case "finished" if state.trains_weights:
            said = f" finished with policy v{state.policy_version}; "
            return line((said, "title"), ("4", "key"), " compares its steps")
        case "finished" if state.curates and (left := state.open_operations):
            said = to_decide_text(len(left), len(state.put_off_operations))
            return line(" ", ("2", "key"), (f" review: {said}", "flag"))
        case "finished":
            learned = (("3", "key"), " shows what was learned, ")
            return line((" finished; ", "title"), *learned, ("4", "key"), " what changed")
        case "held":
            n = len(state.open_operations)
            what = "weight update" if state.step_trains else "operation"
            said = f" held for review: {n} {what}{'s' if n != 1 else ''} to decide; "
            return line((said, "flag"), ("2", "key"), " decides, then ", ("s r", "key"), " goes on")
        case "budget":
            said = f" the budget is reached{why}; "
            return line((said, "flag"), ("s r", "key"), " resumes with more")
        case "failed":
            said = f" failed{why}; "
            return line((said, "failed"), ("s r", "key"), " resumes and tries again")
    return line((f" stopped{why}; ", "title"), ("s r", "key"), " resumes it")


def run_summary_lines(state: RunState, width: int, signs: Glyphs = GLYPHS_UNICODE) -> list[Line]:
    """The whole of a run that ended: rewards with their n, held-out change, library, cost."""
    from studio.facts.run import run_facts
    from studio.render.run_lines import doubts_text, practice_sections

    started, where = state.started, run_progress(state)
    assert started is not None
    facts = run_facts(state)
    status = "BUDGET REACHED" if state.ending == "budget" else state.status.upper()
    done = curation_text(state) or f"{status} after step {state.steps_finished} of {where.steps}"
    out = [line((done, "title"))]
    if state.reason:
        out += paragraph([(one_line(state.reason, 600), "")], width, "  ")
    if started.rehearsal:
        out += paragraph([("replies were scripted (rehearsal), not a model's", "dim")], width)
    out += _next_action_lines(state, width)
    if curated := no_practice_text(state):
        out += [BLANK, *paragraph([(curated, "")], width)]
    sections = [] if curated else practice_sections(facts, training_view.levels(signs))
    for heading, texts in sections:
        out += [BLANK, line((heading, "title"))]
        for text in texts:
            out += paragraph([("  " + text, "")], width, "    ")
    out.append(BLANK)
    if doubted := doubts_text(facts):
        out += paragraph([(doubted, "flag")], width, "  ")
    if state.alternates or not state.trains_weights:
        grown = f"library    {one_line(started.library, 60)} v{started.library_version} -> "
        out.append(line(f"{grown}v{state.library_version}"))
    out.append(line(f"spent      {usage_text(state.total_usage)}"))
    lost = lost_text(state.lost) or "nothing"
    out += paragraph([(f"lost       {lost}", "failed" if state.lost else "")], width, " " * 11)
    if state.open_operations:
        counted = to_decide_text(len(state.open_operations), len(state.put_off_operations))
        waiting = (f"{counted}: 2 review", "flag")
        out.append(line("open       ", waiting))
    if state.repairs:
        mend = unparsed_replies_text(len(state.repairs), started.run).partition(":")[0]
        out.append(line("to mend    ", (f"{mend}: 2 review", "flag")))
    return out


def _next_action_lines(state: RunState, width: int) -> list[Line]:
    moves = [("3", "what was learned"), ("4", "what changed"), ("5", "every run")]
    if state.trains_weights and not state.alternates:
        moves = [("4", "two steps beside each other"), ("5", "every run")]
    if state.ending != "finished":
        moves.insert(0, ("s r", "resume it"))
    if state.open_operations or state.repairs:
        moves.insert(0, ("2", "decide what is open"))
    keys = [span for key, what in moves for span in ((key, "key"), (f" {what}  ", ""))]
    return paragraph([("next: ", "dim"), *keys], width, "      ")


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


def event_texts(
    event: ev.DurableEvent | ev.TransientEvent, *, trains: bool = False, shown: bool = False
) -> list[str] | None:
    """What the activity says of it; None where `studio.report.progress.LinePrinter` has the words.

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


_LEAST_S = 1.0


class StageClock:
    """Times the sentence that is shown: one that ends in an ellipsis says what goes on."""

    def __init__(self) -> None:
        self._said, self._since = "", 0.0

    @property
    def is_running(self) -> bool:
        return self._said.endswith("…")

    def add_time(self, shown: Line, now: float) -> Line:
        """The sentence with its seconds so far, if it is one that takes time."""
        said = plain_text(shown).rstrip()
        if said != self._said:
            self._said, self._since = said, now
        if not self.is_running or now - self._since < _LEAST_S:
            return shown
        from studio.report.step_clock import duration_text

        return (*shown, (f" {duration_text(now - self._since)}", ""))
