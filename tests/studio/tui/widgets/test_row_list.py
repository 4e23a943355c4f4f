"""A list whose rows take several lines: the cursor, what is scrolled, what is out of sight."""

from __future__ import annotations

from textual.app import App, ComposeResult

from studio.tui.drawing.lines import Row, line
from studio.tui.widgets.line_view import LineView, RowList
from tests.studio.tui.stage import check_painted, picture


async def test_a_pane_says_in_its_border_what_is_out_of_sight() -> None:
    class Panes(App[None]):
        CSS = ".pane { border: solid white; }"

        def compose(self) -> ComposeResult:
            yield RowList(classes="pane")
            yield LineView(id="text", classes="pane")

    app = Panes()
    async with app.run_test(size=(40, 10)) as pilot:
        view, text = app.query_one(RowList), app.query_one("#text", LineView)
        view.show_rows([Row(f"k{n}", line("x" * 38)) for n in range(6)])
        text.show_lines([line(f"line {n}") for n in range(6)])
        await pilot.pause()
        assert (str(view.border_subtitle), str(text.border_subtitle)) == (
            "3 more below",
            "more below (tab, j)",
        )
        assert "below" not in "".join(picture(app)[1:4])  # no row is written over
        text.scroll_to(y=3, animate=False, force=True)
        await pilot.pause()
        assert not text.border_subtitle


async def test_a_row_is_moved_over_and_shown_as_a_whole() -> None:
    class Lists(App[None]):
        def compose(self) -> ComposeResult:
            yield RowList()

    rows = [Row(f"k{n}", line(f"row {n}"), (line("  more"), line("  and more"))) for n in range(6)]
    rows.insert(0, Row("", line("heading")))
    app = Lists()
    async with app.run_test(size=(20, 7)) as pilot:
        view = app.query_one(RowList)
        view.focus()
        view.show_rows(rows)
        await pilot.pause()
        assert view.key == "k0" and view.out_of_sight == (0, 4)
        await pilot.press("j", "j")
        await pilot.pause()
        assert view.key == "k2" and picture(app)[-4:-1] == ["> row 2", "    more", "    and more"]
        assert picture(app)[0] == "  row 1"  # a list begins with the first line of a row
        assert view.out_of_sight == (1, 3) and view.more_text() == "1 more above, 3 more below"
        check_painted(app)
        await pilot.press("ctrl+d")  # half a page is one of these
        assert view.key == "k3"
        await pilot.press("G")
        await pilot.click(RowList, offset=(3, 2))
        await pilot.pause()
        assert view.key == "k4" and view.out_of_sight[1] == 0
        view.show_rows([*rows[:2], Row("new", line("new")), *rows[2:]])
        view.mark_range(frozenset({"k5"}))
        await pilot.pause()
        assert view.key == "k4" and "* row 5" in picture(app)
        check_painted(app)


async def test_a_heading_comes_into_sight_when_there_is_room_for_it() -> None:
    class Lists(App[None]):
        def compose(self) -> ComposeResult:
            yield RowList()

    app = Lists()
    async with app.run_test(size=(20, 2)) as pilot:
        view = app.query_one(RowList)
        rows = [Row("", line("heading")), Row("k", line("row"), (line("  more"),))]
        view.show_rows(rows + [Row(f"k{n}", line(f"row {n}")) for n in range(5)])
        await pilot.pause()
        assert picture(app) == ["> row", "    more"]
        await pilot.resize_terminal(20, 3)
        await pilot.pause()
        assert picture(app) == ["  heading", "> row", "    more"]
