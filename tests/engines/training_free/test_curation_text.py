"""What the end of a run says of reviewers, withheld ideas and replies to mend."""

from __future__ import annotations

from dataclasses import replace

from engines.core import events as ev
from engines.core.library import OperationOutcome
from engines.core.state.fold import fold_events
from engines.core.state.run_state import RunState
from engines.core.types import GATE, Decision, Flag, LostWork, Operation, Reflection
from studio.exit_codes import run_exit_code
from studio.facts.run import run_facts
from studio.render.run_lines import curation_lines
from tests.support.builders import a_decision, a_lesson, a_library, a_run, a_step, an_operation
from tests.support.summaries import end_json, end_text

OPS = [an_operation(id=f"op1.{n}") for n in range(1, 6)]


def decided(*pairs: tuple[Operation, Decision], withheld: int = 0) -> RunState:
    lesson = replace(a_lesson(*(op for op, _ in pairs)), withheld=tuple(OPS[:withheld]))
    outcomes = tuple(OperationOutcome(op.id, "add", True, "E1") for op, _ in pairs)
    return fold_events(
        [
            a_run(),
            a_step(),
            ev.LessonProposed(1, lesson),
            *(ev.OperationDecided(1, decision) for _, decision in pairs),
            ev.LessonCommitted(1, 1, "hash", outcomes),
            ev.StepFinished(1, 1),
            ev.RunEnded("finished"),
        ]
    )


def test_each_reviewer_has_an_accept_rate_with_n_and_the_time_a_decision_took() -> None:
    state = decided(
        (OPS[0], a_decision(OPS[0], reviewer="ann", took_s=2.0)),
        (OPS[1], a_decision(OPS[1], "edit", reviewer="ann", text="x", took_s=3.0)),
        (OPS[2], a_decision(OPS[2], "reject", reviewer="ann\x1b[2J", reason="no")),
        (OPS[3], a_decision(OPS[3], "reject", reviewer="ann", reason="no", took_s=10.0)),
        (OPS[4], a_decision(OPS[4], "reject", reviewer=GATE, reason="E1 is gone", took_s=1.0)),
    )
    assert curation_lines(run_facts(state)) == [
        # 2 of 3; of 2, 3 and 10 s the median is 3 and the mean 5
        "ann: accepted 0.667 (n=3), 1 edited; median 3.0 s, mean 5.0 s (n=3)",
        "ann\\u001b[2J: accepted 0.000 (n=1)",
        "the gate: 1 approval did not fit the library",
    ]
    assert run_facts(state).curation["ann"].accept_rate == 2 / 3


def test_what_auto_approved_although_it_was_flagged_is_counted() -> None:
    flagged = replace(OPS[0], flags=(Flag("duplicate", 0.9, "of E1"),))
    state = decided(
        (flagged, a_decision(flagged, reviewer="auto")),
        (OPS[1], a_decision(OPS[1], reviewer="auto")),
    )
    assert curation_lines(run_facts(state)) == [
        "auto: accepted 1.000 (n=2), 1 flagged operation approved, since auto lets such flags pass"
    ]
    assert run_facts(state).curation["auto"].approved_flagged == 1
    assert run_facts(state).curation["auto"].median_s is None


def test_withheld_ideas_and_replies_to_mend_are_told_with_what_to_do() -> None:
    losses = (LostWork("extraction", "s1p0", "no JSON", "hm"),)
    lost = ev.GroupReflected(1, 0, Reflection(1, 0, "failed", losses=losses))
    lesson = replace(a_lesson(), withheld=(OPS[0], OPS[1]))
    state = fold_events(
        [
            a_run(),
            a_step(),
            lost,
            ev.LessonProposed(1, lesson),
            ev.LessonCommitted(1, 0, "hash", ()),
            ev.StepFinished(1, 1),
            ev.RunEnded("finished"),
        ]
    )
    text = end_text(state, a_library(), a_library(), "runs/exp")
    assert "curated  2 ideas not proposed again: rejected before" in text
    assert "to mend  1 reply to be mended: studio review exp" in text
    data = end_json(state, a_library(), a_library())
    assert [reply["id"] for reply in data["repairs"]] == ["s1p0"]
    assert (data["withheld"], run_exit_code(state)) == (2, 4)
