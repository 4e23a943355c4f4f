"""A list whose rows take several lines: the cursor, what is scrolled, what is out of sight."""

from __future__ import annotations

from textual.app import App, ComposeResult

from studio.tui.drawing.lines import Row, line
from studio.tui.widgets.row_list import RowList
from tests.studio.tui.stage import check_painted, picture


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
        assert view.key == "k2" and picture(app)[-3:] == ["> row 2", "    more", "    and more"]
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
