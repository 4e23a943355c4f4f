"""A typed function with a docstring is a tool; what is no tool is refused by name."""

from __future__ import annotations

import asyncio
import datetime
import threading
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from engines.core.errors import ConfigError
from engines.core.protocols import ToolTry
from engines.core.types import ToolResult
from engines.tools.function import FunctionTool
from tests.support.tool_tries import a_call, a_toolbox, a_try


class Place(BaseModel):
    town: str
    floor: int = 0


async def look_up(  # noqa: D417 (the others have none)
    word: str,
    within: ToolTry,
    n: Annotated[int, Field(ge=1, le=9)] = 3,
    kind: Literal["noun", "verb"] | None = None,
) -> str:
    """Look a word up in a dictionary.

    Limits: English only.
    Best practice: give the base form.

    Args:
        word: the word,
            in lower case
        n (int): how many meanings

    Repeatable: yes

    Returns:
        The meanings, a line each.
    """
    return f"{word} {n} {kind} {within.job.problem.answer}"


async def called(function: Callable[..., Any], arguments: str = "{}") -> ToolResult:
    async with a_try() as within:
        tool = FunctionTool(function)
        return await a_toolbox(tool).call(a_call(tool.spec.name, arguments), within)


def test_name_description_and_schema_come_from_the_function() -> None:
    spec = FunctionTool(look_up).spec
    assert (spec.name, spec.repeatable, spec.network, spec.tier) == ("look_up", True, "none", "")
    assert spec.description == (
        "Look a word up in a dictionary.\n\nLimits: English only.\n"
        "Best practice: give the base form.\n\nReturns:\n    The meanings, a line each."
    )
    assert spec.parameters == {
        "type": "object",
        "additionalProperties": False,
        "required": ["word"],
        "properties": {
            "word": {"type": "string", "description": "the word, in lower case"},
            "n": {
                "type": "integer",
                "description": "how many meanings",
                "minimum": 1,
                "maximum": 9,
                "default": 3,
            },
            "kind": {
                "anyOf": [{"enum": ["noun", "verb"], "type": "string"}, {"type": "null"}],
                "default": None,
            },
        },
    }


async def test_the_try_is_given_to_it_and_stands_in_no_schema() -> None:
    assert (await called(look_up, '{"word": "go", "kind": "verb"}')).text == "go 3 verb 5"
    refused = await called(look_up, '{"word": "go", "within": {}}')
    assert (refused.status, refused.text[:32]) == ("refused", 'arguments: there is no "within".')


async def test_constraints_are_said_in_words() -> None:
    refused = await called(look_up, '{"word": "go", "n": 12}')
    assert refused.status == "refused"
    assert refused.text == (
        "arguments.n: should be less than or equal to 9, is 12. "
        "It takes: word, n (optional), kind (optional)."
    )


async def test_values_of_other_types_are_made_of_what_json_has() -> None:
    async def book(day: datetime.date, place: Place, json: bytes = b"") -> dict[str, Any]:
        """Book a room."""
        return {"year": day.year, "floor": place.floor, "town": place.town}

    made = await called(book, '{"day": "2026-11-03", "place": {"town": "Ulm"}}')
    assert (made.status, made.text) == ("ok", '{"year":2026,"floor":0,"town":"Ulm"}')
    refused = await called(book, '{"day": "soon", "place": {"town": "Ulm"}}')
    assert refused.text.startswith("arguments.day: should be a valid date")
    refused = await called(book, '{"day": "2026-11-03", "place": {}}')
    assert refused.text.startswith("arguments.place.town: Field required")


async def test_a_plain_function_runs_in_a_thread_and_its_error_is_a_result() -> None:
    def where() -> str:
        """Tell the thread."""
        return threading.current_thread().name

    def leave() -> None:
        """End everything."""
        raise SystemExit(3)

    def nothing() -> None:
        """Do nothing."""

    assert (await called(where)).text == "tool"
    assert await called(leave) == ToolResult("SystemExit: 3", "error")
    assert await called(nothing) == ToolResult("(no output)")


async def test_a_thread_that_hangs_is_left_behind() -> None:
    go_on = threading.Event()

    def hang() -> None:
        """Wait for ever."""
        go_on.wait()

    async with a_try() as within:
        result = await a_toolbox(FunctionTool(hang), timeout_s=0.01).call(a_call("hang"), within)
    go_on.set()
    assert result == ToolResult("It gave no result within 0.01 s and was ended.", "timeout")


async def test_cancellation_passes() -> None:
    started = asyncio.Event()

    async def wait() -> None:
        """Wait for ever."""
        started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(called(wait))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_an_effect_is_not_repeated_unless_somebody_says_so() -> None:
    async def send() -> None:
        """Send it."""

    assert not FunctionTool(send).spec.repeatable
    assert FunctionTool(look_up).spec.repeatable


async def untyped(word, n: int = 1) -> None:  # type: ignore[no-untyped-def]
    """Have no type."""


async def variadic(*words: str) -> None:
    """Take any number."""


async def by_place(word: str, /) -> None:
    """Take it by place."""


async def without_docstring(word: str) -> None: ...


async def unknown_type(word: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821
    """Have a type that is not there."""


async def without_schema(lock: threading.Event) -> None:
    """Have a type that JSON has not."""


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (
            untyped,
            'tool "untyped": the parameter "word" has no type. Write one, such as',
        ),
        (variadic, 'tool "variadic": the parameter "*words: \'str\'" cannot be given by name.'),
        (by_place, 'tool "by_place": the parameter "word: \'str\'" cannot be given by name.'),
        (without_docstring, 'tool "without_docstring": it has no docstring. Say in it'),
        (unknown_type, 'tool "unknown_type": the type of a parameter cannot be told (name '),
        (without_schema, 'tool "without_schema": its parameters have no JSON schema ('),
        (lambda: None, 'tool "<lambda>": "<lambda>" is no name for a tool. Define it with def'),
    ],
)
def test_what_cannot_be_a_tool_is_refused(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        FunctionTool(function)
    assert str(refused.value).startswith(said)
