"""Pages of the manual as lines of the screen."""

from __future__ import annotations

import pytest

from studio.guide import TOPICS, read_page
from studio.tui.drawing.lines import plain_text, width_of
from studio.tui.help import markdown_lines


@pytest.mark.parametrize("width", [56, 78, 118])
def test_no_line_of_the_manual_is_wider_than_the_screen(width: int) -> None:
    lines = [row for topic in TOPICS for row in markdown_lines(read_page(topic), width)]
    assert [plain_text(row) for row in lines if width_of(row) > width] == []
    assert len(lines) > 500


def rows_of(page: str, width: int) -> list[str]:
    return [plain_text(row).rstrip() for row in markdown_lines(page, width)]


def test_every_word_of_a_page_is_there() -> None:
    page = "## Title\n\nSome `code` and\n**bold** words.\n\n* one\n  more\n* two\n\n1. first\n"
    assert rows_of(page, 40) == [
        "Title", "", "Some code and bold words.", "", " • one more", " • two", "", " 1 first",
    ]  # fmt: skip


def test_code_stands_as_it_was_written_and_is_styled() -> None:
    rows = markdown_lines("```bash run\na  b\n\n  c\n```\n", 40)
    assert rows_of("```bash run\na  b\n\n  c\n```\n", 40) == [" a  b", "", "   c", ""]
    assert {style for _, style in rows[0]} == {"key"}
    (row,) = markdown_lines("see `x y` **z**", 12)
    assert [span for span in row if span[0].strip()] == [
        ("see ", ""), ("x y", "key"), ("z", "title"),
    ]  # fmt: skip


def test_the_columns_of_a_table_wrap_under_themselves() -> None:
    page = "| a | words |\n|---|---|\n| key | one two three |\n"
    shown = rows_of(page, 16)
    assert [row.strip() for row in shown if row.strip("─ ")] == [
        "a    words", "key  one two", "three",
    ]  # fmt: skip
    assert shown[-2].index("three") == shown[-3].index("one")
