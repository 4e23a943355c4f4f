"""What models write in place of one JSON array is read as it is meant, or its loss is told."""

from __future__ import annotations

import pytest

from engines.core.text.reply import ReplyProblem
from engines.training_free.reading import ExtractionRow, parse_extraction
from tests.engines.training_free.malformed_replies import ATTEMPTS, REPLIES, UNSURE
from tests.support.builders import a_library

LIBRARY = a_library("one", "two", "three")
Rows = tuple[ExtractionRow, ...]


def read(reply: str) -> tuple[Rows, tuple[str, ...]]:
    try:
        parsed = parse_extraction(reply, LIBRARY, known=ATTEMPTS, limit=None)
    except ReplyProblem as problem:
        return (), (str(problem),)
    return parsed.items, parsed.problems


def test_seventy_habits_cost_no_repair_turn() -> None:
    names = [name for name, _, _ in (*REPLIES, *UNSURE)]
    assert len(set(names)) == len(names) >= 60
    assert len(REPLIES) >= 70
    assert not {name for name, reply, _ in REPLIES if read(reply)[1]}


@pytest.mark.parametrize(("reply", "meant"), [r[1:] for r in REPLIES], ids=[r[0] for r in REPLIES])
def test_a_malformed_reply_is_read_field_by_field_as_it_is_meant(reply: str, meant: Rows) -> None:
    assert read(reply) == (meant, ())


@pytest.mark.parametrize(("reply", "meant"), [r[1:] for r in UNSURE], ids=[r[0] for r in UNSURE])
def test_where_something_is_lost_the_rest_is_right_and_the_loss_is_told(
    reply: str, meant: Rows
) -> None:
    items, problems = read(reply)
    assert items == meant
    assert problems
