"""The footer, the lines that stand, the question over a page, the focused pane."""

from pathlib import Path

import pytest
from textual import events

from studio.tui.drawing.lines import line, plain_text, width_of
from studio.tui.keymap import Key, keys_of_scope
from studio.tui.settings import ScreenSettings
from studio.tui.widgets.line_view import LineView, footer_line
from studio.tui.widgets.prompt import Confirm
from tests.studio.tui.pictures import check_picture
from tests.studio.tui.stage import FakeSession, app_on, held_workspace, picture

SIZES = [(120, 36), (80, 24)]


def keys_of(page: str) -> list[Key]:
    return [key for scope in (page, "loop", "global") for key in keys_of_scope(scope)]


@pytest.mark.parametrize("page", ["live", "review", "library", "diff", "runs", "inspect", "start"])
@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_the_footer_always_fits_and_always_names_help_and_the_way_out(
    page: str, width: int
) -> None:
    shown = footer_line(keys_of(page), width)
    assert width_of(shown) <= width + 2  # the blanks after the last one
    assert "? help" in plain_text(shown)
    if width >= 60:
        assert "q detach" in plain_text(shown)


def test_the_keys_of_the_page_outlast_those_of_the_run_where_room_is_short() -> None:
    text = plain_text(footer_line(keys_of("review"), 80))
    assert "a approve" in text and "r reject" in text and "c commit" in text


def test_a_remapped_key_stands_in_the_footer() -> None:
    from studio.tui.keymap import remap_keys

    table = remap_keys({"review.approve": "f5"}, "screen.yaml")
    assert "f5 approve" in plain_text(footer_line(keys_of_scope("review", table), 120))


async def test_only_a_line_that_differs_is_drawn_again(tmp_path: Path) -> None:
    app = app_on(None, held_workspace(tmp_path))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        app.tell("first")
        await pilot.pause()
        drawn = []
        top = app.screen.query_one("#top")
        refresh = top.refresh
        top.refresh = lambda *regions, **how: drawn.append(regions) or refresh(*regions, **how)  # type: ignore[method-assign,assignment,func-returns-value]
        app.draw_chrome()
        assert drawn == []


@pytest.mark.parametrize("size", SIZES)
async def test_a_question_covers_the_page_with_its_keys_in_view(
    tmp_path: Path, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    workspace = held_workspace(Path())
    app = app_on(FakeSession(workspace.run("mine")), workspace)
    async with app.run_test(size=size) as pilot:
        await pilot.press("3")
        await pilot.press("s", "x")
        await pilot.pause()
        shown = "\n".join(picture(app))
        assert "s after this step" in shown and "n now; what is recorded is kept" in shown
        assert "3 Library" in shown  # the page is still there behind it
        check_picture(app, f"confirm-{size[0]}x{size[1]}")
        await pilot.press("1")
        assert isinstance(app.screen, Confirm)  # no key of the page below is heard
        await pilot.press("escape")
        await pilot.pause()
        assert not isinstance(app.screen, Confirm)
        assert app.page_name == "library"


async def test_a_long_question_scrolls_and_keeps_its_keys(tmp_path: Path) -> None:
    app = app_on(None, held_workspace(tmp_path))
    async with app.run_test(size=(80, 24)) as pilot:
        answers = []

        async def ask() -> None:
            lines = [line(f"operation {number} [red]") for number in range(100)]
            answers.append(await app.confirm("Approve [b]100[/b]?", lines, {"enter": "approves"}))

        app.run_worker(ask())
        await pilot.pause()
        shown = "\n".join(picture(app))
        assert "enter approves" in shown and "operation 0 [red]" in shown
        assert "Approve [b]100[/b]?" in shown
        await pilot.press("G")
        await pilot.pause()
        assert "operation 99 [red]" in "\n".join(picture(app))
        await pilot.press("enter")
        await pilot.pause()
        assert answers == ["enter"]


@pytest.mark.parametrize("theme", ["studio-dark", "studio-light", "studio-ansi", "studio-mono"])
async def test_the_focused_pane_is_told_without_colour(tmp_path: Path, theme: str) -> None:
    for ascii in (False, True):
        settings = ScreenSettings(theme=theme, ascii=ascii)
        workspace = held_workspace(tmp_path / f"{theme}-{ascii}")
        app = app_on(FakeSession(workspace.run("mine")), workspace, settings)
        async with app.run_test(size=(120, 36)) as pilot:
            await pilot.press("3")
            await pilot.pause()
            pane = app.focused
            assert isinstance(pane, LineView)
            assert pane.styles.border_title_style.reverse
            others = [
                p for p in app.navigation.page().panes() if p is not pane and p.has_class("pane")
            ]
            assert others and not any(p.styles.border_title_style.reverse for p in others)
            border = pane.styles.border_top[0]
            assert border == ("ascii" if ascii else "heavy")


@pytest.mark.parametrize(
    ("opens", "closes"),
    [
        (["s", "x"], "n"),
        (["s", "x"], "escape"),
        (["question_mark"], "q"),
        (["question_mark"], "escape"),
        (["f2"], "escape"),
        (["colon"], "escape"),
        (["slash"], "escape"),
        (["slash"], "enter"),
        (["g"], "g"),
        (["ctrl+w"], "a"),
    ],
)
async def test_a_key_that_leaves_a_box_may_come_several_times(
    tmp_path: Path, opens: list[str], closes: str
) -> None:
    workspace = held_workspace(tmp_path)
    session = FakeSession(workspace.run("mine"))
    app = app_on(session, workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("2", *opens)
        await pilot.pause()
        for _ in range(4):  # in one go, as a terminal that hangs sends them
            app.post_message(events.Key(closes, closes if len(closes) == 1 else None))
        await pilot.pause()
        await app.wait_for_requests()
        assert (app._exception is None and len(app.screen_stack) == 1) or closes == "q"
        assert len(session.names()) == (closes == "n") + (
            closes == "a" and "decide" in session.names()
        )
