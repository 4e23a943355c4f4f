"""The end of a growing text."""

from hypothesis import example, given
from hypothesis import strategies as st

from engines.core.text.sanitize import escape_unsafe
from studio.tui.drawing.canvas import MOST_CHARS, ROWS, Pane, PaneModel
from studio.tui.drawing.cells import ROW_CHARS, normalize_width, wrap
from tests.studio.tui.drawing.test_cells import AWKWARD

ENGLAND = "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"
raw = st.lists(
    st.sampled_from((*AWKWARD, ENGLAND, "\u200d", "\u200c", "\ud83d", "\ude00", "word", "  ")),
    max_size=30,
).map("".join)


def a_pane(text: str = "", state: str = "won") -> Pane:
    pane = Pane(PaneModel("p0", "r0", state))
    pane.feed(text)
    return pane


def all_rows(pane: Pane, width: int) -> list[str]:
    return pane.visible_rows(width, 10_000)


def wrapped(text: str, width: int) -> list[str]:
    return [" ".join(row.split()) for row in wrap(escape_unsafe(text), width)]


FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"


@example(text=FAMILY, cuts=[2], room=2)
@given(text=raw, cuts=st.lists(st.integers(0, 60), max_size=12), room=st.integers(2, 20))
def test_where_a_text_was_cut_on_its_way_is_not_seen(text: str, cuts: list[int], room: int) -> None:
    pane = a_pane()
    at = 0
    for cut in [*sorted(cuts), len(text)]:
        pane.feed(text[at:cut])
        at = max(at, cut)
        rows = all_rows(pane, room)
        assert pane.text == normalize_width(escape_unsafe(text[:at]))
        assert rows == all_rows(a_pane(text[:at]), room)
    assert [" ".join(row.split()) for row in all_rows(pane, room)] == wrapped(text, room)


@given(text=raw, before=st.integers(2, 20), after=st.integers(2, 20))
def test_another_width_wraps_the_same_text_again(text: str, before: int, after: int) -> None:
    pane = a_pane(text)
    all_rows(pane, before)
    all_rows(pane, after)
    pane.feed("more")
    assert all_rows(pane, after) == all_rows(a_pane(f"{text}more"), after)


def test_only_the_last_rows_are_kept_and_keep_their_numbers() -> None:
    pane = a_pane()
    for number in range(5 * ROWS):
        pane.feed(f"row {number}\n")
        pane.visible_rows(20, 4)
    least, most = pane.scroll_range(4)
    assert ROWS <= most - least <= 2 * ROWS
    assert pane.visible_rows(20, 2, 3 * ROWS + 600) == [f"row {3 * ROWS + n}" for n in (600, 601)]
    assert pane.visible_rows(20, 1, 0) == [f"row {least}"]


def test_a_text_that_is_too_long_is_cut_at_its_beginning() -> None:
    pane = a_pane()
    for number in range(MOST_CHARS // 5):
        pane.feed(f"{number:>9}\n")
        if number % 100 == 0:
            pane.visible_rows(20, 4)
    assert MOST_CHARS // 2 <= len(pane.text) <= MOST_CHARS
    assert pane.text.endswith(f"{MOST_CHARS // 5 - 1:>9}\n")


def test_marks_without_end_break_a_row_instead_of_growing_it() -> None:
    pane = a_pane()
    for _ in range(5 * ROW_CHARS):
        pane.feed("\u0301")
    pane.visible_rows(10, 20)
    assert max(map(len, pane._rows)) <= ROW_CHARS


def test_a_new_text_begins_at_row_zero() -> None:
    pane = a_pane("a\n" * 50)
    all_rows(pane, 10)
    pane.reset("b")
    assert all_rows(pane, 10) == ["b"] and pane.scroll_range(4) == (0, 0)


def test_the_last_line_is_known_whole() -> None:
    pane = a_pane()
    assert pane.last_line() == ""
    pane.feed("one\nthe answer is forty two\n\n")
    assert all_rows(pane, 10) == ["one", "the answer", "is forty", "two", "", ""]
    assert pane.last_line() == "the answer is forty two"
    pane.feed("and so on for")
    all_rows(pane, 20)
    assert pane.last_line() == "and so on for"


def test_the_wall_shows_the_end_of_a_line_that_grows_and_the_beginning_of_one_that_ended() -> None:
    text = "first line\n" + "a line of many words that goes on and on"
    _head, growing = a_pane(text, "streaming").wall_parts(40)
    assert growing.endswith("on |") and growing.startswith("..")
    assert a_pane(text).wall_parts(40)[1].startswith("a line of many")
