"""What each of many malformed tool calls comes to: none raises, none is an answer by luck."""

from __future__ import annotations

import json

import pytest

from engines.tools.function import FunctionTool
from tests.support.tool_tries import a_call, a_toolbox, a_try

RIGHT = '{"word": "ab", "n": 2}'
TAKES = "It takes: word, n (optional), tags (optional)."


async def repeat(word: str, n: int = 1, tags: list[str] = []) -> dict[str, object]:  # noqa: B006
    """Repeat a word."""
    return {"word": word, "n": n, "tags": tags}


async def now() -> str:
    """Tell the time."""
    return "noon"


def made(word: str = "ab", n: int = 1, tags: tuple[str, ...] = ()) -> str:
    return json.dumps({"word": word, "n": n, "tags": tags}, ensure_ascii=False).replace(" ", "")


def refused(said: str) -> tuple[str, str]:
    return "refused", said


def ran(text: str) -> tuple[str, str]:
    return "ok", text


# fmt: off
ROWS: list[tuple[str, str, str, tuple[str, str]]] = [
    # what it is, name, arguments, status and text (or how it begins)
    ("right", "repeat", RIGHT, ran(made(n=2))),
    # The name is taken as it is, or not at all.
    ("unknown name", "search", "{}", refused('There is no tool "search". There are: repeat, now.')),
    ("near name", "repeet", RIGHT, refused('There is no tool "repeet". Did you mean "repeat"?')),
    ("wrong case", "Repeat", RIGHT, refused('There is no tool "Repeat". Did you mean "repeat"?')),
    ("spaces", " repeat ", RIGHT, refused('There is no tool "repeat". Did you mean "repeat"?')),
    ("quotes", '"repeat"', RIGHT, refused('There is no tool ""repeat"". Did you mean "repeat"?')),
    ("a namespace", "functions.repeat", RIGHT, refused('There is no tool "functions.repeat".')),
    ("empty name", "", RIGHT, refused('There is no tool "".')),
    ("a name without end", "x" * 1_000_000, RIGHT, refused('There is no tool "xxxx')),
    ("a name that steers", "re\x1b[2Jpeat", RIGHT, refused('There is no tool "re\\u001b[2Jpeat".')),
    # No arguments.
    ("empty, none needed", "now", "", ran("noon")),
    ("blank, none needed", "now", " \n", ran("noon")),
    ("null, none needed", "now", "null", ran("noon")),
    ("empty, one needed", "repeat", "", refused(f"arguments.word: is missing. {TAKES}")),
    ("null, one needed", "repeat", "null", refused("arguments.word: is missing.")),
    # Other JSON than an object.
    ("array", "repeat", '["ab", 2]', refused('arguments: should be a JSON object, is ["ab", 2].')),
    ("number", "repeat", "2", refused("arguments: should be a JSON object, is 2.")),
    ("a text", "repeat", '"ab"', refused("arguments: not JSON (Expecting value")),
    ("no JSON at all", "repeat", "ab", refused("arguments: not JSON (Expecting value")),
    ("true", "now", "true", refused("arguments: should be a JSON object, is true.")),
    ("empty list, none needed", "now", "[]", refused("arguments: should be a JSON object, is [].")),
    # What has exactly one reading.
    ("an object in a text", "repeat", json.dumps(RIGHT), ran(made(n=2))),
    ("twice in a text", "repeat", json.dumps(json.dumps(RIGHT)), refused("arguments: should be")),
    ("trailing comma", "repeat", '{"word": "ab", "tags": ["x,]",],}', ran(made(tags=("x,]",)))),
    ("single quotes", "repeat", "{'word': 'ab', 'n': 2}", refused("arguments: not JSON")),
    ("mixed quotes", "repeat", """{'word': "it's"}""", refused("arguments: not JSON")),
    ("fenced", "repeat", f"```json\n{RIGHT}\n```", ran(made(n=2))),
    ("a line break in a text", "repeat", '{"word": "a\nb"}', ran('{"word":"a\\nb"')),
    ("blanks around", "repeat", f"\n  {RIGHT}\t", ran(made(n=2))),
    # What has none, or several.
    ("unclosed", "repeat", '{"word": "ab"', refused("arguments: not JSON (Expecting ',' delim")),
    ("unclosed text", "repeat", '{"word": "ab', refused("arguments: not JSON (Unterminated str")),
    ("two objects", "repeat", RIGHT + RIGHT, refused("arguments: not JSON (Extra data at char")),
    ("words behind it", "repeat", f"{RIGHT} Done.", refused("arguments: not JSON (Extra data")),
    ("bare names", "repeat", "{word: ab}", refused("arguments: not JSON (Expecting property")),
    ("a comment", "repeat", '{"word": "ab"} // n', refused("arguments: not JSON (Extra data")),
    ("Python's None", "repeat", '{"word": None}', refused("arguments: not JSON (Expecting value")),
    ("duplicate", "repeat", '{"word": "a", "word": "b"}', refused('arguments: "word" stands twic')),
    ("NaN", "repeat", '{"word": "ab", "n": NaN}', refused("arguments: NaN is no number")),
    ("infinite", "repeat", '{"word": "ab", "n": 1e999}', refused("arguments: 1e999 is no number")),
    ("a long number", "repeat", '{"n": ' + "9" * 5000 + "}", refused("arguments: 99999999999999")),
    ("deep", "repeat", '{"word": ' + "[" * 90_000, refused("arguments: nest")),
    ("1 MB", "repeat", '{"word": "' + "a" * 1_000_000, refused("arguments: they have 1,000,0")),
    # Names.
    ("missing", "repeat", '{"n": 2}', refused("arguments.word: is missing.")),
    ("extra", "repeat", '{"word": "ab", "m": 2}', refused('arguments: there is no "m".')),
    ("near", "repeat", '{"word": "ab", "tag": []}', refused('arguments: there is no "tag". Did y')),
    ("extra, none needed", "now", '{"a": 1}', refused('arguments: there is no "a". It takes no a')),
    ("wrapped", "repeat", '{"arguments": ' + RIGHT + "}", refused("arguments.word: is missing.")),
    ("a schema", "repeat", '{"type": "object", "word": "ab"}', refused('arguments: there is no "')),
    # Types: nothing is converted.
    ("a word for a number", "repeat", '{"word": "ab", "n": "seven"}',
     refused(f'arguments.n: should be a valid integer, is "seven". {TAKES}')),
    ("digits", "repeat", '{"word": "ab", "n": "3"}', refused("arguments.n: should be a valid int")),
    ("bool", "repeat", '{"word": "ab", "n": true}', refused("arguments.n: should be a valid int")),
    ("3.0", "repeat", '{"word": "ab", "n": 3.0}', refused("arguments.n: should be a valid intege")),
    ("null in it", "repeat", '{"word": null}', refused("arguments.word: should be a valid string")),
    ("number", "repeat", '{"word": 12}', refused("arguments.word: should be a valid string, is 1")),
    ("a list in a text", "repeat", '{"word": "ab", "tags": "[]"}', refused("arguments.tags: shou")),
    ("in a list", "repeat", '{"word": "ab", "tags": ["x", 1]}', refused("arguments.tags[1]: shou")),
    # Characters.
    ("lone surrogate", "repeat", '{"word": "a\\ud800"}', ran(made("a�"))),
    ("raw surrogate", "repeat", '{"word": "a\ud800"}', ran(made("a�"))),
    ("NUL", "repeat", '{"word": "a\\u0000"}', ran('{"word":"a\\u0000"')),
    ("a mark's end", "repeat", '{"word": "a\\u001fb"}', ran('{"word":"a\\u001fb"')),
]
# fmt: on


@pytest.mark.parametrize(
    ("name", "arguments", "outcome"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
async def test_a_malformed_call_comes_to_what_is_written_down(
    name: str, arguments: str, outcome: tuple[str, str]
) -> None:
    toolbox = a_toolbox(FunctionTool(repeat), FunctionTool(now))
    async with a_try() as within:
        result = await toolbox.call(a_call(name, arguments), within)
    assert (result.status, result.text[: len(outcome[1])]) == outcome
    assert len(result.text) < 1_000


def test_there_are_at_least_forty_rows() -> None:
    assert len(ROWS) >= 40
