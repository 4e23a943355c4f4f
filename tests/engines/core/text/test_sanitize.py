"""Untrusted text made harmless, and everything else left as it was."""

from __future__ import annotations

import json
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.core.text.sanitize import escape_unsafe_json
from studio.secrets.sanitize import one_line, sanitize


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
    assert sanitize(text) == shown


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
    assert sanitize(text) == text


@given(st.text(st.characters()))
def test_nothing_that_a_terminal_obeys_is_left_and_twice_is_as_once(text: str) -> None:
    shown = sanitize(text)
    left = {unicodedata.category(char) for char in shown if char not in "\n\t"}
    assert not left & {"Cc", "Cs", "Zl", "Zp"}
    shown.encode("utf-8")
    assert sanitize(shown) == shown


def test_one_line_folds_white_space_and_says_where_it_cuts() -> None:
    assert one_line("  a\n b\tc\r\nd ", 20) == "a b c d"
    assert one_line("abcdef", 6) == "abcdef"
    assert one_line("abcdefg", 6) == "abcde…"
    assert one_line("x\x1b[2J", 40) == "x\\u001b[2J"


ZWJ, ZWNJ = "\u200d", "\u200c"


@pytest.mark.parametrize(
    "text",
    [
        "می\u200cخواهم",  # Persian: without the non-joiner it is another word
        "क्\u200dष",  # Hindi: a half form
        "ශ්\u200dරී",  # Sinhala: needs its joiner
        "👨\u200d👩\u200d👧 👩🏽\u200d🚀 ❤\ufe0f 1\ufe0f⃣ ☺\ufe0e 🏳\ufe0f\u200d🌈",
        "葛\U000e0100城市",  # a variant of a character in a name
        "e\u0301 ก็한국어",
    ],
)
def test_what_a_script_needs_is_left_in_text_for_people_and_models(text: str) -> None:
    assert sanitize(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"pay{ZWNJ}pal{ZWJ}!", "pay\\u200cpal\\u200d!"),
        (f"ب{ZWJ}{ZWJ}{ZWNJ}", f"ب{ZWJ}\\u200d\\u200c"),  # one joiner shapes, more spell
        ("😀\ufe0f\ufe0e\ufe0f", "😀\ufe0f\\ufe0e\\ufe0f"),
        ("😀\U000e0101\U000e0102", "😀\\U000e0101\\U000e0102"),
        ("a\ufe00b\ufe0f", "a\\ufe00b\\ufe0f"),
        ("\U000e0041\U000e0042", "\\U000e0041\\U000e0042"),
        ("\U0001f3f4\U000e0078\U000e007f", "\U0001f3f4" + "\\U000e0078\\U000e007f"),
        ("a\u00adb\u2061\u3164\u034f", "a\\u00adb\\u2061\\u3164\\u034f"),
    ],
)  # fmt: skip
def test_the_same_characters_are_shown_where_they_only_carry_text(text: str, shown: str) -> None:
    assert sanitize(text) == shown
    assert sanitize(sanitize(text)) == shown


def test_json_is_the_same_data_with_nothing_hidden_in_it() -> None:
    data = {"text": "a\u202eb\x7f\U000e0041 سلام \u2028", "n": 1}
    line = json.dumps(data, ensure_ascii=False)
    assert json.loads(escape_unsafe_json(line)) == data
    assert escape_unsafe_json(line).isprintable()


def test_a_long_text_costs_little_and_is_not_looked_at_letter_by_letter() -> None:
    text = "words of a model, ünd more of thém.\n" * 60_000  # 2 MB
    began = time.process_time()
    assert sanitize(text) is text
    assert time.process_time() - began < 0.2
