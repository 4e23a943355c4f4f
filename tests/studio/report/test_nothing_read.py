"""What is said of a run that read nothing, and of verdicts that the reflector doubts."""

from __future__ import annotations

from typing import Any

import pytest

from engines.core import events as ev
from engines.core.state.fold import fold, fold_events
from engines.core.types import Doubt, GroupOutcome, Lesson, Operation, ProposalFate, Reflection
from studio.facts.evaluation import nothing_read_text
from studio.facts.run import run_nothing_read
from studio.report.progress import LinePrinter, step_line
from tests.support.builders import a_library, a_run, a_step
from tests.support.summaries import end_json, end_text

READ = {"practice.read_without_contrast": 4}


@pytest.mark.parametrize(
    ("groups", "settings", "said"),
    [
        ({"all-wrong": 12}, READ, "12 of 12 groups all wrong; where no try is good nothing says"),
        ({"all-equal": 1}, READ, "1 of 1 groups all equal; where no try is good nothing says why"),
        ({"all-wrong": 3}, {"practice.read_without_contrast": 0}, "set it above 0"),
        ({"all-right": 2, "all-wrong": 1}, READ, "2 of 3 groups all right, 1 of 3 groups all wr"),
        ({"all-right": 2}, READ, "give harder problems"),
        ({"unjudged": 2}, READ, "the verifier had no opinion"),
        ({"failed": 2}, READ, "2 of 2 groups failed"),
    ],
)
def test_a_step_that_read_nothing_says_why_and_what_to_change(
    groups: dict[GroupOutcome, int], settings: dict[str, Any], said: str
) -> None:
    text = nothing_read_text(groups, settings)
    assert text.startswith("nothing was read: ") and said in text


@pytest.mark.parametrize("groups", [{}, {"used": 1, "all-wrong": 9}, {"critique": 1}])
def test_nothing_is_said_where_a_group_was_read(groups: dict[GroupOutcome, int]) -> None:
    assert nothing_read_text(groups, READ) == ""


def reflected(*found: Reflection) -> list[ev.DurableEvent]:
    return [ev.GroupReflected(one.step, one.position, one) for one in found]


def test_the_step_and_the_end_of_a_run_tell_it() -> None:
    wrong = (Reflection(1, n, "all-wrong") for n in range(2))
    lesson = ev.LessonProposed(1, Lesson(1, 0))
    state = fold_events([a_run(settings=READ), a_step(), *reflected(*wrong), lesson])
    lines: list[str] = []
    LinePrinter(state, lines.append)(lesson)
    assert lines[0].startswith("step 1: ") and "2 all-wrong" in lines[0]
    assert lines[1].startswith("step 1: nothing was read: 2 of 2 groups all wrong; ")
    before = a_library()
    assert "  nothing was read: 2 of 2 groups" in end_text(state, before, before, "")
    assert end_json(state, before, before)["nothing_read"].startswith("nothing was read")


def test_a_line_tells_of_a_step_that_is_through_what_it_told_before() -> None:
    """A screen hears of an event when the state may hold those behind it, too."""
    withheld = (Operation("op1.1", "add", None, "Add first."),)
    lesson = ev.LessonProposed(1, Lesson(1, 0, withheld=withheld))
    state, lines = fold_events([a_run(settings=READ), a_step(), lesson]), list[str]()
    LinePrinter(state, lines.append)(lesson)
    for event in (ev.LessonCommitted(1, 0, "", ()), ev.StepFinished(1, 1)):
        fold(state, event)
    LinePrinter(state, lines.append)(lesson)
    assert "1 idea withheld: rejected before" in lines[0]
    assert lines[len(lines) // 2 :] == lines[: len(lines) // 2]


def test_a_run_whose_reading_came_to_nothing_says_where_to_look() -> None:
    fates = tuple(ProposalFate("s1p0", n, "dropped", reason="not mentioned") for n in (1, 2))
    lesson, found = ev.LessonProposed(1, Lesson(1, 0, fates=fates)), Reflection(1, 0, "critique")
    state = fold_events([a_run(settings=READ), a_step(), *reflected(found), lesson])
    assert "0 operations proposed; 2 proposals dropped" in step_line(state.steps[1], lesson.lesson)
    assert run_nothing_read(state) == ""
    fold(state, ev.LessonCommitted(1, 0, "", ()))
    assert run_nothing_read(state).startswith("1 group read, and no operation came of it: studio")
    state.steps[1].operations = 1
    assert run_nothing_read(state) == ""


def test_doubts_are_counted_shown_and_taken_back_with_their_group() -> None:
    doubts = tuple(Doubt(f"s1p0r{n}", "it says 5") for n in range(2))
    found = Reflection(1, 0, "failed", doubts=doubts)
    state = fold_events([a_run(), a_step(), *reflected(found)])
    assert state.steps[1].doubts == 2 and state.doubts == dict.fromkeys(
        ("s1p0r0", "s1p0r1"), "it says 5"
    )
    before = a_library()
    text = end_text(state, before, before, "")
    assert "doubted  2 verdicts contradict their attempt, says the reflector, as s1p0r0" in text
    assert end_json(state, before, before)["doubts"] == state.doubts
    fold(state, ev.RunEnded("failed", "nothing worked"))
    fold(state, ev.RunResumed(pid=1, epochs=1, reviewer="wait", settings={}))
    assert (state.steps[1].doubts, state.doubts) == (0, {})
