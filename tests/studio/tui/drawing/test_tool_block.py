"""Tool calls among the text of a pane: folded, unfolded, sanitized, and cheap."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.core.text.tool_text import call_mark, result_mark
from engines.core.types import ToolCall, ToolResult, ToolStatus
from studio.tui.drawing.canvas import MOST_CHARS, ROWS, Pane, PaneModel, StreamCanvas
from studio.tui.drawing.cells import cell_width
from tests.studio.tui.drawing.test_canvas import Stage, drawn

CODE = "total = sum(range(10))\nprint(total)"


def called(code: str = CODE, id: str = "1") -> str:
    return call_mark(ToolCall(id, "python", json.dumps({"code": code})))


def answered(text: str = "45\n", status: ToolStatus = "ok", id: str = "1") -> str:
    return result_mark(ToolCall(id, "python", ""), ToolResult(text, status))


def a_pane(*pieces: str, state: str = "streaming") -> Pane:
    pane = Pane(PaneModel("a", "r0", state))
    for piece in pieces:
        pane.feed(piece)
    return pane


def rows(pane: Pane, columns: int = 60, height: int = 20) -> list[str]:
    return pane.visible_rows(columns, height)


def test_a_call_with_its_result_is_one_row_until_it_is_unfolded() -> None:
    pane = a_pane("I add them.", called())
    assert rows(pane) == [
        "I add them.",
        "▸ python  total = sum(range(10)) print(total)  -> running ..",
        " |",
    ]
    pane.feed(answered() + "It is 45.")
    folded = ["I add them.", "▸ python  total = sum(range(10)) print(total)  -> 45", "It is 45. |"]
    assert rows(pane) == folded
    assert pane.toggle_tools()
    assert rows(pane) == [
        "I add them.",
        "▾ python",
        "│ total = sum(range(10))",
        "│ print(total)",
        "-> ok",
        "│ 45",
        "It is 45. |",
    ]
    assert not pane.toggle_tools()
    assert rows(pane) == folded


def test_a_failure_has_a_sign_and_a_word_and_says_it_once() -> None:
    pane = a_pane(called("1/0"), answered("error: ZeroDivisionError", "error"), state="lost")
    assert rows(pane)[0].endswith("-> ! error: ZeroDivisionError")
    pane.toggle_tools()
    assert rows(pane)[-3:] == ["-> ! error", "│ ZeroDivisionError", ""]


def test_results_find_their_calls_in_whatever_order_they_come() -> None:
    pane = a_pane(called("a", "1"), called("b", "2"), answered("two", id="2"), answered("one"))
    assert [row.split("  ", 1)[-1] for row in rows(pane)[:2]] == ["a  -> one", "b  -> two"]
    same = a_pane(called("a"), called("b"), answered("first"), answered("second"))
    assert [row[-6:] for row in rows(same)[:2]] == [" first", "second"]
    alone = a_pane(answered("nobody asked", id="9"))
    assert rows(alone)[0] == "▸ python    -> nobody asked"


@given(
    cuts=st.lists(st.integers(0, 400), max_size=12),
    width=st.integers(2, 50),
    unfolds=st.booleans(),
)
def test_where_the_stream_was_cut_is_not_seen_not_even_within_a_mark(
    cuts: list[int], width: int, unfolds: bool
) -> None:
    text = "One, 漢字.\n" + called() + answered("4\n5") + called("x", "2") + "two\n\nthree"
    at, pane = 0, a_pane()
    if unfolds:
        pane.toggle_tools()
    for cut in [*sorted(cuts), len(text)]:
        pane.feed(text[at:cut])
        at = max(at, cut)
        rows(pane, width)
    whole = a_pane(text)
    if unfolds:
        whole.toggle_tools()
    assert rows(pane, width, 99) == rows(whole, width, 99)
    assert all(cell_width(row) <= max(2, width) for row in rows(whole, width, 99))
    rows(whole, 7)
    rows(whole, width)
    assert whole.text == pane.text


def test_what_a_program_prints_is_harmless_and_stands_behind_its_rail() -> None:
    pane = a_pane(
        called("print('\x1b[2J')\n│ forged"), answered("\x1b]0;title\x07\n-> ok\n\u202ea")
    )
    pane.toggle_tools()
    shown = rows(pane)
    assert not any(sign in "".join(shown) for sign in ("\x1b", "\x07", "\u202e"))
    # A row without the rail is the studio's own.
    assert [row for row in shown if not row.startswith("│ ")] == ["▾ python", "-> ok", " |"]


def test_thousands_of_calls_keep_the_pane_bounded_and_its_folding_undone() -> None:
    pane = a_pane(*(called(id=str(n)) + answered(id=str(n)) for n in range(3_000)), state="won")
    folded = rows(pane)
    assert pane.toggle_tools()
    assert rows(pane, 60, 10**6)[-6].startswith("▾ python")
    pane.toggle_tools()
    assert rows(pane) == folded
    assert len(pane._rows) <= 2 * ROWS and len(pane._raw) <= MOST_CHARS


def test_the_wall_shows_the_call_under_way_and_how_a_try_ended() -> None:
    pane = a_pane("Let me see.\n", called())
    assert pane.wall_parts(70)[1].startswith("▸ python  total")
    ended = a_pane(called(), answered(), "\n", state="won")
    assert "-> 45" in ended.wall_parts(70)[1]


def test_thousands_of_calls_in_one_frame_cost_in_proportion() -> None:
    def seconds(calls: int) -> float:
        frame = "".join(called(id=str(n)) + answered(id=str(n)) + "ok " for n in range(calls))
        pane, began = a_pane(), time.process_time()
        for at in range(0, len(frame), 97):
            pane.feed(frame[at : at + 97])
        rows(pane)
        return time.process_time() - began

    few = min(seconds(1_000) for _ in range(3))
    assert min(seconds(4_000) for _ in range(3)) < 8 * few + 0.05


@pytest.mark.parametrize("mode", ["group", "solo"])
async def test_the_focused_pane_alone_unfolds(mode: str) -> None:
    app = Stage()
    async with app.run_test(size=(100, 12)) as pilot:
        canvas: StreamCanvas = app.canvas
        canvas.set_mode(mode)  # type: ignore[arg-type]
        canvas.set_panes([PaneModel("a", "r0"), PaneModel("b", "r1")])
        assert canvas.toggle_tools() is None
        for name in ("a", "b"):
            canvas.feed(name, called() + answered())
        canvas.flush()
        await pilot.pause()
        assert canvas.has_tools and canvas.toggle_tools() is True
        shown = "\n".join(drawn(canvas))
        assert shown.count("▾ python") == 1 and shown.count("▸") == (mode == "group")
        assert canvas.toggle_tools() is False and "▾" not in "\n".join(drawn(canvas))
