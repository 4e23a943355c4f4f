"""The line at the bottom that asks."""

from collections.abc import Callable
from pathlib import Path

import pytest

from studio.tui.app import StudioApp
from studio.tui.widgets.prompt import Prompt
from tests.studio.tui.pictures import check_picture
from tests.studio.tui.stage import FakeSession, app_on, held_workspace, picture

_BORDERS = dict.fromkeys(map(ord, "─━│┃┌┏┐┓└┗┘┛"))


def asking(
    app: StudioApp, *, value: str = "", shortcut: Callable[[str], bool] | None = None
) -> list[str | None]:
    answers: list[str | None] = []

    async def ask() -> None:
        answers.append(await app.ask("why?", value, shortcut))

    app.run_worker(ask())
    return answers


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StudioApp:
    monkeypatch.chdir(tmp_path)
    workspace = held_workspace(Path())
    return app_on(FakeSession(workspace.run("mine")), workspace)


@pytest.mark.parametrize("size", [(120, 36), (80, 24)])
async def test_a_line_is_asked_above_the_keys_and_answered_by_enter(
    app: StudioApp, size: tuple[int, int]
) -> None:
    async with app.run_test(size=size) as pilot:
        await pilot.press("3")
        await pilot.pause()
        before, focused = picture(app), app.focused
        answers = asking(app, value="be")
        await pilot.pause()
        await pilot.press("c", "a", "u", "q", "1", "?", "[")
        await pilot.pause()
        during = picture(app)
        assert during[-2].strip() == "why? becauq1?["
        assert during[-1] == " enter hands it in  esc leaves" and "q detach" in before[-1]
        for old, new in zip(before[2:-2], during[2:-2], strict=True):
            assert old.translate(_BORDERS) == new.translate(_BORDERS)
        check_picture(app, f"prompt-{size[0]}x{size[1]}")
        await pilot.press("enter")
        await pilot.pause()
        assert answers == ["becauq1?["]
        assert app.focused is focused
        assert not app.query_one(Prompt).display
        assert app.page_name == "library" and app.is_running
        assert picture(app)[-1] == before[-1]


async def test_escape_leaves_the_question_and_nothing_else(app: StudioApp) -> None:
    async with app.run_test() as pilot:
        await pilot.press("3")
        answers = asking(app)
        await pilot.pause()
        await pilot.press("x", "escape")
        await pilot.pause()
        assert answers == [None]
        assert app.page_name == "library"


async def test_the_first_key_may_be_the_answer(app: StudioApp) -> None:
    heard: list[str] = []

    def take(key: str) -> bool:
        heard.append(key)
        return key == "g"

    async with app.run_test() as pilot:
        answers = asking(app, shortcut=take)
        await pilot.pause()
        await pilot.press("g")
        await pilot.pause()
        assert (answers, heard) == ([None], ["g"])
        answers = asking(app, shortcut=take)
        await pilot.pause()
        await pilot.press("a", "g", "enter")
        await pilot.pause()
        assert answers == ["ag"]


async def test_a_second_question_ends_the_first(app: StudioApp) -> None:
    async with app.run_test() as pilot:
        await pilot.press("3")
        await pilot.pause()
        focused = app.focused
        first = asking(app)
        await pilot.pause()
        second = asking(app)
        await pilot.pause()
        await pilot.press("z", "enter")
        await pilot.pause()
        assert (first, second) == ([None], ["z"])
        assert app.focused is focused


async def test_a_page_that_opens_meanwhile_does_not_take_what_is_typed(app: StudioApp) -> None:
    async with app.run_test() as pilot:
        answers = asking(app)
        await pilot.pause()
        app.open_page("runs")
        await pilot.pause()
        await pilot.press("a", "enter")
        await pilot.pause()
        assert answers == ["a"]
        assert app.focused is app.navigation.page("runs").initial_focus()
