"""Asking for a reply of a set form, with one repair turn."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engines.core.errors import CallFailed
from engines.core.text.reply import (
    ParsedReply,
    RepairResult,
    ReplyProblem,
    ask_with_repair,
    parse_experience_id,
)
from engines.core.types import Completion, Message, RecordRef, Usage
from tests.support.builders import a_timeout


@pytest.mark.parametrize("value", ["E3", "e3", "[E3]", "[e3]", "3", 3, " [ E3 ] ", "[3]", "E03"])
def test_every_way_to_write_an_id_means_the_same(value: object) -> None:
    """Known defect elsewhere: only one spelling was found, the others became additions."""
    assert parse_experience_id(value) == "E3"


@pytest.mark.parametrize("value", [None, "", "null", "None", "new", " NULL "])
def test_no_id_has_many_spellings_too(value: object) -> None:
    assert parse_experience_id(value) is None


@pytest.mark.parametrize("value", ["E", "E3 and E4", 3.0, True, "-3", {"id": 3}, "9" * 5000])
def test_what_names_no_experience_is_a_reply_problem(value: object) -> None:
    with pytest.raises(ReplyProblem, match="is not the id"):
        parse_experience_id(value)


class Exchange:
    """A scripted asker for `ask_with_repair`."""

    def __init__(self, *replies: str | Completion | Exception) -> None:
        self.replies = list(replies)
        self.asked: list[tuple[int, tuple[Message, ...]]] = []

    async def __call__(
        self, turn: int, messages: Sequence[Message]
    ) -> tuple[Completion, RecordRef]:
        self.asked.append((turn, tuple(messages)))
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        completion = Completion(reply) if isinstance(reply, str) else reply
        return completion, RecordRef("f", turn, 1, "d")


def numbers(text: str) -> ParsedReply[int]:
    """Whole numbers between commas; words are problems, an empty text has nothing to read."""
    if not text:
        raise ReplyProblem("it is empty.")
    parts = text.split(",")
    return ParsedReply(
        tuple(int(p) for p in parts if p.isdigit()),
        tuple(f"{p} is no number." for p in parts if not p.isdigit()),
    )


async def asked(exchange: Exchange) -> RepairResult[int]:
    return await ask_with_repair(
        exchange, [Message("user", "count")], numbers, lambda problem: f"Mend it: {problem}"
    )


async def test_a_good_reply_costs_one_call() -> None:
    exchange = Exchange("1,2")
    answered = await asked(exchange)
    assert (answered.items, answered.problems) == ((1, 2), ())
    assert [turn for turn, _ in exchange.asked] == [0]


async def test_a_bad_reply_gets_one_repair_turn_that_shows_reply_and_problem() -> None:
    exchange = Exchange("1,x", "1,2")
    answered = await asked(exchange)
    assert (answered.items, answered.problems, answered.reply) == ((1, 2), (), "1,2")
    turn, messages = exchange.asked[1]
    assert turn == 1
    assert [(m.role, m.content) for m in messages] == [
        ("user", "count"),
        ("assistant", "1,x"),
        ("user", "Mend it: x is no number."),
    ]
    assert len(answered.completions) == len(answered.refs) == 2


async def test_after_one_repair_turn_the_problem_stays_and_nothing_more_is_asked() -> None:
    exchange = Exchange("x", "y")
    answered = await asked(exchange)
    assert (answered.items, answered.problems) == ((), ("y is no number.",))
    assert (answered.reply, len(exchange.asked)) == ("y", 2)


async def test_a_repair_that_came_out_worse_does_not_cost_what_was_right() -> None:
    for worse in ("", "x", "1"):
        answered = await asked(Exchange("1,2,x", worse))
        assert (answered.items, answered.problems) == ((1, 2), ("x is no number.",))
        assert answered.reply == "1,2,x"


async def test_a_repair_call_that_fails_does_not_cost_what_was_right() -> None:
    answered = await asked(Exchange("1,2,x", a_timeout()))
    assert answered.items == (1, 2)
    (problem,) = answered.problems  # one thing was wrong, and it is one loss
    assert problem.startswith("x is no number. The repair turn failed: timeout")
    assert (answered.reply, len(answered.completions)) == ("1,2,x", 1)


async def test_a_reply_cut_at_its_length_limit_is_told_so() -> None:
    exchange = Exchange(Completion("", finish="length"), "1")
    await asked(exchange)
    assert "cut off at its length limit" in exchange.asked[1][1][-1].content


async def test_what_may_be_cut_short_is_asked_for_again_only_where_it_was_cut() -> None:
    for finish, calls in (("stop", 1), ("length", 2)):
        exchange = Exchange(Completion("1,", finish=finish), "1,2")
        await ask_with_repair(
            exchange,
            [Message("user", "count")],
            lambda text: ParsedReply((1,), unclosed=text.endswith(",")),
            str,
        )
        assert len(exchange.asked) == calls


async def test_more_of_what_ranks_first_wins_over_more_of_anything() -> None:
    exchange = Exchange("1,1,1,x", "2,2")
    answered = await ask_with_repair(
        exchange, [Message("user", "")], numbers, str, lambda found: (found.count(2), len(found))
    )
    assert answered.items == (2, 2)


async def test_a_repair_call_that_fails_is_charged_for() -> None:
    lost = CallFailed("cut", "in the middle", Usage(40, 2, 1))
    answered = await asked(Exchange(Completion("x", usage=Usage(10, 5, 1)), lost))
    assert answered.usage == Usage(50, 7, 2)
