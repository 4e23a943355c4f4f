"""Every key of the diff page, and what stays when a reference means nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from engines.core import events as ev
from engines.record.run_dir import Workspace
from studio.library.curation import commit_changes
from studio.session.session import EventReceived
from studio.tui.app import StudioApp
from studio.tui.pages.diff.page import DiffPage, compare
from tests.studio.tui.stage import FakeSession, app_on, finished_workspace, picture


async def quiet(pilot: Pilot[int], page: DiffPage) -> None:
    """Until nothing is read any more."""
    for _ in range(4):
        await pilot.pause()
        mine = [w for w in pilot.app.workers if w.node is page and w.group != "type"]
        if mine:  # of none, Textual would wait for all
            await pilot.app.workers.wait_for_complete(mine)


async def pressed(pilot: Pilot[int], *keys: str) -> DiffPage:
    assert isinstance(pilot.app, StudioApp)
    page = pilot.app.navigation.page("diff")
    assert isinstance(page, DiffPage)
    for key in keys:
        await pilot.press(key)
        await quiet(pilot, page)
    return page


async def typed(pilot: Pilot[int], text: str) -> None:
    """Type it into the line above the list, as it is."""
    assert isinstance(pilot.app.focused, Input)
    await pilot.press(*text)
    await pressed(pilot, "enter")


def edited(workspace: Workspace) -> None:
    """Change the library by hand: E1 is reworded, E2 goes, E5 comes."""
    commit_changes(
        workspace,
        "rehearsal",
        lambda _: [
            ("modify", "E1", "Carry one, always."),
            ("delete", "E2", ""),
            ("add", None, "Check units."),
        ],
        person="ann",
        reason="",
    )


def references(page: DiffPage) -> tuple[str, str]:
    assert page.compared is not None
    return page.compared.base, page.compared.target


async def test_it_opens_on_the_run_from_its_start_with_the_verdict(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    app = app_on(FakeSession(workspace.run("rehearsal")), workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        page = await pressed(pilot, "4")
        assert references(page) == ("rehearsal@epoch:0", "rehearsal@last")
        shown = "\n".join(picture(app))
        assert "4 added" in shown
        assert "(n=20)" in shown
        assert "helps" in shown


async def test_brackets_go_from_change_to_change(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    edited(workspace)
    app = app_on(FakeSession(workspace.run("rehearsal")), workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        app.open_page("diff", "rehearsal@2 rehearsal@3")
        page = await pressed(pilot, "home")
        assert page.list_pane.key == "E1"
        await pressed(pilot, "right_square_bracket")
        assert page.list_pane.key == "-E2"
        await pressed(pilot, "right_square_bracket")
        assert page.list_pane.key == "E5"
        await pressed(pilot, "right_square_bracket")
        assert "no further change" in picture(app)[-2]
        await pressed(pilot, "left_square_bracket")
        assert page.list_pane.key == "-E2"
        assert page.text_to_copy(False).startswith("- E2  Multiply")
        assert page.text_to_copy(True).startswith(
            "rehearsal@2 -> rehearsal@3  1 added, 1 reworded, 1 removed, 2 equal"
        )


async def test_w_turns_columns_into_words_where_there_is_room(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    app = app_on(FakeSession(workspace.run("rehearsal")), workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        page = await pressed(pilot, "4")
        modes = [page.mode]
        for _ in range(2):
            modes.append((await pressed(pilot, "w")).mode)
        assert modes == ["side by side", "words", "side by side"]
        await pilot.resize_terminal(80, 24)
        await quiet(pilot, page)
        assert page.mode == "words"
        assert (await pressed(pilot, "w")).mode == "words"


async def test_equals_hides_what_is_equal_and_says_how_many(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    edited(workspace)
    app = app_on(None, workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        app.open_page("diff", "rehearsal@2 rehearsal@3")
        page = await pressed(pilot, "equals_sign")
        assert [*page.list_pane.keys] == ["E1", "-E2", "E5"]
        assert "2 equal hidden (=)" in "\n".join(picture(app))
        await pressed(pilot, "equals_sign")
        assert len(page.list_pane.keys) == 5


async def test_b_and_capital_b_choose_from_a_list_of_what_there_is(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    app = app_on(FakeSession(workspace.run("rehearsal")), workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        page = await pressed(pilot, "4", "b")
        assert page.picker.side == "base"
        assert page.picker.list.key == "rehearsal@epoch:0"
        for name in ("rehearsal@best", "rehearsal@epoch:1", "rehearsal@step:3", "rehearsal@1"):
            assert name in page.picker.list.keys
        page.picker.list.go_to("rehearsal@epoch:1")
        await pressed(pilot, "enter")
        assert references(page) == ("rehearsal@epoch:1", "rehearsal@last")
        await pressed(pilot, "B", "escape")
        assert references(page) == ("rehearsal@epoch:1", "rehearsal@last")
        await pressed(pilot, "B")
        page.picker.list.go_to("rehearsal@1")
        await pressed(pilot, "enter")
        assert references(page) == ("rehearsal@epoch:1", "rehearsal@1")


async def test_versions_of_a_library_bring_what_was_measured_of_them(tmp_path: Path) -> None:
    """Known defect: it said that neither side was evaluated, of what a run had evaluated."""
    workspace = finished_workspace(tmp_path)
    found = compare("rehearsal@0", "rehearsal", workspace)
    pairs = found.facts.held_out
    assert [pair.data for pair in pairs] == ["arithmetic-heldout", "arithmetic-larger"]
    assert all(pair.before is not None and pair.before.n == 20 for pair in pairs)
    assert all(pair.comparison is not None and pair.comparison.verdict == "helps" for pair in pairs)


async def test_a_file_can_be_typed_and_a_wrong_reference_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a short name: each key is waited for
    workspace = finished_workspace(Path())
    app = app_on(FakeSession(workspace.run("rehearsal")), workspace)
    file = workspace.library("rehearsal").path / "v0001.yaml"
    async with app.run_test(size=(120, 36)) as pilot:
        page = await pressed(pilot, "4", "b")
        await typed(pilot, str(file))
        assert references(page) == (str(file), "rehearsal@last")
        await pressed(pilot, "b")
        await typed(pilot, "nothing@99")
        shown = "\n".join(picture(app))
        assert "no such library" in shown
        assert references(page) == (str(file), "rehearsal@last")
        assert "E4" in shown


async def test_what_is_typed_into_the_list_of_choices_is_no_key_of_the_screen(
    tmp_path: Path,
) -> None:
    workspace = finished_workspace(tmp_path)
    session = FakeSession(workspace.run("rehearsal"))
    app = app_on(session, workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        page = await pressed(pilot, "4", "b", *"xpq:5")
        assert page.picker.value == "xpq:5" and app.page_name == "diff" and page.picker.side
        assert session.asked == [] and len(app.screen_stack) == 1
        assert "enter chooses" in picture(app)[-1]
        await pressed(pilot, "escape")
        assert not page.picker.side and "enter chooses" not in picture(app)[-1]


async def test_letters_narrow_the_choices_and_arrows_go_through_them(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    app = app_on(FakeSession(workspace.run("rehearsal")), workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        page = await pressed(pilot, "4", "B", *"step:")
        offered = [key for key in page.picker.list.keys if key.strip()]
        assert offered and all("step:" in key for key in offered)
        assert page.picker.list.key == offered[0]
        await pressed(pilot, "down")
        assert page.picker.list.key == offered[1]
        await pressed(pilot, "enter")
        assert references(page)[1] == offered[1]


async def test_capital_x_writes_the_difference_beside_other_exports(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    app = app_on(FakeSession(workspace.run("rehearsal")), workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        page = await pressed(pilot, "4", "X")
        (file,) = (workspace.path / "exports").iterdir()
        assert file.suffix == ".txt" and file.name.startswith("diff-")
        assert page.compared is not None and file.read_text() == page.compared.text + "\n"
        assert "exports" in picture(app)[-2]


async def test_the_title_says_what_the_numbers_count(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    app = app_on(FakeSession(workspace.run("rehearsal")), workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        page = await pressed(pilot, "4")
        assert page.compared is not None
        assert f"{page.compared.facts.b.experiences} experiences" in "\n".join(picture(app))


async def test_a_commit_is_followed_without_a_key(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    session = FakeSession(workspace.run("rehearsal"))
    app = app_on(session, workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        page = await pressed(pilot, "4")
        before = page.compared
        await session.push(EventReceived(ev.LessonCommitted(0, 3, "", ())))
        app.draw_now()
        await quiet(pilot, page)
        assert page.compared is not before


async def test_go_to_and_the_filter_find_an_experience(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    app = app_on(FakeSession(workspace.run("rehearsal")), workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        page = await pressed(pilot, "4", "g")
        await typed(pilot, "E3")
        assert page.list_pane.key == "E3"
        await pressed(pilot, "slash")
        await typed(pilot, "zebra")
        assert "nothing here holds" in "\n".join(picture(app))
        await pressed(pilot, "escape")
        assert len(page.list_pane.keys) == 4


async def test_nothing_learned_yet_is_said_and_no_key_breaks(tmp_path: Path) -> None:
    app = app_on(None, Workspace(tmp_path / "empty"))
    async with app.run_test(size=(60, 16)) as pilot:
        page = await pressed(pilot, "4")
        assert "nothing has been learned in this workspace yet" in " ".join(
            "\n".join(picture(app)).split()
        )
        await pressed(
            pilot, "right_square_bracket", "w", "equals_sign", "enter", "b", "enter", "escape"
        )
        assert page.compared is None


async def test_the_cursor_of_another_page_is_no_reference(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    app = app_on(FakeSession(workspace.run("rehearsal")), workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        app.open_page("diff", "op2.1")
        page = await pressed(pilot, "home")
        assert references(page) == ("rehearsal@epoch:0", "rehearsal@last")
        app.open_page("diff", "rehearsal@1")
        await pressed(pilot, "home")
        assert references(page) == ("rehearsal@epoch:0", "rehearsal@1")
