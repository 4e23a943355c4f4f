"""Inspect: each key, where it is opened at, and what stands there when there is nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engines.core import events as ev
from engines.record.run_dir import Workspace
from studio.session.session import EventReceived, TextPiece, TextReceived
from studio.tui.app import StudioApp
from studio.tui.drawing.lines import plain_text
from studio.tui.pages.inspect.page import InspectPage, open_pager
from studio.tui.widgets.line_view import RowList
from tests.studio.tui.pages.test_runs import Asked
from tests.studio.tui.reading import has_read
from tests.studio.tui.stage import FakeSession, app_on, finished_workspace, held_workspace, picture


def page_of(app: StudioApp) -> InspectPage:
    page = app.navigation.page("inspect")
    assert isinstance(page, InspectPage)
    return page


def row_under_cursor(pane: RowList) -> str:
    return plain_text(next(row.line for row in pane.rows if row.key == pane.key))


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return held_workspace(tmp_path)


@pytest.fixture
def app(workspace: Workspace) -> StudioApp:
    return app_on(FakeSession(workspace.run("mine")), workspace)


async def test_a_rollout_is_shown_whole_with_expected_and_got(app: StudioApp) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        app.open_page("inspect", "s1p0r1")
        await has_read(pilot)
        shown = "\n".join(picture(app))
        for said in (
            "s1p0r1",
            "Compute 37 + 29.",
            "#### 66",
            "1 won",
            "expected  66",
            "got       #### 66",
        ):
            assert said in shown
        assert page_of(app).list_pane.keys == ("s1p0r0", "s1p0r1", "s1p0r2", "s1p0r3")


@pytest.mark.parametrize("target", ["s1p1r2", "s1p1", "op1.1", "problem"])
async def test_it_opens_at_rollouts_groups_operations_and_problems(
    app: StudioApp, target: str
) -> None:
    state = app.session.state  # type: ignore[union-attr]
    wanted = {"op1.1": next(iter(state.operations.values())).evidence[0], "problem": "s1p1r0"}
    asked = {"op1.1": next(iter(state.operations)), "problem": state.steps[1].problems[1]}
    async with app.run_test(size=(120, 36)) as pilot:
        app.open_page("inspect", asked.get(target, target))
        await has_read(pilot)
        expected = wanted.get(target, "s1p1r2" if target == "s1p1r2" else "s1p1r0")
        assert page_of(app).chosen == expected


async def test_the_evidence_of_an_operation_that_was_committed_is_found_in_the_journal(
    tmp_path: Path,
) -> None:
    workspace = finished_workspace(tmp_path)
    run = workspace.run("rehearsal")
    lesson = next(e.event.lesson for e in run.entries() if isinstance(e.event, ev.LessonProposed))
    app = app_on(FakeSession(run), workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        app.open_page("inspect", lesson.operations[0].id)
        await has_read(pilot)
        assert page_of(app).chosen == lesson.operations[0].evidence[0]


async def test_an_id_that_is_none_of_this_run_is_told_and_what_is_shown_stays(
    app: StudioApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        asked = Asked(app, monkeypatch)
        app.open_page("inspect", "s1p0r1")
        await has_read(pilot)
        app.open_page("inspect", "op77.1")
        await has_read(pilot)
        assert page_of(app).chosen == "s1p0r1" and "op77.1" in asked.told[-1]
        assert not page_of(app).go_to("nothing")


async def test_n_and_shift_n_go_through_the_group_and_round(app: StudioApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        app.open_page("inspect", "s1p0")
        await has_read(pilot)
        page = page_of(app)
        await pilot.press("n")
        assert page.chosen == "s1p0r1" and page.list_pane.key == "s1p0r1"
        await pilot.press("N", "N")
        assert page.chosen == "s1p0r3"
        await pilot.press("k")
        await pilot.pause()
        assert page.chosen == "s1p0r2"


async def test_w_puts_a_winner_and_a_loser_side_by_side_and_back(app: StudioApp) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        app.open_page("inspect", "s1p0")
        await has_read(pilot)
        page = page_of(app)
        await pilot.press("w")
        await pilot.pause()
        assert page.split == ("s1p0r1", "s1p0r0")
        left, right = page.text_pane, page.query_one("#inspect-other", RowList)
        assert left.size.width > 30 and abs(left.size.width - right.size.width) <= 1
        texts = [pane.text() for pane in (left, right)]
        assert "#### 66" in texts[0] and "#### 56" in texts[1]
        for pane, marked in ((left, "{+"), (right, "[-")):
            assert marked in " ".join(pane.text().replace(" > ", " ").split())
            assert row_under_cursor(pane).startswith(("        >", "answer  >"))
        await pilot.press("escape")
        await pilot.pause()
        assert page.split is None and not right.display


async def test_enter_goes_to_the_step_where_a_rollout_parts_and_brackets_to_other_groups(
    app: StudioApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        asked = Asked(app, monkeypatch)
        app.open_page("inspect", "s1p0r2")
        await has_read(pilot)
        page = page_of(app)
        assert "[-" not in page.text_pane.text()
        await pilot.press("enter")
        assert app.focused is page.text_pane and page.split is None
        assert row_under_cursor(page.text_pane).startswith("        >")
        assert "[-" in page.text_pane.text() and "parts here from s1p0r1" in "\n".join(picture(app))
        await pilot.press("n")
        assert page.chosen == "s1p0r3" and "[-" in page.text_pane.text()
        await pilot.press("escape")
        assert "[-" not in page.text_pane.text()
        await pilot.press("right_square_bracket")
        await has_read(pilot)
        assert page.chosen == "s1p1r0"
        await pilot.press("left_square_bracket")
        await has_read(pilot)
        await pilot.press("left_square_bracket")
        assert page.group.id == "s1p0" and asked.told[-1] == "there is no earlier group"


async def test_w_says_when_a_group_has_no_contrast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = finished_workspace(tmp_path)
    session = FakeSession(workspace.run("rehearsal"))
    app = app_on(session, workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        asked = Asked(app, monkeypatch)
        app.open_page("inspect", "s4p0")
        await has_read(pilot)
        await pilot.press("w")
        assert page_of(app).split is None and "no winner beside a loser" in asked.told[-1]


async def test_z_folds_the_part_under_the_cursor_or_all_from_the_list(app: StudioApp) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        app.open_page("inspect", "s1p0")
        await has_read(pilot)
        page = page_of(app)
        pane = page.text_pane
        assert "[fold 3 lines]" in pane.text()
        await pilot.press("z")
        assert "[fold 3 lines]" not in pane.text()
        await pilot.press("z")
        assert "[fold 3 lines]" in pane.text()
        pane.focus()
        await pilot.press("z", "j", "j")
        assert "[fold 3 lines]" not in pane.text()
        await pilot.press("z")
        assert "[fold 3 lines]" in pane.text() and pane.key == pane.keys[0]


async def test_dollar_shows_tokens_and_times_of_each_call(app: StudioApp) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        app.open_page("inspect", "s1p0")
        await has_read(pilot)
        await pilot.press("dollar_sign")
        assert "finish stop  rehearsal" in page_of(app).text_pane.text()
        await pilot.press("dollar_sign")
        assert "finish stop  rehearsal" not in page_of(app).text_pane.text()


async def test_a_search_goes_to_its_hits_one_after_another(app: StudioApp) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        app.open_page("inspect", "s1p0r1")
        await has_read(pilot)
        page = page_of(app)
        await pilot.press("slash")
        await pilot.pause()
        await pilot.press(*"COLUMN", "enter")
        await pilot.pause()
        pane = page.text_pane
        assert app.focused is pane and page.filter_text == "COLUMN"
        first = pane.key
        found = next(row for row in pane.rows if row.key == first)
        assert ("COLUMN", "flag") in [(text.upper(), style) for text, style in found.line]
        await pilot.press("slash")
        await pilot.pause()
        await pilot.press("enter")
        await pilot.pause()
        assert pane.key != first
        await pilot.press("escape")
        assert page.filter_text == ""


async def test_what_is_not_found_is_told(app: StudioApp, monkeypatch: pytest.MonkeyPatch) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        asked = Asked(app, monkeypatch)
        app.open_page("inspect", "s1p0r1")
        await has_read(pilot)
        page_of(app).apply_filter("unicorn")
        assert asked.told[-1] == "unicorn: not in this rollout"


async def test_o_gives_the_whole_rollout_to_a_pager_or_says_why_not(
    app: StudioApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        asked = Asked(app, monkeypatch)
        app.open_page("inspect", "s1p0r1")
        await has_read(pilot)
        await pilot.press("o")
        assert "a pager needs a terminal" in asked.told[-1]
        text = page_of(app).whole_text()
        assert text.startswith("[system]") and "[answer]" in text and "You solve one" in text


def test_the_pager_is_the_one_that_is_set_and_reads_the_text(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    open_pager("漢 text", {"PAGER": f"tee '{kept}'"})
    assert kept.read_text("utf-8") == "漢 text"
    with pytest.raises(FileNotFoundError):
        open_pager("text", {"PAGER": "/nowhere/pager"})


async def test_copying_takes_a_part_or_the_whole_rollout(app: StudioApp) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        app.open_page("inspect", "s1p0r1")
        await has_read(pilot)
        page = page_of(app)
        assert page.text_to_copy(False).startswith("r1")
        page.text_pane.focus()
        await pilot.press("j")
        assert page.text_to_copy(False) == "Compute 37 + 29."
        assert page.text_to_copy(True) == page.whole_text()


async def test_the_text_of_a_rollout_under_way_comes_from_the_stream(
    workspace: Workspace,
) -> None:
    session = FakeSession(workspace.run("mine"))
    session.state.status = "running"
    app = app_on(session, workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        app.open_page("inspect", "s1p0")
        await has_read(pilot)
        page = page_of(app)
        page.group.rollouts.clear()
        await session.push(
            TextReceived(
                (TextPiece("s1p0r2", 0, "[red]First \x1b[2J"), TextPiece("s9p9r9", 0, "other"))
            ),
            TextReceived((TextPiece("s1p0r2", 5, "FIRST half, "),)),
            TextReceived((TextPiece("s1p0r2", 17, "second half"),)),
        )
        page.choose("s1p0r2")
        assert "[red]FIRST half, second half" in page.text_pane.text()
        assert set(page.live) == {"s1p0r2"}
        finished = next(
            e.event
            for e in session.run.entries()
            if isinstance(e.event, ev.RolloutFinished)
            and (e.event.position, e.event.index) == (0, 2)
        )
        await session.push(EventReceived(finished))
        app.draw_frame()
        await has_read(pilot)
        assert "#### 56" in page.text_pane.text()


async def test_a_page_that_was_opened_before_the_first_step_shows_it_once_it_begins(
    workspace: Workspace,
) -> None:
    session = FakeSession(workspace.run("mine"))
    steps, session.state.steps = session.state.steps, {}
    app = app_on(session, workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("6")
        await has_read(pilot)
        assert page_of(app).list_pane.keys == ()
        assert "no rollout yet" in " ".join(" ".join(picture(app)).split())
        session.state.steps = steps
        began = (e.event for e in session.run.entries() if isinstance(e.event, ev.StepStarted))
        await session.push(EventReceived(next(began)))
        app.draw_frame()
        await has_read(pilot)
        assert page_of(app).list_pane.keys[0] == "s1p0r0"


async def test_rollouts_under_way_are_subscribed_to_and_let_go_of(workspace: Workspace) -> None:
    session = FakeSession(workspace.run("mine"))
    app = app_on(session, workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        app.open_page("inspect", "s1p0")
        await has_read(pilot)
        page = page_of(app)
        from studio.tui.pages.live.view import RolloutStatus

        members = (RolloutStatus("s1p0r0", 0, 0, "won"), RolloutStatus("s1p0r1", 0, 1, "queued"))
        page.group = replace(page.group, members=members)
        page.subscribe(anew=True)
        assert session.subscribed == {"s1p0r1"}
        await pilot.press("5")
        await has_read(pilot)
        assert session.subscribed == frozenset()


async def test_records_that_are_gone_are_told_and_nothing_breaks(
    workspace: Workspace,
) -> None:
    run = workspace.run("mine")
    for path in run.records.glob("*.jsonl"):
        path.unlink()
    app = app_on(FakeSession(run), workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        app.open_page("inspect", "s1p0r1")
        await has_read(pilot)
        assert "is not there" in page_of(app).reader.trouble
        await pilot.press("n", "w", "dollar_sign", "z", "o", "slash", "escape")


async def test_without_a_run_the_keys_say_so_and_break_nothing(tmp_path: Path) -> None:
    app = app_on(None, Workspace(tmp_path))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("6")
        await has_read(pilot)
        assert any("no run is open" in row for row in picture(app))
        await pilot.press("n", "N", "w", "dollar_sign", "z", "o")
        await pilot.press("slash")
        await pilot.pause()
        await pilot.press("x", "enter")
        await pilot.pause()
        assert page_of(app).group is None
