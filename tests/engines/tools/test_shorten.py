"""A tool's output is bounded."""

from engines.core.types import SHOWN_CHARS
from engines.tools.toolbox import shorten_result


def test_short_output_stays_as_it_is() -> None:
    assert shorten_result('{"a" : 1}') == '{"a" : 1}'
    assert shorten_result("") == ""


def test_of_a_long_text_head_and_tail_are_kept() -> None:
    text = "HEAD" + "x" * 10_000 + "TAIL"
    short = shorten_result(text)
    assert short.startswith("HEADxxx") and short.endswith("xxxTAIL")
    assert SHOWN_CHARS - 10 < len(short) <= SHOWN_CHARS
    left = len(text) - short.count("x") - 8  # HEAD and TAIL are kept
    assert f"… [{left:,} characters left out] …" in short


def test_of_json_more_is_kept() -> None:
    rows = "[" + "1, " * 3_000 + "1]"
    assert shorten_result(rows) == rows
    assert len(shorten_result("[" * 5_000_000)) == 8 * SHOWN_CHARS


def test_characters_that_only_marks_may_hold_are_taken_out() -> None:
    assert shorten_result("a\x1eb\x1fc") == "abc"
    assert shorten_result("a\ud800") == "a�"
