"""What the live page says, from states alone."""

from __future__ import annotations

from engines.core import events as ev
from engines.core.state.fold import fold
from engines.core.state.run_state import RunState
from engines.core.types import CallKey, Reflection, Usage, Verdict
from studio.report.progress import LinePrinter
from studio.tui.drawing.cells import cell_width
from studio.tui.drawing.lines import Line, Row, plain_text, width_of
from studio.tui.header import SessionStatus
from studio.tui.pages.live.view import (
    MOST_SHOWN,
    Batch,
    HeldOut,
    StageClock,
    current_batch,
    facts_lines,
    group_line,
    group_rows,
    node_lines,
    pane_model,
    rollout_glyphs,
    run_summary_lines,
    status_line,
    strip_line,
)
from tests.support.builders import a_lesson, a_rollout_finished, a_run, a_step, an_operation

LIVES = SessionStatus(living=True)


def a_state(*events: ev.DurableEvent, group_size: int = 4) -> RunState:
    """A run in step 1, which has two problems, after these events."""
    state = RunState()
    for event in (a_run(group_size=group_size), a_step(), *events):
        fold(state, event)
    return state


def judged(position: int, index: int, reward: float | None, error: str | None = None) -> tuple:
    verdict = Verdict(reward, error=error)
    return (a_rollout_finished(position, index), ev.RolloutJudged(1, position, index, verdict))


def reflected(position: int, outcome: str) -> ev.GroupReflected:
    return ev.GroupReflected(1, position, Reflection(1, position, outcome))


def of(state: RunState) -> Batch:
    batch = current_batch(state)
    assert batch is not None
    return batch


def text(lines: list[Line]) -> str:
    return "\n".join(plain_text(line) for line in lines)


def list_groups(batch: Batch, words: str = "") -> list[Row]:
    return group_rows(batch, set(), words, questions={}, width=60)


def test_every_state_of_a_try_has_a_glyph_of_its_own() -> None:
    state = a_state(
        *judged(0, 0, 1.0),
        *judged(0, 1, 0.0),
        a_rollout_finished(0, 2, error="timeout: none"),
        *judged(0, 3, None, "unparsable: x"),
        group_size=6,
    )
    tries = of(state).group_rollouts(0, {"s1p0r4"})
    assert plain_text(rollout_glyphs(tries)) == "+-!?>."
    assert [one.state for one in tries] == ["won", "lost", "error", "open", "streaming", "queued"]
    assert tries[2].trouble == "timeout: none"


def test_the_score_of_a_group_counts_known_rewards_only() -> None:
    state = a_state(*judged(0, 0, 1.0), *judged(0, 1, None, "failed: x"), *judged(0, 2, 0.0))
    assert " 1/2 " in plain_text(group_line(of(state), 0, set()))
    assert "/" not in plain_text(group_line(of(state), 1, set()))  # none of it has begun
    assert " 0/0 " in plain_text(group_line(of(state), 1, {"s1p1r0"}))


def test_a_skipped_group_is_marked_and_a_used_one_is_not() -> None:
    state = a_state(reflected(0, "all-right"), reflected(1, "used"))
    assert " = " in plain_text(group_line(of(state), 0, set()))
    assert " = " not in plain_text(group_line(of(state), 1, set()))


def test_a_large_group_is_told_in_numbers() -> None:
    state = a_state(*judged(0, 0, 1.0), *judged(0, 1, 0.0), group_size=40)
    assert plain_text(rollout_glyphs(of(state).group_rollouts(0, {"s1p0r2"}))).split() == [
        "+1",
        "-1",
        ">1",
        ".37",
    ]


def test_the_filter_keeps_groups_whose_line_or_outcome_holds_it() -> None:
    state = a_state(reflected(1, "all-wrong"))
    assert [row.key for row in list_groups(of(state), "ALL-WRONG")] == ["s1p1"]
    assert [row.key for row in list_groups(of(state), "p0")] == ["s1p0"]
    assert list_groups(of(state), "nothing holds this") == []


def test_the_strip_holds_the_chosen_group_and_as_many_beside_it_as_fit() -> None:
    batch = of(a_state(*judged(0, 0, 1.0), reflected(0, "all-right")))
    rows = list_groups(batch) * 4  # as if it had eight groups
    at_start, at_end = strip_line(rows, 0, 80), strip_line(rows, 7, 80)
    assert at_start[1] == ("s1p0  ", "focus")
    assert plain_text(at_start).startswith(" s1p0  +...  1/1 = | s1p1  ....        | s1p0 ")
    assert [text for text, style in at_end if style == "focus"] == ["s1p1  "]
    assert width_of(at_start) <= 80 and width_of(strip_line(rows, 3, 60)) <= 60
    assert plain_text(at_start).endswith("[ ] group")


def test_stages_count_rollouts_verdicts_groups_and_operations() -> None:
    state = a_state(*judged(0, 0, 1.0), a_rollout_finished(0, 1), reflected(0, "used"))
    shown = text(facts_lines(state, of(state), LIVES, width=32))
    assert "rollout    [##........] 2/8" in shown
    assert "1 with winners and losers" in shown
    assert all(cell_width(row) <= 32 for row in shown.split("\n"))


def test_the_first_evaluation_is_said_to_be_the_baseline() -> None:
    begun = ev.EvaluationProgressed(0, "arithmetic-heldout", 0, 20)
    assert "evaluating baseline: 0 of 20, on arithmetic-heldout" in plain_text(
        status_line(a_state(), None, LIVES, begun)
    )
    later = ev.EvaluationProgressed(4, "arithmetic-heldout", 0, 20)
    assert "evaluating after step 4: 0 of 20" in plain_text(
        status_line(a_state(), None, LIVES, later)
    )


def test_a_batch_stays_to_be_looked_at_after_its_step_is_finished() -> None:
    state = a_state(*judged(0, 0, 1.0))
    batch = of(state)
    fold(state, ev.StepFinished(1, 1))
    assert current_batch(state) is None
    assert batch.rollout_at(0, 0, set()).state == "won"


def test_places_of_other_batches_and_nonsense_are_no_places() -> None:
    batch = of(a_state())
    assert batch.place("s1p1r3") == (1, 3)
    for name in ("s2p0r0", "s1p2r0", "s1p0r4", "s1p0", "", "E14", "s1p-1r0", "rs1p0"):
        assert batch.place(name) is None


def test_now_says_what_is_waited_for_and_the_key_that_helps() -> None:
    def said(state: RunState | None, facts: SessionStatus = LIVES) -> str:
        return plain_text(status_line(state, current_batch(state), facts, None))

    flagless = a_state(ev.LessonProposed(1, a_lesson(an_operation(), an_operation(id="op1.2"))))
    assert "0 starts or resumes one" in said(None)
    assert "starting" in said(None, SessionStatus(starting=True))
    assert "waiting for the first of 8 rollouts, 2 problems" in said(a_state())
    assert "1 of 8 rollouts ended, reward so far 1.000 (n=1)" in said(a_state(*judged(0, 0, 1.0)))
    assert "2 review: 2 operations to decide" in said(flagless)
    assert "p goes on" in said(a_state(ev.RunPaused()))
    assert "r resumes it" in said(a_state(), SessionStatus(living=False))
    through = a_state(reflected(0, "used"), reflected(1, "all-right"))
    assert "drawing operations from 1 group …" in said(through)


def test_now_says_how_a_run_ended_and_how_to_go_on() -> None:
    for how, words in (
        ("finished", "3 shows what was learned, 4 what changed"),
        ("stopped", "r resumes it"),
        ("failed", "failed: no model; s r resumes it"),
        ("budget", "r resumes with more"),
        ("held", "2 decides, then s r goes on"),
    ):
        state = a_state(ev.RunEnded(how, "no model"))
        assert words in plain_text(status_line(state, None, LIVES, None))


def test_committing_and_decided_differ_by_what_holds_the_commit() -> None:
    state = a_state(ev.LessonProposed(1, a_lesson()))
    assert "committing the lesson of step 1" in plain_text(status_line(state, None, LIVES, None))
    ready = SessionStatus(living=True, ready=True)
    assert "c commits" in plain_text(status_line(state, None, ready, None))


def test_the_summary_gives_rewards_with_their_n_and_every_loss() -> None:
    state = a_state(
        *judged(0, 0, 1.0),
        *judged(0, 1, 0.0),
        a_rollout_finished(0, 2, error="timeout: none"),
        ev.RunEnded("stopped", "by ann"),
    )
    told = text(run_summary_lines(state, 60))
    assert "stopped (by ann) after step 0 of 2" in told
    assert "epoch 1  0.500 (n=2)" in told
    assert "1 rollout" in told
    assert "r resume it" in told
    assert all(cell_width(row) <= 60 for row in told.split("\n"))


def test_a_measurement_taken_once_claims_no_change() -> None:
    once = ev.EvaluationFinished(
        step=0,
        data="held",
        policy_version=0,
        library_version=0,
        k=1,
        n=2,
        unjudged=0,
        mean=0.5,
        usage=Usage(),
        fingerprint="f",
        trouble="",
        problems=("a", "b"),
        rewards=((1.0,), (0.0,)),
    )
    told = text(run_summary_lines(a_state(once, ev.RunEnded("finished")), 70))
    assert "held v0 ->" not in told
    assert "held after step 0, v0" in told


def test_text_of_models_is_inert_and_on_one_line() -> None:
    bad = "[red]\x1b[2J\u202eeht\nnext"
    state = a_state(a_rollout_finished(0, 0, error=bad), ev.RunEnded("failed", bad))
    shown = [
        of(state).rollout_at(0, 0, set()).trouble,
        plain_text(status_line(state, None, LIVES, None)),
        text(run_summary_lines(state, 60)),
        *detail_of(ev.RolloutJudged(1, 0, 0, Verdict(1.0, bad))),
    ]
    for one in shown:
        assert "\x1b" not in one
        assert "\u202e" not in one
    assert "\n" not in shown[0] + shown[1] + shown[3]


def test_a_pane_says_why_there_is_no_text() -> None:
    batch = of(a_state(a_rollout_finished(0, 0, error="timeout: none")))
    assert pane_model(batch.rollout_at(0, 0, set()), "group", False).note == "timeout: none"
    assert pane_model(batch.rollout_at(0, 1, set()), "group", False).note == "queued"
    assert pane_model(batch.rollout_at(0, 1, {"s1p0r1"}), "group", False).note == "no text yet"
    assert pane_model(batch.rollout_at(0, 1, {"s1p0r1"}), "group", True).note == ""


def detail_of(event: ev.DurableEvent) -> list[str]:
    """What the activity says of an event."""
    lines: list[str] = []
    LinePrinter(RunState(), lines.append, detailed=True)(event)
    return lines


def test_the_activity_says_what_became_of_a_group() -> None:
    assert detail_of(reflected(0, "all-right")) == ["s1p0: all right, nothing to learn, skipped"]


class Measured:
    """What the page shows of an evaluation, event by event."""

    def __init__(self) -> None:
        self.state, self.held_out = RunState(), HeldOut()

    def hear(self, event: ev.TransientEvent) -> None:
        fold(self.state, event)
        self.held_out.update(self.state.live)


def test_a_try_that_begins_takes_the_pane_of_one_that_ended() -> None:
    def key(position: int) -> CallKey:
        return CallKey("evaluation", 0, 0, position, 0)

    measured = Measured()
    held_out = measured.held_out
    measured.hear(ev.EvaluationProgressed(0, "aime", 0, 40))
    for position in range(MOST_SHOWN + 3):
        measured.hear(ev.RolloutStarted(key(position), f"q{position}"))
    assert [rollout.position for rollout in held_out.rollouts] == list(range(MOST_SHOWN))
    measured.hear(ev.EvaluationProgressed(0, "aime", 1, 40, 1, 0.0, 1, key(4), 0.0))
    assert held_out.rollouts[4].state == "lost"
    measured.hear(ev.RolloutStarted(key(30), "q30"))
    assert held_out.rollouts[4].problem == "q30"


def test_what_takes_time_says_for_how_long_it_does() -> None:
    clock = StageClock()
    said = (("committing …", ""),)
    assert plain_text(clock.add_time(said, 10.0)) == "committing …"
    assert plain_text(clock.add_time(said, 14.2)) == "committing … 4 s"
    assert not StageClock().is_running


def test_verdicts_and_reflections_that_are_waited_for_are_named() -> None:
    def said(*events: ev.DurableEvent) -> str:
        state = a_state(*events)
        return plain_text(status_line(state, of(state), LIVES, None)).strip()

    ended = [a_rollout_finished(position, index) for position in (0, 1) for index in range(4)]
    known = [event for at in (0, 1) for index in range(4) for event in judged(at, index, 1.0)]
    assert said(*ended) == "step 1: judging, 0 of 8 verdicts …"
    through = said(*known, reflected(0, "all-right"))
    assert through == "step 1: reflecting, 1 of 2 groups, reward so far 1.000 (n=8) …"


def test_nodes_of_a_cluster_are_listed_and_a_pane_says_where_its_try_is_made() -> None:
    assert node_lines(None, {}, 30) == []
    assert "no worker of the cluster is left" in " ".join(text(node_lines((), {}, 30)).split())
    places = {"s1p0r0": "n1", "s1p0r1": "n1", "s1p1r0": "n2\x1b[31m"}
    shown = text(node_lines(("n1", "n2\x1b[31m", "n3"), places, 30))
    assert shown.splitlines()[0] == "nodes 3, 3 tries there"
    assert "n1  2 tries" in shown and "n3  0 tries" in shown and "\x1b" not in shown
    batch = of(a_state(a_rollout_finished(0, 0)))
    streams = batch.rollout_at(0, 1, {"s1p0r1"})
    assert pane_model(streams, "group", True, footer="on n1").footer == "on n1"
    assert pane_model(streams, "group", True).footer == ""
