"""What became of the proposals of a step, as reviewers and reports tell it."""

from __future__ import annotations

from engines.core import events as ev
from engines.core.state.fold import fold, run_history
from engines.core.state.run_state import RunState
from engines.core.types import (
    Lesson,
    LostWork,
    Operation,
    Proposal,
    ProposalFate,
    Reflection,
    replace_dropped,
)
from studio.render.words import dropped_texts, fates_under_review, merged_text
from studio.review.wording import operation_text, queue_lines
from studio.session.requests import ReviewQueue
from studio.tui.drawing.lines import Line
from studio.tui.pages.review.view import Item, change_lines
from tests.support.builders import a_library

OPERATION = Operation("op1.1", "add", None, "Carry: add it.", "seen")
FATES = (
    ProposalFate("s1p0", 1, "merged", "op1.1"),
    ProposalFate("s1p1", 2, "dropped", reason="too \x1b[31mvague"),
    ProposalFate("s1p1", 3, "merged", "op1.1"),
)


def proposing(position: int, *wishes: Proposal) -> ev.GroupReflected:
    return ev.GroupReflected(1, position, Reflection(1, position, "used", wishes))


def a_wish(text: str) -> Proposal:
    return Proposal("add", None, text, "seen", ())


EVENTS: tuple[ev.DurableEvent, ...] = (
    ev.StepStarted(epoch=1, step=1, problems=("a", "b"), policy_version=0, library_version=0),
    # Groups end in any order; proposals are numbered in that of the samples.
    proposing(1, Proposal("delete", "E9", "", "seen", ()), a_wish("carry too")),
    proposing(0, a_wish("carry")),
    ev.LessonProposed(1, Lesson(1, 0, (OPERATION,), fates=FATES)),
)


def a_state() -> RunState:
    state = RunState()
    for event in EVENTS:
        fold(state, event)
    return state


def drawn(lines: list[Line]) -> str:
    return "\n".join("".join(text for text, _ in each) for each in lines)


def test_an_operation_names_the_proposals_that_it_merges() -> None:
    assert merged_text("op1.1", FATES) == "proposals 1 (s1p0), 3 (s1p1)"
    assert merged_text("op1.2", FATES) == ""


def test_a_dropped_proposal_is_told_with_its_text_and_reason() -> None:
    fates, texts = fates_under_review(a_state())
    assert texts == ["carry", "delete E9", "carry too"]
    (told,) = dropped_texts(fates, texts)
    assert told.startswith("2 (s1p1) delete E9 because: too ")
    assert "\x1b" not in told


def test_line_mode_says_what_is_merged_and_lists_what_was_dropped() -> None:
    queue = ReviewQueue.of(a_state(), a_library())
    assert "  merges    proposals 1 (s1p0), 3 (s1p1)" in operation_text(OPERATION, queue, ())
    assert any(line.startswith("dropped  proposal 2 (s1p1)") for line in queue_lines(queue))


def test_the_change_pane_counts_dropped_proposals_and_z_lists_them() -> None:
    item, state = Item("op1.1", OPERATION), a_state()

    def text(whole: bool) -> str:
        return drawn(change_lines(item, state, at=(1, 1), mode="words", width=90, whole=whole))

    assert "merges    proposals 1 (s1p0), 3 (s1p1)" in text(whole=False)
    assert "1 proposal of this step (z says why)" in text(whole=False)
    assert "delete E9" not in text(whole=False) and "delete E9" in text(whole=True)


def test_a_mended_reply_changes_the_fate_of_what_was_dropped_only() -> None:
    mended = [ProposalFate("", n, "used", "op1.m1") for n in (1, 2)]
    found = replace_dropped(FATES, mended)
    assert [(one.fate, one.operation) for one in found] == [
        ("merged", "op1.1"),
        ("used", "op1.m1"),
        ("merged", "op1.1"),
    ]
    assert found[1].group == "s1p1"


def test_a_mended_reply_is_in_the_state_and_in_the_history() -> None:
    lost = (LostWork("consolidation", "step 1", "no JSON", "Sorry."),)
    failed = tuple(ProposalFate("s1p0", n, "dropped", reason="it failed") for n in (1, 2, 3))
    events = (
        *EVENTS[:3],
        ev.LessonProposed(1, Lesson(1, 0, losses=lost, fates=failed)),
        ev.ReplyMended(1, "s1", (), "ann", fates=(ProposalFate("", 2, "used", "op1.m1"),)),
    )
    state = RunState()
    for event in events:
        fold(state, event)
    step = state.current
    assert step is not None and step.lesson is not None
    fates = run_history(events).steps[1].fates
    assert step.lesson.fates == fates
    assert [one.fate for one in fates] == ["dropped", "used", "dropped"]
