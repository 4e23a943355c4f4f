"""The end of a growing text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engines.core.text.sanitize import escape_unsafe
from studio.tui.drawing.canvas import TailBuffer
from studio.tui.drawing.cells import ROW_CHARS, normalize_width, wrap
from tests.studio.tui.drawing.test_cells import AWKWARD

ENGLAND = "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"
raw = st.lists(
    st.sampled_from((*AWKWARD, ENGLAND, "\u200d", "\u200c", "\ud83d", "\ude00", "word", "  ")),
    max_size=30,
).map("".join)


def kept_rows(buffer: TailBuffer) -> list[str]:
    return buffer.rows(0, buffer.total)


@given(text=raw, cuts=st.lists(st.integers(0, 60), max_size=12), room=st.integers(1, 20))
def test_where_a_text_was_cut_on_its_way_is_not_seen(text: str, cuts: list[int], room: int) -> None:
    buffer = TailBuffer(room)
    at = 0
    for cut in [*sorted(cuts), len(text)]:
        buffer.feed(text[at:cut])
        at = max(at, cut)
        assert buffer.text == normalize_width(escape_unsafe(text[:at]))
    buffer.feed(".")  # what may be shown otherwise yet waits for it
    assert kept_rows(buffer) == wrap(escape_unsafe(f"{text}."), room)


@given(text=raw, before=st.integers(1, 20), after=st.integers(1, 20))
def test_another_width_wraps_the_same_text_anew(text: str, before: int, after: int) -> None:
    buffer = TailBuffer(before)
    buffer.feed(text)
    buffer.resize(after, unfolded=False)
    buffer.feed("more")
    assert kept_rows(buffer) == wrap(escape_unsafe(text + "more"), after)


def test_only_the_last_rows_are_kept_and_keep_their_numbers() -> None:
    buffer = TailBuffer(20, cap=5)
    buffer.feed("".join(f"row {n}\n" for n in range(100)))
    assert kept_rows(buffer) == ["row 95", "row 96", "row 97", "row 98", "row 99", ""]
    assert (buffer.first, buffer.total) == (95, 101)
    assert buffer.rows(98, 200) == ["row 98", "row 99", ""]
    assert buffer.rows(0, 96) == ["row 95"]


def test_marks_without_end_break_a_row_instead_of_growing_it() -> None:
    buffer = TailBuffer(10)
    for _ in range(5 * ROW_CHARS):
        buffer.feed("\u0301")
    assert max(map(len, kept_rows(buffer))) <= ROW_CHARS
    assert kept_rows(buffer) == wrap("\u0301" * 5 * ROW_CHARS, 10)


def test_a_new_text_begins_at_row_zero() -> None:
    buffer = TailBuffer(10, cap=2)
    buffer.feed("a\n" * 50)
    buffer.reset("b")
    assert (kept_rows(buffer), buffer.first) == (["b"], 0)


def test_the_last_line_is_known_whole_and_where_each_line_begins() -> None:
    buffer = TailBuffer(10)
    assert buffer.last_line() == "" and buffer.growing_row() == ("", True)
    buffer.feed("one\nthe answer is forty two\n\n")
    assert buffer.last_line() == "the answer is forty two"
    assert kept_rows(buffer) == ["one", "the answer", "is forty", "two", "", ""]
    buffer.feed("and so on for")
    assert buffer.growing_row() == ("for", False)
    buffer.feed("\n")
    assert buffer.growing_row() == ("for", False)
    buffer.resize(40, unfolded=False)
    assert buffer.last_line() == "and so on for"
    assert buffer.growing_row() == ("and so on for", True)
