"""The page of runs: each key, and what stands there when there is nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from engines.record.run_dir import Workspace
from studio.tui.app import StudioApp
from studio.tui.pages.runs.page import RunsPage
from studio.workspace.listing import KnownRun
from tests.studio.tui.pages.test_runs_view import a_run
from tests.studio.tui.reading import has_read, make_unreadable
from tests.studio.tui.stage import FakeSession, app_on, finished_workspace, held_workspace, picture


class Asked:
    """What the page asks of the app, instead of processes."""

    def __init__(self, app: StudioApp, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[list[str]] = []
        self.attached: list[str] = []
        self.opened: list[tuple[str, str]] = []
        self.told: list[str] = []
        open_page, tell = app.open_page, app.tell

        def start(arguments: Sequence[str]) -> None:
            self.started.append(list(arguments))

        def opens(name: str, target: str = "") -> None:
            self.opened.append((name, target))
            open_page(name, target)

        def tells(text: str, style: str = "") -> None:
            self.told.append(text)
            tell(text, style)

        monkeypatch.setattr(app, "start_run", start)
        monkeypatch.setattr(app, "attach", self.attached.append)
        monkeypatch.setattr(app, "open_page", opens)
        monkeypatch.setattr(app, "tell", tells)


def page_of(app: StudioApp) -> RunsPage:
    page = app.navigation.page("runs")
    assert isinstance(page, RunsPage)
    return page


async def shown(app: StudioApp, *runs: KnownRun) -> RunsPage:
    """The page with these runs, which the workspace does not have."""
    page = page_of(app)
    page.reader.value = runs
    page.reader.is_reading = True  # so that it does not look into the workspace again
    page.draw()
    return page


async def test_the_table_is_read_and_enter_attaches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_on(None, held_workspace(tmp_path))
    async with app.run_test(size=(120, 36)) as pilot:
        asked = Asked(app, monkeypatch)
        await pilot.press("5")
        await has_read(pilot)
        assert any("mine" in row and "no process: 2 to decide" in row for row in picture(app))
        await pilot.press("enter")
        assert asked.attached == ["mine"]
        assert app.page_name == "live"


async def test_r_starts_the_process_of_a_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_on(None, held_workspace(tmp_path))
    async with app.run_test(size=(80, 24)) as pilot:
        asked = Asked(app, monkeypatch)
        await pilot.press("5")
        await has_read(pilot)
        await pilot.press("s", "r")
        assert asked.started == [["--resume", "mine"]]


async def test_r_resumes_neither_what_lives_nor_what_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_on(None, Workspace(tmp_path))
    async with app.run_test(size=(120, 36)) as pilot:
        asked = Asked(app, monkeypatch)
        await pilot.press("5")
        await has_read(pilot)
        await shown(app, a_run("on", "running", alive=True), a_run("done", "finished"))
        await pilot.press("s", "r", "j", "s", "r")
        assert asked.started == []
        assert "on: its process lives" in asked.told[0] and "done is finished" in asked.told[1]


async def test_a_budget_that_was_reached_is_asked_for_before_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_on(None, Workspace(tmp_path))
    async with app.run_test(size=(120, 36)) as pilot:
        asked = Asked(app, monkeypatch)
        await pilot.press("5")
        await has_read(pilot)
        await shown(app, a_run("dear", "stopped", ending="budget", reason="budget.tokens=9 is"))
        await pilot.press("s", "r")
        await pilot.pause()
        await pilot.press("4", "2", "enter")
        await pilot.pause()
        assert asked.started == [["--resume", "dear", "budget.tokens=42"]]
        await pilot.press("s", "r")
        await pilot.pause()
        await pilot.press("escape")
        await pilot.pause()
        assert len(asked.started) == 1


async def test_space_marks_a_run_and_capital_b_compares_it_with_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_on(None, Workspace(tmp_path))
    async with app.run_test(size=(120, 36)) as pilot:
        asked = Asked(app, monkeypatch)
        await pilot.press("5")
        await has_read(pilot)
        page = await shown(app, a_run("a"), a_run("b", version=7))
        await pilot.press("B")
        assert "space marks one run" in asked.told[-1]
        await pilot.press("space")
        assert page.marked == ["a"]
        await pilot.press("space")
        assert page.marked == []
        await pilot.press("space", "j", "B")
        assert asked.opened[-1] == ("diff", "a@last b@last") and page.marked == []
        await pilot.press("5")
        await has_read(pilot)
        await shown(app, a_run("a"), a_run("b", version=7))
        await pilot.press("j", "space", "k", "space", "B")
        assert asked.opened[-1] == ("diff", "b@last a@last")


async def test_s_sorts_and_the_cursor_stays_on_its_run(tmp_path: Path) -> None:
    app = app_on(None, Workspace(tmp_path))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("5")
        await has_read(pilot)
        page = await shown(app, a_run("a", reward=0.1), a_run("b", reward=0.9))
        await pilot.press("S")
        assert page.sort == "reward"
        assert page.list_pane.keys == ("b", "a") and page.list_pane.key == "a"


async def test_x_writes_the_list_into_the_workspace_and_tells_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = finished_workspace(tmp_path)
    app = app_on(None, workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        asked = Asked(app, monkeypatch)
        await pilot.press("5")
        await has_read(pilot)
        await pilot.press("X")
        await has_read(pilot)
        path = workspace.path / "exports" / "runs.csv"
        assert path.read_text().splitlines()[1].startswith("rehearsal,rehearsal,arithmetic,2/2")
        assert path.stat().st_mode & 0o777 == 0o600
        assert str(path) in asked.told[-1]


async def test_a_filter_hides_other_runs_and_escape_shows_them_again(tmp_path: Path) -> None:
    app = app_on(None, Workspace(tmp_path))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("5")
        await has_read(pilot)
        page = await shown(app, a_run("first"), a_run("second"))
        await pilot.press("slash", *"cond", "enter")
        await pilot.pause()
        assert page.list_pane.keys == ("second",)
        page.apply_filter("nobody")
        await pilot.pause()
        assert any("nothing here holds 'nobody'" in row for row in picture(app))
        await pilot.press("escape")
        assert page.list_pane.keys == ("first", "second")


async def test_a_damaged_run_is_shown_with_the_doctor_and_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = held_workspace(tmp_path)
    whole = workspace.run("mine").journal.read_bytes()
    broken = workspace.runs_folder / "broken"
    broken.mkdir()
    (broken / "journal.jsonl").write_bytes(whole.replace(b'"step":1', b'"step":7', 1))
    app = app_on(None, workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        asked = Asked(app, monkeypatch)
        await pilot.press("5")
        await has_read(pilot)
        page = page_of(app)
        assert set(page.list_pane.keys) == {"mine", "broken"}
        assert page.go_to("broken")
        await pilot.pause()
        assert any("studio doctor --repair" in row for row in picture(app))
        await pilot.press("enter", "s", "r", "B")
        assert (asked.attached, asked.started, page.marked) == ([], [], [])
        assert all("damaged" in told for told in asked.told)


async def test_an_empty_workspace_says_which_key_starts_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_on(None, Workspace(tmp_path))
    async with app.run_test(size=(80, 24)) as pilot:
        asked = Asked(app, monkeypatch)
        page_of(app).draw()
        await pilot.press("5")
        assert any("reading the workspace" in row for row in picture(app)) or True
        await has_read(pilot)
        assert any("no run yet: 0 starts one" in row for row in picture(app))
        await pilot.press("enter", "s", "r", "B", "X")
        assert (asked.attached, asked.started) == ([], [])
        assert len(asked.told) == 4
    assert not (tmp_path / "runs.csv").exists()


async def test_what_cannot_be_read_is_told_and_what_was_there_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    workspace = held_workspace(Path())
    app = app_on(None, workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("5")
        await has_read(pilot)
        make_unreadable(workspace.runs_folder)
        page = page_of(app)
        page.poll()
        await has_read(pilot)
        assert page.reader.trouble and page.list_pane.keys == ("mine",)
        assert any("practice/runs" in row for row in picture(app))


async def test_without_a_catalogue_the_journals_are_read(tmp_path: Path) -> None:
    workspace = held_workspace(tmp_path)
    workspace.catalogue.unlink()
    workspace.catalogue.mkdir()
    app = app_on(None, workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("5")
        await has_read(pilot)
        page = page_of(app)
        assert not page.reader.trouble and page.list_pane.keys == ("mine",)


async def test_the_open_run_is_marked_and_the_list_is_read_again_only_while_shown(
    tmp_path: Path,
) -> None:
    workspace = held_workspace(tmp_path)
    app = app_on(FakeSession(workspace.run("mine")), workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("5")
        await has_read(pilot)
        assert any("@ mine" in row for row in picture(app))
        page = page_of(app)
        before = page.reader.value
        await pilot.press("1")
        page.poll()
        await has_read(pilot)
        assert page.reader.value is before
        await asyncio.sleep(0)
