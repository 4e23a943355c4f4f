"""Width, cutting and wrapping in cells."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.segment import Segment
from textual.strip import Strip

from engines.core.text.sanitize import escape_unsafe
from studio.tui.drawing.cells import (
    GLYPHS,
    cell_width,
    crop,
    fit,
    normalize_width,
    pad,
    wrap,
    wrap_pieces,
)

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
AWKWARD = ("a", " ", "\n", "\t", "中", "文", FAMILY, "e\u0301", "\u2764\ufe0f",
           "\U0001f44d\U0001f3fd",
           "\U0001f1e9\U0001f1ea", "\u202e", "\x1b[2J", "[red]", "क्ष", "مرحبا", "한")  # fmt: skip
texts = st.lists(st.sampled_from(AWKWARD), max_size=40).map("".join).map(escape_unsafe)


@given(text=texts)
def test_what_is_settled_is_as_wide_as_the_sum_of_its_characters_and_as_a_strip(text: str) -> None:
    line = normalize_width(text.replace("\n", " "))
    assert cell_width(line) == sum(cell_len(char) for char in line)
    assert Strip([Segment(line)]).cell_length == cell_width(line)
    assert normalize_width(line) == line


@pytest.mark.parametrize(
    ("text", "cells"),
    [("abc", 3), ("中文", 4), ("e\u0301", 1), (FAMILY, 6), ("\u2764\ufe0f", 1),
     ("\U0001f44d\U0001f3fd", 2), ("\U0001f1e9\U0001f1ea", 2), ("a\tb", 6)],
)  # fmt: skip
def test_sequences_that_terminals_draw_differently_are_as_wide_as_their_parts(
    text: str, cells: int
) -> None:
    assert cell_width(text) == cells


@given(text=texts, room=st.integers(0, 30))
def test_padding_gives_exactly_the_cells_asked_for(text: str, room: int) -> None:
    assert cell_len(pad(text, room)) == room
    assert cell_len(crop(text, room)) <= room
    assert cell_len(fit(text, room)) <= room


def test_a_wide_character_is_never_halved() -> None:
    assert crop("a中b", 2) == "a"
    assert pad("a中b", 2) == "a "


def test_a_cut_is_marked_and_a_whole_line_is_not() -> None:
    assert fit("When counting", 8) == "When c.."
    assert fit("When", 4) == "When"
    assert fit("When\ncounting", 40) == "When counting"
    assert fit("When", 2) == "Wh"


@given(text=texts, room=st.integers(1, 30))
def test_wrapped_rows_fit_and_lose_nothing_but_blanks(text: str, room: int) -> None:
    rows = wrap(text, room)
    assert all(cell_len(row) <= room or cell_len(row) == 2 > room for row in rows)
    assert "".join(rows).replace(" ", "") == normalize_width(text).replace(" ", "").replace(
        "\n", ""
    )
    assert "".join(wrap_pieces(normalize_width(text), room)) == normalize_width(text)


def test_words_stay_whole_where_a_row_can_hold_them() -> None:
    assert wrap("reduce the exponent by Euler", 10) == ["reduce the", "exponent", "by Euler"]
    assert wrap("a verylongword", 4) == ["a", "very", "long", "word"]
    assert wrap("", 4) == [""]
    assert wrap("a\n\nb\n", 4) == ["a", "", "b", ""]


def test_every_sign_is_one_cell_wide() -> None:
    for name in GLYPHS.__slots__:
        sign = getattr(GLYPHS, name)
        assert cell_len(sign) == (2 if name == "ellipsis" else 1)
        if name not in ("h", "v", "tl", "tr", "bl", "br"):
            assert unicodedata.east_asian_width(sign[0]) != "A"


def test_states_have_signs_of_their_own() -> None:
    states = ("won", "lost", "streaming", "queued", "error", "skipped", "open")
    assert len({getattr(GLYPHS, name) for name in states}) == len(states)


@given(title=texts, room=st.integers(0, 40))
def test_borders_fill_their_width_whatever_the_title(title: str, room: int) -> None:
    assert cell_len(GLYPHS.top_border(title, room)) == room
    assert cell_len(GLYPHS.bottom_border(room)) == room


def test_a_bar_is_full_only_when_all_is_done() -> None:
    assert GLYPHS.bar(31, 64, 12) == "[####......]"
    assert GLYPHS.bar(63, 64, 12) == "[#########.]"
    assert GLYPHS.bar(64, 64, 12) == "[##########]"
    assert GLYPHS.bar(0, 0, 12) == "[..........]"


def test_a_mark_that_begins_a_row_joins_nothing_to_its_left() -> None:
    assert pad("\u0301ab", 3) == "◌\u0301ab"
    assert crop("\u0301ab", 2) == "◌\u0301a"
