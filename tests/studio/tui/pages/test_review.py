"""Review, driven by keys: what is asked of the run, and what is never asked of it."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.pilot import Pilot

from engines.core import events as ev
from engines.core.errors import ConflictError
from engines.core.types import Decision, DecisionPreview, Flag, Operation, UnparsedReply
from engines.training_free.consolidation import Resubmission
from studio.session.session import Disconnected, EventReceived
from studio.tui.app import StudioApp
from studio.tui.pages.review import queue
from studio.tui.pages.review.page import ReviewPage
from studio.tui.pages.review.view import rollout_of
from studio.tui.widgets.prompt import Confirm, Prompt
from tests.studio.tui.reading import wait_for_loads
from tests.studio.tui.stage import FakeSession, app_on, finished_workspace, held_workspace, picture
from tests.support.builders import an_effect

pytestmark = pytest.mark.filterwarnings("error")

HOSTILE = "[red]a[/red] \x1b[2J \u202eevil 👩\u200d👩\u200d👧 漢字かな 🇩🇪 wide"


def an_add(number: int, text: str = "", *flags: Flag, **more: Any) -> Operation:
    text = text or f"When case {number} comes up, use way {number} of doing it."
    return Operation(f"op1.{number}", "add", text=text, rationale="it won", flags=flags, **more)


def a_modify(number: int, target: str, text: str) -> Operation:
    return Operation(f"op1.{number}", "modify", target, text, "better so")


@dataclass
class Desk:
    app: StudioApp
    pilot: Pilot[int]
    session: FakeSession
    page: ReviewPage

    async def press(self, *keys: str) -> None:
        """Each key once the screen shows what the one before it led to, as a person does."""
        for key in keys:
            await self.pilot.press(key)
            await self.rest()

    async def rest(self) -> None:
        await self.pilot.pause()
        await self.app.wait_for_requests()
        await wait_for_loads(self.app)
        self.app.draw_frame()
        await self.pilot.pause()

    async def burst(self, *keys: str) -> None:
        """All in one write of the terminal: nothing is drawn in between."""
        for key in keys:
            self.app.post_message(events.Key(key, key if len(key) == 1 else None))
        await self.pilot.pause()
        await self.rest()

    async def write(self, text: str) -> None:
        await self.press(*("space" if letter == " " else letter for letter in text))

    @property
    def decided(self) -> list[Decision]:
        return [asked for name, asked in self.session.asked if name == "decide"]

    @property
    def made(self) -> list[tuple[str, str]]:
        return [(decision.operation_id, decision.action) for decision in self.decided]

    @property
    def told(self) -> str:
        return picture(self.app)[-2].strip()

    @property
    def screen(self) -> str:
        return "\n".join(picture(self.app))


@asynccontextmanager
async def a_desk(
    folder: Path,
    *operations: Operation,
    repairs: tuple[UnparsedReply, ...] = (),
    size: tuple[int, int] = (120, 36),
    change: Callable[[FakeSession], None] = lambda _: None,
) -> AsyncIterator[Desk]:
    """The review page on a held run; with operations, those instead of its own."""
    workspace = held_workspace(folder)
    session = FakeSession(workspace.run("mine"))
    if operations:
        session.state.operations = {op.id: op for op in operations}
    session.state.repairs = {repair.id: repair for repair in repairs}
    change(session)
    app = app_on(session, workspace)
    app.person = "sam"
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        app.open_page("review")
        page = app.navigation.page("review")
        assert isinstance(page, ReviewPage)
        desk = Desk(app, pilot, session, page)
        await desk.rest()
        await desk.rest()
        yield desk


# -- approve and reject ------------------------------------------------------------------------


async def test_a_approves_what_is_shown_and_shows_the_next(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        await desk.press("a")
        assert desk.made == [("op1.1", "approve")]
        assert desk.decided[0].reviewer == "sam" and desk.decided[0].took_s == 0.0
        assert desk.page.shown.operations.key == "op1.2"
        assert "approved op1.1" in desk.told


async def test_r_rejects_without_a_reason(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        await desk.press("r")
        assert desk.made == [("op1.1", "reject")] and desk.decided[0].reason == ""


async def test_two_letters_in_one_write_decide_only_what_was_painted(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        await desk.burst("a", "a")
        assert desk.made == [("op1.1", "approve")]


async def test_a_key_right_after_a_move_decides_nothing_that_was_not_drawn(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        await desk.burst("j", "r")
        assert desk.made == []
        assert "press again" in desk.told
        await desk.press("r")
        assert desk.made == [("op1.2", "reject")]


async def test_capital_r_asks_why_first(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        await desk.press("R")
        assert desk.made == []
        await desk.write("too vague")
        await desk.press("enter")
        assert desk.made == [("op1.1", "reject")] and desk.decided[0].reason == "too vague"


async def test_a_rejection_without_the_reason_that_was_asked_for_is_none(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        await desk.press("R", "escape")
        assert desk.made == []


async def test_t_puts_off(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        await desk.press("t")
        assert desk.made == [("op1.1", "defer")]


async def test_n_and_capital_n_go_to_what_is_undecided(tmp_path: Path) -> None:
    async with a_desk(tmp_path, an_add(1), an_add(2), an_add(3)) as desk:
        await desk.press("j", "a")  # op1.2, and on to op1.3
        await desk.press("n")
        assert desk.page.shown.operations.key == "op1.1"
        await desk.press("n")
        assert desk.page.shown.operations.key == "op1.3"
        await desk.press("N")
        assert desk.page.shown.operations.key == "op1.1"


async def test_an_approval_that_the_gate_refuses_stays_under_the_cursor(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:

        async def refuse(decision: Decision) -> Decision:
            refused = replace(decision, action="reject", reviewer="gate", reason="E1 says so")
            await desk.session._tell(ev.OperationDecided(1, refused))
            return refused

        desk.session.decide = refuse  # type: ignore[method-assign]
        await desk.press("a")
        assert desk.page.shown.operations.key == "op1.1"
        assert "E1 says so" in desk.told


async def test_what_the_run_refuses_is_told_and_can_be_decided_again(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        desk.session.refusal = ConflictError("run mine", "its disk is full.", "Make room.")
        await desk.press("a")
        assert desk.made == [] and "disk is full" in desk.told
        desk.session.refusal = None
        await desk.press("a")
        assert desk.made == [("op1.1", "approve")]


# -- edits --------------------------------------------------------------------------------------


async def test_e_edits_and_enter_approves_the_new_wording(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        await desk.press("e")
        await desk.write(" q2!")
        assert desk.made == []
        await desk.press("enter")
        assert desk.made == [("op1.1", "edit")]
        assert (desk.decided[0].text or "").endswith("next column. q2!")
        assert desk.session.names() == ["weigh", "decide"]
        assert desk.page.shown.operations.key == "op1.2" and not desk.page.shown.box.display


async def test_enter_on_an_unchanged_wording_approves_it(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        await desk.press("e", "enter")
        assert desk.made == [("op1.1", "approve")]


async def test_escape_keeps_the_wording_and_e_goes_on_with_it(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        await desk.press("e", "x", "y", "escape")
        assert desk.made == []
        assert desk.app.drafts.edits["op1.1"].endswith("column.xy")
        assert "yours " in desk.screen
        await desk.press("e", "enter")
        assert (desk.decided[0].text or "").endswith("column.xy")
        assert desk.app.drafts.edits == {}


@pytest.mark.parametrize("key", ["enter", "y"])
async def test_a_new_flag_is_shown_and_a_second_key_approves_anyway(
    tmp_path: Path, key: str
) -> None:
    async with a_desk(tmp_path) as desk:
        desk.session.objected = DecisionPreview(flags=(Flag("duplicate", 0.91, "of E3"),))
        await desk.press("e", "x", "enter")
        assert desk.made == []
        assert "duplicate (similarity 0.91): of E3" in desk.screen
        await desk.press(key)
        assert desk.made == [("op1.1", "edit")]


async def test_a_question_about_a_wording_takes_no_text(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        desk.session.objected = DecisionPreview(flags=(Flag("leak"),))
        await desk.press("e", "x", "enter")
        before, asked = desk.page.shown.box.text, "y approves it, e goes back to the text"
        assert asked in desk.screen and "y approves it anyway" in desk.screen
        await desk.press("z", "backspace", "space", "ctrl+u", "ctrl+o")
        desk.app.post_message(events.Paste("pasted"))
        await desk.rest()
        assert desk.page.shown.box.text == before and "nothing was typed" in desk.told
        assert desk.made == [] and asked in desk.screen
        await desk.press("e")  # back to the text: letters are letters, and the frame says so
        assert asked not in desk.screen and "new FLAG" not in desk.screen
        await desk.press("z", "y", "enter")
        assert desk.made == [] and desk.session.names() == ["weigh", "weigh"]
        assert desk.session.asked[-1][1].text.endswith("xzy")
        await desk.press("y")
        assert desk.made == [("op1.1", "edit")]


async def test_what_is_typed_while_a_wording_is_checked_is_no_part_of_it(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        desk.session.objected = DecisionPreview(flags=(Flag("leak"),))
        await desk.press("e", "x")
        await desk.burst("enter", "y", "z")
        assert desk.made == [] and desk.page.shown.box.text.endswith("column.x")


async def test_an_objection_keeps_the_box_open(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        desk.session.objected = DecisionPreview("E1 already says exactly this")
        await desk.press("e", "x", "enter")
        assert desk.made == [] and desk.page.shown.box.display
        assert "already says exactly this" in desk.screen and "does not fit, esc" in desk.screen
        await desk.press("y")  # about another text nothing was said
        assert "does not fit" not in desk.screen and desk.page.shown.box.text.endswith("xy")


async def test_the_cursor_stays_while_someone_types(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        await desk.press("e", "x")
        elsewhere = Decision("op1.1", "approve", reviewer="ann")
        await desk.session.push(EventReceived(ev.OperationDecided(1, elsewhere)))
        await desk.press("y")
        assert desk.page.shown.operations.key == "op1.1" and desk.app.focused is desk.page.shown.box
        assert desk.page.shown.box.text.endswith("xy")


async def test_ten_kilobytes_can_be_pasted(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        await desk.press("e")
        desk.app.post_message(events.Paste("word \x1b[2J\n" * 1_000))
        await desk.press("enter")
        text = desk.decided[0].text or ""
        assert len(text) > 10_000 and "\x1b" not in text and "\n" not in text


async def test_a_deletion_can_be_turned_into_another_wording(tmp_path: Path) -> None:
    with_one = Decision("op1.1", "approve", reviewer="sam", assigned="E1")

    def known(session: FakeSession) -> None:
        session.state.decisions["op1.1"] = with_one

    delete = Operation("op1.2", "delete", "E1", rationale="it misled")
    async with a_desk(tmp_path, an_add(1, "Look twice."), delete, change=known) as desk:
        await desk.press("n", "e")
        assert desk.page.shown.box.text == "Look twice."
        await desk.press("x", "enter")
        made = desk.decided[0]
        assert (made.action, made.kind, made.target) == ("edit", "modify", "E1")
        assert made.text == "Look twice.x"


async def test_capital_e_takes_the_wording_from_the_editor(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        desk.page.in_editor = lambda text: f"{text}\n with more\n"
        await desk.press("E")
        assert desk.made == [("op1.1", "edit")]
        assert (desk.decided[0].text or "").endswith("column. with more")


async def test_an_editor_that_saves_nothing_decides_nothing(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        desk.page.in_editor = lambda text: None
        await desk.press("E")
        assert desk.made == [] and "nothing was saved" in desk.told


async def test_what_an_editor_brings_and_does_not_fit_is_shown_in_the_box(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        desk.session.objected = DecisionPreview("the library is full (3)")
        desk.page.in_editor = lambda text: "Another wording."
        await desk.press("E")
        assert desk.made == [] and desk.page.shown.box.text == "Another wording."


async def test_capital_m_merges_into_the_similar_one(tmp_path: Path) -> None:
    first = an_add(1, "When counting lattice paths, use binomial coefficients.")
    second = an_add(2, "When counting lattice paths with holes, use binomial coefficients.")

    def known(session: FakeSession) -> None:
        session.state.decisions["op1.1"] = Decision("op1.1", "approve", assigned="E1")

    async with a_desk(tmp_path, first, second, change=known) as desk:
        await desk.press("n")
        assert "E1" in desk.page.shown.similar.keys
        await desk.press("M")
        assert desk.page.shown.box.text == f"{first.text} {second.text}"
        await desk.press("enter")
        made = desk.decided[0]
        assert (made.operation_id, made.action) == ("op1.2", "edit")
        assert (made.kind, made.target, made.text) == (
            "modify",
            "E1",
            f"{first.text} {second.text}",
        )


async def test_what_was_just_approved_is_among_the_similar_ones(tmp_path: Path) -> None:
    first = an_add(1, "When counting lattice paths, use binomial coefficients.")
    second = an_add(2, "When counting lattice paths with holes, use binomial coefficients.")
    async with a_desk(tmp_path, first, second) as desk:
        await desk.press("j")
        assert not any(desk.page.shown.similar.keys)
        await desk.press("k")

        async def assign(decision: Decision) -> Decision:
            made = replace(decision, assigned="E1")
            await desk.session._tell(ev.OperationDecided(1, made))
            return made

        desk.session.decide = assign  # type: ignore[method-assign]
        await desk.press("a")
        assert desk.page.shown.operations.key == "op1.2" and desk.page.shown.similar.keys == ("E1",)


async def test_two_marked_proposals_become_one_in_one_record(tmp_path: Path) -> None:
    first, second = an_add(1, "Carry one."), an_add(2, "Write the carry down.")
    delete = Operation("op1.3", "delete", "E1")
    async with a_desk(tmp_path, first, second, delete) as desk:
        await desk.press("space", "M")
        assert "mark another one" in desk.told and not desk.page.shown.box.display
        await desk.press("j", "j", "space")
        assert "no wording to merge" in desk.told
        await desk.press("k", "space")
        assert "2 marked: M merges them" in desk.told
        assert "* ◦ + new" in desk.screen
        await desk.press("M")
        assert desk.page.shown.box.text == "Carry one. Write the carry down."
        assert "op1.1 and op1.2, merged" in desk.screen
        await desk.press("x", "enter")
        assert set(desk.made) == {("op1.1", "edit"), ("op1.2", "reject")}
        assert not desk.page.shown.operations.chosen
        assert "merged op1." in desk.told
        await desk.press("u")
        assert not desk.session.state.decisions


async def test_some_parts_of_a_modify_are_taken_and_p_pins_its_target(tmp_path: Path) -> None:
    def known(session: FakeSession) -> None:
        session.state.decisions["op1.1"] = Decision("op1.1", "approve", assigned="E1")

    change = a_modify(2, "E1", "Look three times at all of it.")
    keep = Operation("op1.3", "keep", "E1")
    operations = (an_add(1, "Look two times at it."), change, keep)
    async with a_desk(tmp_path, *operations, change=known) as desk:
        assert "choose parts (tab, space)" in desk.screen
        await desk.press("tab", "space")
        assert "Take 2 of 2 parts of op1.2?" in desk.screen
        assert "1  [-two-]{+three+}" in desk.screen and "2  {+all of+}" in desk.screen
        await desk.press("j", "space", "enter")
        assert desk.session.names() == ["weigh", "decide"]
        made = desk.decided[0]
        assert (made.action, made.text) == ("edit", "Look three times at it.")
        assert desk.page.shown.operations.key == "op1.3"  # it says what it keeps
        assert "keeps E1: it stays as it is" in desk.screen
        assert "= Look three times at it." in desk.screen
        await desk.press("p")
        name, proposed = desk.session.asked[-2]
        assert (name, proposed.kind, proposed.target) == ("propose", "pin", "E1")
        assert desk.made[-1] == ("op1.h1", "approve") and "E1 is pinned with" in desk.told
        await desk.press("u")
        assert "op1.h1" not in desk.session.state.operations
        assert "op1.h1 is withdrawn: E1 is as it was" in desk.told
        await desk.press("ctrl+r")
        assert "op1.h1 is not open any more" in desk.told


async def test_capital_v_has_operations_tried_and_says_how_without_a_process(
    tmp_path: Path,
) -> None:
    async with a_desk(tmp_path, an_add(1), an_add(2)) as desk:
        await desk.press("V")
        assert desk.session.asked == [("try_operations", ["op1.1"])]
        assert "trying op1.1: at most 40 rollouts, likely to show 0.20 or more" in desk.told
        found = ev.EffectMeasured(1, ("op1.1",), an_effect(0.2, 0.1, 0.3), 0.05, "base")
        await desk.session.push(EventReceived(found))
        await desk.press("V")
        assert "op1.1: tried already, as the library is" in desk.told
        await desk.press("v", "j", "V")
        assert desk.session.asked[-1] == ("try_operations", ["op1.1", "op1.2"])
        desk.session.living = False
        await desk.press("escape", "V")
        assert f"in a shell: studio gate {desk.session.run.run} op1.2" in desk.told
        assert len(desk.session.asked) == 3


async def test_enter_on_an_empty_list_says_so_and_6_opens_the_group_under_the_cursor(
    tmp_path: Path,
) -> None:
    first, second = an_add(1), replace(an_add(2), evidence=("s1p1r0",))
    async with a_desk(tmp_path, first, second) as desk:
        await desk.press("j")
        assert desk.page.queue.group == "s1p1"
        desk.session.state.operations.clear()
        desk.page.queue.made_of = ()
        desk.page.draw()
        await desk.press("enter")
        assert "there is nothing to decide here" in desk.told


async def test_merging_into_nothing_is_refused_in_words(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        await desk.press("M")
        assert "M merges two that are marked" in desk.told and not desk.page.shown.box.display


# -- undo, redo, after the commit ------------------------------------------------------------------


async def test_u_takes_back_one_after_the_other_and_ctrl_r_decides_again(tmp_path: Path) -> None:
    async with a_desk(tmp_path, an_add(1), an_add(2), an_add(3)) as desk:
        await desk.press("a", "r", "u", "u")
        assert [asked for name, asked in desk.session.asked if name == "undo"] == ["op1.2", "op1.1"]
        assert desk.page.shown.operations.key == "op1.1" and not desk.session.state.decisions
        await desk.press("ctrl+r", "ctrl+r")
        assert desk.made[2:] == [("op1.1", "approve"), ("op1.2", "reject")]
        await desk.press("u")
        assert desk.session.asked[-1] == ("undo", "op1.2")


async def test_undoing_a_changed_mind_brings_the_first_decision_back(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        await desk.press("a", "k", "r", "u")
        assert desk.made == [("op1.1", "approve"), ("op1.1", "reject"), ("op1.1", "approve")]


async def test_u_takes_back_a_decision_of_an_earlier_screen(tmp_path: Path) -> None:
    def known(session: FakeSession) -> None:
        session.state.decisions["op1.2"] = Decision("op1.2", "approve", reviewer="sam")

    async with a_desk(tmp_path, change=known) as desk:
        await desk.press("u")
        assert desk.session.asked == [("undo", "op1.2")]


async def test_nothing_to_undo_is_said(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        await desk.press("u")
        assert "nothing was decided" in desk.told
        await desk.press("ctrl+r")
        assert "nothing was taken back" in desk.told


async def test_after_the_commit_u_proposes_the_inverse(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        await desk.press("a")
        state = desk.session.state
        decision = replace(state.decisions["op1.1"], assigned="E1")
        step = desk.page.queue.decider.sitting.steps[0][0]
        desk.page.queue.decider.sitting.steps = [(replace(step, decision=decision),)]
        state.operations.clear()
        state.decisions.clear()
        state.operations["op1.9"] = an_add(9, "Carry.")
        state.decisions["op1.9"] = Decision("op1.9", "approve", assigned="E1")
        await desk.session.push(EventReceived(ev.RunPaused()))
        await desk.rest()
        await desk.press("u")
        name, proposed = desk.session.asked[-1]
        assert name == "propose"
        assert (proposed.kind, proposed.target) == ("delete", "E1")
        assert "op1.h1 is proposed" in desk.told


# -- many at once ------------------------------------------------------------------------------


async def test_capital_a_lists_what_is_safe_and_enter_approves_it_as_one_step(
    tmp_path: Path,
) -> None:
    delete = Operation("op1.4", "delete", "E1")
    flagged = an_add(2, "", Flag("leak"))
    async with a_desk(tmp_path, an_add(1), flagged, an_add(3), delete) as desk:
        await desk.press("A")
        assert desk.made == [] and "Approve 2 safe operations?" in desk.screen
        await desk.press("enter")
        assert desk.made == [("op1.1", "approve"), ("op1.3", "approve")]
        await desk.press("u")
        undone = [asked for name, asked in desk.session.asked if name == "undo"]
        assert undone == ["op1.3", "op1.1"]


async def test_what_is_ticked_off_is_not_decided(tmp_path: Path) -> None:
    long = an_add(2, "Write the carry down " + "and then down again " * 20 + "to the end.")
    async with a_desk(tmp_path, an_add(1), long, an_add(3)) as desk:
        await desk.press("A", "j", "space")
        assert "Approve 2 of 3 safe operations?" in desk.screen and "[ ] +" in desk.screen
        assert "to the end." in desk.screen
        await desk.press("space", "k", "space", "j", "space", "j", "space", "enter")
        assert "nothing is ticked" in desk.screen and desk.made == []
        await desk.press("space")
        await desk.burst("enter", "enter", "escape")
        assert desk.made == [("op1.3", "approve")]
        await desk.press("v", "j", "r", "space", "enter")
        assert desk.made[1:] == [("op1.2", "reject")]


async def test_capital_a_tells_why_there_is_nothing_to_approve(tmp_path: Path) -> None:
    def none_yet(session: FakeSession) -> None:
        session.state.operations.clear()

    async with a_desk(tmp_path, change=none_yet) as desk:
        await desk.press("A")
        assert "nothing is safe" in desk.told
    async with a_desk(tmp_path / "b") as desk:
        await desk.press("a", "r", "A")
        assert "every operation here is decided" in desk.told


async def test_escape_approves_nothing(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        await desk.press("A", "escape")
        await desk.burst("A", "enter", "enter")  # nothing that was not painted
        assert desk.made == []


async def test_what_changed_while_the_list_was_shown_is_not_approved(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        await desk.press("A")
        moved = desk.session.state.operations["op1.1"]
        desk.session.state.operations["op1.1"] = replace(moved, flags=(Flag("base moved"),))
        await desk.press("enter")
        assert desk.made == [("op1.2", "approve")]


@pytest.mark.parametrize(("key", "action"), [("a", "approve"), ("r", "reject")])
async def test_a_range_is_decided_after_it_was_listed(
    tmp_path: Path, key: str, action: str
) -> None:
    async with a_desk(tmp_path, an_add(1), an_add(2), an_add(3)) as desk:
        await desk.press("v", "j", key)
        assert desk.made == []
        await desk.press("enter")
        assert desk.made == [("op1.1", action), ("op1.2", action)]
        assert not desk.page.shown.operations.chosen


async def test_escape_leaves_a_range(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        await desk.press("v", "j")
        assert desk.page.shown.operations.chosen == {"op1.1", "op1.2"}
        await desk.press("escape", "a")
        assert desk.made == [("op1.2", "approve")]


async def test_escape_clears_a_filter_that_hides_what_evidence_is_open_of(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        await desk.press("enter")
        assert desk.page.shown.opened_evidence
        await desk.press("slash", *"zzz", "enter")
        assert desk.page.filter_text == "zzz" and desk.page.queue.item is None
        await desk.press("escape")
        assert not desk.page.filter_text and desk.page.queue.item is not None


async def test_a_note_goes_with_the_decision(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        await desk.press("m")
        await desk.write("ask ann")
        await desk.press("enter")
        assert desk.app.drafts.notes == {"op1.1": "ask ann"} and "ask ann" in desk.screen
        await desk.press("a")
        assert desk.decided[0].reason == "ask ann" and desk.app.drafts.notes == {}


async def test_a_note_on_what_is_decided_decides_it_again_with_it(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        await desk.press("a", "k", "m", "h", "m", "enter")
        assert desk.made == [("op1.1", "approve"), ("op1.1", "approve")]
        assert desk.decided[1].reason == "hm"


# -- commit -----------------------------------------------------------------------------------


async def test_c_commits_from_every_page_and_asks_there_too(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        await desk.press("a", "5", "c")
        assert isinstance(desk.app.screen, Confirm) and "commit" not in desk.session.names()
        await desk.press("escape", "3", "c", "enter")
        assert "commit" in desk.session.names()


async def test_c_commits_at_once_what_is_all_decided(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        await desk.press("a", "a")
        assert "all decided: c commits" in desk.screen
        await desk.press("c")
        assert desk.session.asked[-1] == ("commit", None)
        assert "2 approved" in desk.told


async def test_c_shows_what_it_would_defer_first(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        await desk.press("a", "c")
        assert "commit" not in desk.session.names()
        assert "1 undecided" in desk.screen and "v0 becomes v1" in desk.screen
        await desk.press("escape")
        assert "commit" not in desk.session.names()
        await desk.press("c", "enter")
        assert desk.session.asked[-1] == ("commit", None)


# -- looking ------------------------------------------------------------------------------------


async def test_enter_opens_the_evidence_and_closes_it(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        assert "Step 1 (columns)" not in desk.screen
        await desk.press("enter")
        assert desk.page.shown.opened_evidence and "Step 1 (columns)" in desk.screen
        assert desk.app.focused is desk.page.shown.evidence
        await desk.press("escape")
        assert (
            not desk.page.shown.opened_evidence and desk.app.focused is desk.page.shown.operations
        )


async def test_o_opens_the_rollout_and_back_returns_to_the_operation(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        await desk.press("j")
        rollout = rollout_of(desk.page.shown.evidence.key)
        assert rollout in desk.session.state.operations["op1.2"].evidence
        await desk.press("o")
        assert desk.app.page_name == "inspect"
        await desk.press("escape")
        assert desk.app.page_name == "review" and desk.page.shown.operations.key == "op1.2"


async def test_no_operation_moves_a_border_and_each_tab_has_its_turn(tmp_path: Path) -> None:
    long = "When the digits of a column are added, carry what is above nine. " * 12
    async with a_desk(tmp_path, an_add(1), an_add(2, long)) as desk:

        def rows() -> list[int]:
            return [pane.outer_size.height for pane in desk.page.panes()]

        first = rows()
        await desk.press("j")
        assert rows() == first
        await desk.pilot.resize_terminal(169, 21)
        await desk.press("tab", "tab", "tab")
        assert desk.page.shown.similar is desk.app.focused  # alone where three share one place


async def test_panes_stand_the_same_however_long_an_operation_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "_LATE_S", 0.001)
    screens = []
    for number, late in enumerate((False, True)):
        async with a_desk(tmp_path / str(number)) as desk:
            if late:
                go_on, load = threading.Event(), desk.page.loader.load_findings
                monkeypatch.setattr(
                    desk.page.loader,
                    "load_findings",
                    lambda wanted, go_on=go_on, load=load: go_on.wait(60) and load(wanted),
                )
            await desk.pilot.press("j")
            if late:
                while "looking" not in desk.screen:
                    await desk.pilot.pause()
                go_on.set()
            await desk.rest()
            await desk.rest()
            screens.append(desk.screen)
    assert "looking" not in screens[0] and screens[0] == screens[1]


async def test_w_goes_through_words_lines_and_columns(tmp_path: Path) -> None:
    def known(session: FakeSession) -> None:
        session.state.decisions["op1.1"] = Decision("op1.1", "approve", assigned="E1")

    change = a_modify(2, "E1", "Look three times.")
    async with a_desk(tmp_path, an_add(1, "Look two times."), change, change=known) as desk:
        await desk.press("n")
        assert "Look [-two-]{+three+} times." in desk.screen
        await desk.press("w")
        assert "- Look two times." in desk.screen and "+ Look three times." in desk.screen
        await desk.press("w")
        assert any("two times." in row and "three times." in row for row in picture(desk.app))


async def test_capital_s_sorts_and_the_cursor_stays(tmp_path: Path) -> None:
    operations = (an_add(1), Operation("op1.2", "keep", "E1"), an_add(3, "", Flag("leak")))
    async with a_desk(tmp_path, *operations) as desk:
        assert desk.page.shown.operations.keys == ("op1.3", "op1.1", "op1.2")
        await desk.press("j", "S", "S")
        assert desk.page.shown.operations.keys == ("op1.1", "op1.2", "op1.3")
        assert desk.page.shown.operations.key == "op1.1"


async def test_the_filter_shows_what_holds_the_words(tmp_path: Path) -> None:
    async with a_desk(tmp_path, an_add(1, "Carry one."), an_add(2, "Multiply first.")) as desk:
        await desk.press("slash")
        await desk.write("multi")
        await desk.press("enter")
        assert desk.page.shown.operations.keys == ("op1.2",) and desk.app.drafts.filter == "multi"
        await desk.press("escape")
        assert len(desk.page.shown.operations.keys) == 2


# -- replies to mend -----------------------------------------------------------------------------

REPAIR = UnparsedReply("s1p3", 1, "extraction", ("no JSON was found",), "{broken")


async def test_d_lets_a_reply_go_for_a_reason(tmp_path: Path) -> None:
    async with a_desk(tmp_path, an_add(1), repairs=(REPAIR,)) as desk:
        await desk.press("j")
        assert "no JSON was found" in desk.screen and "{broken" in desk.screen
        await desk.press("a")
        assert desk.made == [] and "e mends it" in desk.told
        await desk.press("d", "n", "o", "enter")
        assert desk.session.asked == [("drop", ("s1p3", "no", "sam"))]


async def test_e_mends_a_reply_and_what_is_still_wrong_is_shown(tmp_path: Path) -> None:
    async with a_desk(tmp_path, an_add(1), repairs=(REPAIR,)) as desk:

        async def wrong(repair_id: str, text: str, reviewer: str) -> Resubmission:
            desk.session.asked.append(("mend", (repair_id, text, reviewer)))
            return Resubmission(problems=("a bracket is missing",))

        mend, desk.session.resubmit = desk.session.resubmit, wrong  # type: ignore[method-assign]
        await desk.press("j", "e", "x", "enter", "z", "ctrl+o")
        assert desk.session.asked == [("mend", ("s1p3", "{brokenx\nz", "sam"))]
        assert desk.page.shown.box.display and "a bracket is missing" in desk.screen
        desk.session.resubmit = mend  # type: ignore[method-assign]
        await desk.press("ctrl+o")
        assert len(desk.session.asked) == 2 and not desk.page.shown.box.display


async def test_d_lets_no_operation_go(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        await desk.press("d")
        assert desk.session.asked == [] and "r rejects" in desk.told


# -- states ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["a", "r", "R", "e", "E", "M", "u", "ctrl+r", "A", "t", "m", "c"])
async def test_who_looks_on_is_told_who_decides(tmp_path: Path, key: str) -> None:
    def observe(session: FakeSession) -> None:
        session.controls, session.controller = False, "ann"

    async with a_desk(tmp_path, change=observe) as desk:
        await desk.press(key)
        assert desk.session.asked == []
        assert "ann decides" in desk.told and "T takes over" in desk.told
        assert not desk.app.query_one(Prompt).is_asking


async def test_without_a_run_every_key_says_where_one_is(tmp_path: Path) -> None:
    app = app_on(None, held_workspace(tmp_path))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        app.open_page("review")
        await pilot.pause()
        assert "no run is open: 0 starts" in "\n".join(picture(app))
        for key in "arRuAcvn":
            await pilot.press(key)
            await pilot.pause()


async def test_a_finished_run_says_where_to_go(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    app = app_on(FakeSession(workspace.run("rehearsal"), living=False), workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        app.open_page("review")
        await pilot.pause()
        assert "finished; 3 shows what was learned" in "\n".join(picture(app))


async def test_a_moved_library_is_said_above_the_operation(tmp_path: Path) -> None:
    def moved(session: FakeSession) -> None:
        session.state.flagged_stale = 0

    async with a_desk(tmp_path, change=moved) as desk:
        assert "the library has moved to v0" in desk.screen


async def test_a_lost_line_is_said_until_it_is_back(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        await desk.session.push(Disconnected("the line to the run is cut", ended=False))
        await desk.rest()
        assert "trying again" in desk.screen


async def test_an_operation_that_goes_leaves_the_cursor_on_its_neighbour(tmp_path: Path) -> None:
    async with a_desk(tmp_path, an_add(1), an_add(2), an_add(3)) as desk:
        await desk.press("j")
        del desk.session.state.operations["op1.2"]
        await desk.session.push(EventReceived(ev.RunPaused()))
        await desk.rest()
        assert desk.page.shown.operations.key == "op1.3"
        await desk.press("a")
        assert desk.made == [("op1.3", "approve")]


async def test_a_library_that_moves_under_a_shown_operation_is_shown_anew_first(
    tmp_path: Path,
) -> None:
    async with a_desk(tmp_path) as desk:
        shown = desk.session.state.operations["op1.1"]
        desk.session.state.operations["op1.1"] = replace(shown, flags=(Flag("base moved"),))
        desk.session.state.events += 1
        await desk.burst("a")
        assert desk.made == []


@pytest.mark.parametrize("size", [(120, 36), (80, 24), (60, 16)])
async def test_hostile_text_is_drawn_inert_and_aligned(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    from rich.cells import cell_len

    hostile = an_add(1, HOSTILE, Flag("leak", 0.5, HOSTILE), proposer=HOSTILE)
    async with a_desk(tmp_path, hostile, an_add(2, HOSTILE), size=size) as desk:
        for keys in ((), ("w",), ("w",), ("enter",), ("escape", "e")):
            await desk.press(*keys)
            text = desk.screen
            assert "\x1b" not in text and "\u202e" not in text and "[red]" in text
            framed = [row for row in picture(desk.app)[2:-2] if row and row[-1] in "│┃┐┓┘┛"]
            assert framed and {cell_len(row) for row in framed} == {size[0]}


async def test_where_the_person_was_is_where_they_come_back(tmp_path: Path) -> None:
    async with a_desk(tmp_path) as desk:
        await desk.press("j", "e", "x", "escape")
        desk.app.drafts.save()
        run = desk.session.run
        workspace = desk.app.workspace
    app = app_on(FakeSession(run), workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        app.open_page("review")
        await pilot.pause()
        page = app.navigation.page("review")
        assert isinstance(page, ReviewPage)
        await wait_for_loads(app)
        assert page.shown.operations.key == "op1.2"
        assert app.drafts.edits["op1.2"].endswith("x")


# -- how fast a person is ----------------------------------------------------------------


async def test_forty_operations_with_six_edits_take_sixty_keys(tmp_path: Path) -> None:
    """B11: 34 approvals, 6 edits of two keys each and one commit are 47 keys."""
    operations = tuple(an_add(number) for number in range(1, 41))
    keys = 0
    async with a_desk(tmp_path, *operations) as desk:
        for number in range(40):
            if number % 7 == 3:
                await desk.press("e")
                await desk.press("x")  # typed text, not counted
                await desk.press("enter")
                keys += 2
            else:
                await desk.press("a")
                keys += 1
        await desk.press("c")
        keys += 1
        actions = [action for _, action in desk.made]
        assert (actions.count("approve"), actions.count("edit")) == (34, 6)
        assert len({name for name, _ in desk.made}) == 40
        assert desk.session.names()[-1] == "commit"
        assert keys <= 60
