"""Finding JSON in replies: lenient in form, never half of what was meant."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.errors import CallFailed
from engines.core.text.reply import (
    ParsedReply,
    RepairResult,
    ReplyProblem,
    ask_with_repair,
    parse_experience_id,
    parse_objects,
)
from engines.core.types import Completion, Message, RecordRef, Usage
from tests.support.builders import a_timeout

ROWS = [{"operation": "add", "experience": "Carry: add the carry."}, {"operation": "keep"}]
JSON = json.dumps(ROWS)


@pytest.mark.parametrize(
    "reply",
    [
        JSON,
        f"  \n{JSON}\n",
        f"```json\n{JSON}\n```",
        f"```\n{JSON}\n```",
        f"```JSON lines\n{json.dumps(ROWS, indent=2)}\n```\nThat is all.",
        f"Here you are: {JSON} I hope it helps.",
        f"Attempts [0] and [1] differ.\n{JSON}",
        json.dumps({"operations": ROWS}),
        f"Sure.\n```json\n{json.dumps({'note': 'x', 'operations': ROWS})}\n```",
        f"```json\n{JSON}",  # a fence that is never closed
        f"```json\n[{{}}]\n```\nor rather\n```json\n{JSON}\n```",
    ],
)
def test_the_form_of_a_reply_does_not_matter(reply: str) -> None:
    assert parse_objects(reply) == ROWS


def test_a_lone_object_counts_as_a_list_of_one() -> None:
    """Known defect elsewhere: an object instead of an array was iterated key by key."""
    assert parse_objects(json.dumps(ROWS[0])) == [ROWS[0]]
    assert parse_objects(f"My answer:\n{json.dumps(ROWS[0])}\nDone.") == [ROWS[0]]


def test_an_object_with_a_list_of_plain_numbers_is_not_unwrapped() -> None:
    row = {"operation": "delete", "id": "E1", "attempts": [0, 2]}
    assert parse_objects(json.dumps(row)) == [row]


def test_an_object_with_an_empty_source_list_is_one_object() -> None:
    row = {"operation": "delete", "id": "E1", "attempts": []}
    assert parse_objects(json.dumps(row)) == [row]


def test_an_empty_array_is_an_answer_also_inside_prose() -> None:
    assert parse_objects("[]") == []
    assert parse_objects("Nothing general to learn: []") == []


def test_an_earlier_valid_fence_survives_a_later_fence_that_is_no_json() -> None:
    """Known defect elsewhere: only the last fence was read, and the answer before it lost."""
    for later in ("print(1 + 1)", "x = [1, 2", "see [E3]", ""):
        assert parse_objects(f"```json\n{JSON}\n```\nAs code:\n```python\n{later}\n```") == ROWS


@pytest.mark.parametrize("later", ['[{"operation": "add", "exp', '{"operation": "add",,}'])
@pytest.mark.parametrize("close", ["\n```", ""])
def test_an_earlier_fence_does_not_pass_for_a_later_broken_answer(later: str, close: str) -> None:
    with pytest.raises(ReplyProblem, match="not valid"):
        parse_objects(f"A draft:\n```json\n{JSON}\n```\nFinally:\n```json\n{later}{close}")


@pytest.mark.parametrize(
    "broken",
    [
        JSON[:-1],
        JSON[:-10],
        JSON.replace("}, {", "} {"),
        f"```json\n{JSON[:-1]}\n```",
        "Sure! " + JSON.replace("keep", 'ke"ep'),
        '{"operations": ' + JSON[:-1] + "}",
    ],
)
def test_broken_json_is_never_partly_salvaged(broken: str) -> None:
    """Known defect elsewhere: the objects before the break were taken and the rest forgotten."""
    with pytest.raises(ReplyProblem, match="not valid"):
        parse_objects(broken)


@pytest.mark.parametrize(
    ("reply", "what"),
    [
        ("null", "found null"),
        ("```json\nnull\n```", "found null"),
        ("17", "found int"),
        ('"add"', "found str"),
        ("[1, 2]", "found list"),
        ("{}", "found dict"),
        ("", "no JSON array"),
        ("I would add an experience about carrying.", "no JSON array"),
    ],
)
def test_what_is_no_list_of_objects_is_told_by_what_was_found(reply: str, what: str) -> None:
    """Known defect elsewhere: `null` crashed the loop with a TypeError."""
    with pytest.raises(ReplyProblem, match=what):
        parse_objects(reply)


@settings(derandomize=True, max_examples=400, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["[", "]", "{", "}", '"a"', ":", ",", "1", "null", "```", "\n", "json", " ", "\\", "é"]
        )
        | st.text(max_size=3),
        max_size=30,
    ).map("".join)
)
def test_reading_any_text_gives_objects_or_a_reply_problem(text: str) -> None:
    try:
        rows = parse_objects(text)
    except ReplyProblem as problem:
        assert str(problem)
    else:
        assert all(isinstance(row, dict) for row in rows)


@pytest.mark.parametrize(
    "text", ["[" * 50_000, '{"a":' * 50_000, "[{" * 10_000, "9" * 5_000, f"[{'9' * 5_000}]"]
)
def test_hostile_nesting_and_endless_numbers_are_only_reply_problems(text: str) -> None:
    with pytest.raises(ReplyProblem):
        parse_objects(text)


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


async def test_a_repair_call_that_fails_is_charged_for() -> None:
    lost = CallFailed("cut", "in the middle", Usage(40, 2, 1))
    answered = await asked(Exchange(Completion("x", usage=Usage(10, 5, 1)), lost))
    assert answered.usage == Usage(50, 7, 2)
