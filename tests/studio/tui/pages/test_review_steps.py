"""Review: what a step of undo is made of, and what no key throws away unasked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engines.core import events as ev
from engines.core.errors import ConflictError
from engines.core.types import Decision, Operation
from studio.session.session import ControllerChanged, EventReceived
from studio.tui.drafts import Drafts
from studio.tui.widgets.prompt import Prompt
from tests.studio.tui.pages.test_review import Desk, a_desk, an_add
from tests.studio.tui.stage import FakeSession, picture

pytestmark = pytest.mark.filterwarnings("error")


def names(desk: Desk, what: str) -> list[object]:
    return [asked for name, asked in desk.session.asked if name == what]


async def committed(desk: Desk, *gone: str, assigned: str = "E1") -> None:
    """As after a commit: these are settled, deferred ones are open again."""
    state, deciding = desk.session.state, desk.page.queue.decider
    deciding.sitting.steps = [
        tuple(
            replace(one, decision=replace(one.decision, assigned=assigned))
            if one.decision.action == "approve"
            else one
            for one in step
        )
        for step in deciding.sitting.steps
    ]
    for name in gone:
        del state.operations[name]
        state.decisions.pop(name, None)
    state.deferred = set(state.operations)
    state.decisions = {k: d for k, d in state.decisions.items() if d.action != "defer"}
    # What the decisions left in the library, so that there is something to take back.
    state.operations["op1.9"] = an_add(9, "Carry.")
    state.decisions["op1.9"] = Decision("op1.9", "approve", assigned=assigned)
    await desk.session.push(EventReceived(ev.RunPaused()))
    await desk.rest()


# -- undo, operation by operation -----------------------------------------------------------------


async def test_of_a_step_that_is_partly_committed_each_operation_is_taken_back_its_own_way(
    tmp_path: Path,
) -> None:
    async with a_desk(tmp_path, an_add(1), an_add(2)) as desk:
        await desk.press("v", "j", "a", "enter")
        assert desk.made == [("op1.1", "approve"), ("op1.2", "approve")]
        await committed(desk, "op1.1")
        await desk.press("u")
        assert names(desk, "undo") == ["op1.2"]
        assert [(op.kind, op.target) for op in names(desk, "propose")] == [("delete", "E1")]  # type: ignore[attr-defined]
        assert "asked again: op1.2" in desk.told and "op1.h1 is proposed" in desk.told


async def test_what_was_put_off_and_is_open_after_the_commit_is_said_to_be(tmp_path: Path) -> None:
    async with a_desk(tmp_path, an_add(1), an_add(2)) as desk:
        await desk.press("t")
        await committed(desk, "op1.2")
        await desk.press("u")
        assert not names(desk, "undo") and not names(desk, "propose")
        assert "op1.1 was put off; it is still open" in desk.told


async def test_an_undo_that_is_refused_half_way_leaves_the_rest_of_the_step_to_undo(
    tmp_path: Path,
) -> None:
    async with a_desk(tmp_path, an_add(1), an_add(2)) as desk:
        await desk.press("v", "j", "a", "enter")
        undo = desk.session.undo

        async def once(operation_id: str) -> tuple[str, ...]:
            if operation_id == "op1.1":
                raise ConflictError("run mine", "its disk is full.", "Make room.")
            return await undo(operation_id)

        desk.session.undo = once  # type: ignore[method-assign]
        await desk.press("u")
        assert "disk is full" in desk.told
        desk.session.undo = undo  # type: ignore[method-assign]
        await desk.press("u")
        assert names(desk, "undo") == ["op1.2", "op1.1"]
        await desk.press("ctrl+r")
        assert desk.made[2:] == [("op1.1", "approve")]
        await desk.press("ctrl+r")
        assert desk.made[3:] == [("op1.2", "approve")]


async def test_what_stood_before_is_not_said_to_be_asked_again(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        await desk.press("a", "k", "r", "u")
        assert "op1.1: approved again, as before" in desk.told
        assert "asked again" not in desk.told


# -- what the gate refused ------------------------------------------------------------------------


def refused(session: FakeSession) -> None:
    session.state.decisions["op1.1"] = Decision(
        "op1.1", "reject", reason="E1 says so", reviewer="gate"
    )


async def test_undo_never_hands_in_a_rejection_of_the_gate(tmp_path: Path) -> None:
    async with a_desk(tmp_path, an_add(1), an_add(2), change=refused) as desk:
        desk.page.shown.operations.go_to("op1.1")
        await desk.rest()
        await desk.press("a", "u")
        assert desk.made == [("op1.1", "approve")]
        assert names(desk, "undo") == ["op1.1"] and "asked again: op1.1" in desk.told


# -- wordings -------------------------------------------------------------------------------------


async def test_what_comes_back_from_the_editor_as_it_was_decides_nothing(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        desk.page.in_editor = lambda text: f"{text}\n"
        await desk.press("E")
        assert desk.session.asked == [] and "nothing was changed" in desk.told
        assert desk.app.drafts.edits == {}


@pytest.mark.parametrize("size", [(120, 36), (80, 24)])
async def test_a_wording_of_ones_own_is_shown_and_not_thrown_away_by_one_a(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    async with a_desk(tmp_path, size=size) as desk:
        await desk.press("e", "x", "y", "escape")
        assert "column.xy" in "".join("".join(picture(desk.app)).split())
        await desk.press("a")
        assert desk.made == [] and "you have a wording of your own" in desk.told
        assert "op1.1" in desk.app.drafts.edits
        await desk.press("a")
        assert desk.made == [("op1.1", "approve")] and desk.app.drafts.edits == {}


async def test_what_is_being_reworded_is_not_approved_with_all_that_is_safe(tmp_path: Path) -> None:
    async with a_desk(tmp_path, an_add(1), an_add(2)) as desk:
        await desk.press("e", "x", "escape", "A", "enter")
        assert desk.made == [("op1.2", "approve")] and "op1.1" in desk.app.drafts.edits


# -- the commit -----------------------------------------------------------------------------------


async def test_u_right_after_c_takes_back_what_was_committed_and_not_before(
    tmp_path: Path,
) -> None:
    async with a_desk(tmp_path) as desk:
        await desk.press("a", "a")
        await desk.burst("c", "u")
        asked = desk.session.names()
        assert asked.index("commit") < asked.index("undo")


async def test_what_is_decided_while_the_commit_is_asked_for_is_not_committed_unseen(
    tmp_path: Path,
) -> None:
    async with a_desk(tmp_path) as desk:
        await desk.press("a", "c")
        desk.session.state.decisions["op1.2"] = Decision("op1.2", "reject", reviewer="ann")
        await desk.press("enter")
        assert "commit" not in desk.session.names() and "c shows it again" in desk.told


# -- the list -------------------------------------------------------------------------------------


async def test_the_filter_looks_through_what_the_targets_say_and_counts_what_it_hides(
    tmp_path: Path,
) -> None:
    def known(session: FakeSession) -> None:
        session.state.decisions["op1.1"] = Decision("op1.1", "approve", assigned="E1")

    delete = Operation("op1.2", "delete", "E1")
    async with a_desk(tmp_path, an_add(1, "Look twice."), delete, an_add(3), change=known) as desk:
        await desk.press("slash")
        await desk.write("delete twice")
        await desk.press("enter")
        assert desk.page.shown.operations.keys == ("op1.2",) and "Operations 1 of 3" in desk.screen
        await desk.press("slash")
        await desk.write(" zzz")
        await desk.press("enter")
        assert "Operations 0 of 3" in desk.screen


async def test_a_row_still_says_what_is_about_to_be_deleted(tmp_path: Path) -> None:
    def known(session: FakeSession) -> None:
        session.state.decisions["op1.1"] = Decision("op1.1", "approve", assigned="E1")
        session.state.decisions["op1.2"] = Decision("op1.2", "approve")

    delete = Operation("op1.2", "delete", "E1")
    async with a_desk(tmp_path, an_add(1, "Look twice."), delete, change=known) as desk:
        row = next(row for row in desk.page.shown.operations.rows if row.key == "op1.2")
        assert "Look twice." in "".join(text for text, _ in row.line)


async def test_an_own_operation_that_no_lesson_waits_for_is_open(tmp_path: Path) -> None:
    def own(session: FakeSession) -> None:
        session.state.own, session.state.deferred = {"op1.h1"}, {"op1.h1", "op1.2"}

    mine = replace(an_add(1), id="op1.h1")
    async with a_desk(tmp_path, an_add(2), mine, change=own) as desk:
        assert desk.page.shown.operations.keys == ("op1.h1", "op1.2")  # what was put off comes last
        assert desk.page.shown.operations.key == "op1.h1"
        assert "yours, open" in desk.screen and "decided later" not in desk.screen


async def test_a_new_lesson_is_where_the_cursor_goes_unless_somebody_types(tmp_path: Path) -> None:
    async with a_desk(tmp_path, an_add(1), an_add(2)) as desk:
        state = desk.session.state

        async def another(number: int) -> None:
            state.deferred = set(state.operations)
            op = an_add(number)
            state.operations[op.id] = op
            state.step += 1
            desk.page.queue.made_of = ()
            desk.app.draw_now()

        await desk.press("j")
        await another(5)
        assert (
            desk.page.shown.operations.key == "op1.5"
            and desk.page.shown.operations.keys[0] == "op1.5"
        )
        await desk.press("j", "e")
        before = desk.page.shown.operations.key
        await another(6)
        assert desk.page.shown.operations.key == before


# -- what the screen says -------------------------------------------------------------------------


async def test_the_border_says_that_a_change_goes_on_below(tmp_path: Path) -> None:
    long = an_add(1, "When a carry comes up, write it down. " * 20)
    async with a_desk(tmp_path, long, an_add(2, "Short."), size=(80, 24)) as desk:
        assert "more below (tab, j)" in desk.screen
        await desk.press("tab", "G")
        assert "more below (tab, j)" not in desk.screen


async def test_the_keys_of_the_editor_stand_at_the_bottom_while_it_is_open(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        assert "approve" in picture(desk.app)[-1]
        await desk.press("e")
        assert "enter hands it in" in picture(desk.app)[-1]
        assert "approve" not in picture(desk.app)[-1]
        await desk.press("escape")
        assert "approve" in picture(desk.app)[-1]


async def test_eighty_columns_offer_what_decides_many_and_the_commit(tmp_path: Path) -> None:
    async with a_desk(tmp_path, size=(80, 24)) as desk:
        bottom = picture(desk.app)[-1]
        for key in ("a approve", "e edit", "r reject", "u undo", "c commit", "A all safe"):
            assert key in bottom, bottom


async def test_escape_leaves_for_no_page_that_nobody_came_from(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        await desk.press("1", "2", "escape", "escape")
        assert desk.app.page_name == "review" and "q leaves" in desk.told


async def test_titles_in_brackets_stay_as_they_are_after_a_jump(tmp_path: Path) -> None:
    async with a_desk(tmp_path, size=(80, 24)) as desk:
        assert "[Evidence] Similar" in desk.screen
        await desk.press("ctrl+w")
        assert "[Evidence] Similar" in desk.screen and "(d) [Evidence]" in desk.screen
        assert desk.app.query_one(Prompt).is_asking
        await desk.press("escape")
        assert "[Evidence] Similar" in desk.screen and "(d)" not in desk.screen


async def test_without_a_process_the_advice_is_one_that_works(tmp_path: Path) -> None:
    def gone(session: FakeSession) -> None:
        session.living = session.controls = False
        session.controller = ""

    async with a_desk(tmp_path, change=gone) as desk:
        await desk.press("a")
        assert "T takes over" not in desk.screen and "approved op1.1" in desk.told


async def test_who_takes_over_goes_on_with_the_wording_that_the_other_screen_began(
    tmp_path: Path,
) -> None:
    def observe(session: FakeSession) -> None:
        session.controls, session.controller = False, "ann"

    async with a_desk(tmp_path, change=observe) as desk:
        await desk.session.push(ControllerChanged(False, "ann"))
        other = Drafts(desk.session.run)
        other.edits["op1.1"] = "Carry one, says ann."
        other.save()
        desk.session.controls, desk.session.controller = True, ""
        await desk.session.push(ControllerChanged(True, ""))
        await desk.rest()
        assert "Carry one, says ann." in desk.screen
        await desk.press("e", "x", "escape", "q")
        assert Drafts(desk.session.run).edits == {"op1.1": "Carry one, says ann.x"}
