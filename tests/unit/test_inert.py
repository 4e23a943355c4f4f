"""Untrusted text made harmless, and everything else left as it was."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studio.inert import inert, one_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "\\u001b[31mred\\u001b[0m"),
        ("\x1b]0;title\x07", "\\u001b]0;title\\u0007"),
        ("\x9b2J", "\\u009b2J"),  # the one-byte form of ESC [
        ("a\rb\x08c", "a\\u000db\\u0008c"),
        ("nul\x00del\x7f", "nul\\u0000del\\u007f"),
        ("user\u202etxt.exe", "user\\u202etxt.exe"),
        ("a\u2066b\u2069c", "a\\u2066b\\u2069c"),
        ("pass\u200bword\u200c\ufeff\u2060", "pass\\u200bword\\u200c\\ufeff\\u2060"),
        ("\u200eleft\u200fright\u061c", "\\u200eleft\\u200fright\\u061c"),
        ("half \ud83d pair", "half \\ud83d pair"),
        ("one\u2028two\u2029three\x85four", "one\\u2028two\\u2029three\\u0085four"),
    ],
)
def test_what_steers_reorders_or_hides_is_shown_by_its_code_point(text: str, shown: str) -> None:
    assert inert(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain words, 3 < 4 & [bold]no markup[/bold]",
        "two\nlines\tand a tab",
        "三人の学生が数学を勉強する。",
        "שלום עולם مرحبا",  # right-to-left letters reorder nothing but themselves
        "é e\u0301 ñ ß",
        "👩‍👩‍👧 🏳️‍🌈 ✅",  # a joiner composes the family
        "∑ x² ≤ ½",
    ],
)
def test_text_that_does_no_harm_is_untouched(text: str) -> None:
    assert inert(text) == text


@given(st.text(st.characters()))
def test_nothing_that_a_terminal_obeys_is_left_and_twice_is_as_once(text: str) -> None:
    shown = inert(text)
    left = {unicodedata.category(char) for char in shown if char not in "\n\t"}
    assert not left & {"Cc", "Cs", "Zl", "Zp"}
    shown.encode("utf-8")
    assert inert(shown) == shown


def test_one_line_folds_white_space_and_says_where_it_cuts() -> None:
    assert one_line("  a\n b\tc\r\nd ", 20) == "a b c d"
    assert one_line("abcdef", 6) == "abcdef"
    assert one_line("abcdefg", 6) == "abcde…"
    assert one_line("x\x1b[2J", 40) == "x\\u001b[2J"
