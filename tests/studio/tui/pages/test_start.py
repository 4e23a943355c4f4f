"""The start page: each key, and what it says when something cannot be started."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engines.record.run_dir import Workspace
from studio.tui.app import StudioApp
from studio.tui.pages.start import page as start
from studio.tui.pages.start.page import RunFacts, StartPage
from studio.tui.widgets.prompt import Confirm
from studio.workspace.listing import KnownRun
from tests.studio.tui.pages.test_runs import Asked
from tests.studio.tui.pages.test_runs_view import a_run
from tests.studio.tui.pages.test_start_view import facts
from tests.studio.tui.reading import has_read, make_unreadable
from tests.studio.tui.stage import FakeSession, app_on, finished_workspace, held_workspace, picture


def page_of(app: StudioApp) -> StartPage:
    page = app.navigation.page("start")
    assert isinstance(page, StartPage)
    return page


def show(page: StartPage, *runs: KnownRun) -> None:
    """Offer these runs, which the workspace does not have."""
    page.reader.value = runs
    page.reader.is_reading = True  # so that it does not look into the workspace again
    page.draw()


def opened(folder: Path, workspace: Workspace | None = None) -> StudioApp:
    return app_on(None, workspace or Workspace(folder / "practice"))


async def test_a_held_run_comes_first_and_enter_resumes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = opened(tmp_path, held_workspace(tmp_path))
    async with app.run_test(size=(120, 36)) as pilot:
        asked = Asked(app, monkeypatch)
        await has_read(pilot)
        assert any("no process: 2 to decide" in row for row in picture(app))
        await pilot.press("enter")
        await pilot.pause()
        assert asked.started == [["--resume", "mine"]]


async def test_a_rehearsal_is_started_without_a_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = opened(tmp_path)
    async with app.run_test(size=(120, 36)) as pilot:
        asked = Asked(app, monkeypatch)
        await has_read(pilot)
        page = page_of(app)
        assert page.list_pane.go_to("new rehearsal")
        await has_read(pilot)
        known = page.loader.value
        assert isinstance(known, RunFacts) and known.mode == "new" and not known.costs
        await pilot.press("enter")
        await pilot.pause()
        assert asked.started == [["rehearsal", "--review", "wait"]]


async def test_what_costs_money_shows_its_estimate_and_waits_for_a_yes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = opened(tmp_path)
    async with app.run_test(size=(120, 36)) as pilot:
        asked = Asked(app, monkeypatch)
        await has_read(pilot)
        page = page_of(app)
        report = replace(facts(), likely="9 calls, 10 tokens", most="20 calls")
        monkeypatch.setattr(
            start, "load_facts", lambda _, asked: report if asked.checks else facts()
        )
        page.list_pane.go_to("new api")
        await pilot.press("enter")
        await has_read(pilot, "open")
        assert isinstance(app.screen, Confirm)
        assert any("9 calls, 10 tokens" in row for row in picture(app))
        await pilot.press("escape")
        await pilot.pause()
        assert asked.started == []
        await pilot.press("enter")
        await has_read(pilot, "open")
        await pilot.press("y")
        await pilot.pause()
        assert asked.started == [["api", "--review", "wait"]]


async def test_a_run_that_is_finished_is_opened_or_begun_anew_as_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = opened(tmp_path, finished_workspace(tmp_path))
    async with app.run_test(size=(120, 36)) as pilot:
        asked = Asked(app, monkeypatch)
        await has_read(pilot)
        page = page_of(app)
        found = facts("finished", run="rehearsal", costs=False)
        monkeypatch.setattr(start, "load_facts", lambda *_: found)
        page.loader.forget()
        page.list_pane.go_to("new rehearsal")
        await has_read(pilot)
        for key in ("n", "o"):
            await pilot.press("enter")
            await has_read(pilot)
            await pilot.press(key)
            await pilot.pause()
        assert asked.started == [["rehearsal", "--restart-step", "0", "--review", "wait"]]
        assert asked.attached == ["rehearsal"]


async def test_a_preset_whose_name_is_taken_by_other_settings_begins_a_new_run_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = opened(tmp_path, finished_workspace(tmp_path))  # its `rehearsal` has another seed
    async with app.run_test(size=(120, 36)) as pilot:
        asked = Asked(app, monkeypatch)
        await has_read(pilot)
        page = page_of(app)
        page.list_pane.go_to("new rehearsal")
        await has_read(pilot)
        known = page.loader.value
        assert isinstance(known, RunFacts), known
        assert (known.mode, known.run) == ("beside", "rehearsal-2") and "seed" in known.notes[0]
        await pilot.press("enter")
        await pilot.pause()
        await pilot.press("o", "n")
        await pilot.pause()
        assert asked.started == [["rehearsal", "--restart-step", "0", "--review", "wait"]]


async def test_living_runs_are_attached_to_and_late_operations_opened_for_review(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = opened(tmp_path)
    async with app.run_test(size=(120, 36)) as pilot:
        asked = Asked(app, monkeypatch)
        await has_read(pilot)
        page = page_of(app)
        show(page, a_run("late", "finished", waiting=2), a_run("on", "running", alive=True))
        page.list_pane.go_to("open late")
        await pilot.press("enter")
        assert asked.attached == ["late"] and asked.opened[-1][0] == "review"
        await pilot.press("0")
        show(page, a_run("on", "running", alive=True))
        page.list_pane.go_to("attach on")
        await pilot.press("enter")
        assert asked.attached == ["late", "on"] and asked.opened[-1][0] == "live"


async def test_settings_are_checked_where_they_are_typed_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = opened(tmp_path)
    async with app.run_test(size=(120, 36)) as pilot:
        asked = Asked(app, monkeypatch)
        await has_read(pilot)
        page = page_of(app)
        page.list_pane.go_to("new rehearsal")
        await has_read(pilot)
        await pilot.press("e")
        await pilot.pause()
        await pilot.press(*"practice.epoch=3", "enter")
        await has_read(pilot)
        assert any("practice.epochs" in row for row in picture(app))
        assert page.overrides["new rehearsal"] == "practice.epoch=3"
        await pilot.press("enter")
        await pilot.pause()
        assert asked.started == []
        await pilot.press("e")
        await pilot.pause()
        await pilot.press(*("left",) * 2, "s", "enter")
        await has_read(pilot)
        known = page.loader.value
        assert isinstance(known, RunFacts) and "epochs 3" in dict(known.rows)["data"]
        await pilot.press("enter")
        await pilot.pause()
        assert asked.started == [["rehearsal", "practice.epochs=3", "--review", "wait"]]


async def test_a_setting_that_is_none_or_an_option_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = opened(tmp_path, held_workspace(tmp_path))
    async with app.run_test(size=(120, 36)) as pilot:
        asked = Asked(app, monkeypatch)
        await has_read(pilot)
        for typed in ("--accept-changes", "seed", "a='b"):
            await pilot.press("e")
            await pilot.pause()
            app.query_one("#prompt Input").value = typed  # type: ignore[attr-defined]
            await pilot.press("enter")
            await pilot.pause()
        assert len(asked.told) == 3 and page_of(app).overrides == {}


async def test_capital_c_says_calls_tokens_and_what_was_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = held_workspace(tmp_path)
    app = opened(tmp_path, workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        asked = Asked(app, monkeypatch)
        await has_read(pilot)
        page = page_of(app)
        page.list_pane.go_to("new rehearsal")
        await pilot.press("C")
        await has_read(pilot)
        found = page.loader.value
        assert found is not None and found.likely
        shown = picture(app)
        assert any("likely" in row and "calls" in row for row in shown)
        assert any("at most" in row for row in shown)
        assert any("[ok] verifier math is there" in row for row in shown)
        assert asked.started == []
        assert [run.run for run in workspace.runs()] == ["mine"]


async def test_why_nothing_was_started_is_shown_whole_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = opened(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        Asked(app, monkeypatch)
        await has_read(pilot)
        page = page_of(app)
        page.overrides["new rehearsal"] = "seed=5"
        await pilot.press("5")
        app.attachment.show_refusal(
            "run.yaml:3: the endpoint cannot be reached.\nStart it, or name another."
        )
        await pilot.pause()
        assert app.page_name == "start"
        shown = picture(app)
        assert any("the endpoint cannot be reached." in row for row in shown)
        assert any("Start it, or name another." in row for row in shown)
        assert page.overrides["new rehearsal"] == "seed=5"
        await pilot.press("escape")
        await pilot.pause()
        assert not any("the endpoint cannot be reached." in row for row in picture(app)[3:-3])


async def test_a_workspace_that_cannot_be_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    workspace = held_workspace(Path())
    make_unreadable(workspace.runs_folder)
    app = opened(tmp_path, workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await has_read(pilot)
        assert any("practice/runs" in row for row in picture(app))


async def test_the_list_follows_runs_that_go_on_and_keeps_the_cursor_on_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from studio.workspace import listing

    app = opened(tmp_path)
    now = [a_run("one", "held", alive=True, waiting=2), a_run("two", "running", alive=True)]
    async with app.run_test(size=(120, 50)) as pilot:
        await has_read(pilot)
        monkeypatch.setattr(listing, "known_runs", lambda *_: tuple(now))
        page = page_of(app)
        page.poll()
        await has_read(pilot)
        page.list_pane.go_to("attach two")
        assert any("one" in row and "HELD" in row for row in picture(app))
        now[:] = [a_run("one", "running", alive=True), a_run("two", "stopped")]
        page.poll()
        await has_read(pilot)
        await pilot.pause()
        assert not any("HELD" in row for row in picture(app))
        assert page.list_pane.key == "resume two"


async def test_a_run_that_is_open_already_is_shown_live_and_not_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = held_workspace(tmp_path)
    app = app_on(FakeSession(workspace.run("mine")), workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        attached: list[str] = []
        monkeypatch.setattr(app, "attach", attached.append)
        await pilot.press("0")
        await has_read(pilot)
        show(page_of(app), a_run("mine", "running", alive=True))
        page_of(app).list_pane.go_to("attach mine")
        await pilot.press("enter")
        await pilot.pause()
        assert (app.page_name, attached) == ("live", [])
        # Opened anew it would lead back to the page it was left at: not to this one.
        app.drafts.left_at, app.drafts.restored = ("start", ""), False
        app.attachment._restore_place()
        assert app.page_name == "live"
