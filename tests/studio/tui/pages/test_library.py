"""Every key of the library page: what it asks of the run, or what it shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from engines.core import events as ev
from engines.core.errors import ConflictError
from engines.core.types import (
    NO_USAGE,
    Decision,
    Verdict,
)
from engines.record.journal import Journal
from engines.record.run_dir import RunDir, Workspace
from studio.session.session import EventReceived
from studio.tui.app import StudioApp
from studio.tui.pages.library.page import LibraryPage, read_citations
from studio.tui.widgets.edit_box import EditBox
from tests.studio.tui.stage import FakeSession, app_on, finished_workspace, held_workspace, picture
from tests.support.builders import a_run, a_step


async def quiet(pilot: Pilot[int], page: LibraryPage) -> None:
    """Until nothing is read any more."""
    for _ in range(4):
        await pilot.pause()
        mine = [w for w in pilot.app.workers if w.node is page and w.group != "asks"]
        if mine:  # of none, Textual would wait for all
            await pilot.app.workers.wait_for_complete(mine)


async def pressed(pilot: Pilot[int], *keys: str) -> LibraryPage:
    assert isinstance(pilot.app, StudioApp)
    page = pilot.app.navigation.page("library")
    assert isinstance(page, LibraryPage)
    for key in keys:
        await pilot.press(key)
        await quiet(pilot, page)
    return page


async def answer(pilot: Pilot[int], text: str) -> None:
    """Type an answer where one is asked for, in place of what stands there."""
    assert isinstance(pilot.app, StudioApp)
    asked = pilot.app.focused
    if isinstance(asked, EditBox):
        asked.load_text(text)
    else:
        assert isinstance(asked, Input)
        asked.value = text
    await pilot.press("enter")
    await pilot.pause()
    await pilot.app.wait_for_requests()
    await pilot.pause()


def page_of(app: StudioApp) -> LibraryPage:
    page = app.navigation.page("library")
    assert isinstance(page, LibraryPage)
    return page


def a_session(workspace: Workspace) -> FakeSession:
    return FakeSession(workspace.run("rehearsal"))


async def test_e_proposes_another_wording(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    session = a_session(workspace)
    app = app_on(session, workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        await pressed(pilot, "3", "j", "e")
        await answer(pilot, "  Multiply   before adding. ")
        assert "to be decided in 2 Review" in "\n".join(picture(app))
    ((name, operation),) = session.asked
    assert (name, operation.kind, operation.target) == ("propose", "modify", "E2")
    assert operation.text == "Multiply before adding."
    assert operation.proposer == app.person


async def test_a_wording_that_was_refused_is_still_there(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    session = a_session(workspace)
    session.refusal = ConflictError("proposal", "ann decides.", "T takes over.")
    app = app_on(session, workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        await pressed(pilot, "3", "e")
        await answer(pilot, "Carry always.")
        assert "ann decides" in "\n".join(picture(app))
        await pressed(pilot, "e")
        assert page_of(app).box.text == "Carry always."


@pytest.mark.parametrize("size", [(120, 36), (80, 24)])
async def test_a_long_wording_is_edited_whole_and_kept_by_escape(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    session = a_session(finished_workspace(tmp_path))
    app = app_on(session, Workspace(tmp_path / "practice"))
    async with app.run_test(size=size) as pilot:
        page = await pressed(pilot, "3", "e")
        page.box.load_text("begin " + "mmmm " * 30 + "end.")
        await pilot.pause()
        drawn = "\n".join(picture(app))
        assert "begin" in drawn and drawn.count("mmmm") == 30 and "end." in drawn
        assert "enter hands it in" in picture(app)[-1] and "delete" not in picture(app)[-1]
        await pressed(pilot, "x", "escape")
        assert session.asked == [] and not page.box.display
        assert "enter hands it in" not in picture(app)[-1]
        await pressed(pilot, "e")
        assert page.box.text.startswith("xbegin")


async def test_an_unchanged_wording_proposes_nothing(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    session = a_session(workspace)
    app = app_on(session, workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        await pressed(pilot, "3", "e", "enter")
        assert "E1 stays as it is" in "\n".join(picture(app))
        await pressed(pilot, "e", "escape")
    assert session.asked == []


async def test_d_proposes_a_deletion_once_it_is_confirmed(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    session = a_session(workspace)
    app = app_on(session, workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        await pressed(pilot, "3", "d")
        await pilot.press("escape")
        await pilot.pause()
        assert session.asked == []
        await pressed(pilot, "d", "d")
        await app.wait_for_requests()
    ((_, operation),) = session.asked
    assert (operation.kind, operation.target, operation.text) == ("delete", "E1", "")


async def test_i_proposes_an_addition_and_nothing_without_a_text(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    session = a_session(workspace)
    app = app_on(session, workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await pressed(pilot, "3", "i")
        await answer(pilot, "   ")
        assert session.asked == []
        await pressed(pilot, "i")
        await answer(pilot, "Check units.")
    ((_, operation),) = session.asked
    assert (operation.kind, operation.target, operation.text) == ("add", None, "Check units.")


async def test_m_rewords_the_other_and_deletes_this_one(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    session = a_session(workspace)
    app = app_on(session, workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        await pressed(pilot, "3", "M")
        await answer(pilot, "E4")
        await answer(pilot, "Carry and borrow by column.")
    made = [operation for _, operation in session.asked]
    assert [(o.kind, o.target, o.text) for o in made] == [
        ("modify", "E4", "Carry and borrow by column."),
        ("delete", "E1", ""),
    ]
    assert {o.rationale for o in made} == {"merged: E1 into E4"}


async def test_two_marked_ones_are_merged_and_p_pins(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    session = a_session(workspace)
    app = app_on(session, workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        page = await pressed(pilot, "3", "space", "M")
        assert "M merges two" in picture(app)[-2] and page.wording is None
        await pressed(pilot, "j", "space", "M")
        await answer(pilot, "Carry and multiply by column.")
        await pressed(pilot, "p")
        await app.wait_for_requests()
        assert not page.list_pane.chosen
        assert "E2 is pinned with the next commit" in picture(app)[-2]
        await pressed(pilot, "p")
        await app.wait_for_requests()
        assert "is withdrawn: E2 is as it was" in picture(app)[-2]
        assert not any(op.kind == "pin" for op in session.state.operations.values())
    made = [operation for name, operation in session.asked if name == "propose"]
    assert [(o.kind, o.target) for o in made] == [
        ("modify", "E1"),
        ("delete", "E2"),
        ("pin", "E2"),
    ]
    assert session.asked[-1][0] == "undo"


@pytest.mark.parametrize(("into", "told"), [("E99", "no such experience"), ("E1", "into itself")])
async def test_a_merge_needs_another_experience(tmp_path: Path, into: str, told: str) -> None:
    workspace = finished_workspace(tmp_path)
    session = a_session(workspace)
    app = app_on(session, workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        await pressed(pilot, "3", "M")
        await answer(pilot, into)
        assert told in "\n".join(picture(app))
    assert session.asked == []


async def test_enter_shows_uses_and_opens_one_in_inspect(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    app = app_on(a_session(workspace), workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        page = await pressed(pilot, "3", "enter")
        assert page.shows == "uses"
        assert app.focused is page.uses
        assert page.uses.keys[0] == "s1p0r0"
        await pressed(pilot, "escape")
        assert (page.shows, app.focused) == ("about", page.list_pane)
        await pressed(pilot, "enter", "enter")
        assert app.page_name == "inspect"


async def test_capital_h_shows_the_history_and_d_the_last_change(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    app = app_on(a_session(workspace), workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        page = await pressed(pilot, "3", "H")
        assert page.shows == "history"
        assert "op1.1" in page.detail_pane.text()
        await pressed(pilot, "j")
        assert page.shows == "about"
        await pressed(pilot, "D")
        assert app.page_name == "diff"


async def test_s_sorts_and_the_cursor_stays_on_its_experience(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    app = app_on(a_session(workspace), workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        page = await pressed(pilot, "3", "j", "S", "S", "S")
        assert "+used -misled  sort: length" in "\n".join(picture(app))
        assert (page.list_pane.keys[0], page.list_pane.key) == ("E4", "E2")
        await pressed(pilot, "S")
        assert page.sort == "id"


async def test_x_writes_the_version_into_a_file_and_tells_its_path(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    app = app_on(a_session(workspace), workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        await pressed(pilot, "3", "X")
    written = workspace.path / "exports" / "rehearsal-v0002.yaml"
    own = workspace.library("rehearsal").path / "v0002.yaml"
    assert written.read_bytes() == own.read_bytes()


async def test_the_filter_and_go_to_find_an_experience(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    app = app_on(a_session(workspace), workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        page = await pressed(pilot, "3", "slash")
        await answer(pilot, "borrow")
        assert page.list_pane.keys == ("E4",)
        await pressed(pilot, "g")
        await answer(pilot, "E2")
        assert (page.list_pane.key, page.filter_text) == ("E2", "")
        await pressed(pilot, "slash")
        await answer(pilot, "zebra")
        assert "nothing here holds" in "\n".join(picture(app))


async def test_y_copies_the_whole_text_of_the_one_under_the_cursor(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    app = app_on(a_session(workspace), workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        page = await pressed(pilot, "3")
        assert page.text_to_copy(False).startswith(
            "E1  Carry: when a column adds up to ten or more, carry"
        )
        assert len(page.text_to_copy(True).splitlines()) == 4


async def test_a_decision_marks_what_the_commit_would_change(tmp_path: Path) -> None:
    workspace = held_workspace(tmp_path)
    session = FakeSession(workspace.run("mine"))
    app = app_on(session, workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        page = await pressed(pilot, "3")
        assert "2 to decide in Review" in "\n".join(picture(app))
        first = session.state.undecided_operations[0]
        await session.push(EventReceived(ev.OperationDecided(1, Decision(first.id, "approve"))))
        app.draw_now()
        await quiet(pilot, page)
        assert [(one.id, one.mark) for one in page.items] == [("E1", "+")]
        assert "v0 -> v1 drafted" in "\n".join(picture(app))


async def test_without_a_run_libraries_are_read_and_keys_say_how_to_edit(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    app = app_on(None, workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        page = await pressed(pilot, "3")
        assert page.list_pane.keys == ("rehearsal",)
        await pressed(pilot, "enter")
        assert page.list_pane.keys == ("E1", "E2", "E3", "E4")
        for key in "edMi":
            await pressed(pilot, key)
            assert "studio library edit rehearsal E1" in picture(app)[-2]
        await pressed(pilot, "enter")
        assert "does not know who cites it" in picture(app)[-2]
        await pressed(pilot, "escape")
        assert page.list_pane.keys == ("rehearsal",)


async def test_an_empty_workspace_and_a_damaged_library_say_so(tmp_path: Path) -> None:
    app = app_on(None, Workspace(tmp_path / "empty"))
    async with app.run_test(size=(80, 24)) as pilot:
        await pressed(pilot, "3")
        assert "no library in this workspace yet" in "\n".join(picture(app))
    workspace = finished_workspace(tmp_path)
    session = a_session(workspace)
    journal = workspace.library("rehearsal").journal_path
    journal.write_bytes(journal.read_bytes().replace(b"Carry", b"Marry", 1))
    app = app_on(session, workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await pressed(pilot, "3", "e")
        shown = "\n".join(picture(app))
        assert "doctor" in shown
        assert "not read yet" in shown


def test_a_reply_that_cites_is_counted_once_with_its_reward(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs" / "exp")
    run.records.mkdir(parents=True)
    journal = Journal(run.journal)
    journal.append_now(a_run())
    journal.append_now(a_step(epoch=2))
    for index, (cited, reward) in enumerate([(("E1", "E2"), 1.0), (("E1",), None)]):
        journal.append_now(
            ev.RolloutFinished(
                step=1,
                position=0,
                index=index,
                seed=1,
                status="ok",
                answer=None,
                error=None,
                usage=NO_USAGE,
                elapsed_s=0.1,
                tail="",
                cited=cited,
            )
        )
        journal.append_now(ev.RolloutJudged(1, 0, index, Verdict(reward)))
    journal.close()
    citations = read_citations(run)
    told = [(use.rollout, use.epoch, use.sign, use.cited) for use in citations.values()]
    assert told == [("s1p0r0", 2, "+", ("E1", "E2")), ("s1p0r1", 2, "?", ("E1",))]
