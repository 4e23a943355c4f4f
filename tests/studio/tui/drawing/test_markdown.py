"""Pages of the manual as lines of the screen."""

from __future__ import annotations

import pytest

from studio.guide import TOPICS, read_page
from studio.tui.drawing.lines import plain_text, width_of
from studio.tui.drawing.markdown import inline_spans, markdown_lines, narrow


@pytest.mark.parametrize("width", [56, 78, 118])
def test_no_line_of_the_manual_is_wider_than_the_screen(width: int) -> None:
    lines = [row for topic in TOPICS for row in markdown_lines(read_page(topic), width)]
    assert [plain_text(row) for row in lines if width_of(row) > width] == []
    assert len(lines) > 500


def test_every_word_of_a_page_is_there() -> None:
    page = "# Title\n\nSome `code` and\n**bold** words.\n\n* one\n  more\n* two\n\n1. first\n"
    assert [plain_text(row) for row in markdown_lines(page, 40)] == [
        "Title", "", "Some code and bold words.", "", "- one more", "- two", "", "1. first",
    ]  # fmt: skip


def test_code_stands_as_it_was_written_and_is_styled() -> None:
    rows = markdown_lines("```bash run\na  b\n\n  c\n```\n", 40)
    assert [plain_text(row).rstrip() for row in rows] == ["  a  b", "", "    c"]
    assert rows[0][1] == ("a  b", "key")
    assert inline_spans("see `x y` **z**") == [
        ("see ", ""), ("x y", "key"), (" ", ""), ("z", "title"),
    ]  # fmt: skip


def test_the_last_column_of_a_table_wraps_under_itself_or_under_the_row() -> None:
    page = "| a | words |\n|---|---|\n| key | one two three |\n"
    assert [plain_text(row).rstrip() for row in markdown_lines(page, 14)] == [
        "a    words", "key  one two", "     three",
    ]  # fmt: skip
    page = "| a long first one | two words |\n|---|---|\n"
    assert [plain_text(row).strip() for row in markdown_lines(page, 18)] == [
        "a long first one", "two words",
    ]  # fmt: skip


def test_a_page_is_narrowed_to_whole_paragraphs_and_rows_below_their_headings() -> None:
    page = "# One\n\nfirst\nand `last`\n\n## Two\n\nnot here\n\n## Three\n\n| a | b |\n|--|--|\n"
    page += "| x | last |\n| y | no |\n\n## Last\n\nall of it\n"
    assert narrow(page, lambda text: "last" in text.casefold()).split("\n\n") == [
        "# One", "first\nand `last`", "## Three", "| a | b |\n|--|--|\n| x | last |",
        "## Last", "all of it",
    ]  # fmt: skip
    assert narrow(page, lambda _: False) == ""
