"""A tool's output is bounded, and JSON stays JSON."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.types import SHOWN_CHARS
from engines.tools.toolbox import MAX_RESULT_CHARS, shorten_result

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=80),
    lambda inner: st.lists(inner, max_size=40) | st.dictionaries(st.text(), inner, max_size=40),
    max_leaves=60,
)


@settings(max_examples=60, deadline=None)
@given(VALUES, st.integers(50, 400))
def test_what_was_json_is_json_and_what_was_not_is_no_longer_than_the_limit(
    value: Any, limit: int
) -> None:
    text = json.dumps([value], ensure_ascii=False)
    short = shorten_result(text, limit)
    json.loads(short)
    assert len(short) <= 8 * limit or len(text) <= limit
    assert len(shorten_result(f"it is {text}", limit)) <= limit


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


def test_each_text_within_json_is_cut_and_the_rest_is_kept() -> None:
    value = {"page": "p" * 5_000, "n": 12345678901234567890123, "rows": [{"t": "r" * 3_000}, None]}
    short = json.loads(shorten_result(json.dumps(value)))
    assert (short["n"], short["rows"][1], list(short)) == (value["n"], None, ["page", "n", "rows"])
    assert len(short["page"]) <= SHOWN_CHARS and "characters left out" in short["page"]
    assert len(short["rows"][0]["t"]) <= SHOWN_CHARS


def test_of_long_lists_and_objects_is_said_how_much_is_left_out() -> None:
    short = json.loads(shorten_result(json.dumps(list(range(3_000)))))
    assert short == [*range(100), "… [2,900 entries left out] …"]
    short = json.loads(shorten_result(json.dumps({f"k{n}": "v" * 100 for n in range(400)})))
    assert short["…"] == "… [300 entries left out] …" and len(short) == 101


def test_nothing_makes_it_long_or_raises() -> None:
    wide = json.dumps({f"{n}" * 500: ["x" * 2_000] * 200 for n in range(200)})
    deep = "[" * 50_000 + "]" * 50_000
    for text in (wide, deep, "9" * 20_000, "[" * 50_000, "x" * 5_000_000, f"[{'1,' * 9_999}NaN]"):
        assert len(shorten_result(text)) <= MAX_RESULT_CHARS
    json.loads(shorten_result(deep))
    json.loads(shorten_result("9" * 20_000))
    assert json.loads(shorten_result(f"[1e999,{'1,' * 2_000}1]"))[0] == "1e999"


def test_characters_that_only_marks_may_hold_are_taken_out() -> None:
    assert shorten_result("a\x1eb\x1fc") == "abc"
    assert shorten_result("a\ud800") == "a�"
