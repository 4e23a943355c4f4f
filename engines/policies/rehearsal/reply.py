"""Rehearsal's side of the chat-completions protocol.

Every byte follows from the request: no clock, no chance but its seed.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from typing import Any

import orjson

from engines.core.codec import digest, seed_for
from engines.policies.rehearsal.families import are_slips, chance_slips
from engines.policies.rehearsal.lookup import is_team_prompt, look_up, team_reply
from engines.policies.rehearsal.reflect import parse_task_name, reflector_reply
from engines.policies.rehearsal.solve import is_judge_prompt, judge_reply, solve
from engines.policies.rehearsal.tools import (
    CHARS_PER_TOKEN,
    Turn,
    are_tools,
    content_text,
    instructions_text,
    messages_error,
    solve_with_tools,
    token_count,
    tools_error,
)

_CREATED = 1_700_000_000  # a fixed base: `created` must not tell the time
_TEXT_PIECE = 48  # characters a streamed delta holds, about twelve tokens: each costs 0.05 ms
_ARGUMENTS_PIECE = 24  # fewer: the arguments of a call are short, and come in several as well


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1


def _is_seed(value: Any) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _is_stop(value: Any) -> bool:
    stops = [value] if isinstance(value, str) else value or []
    return isinstance(stops, list) and all(isinstance(stop, str) and stop for stop in stops)


# A field that may be left out, what fits it, and that in words.
_FIELDS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("max_tokens", _is_count, "a whole number of 1 or more"),
    ("max_completion_tokens", _is_count, "a whole number of 1 or more"),
    ("temperature", lambda t: type(t) in (int, float) and 0 <= t <= 2, "a number from 0 to 2"),
    ("seed", _is_seed, "a whole number of at most 64 bits"),
    ("n", lambda n: n == 1, "1: rehearsal gives one choice for a request"),
    ("stop", _is_stop, "text or an array of texts"),
    ("stream_options", lambda options: isinstance(options or {}, Mapping), "an object"),
    ("slips", are_slips, "an object of words to copy, opposite, leak or broken"),
    ("response_format", lambda form: form == {"type": "json_object"}, "of type json_object"),
    ("tools", are_tools, "a non-empty array of functions with names"),
    ("tool_choice", lambda choice: choice in ("auto", "none"), "auto or none: no call is forced"),
    ("parallel_tool_calls", lambda parallel: isinstance(parallel, bool), "true or false"),
)


async def stream_reply(request: Mapping[str, Any]) -> AsyncGenerator[bytes, None]:
    """Yield the body of the response to a request in which `request_error` finds nothing.

    With `stream` true: server-sent events, one a piece, up to `data: [DONE]`; else one
    JSON object.
    """
    reply = write_reply(request)
    messages = request["messages"]
    prompt_tokens = sum(token_count(content_text(m)) + 4 for m in messages)
    typed = (request.get("tools"), *(m.get("tool_calls") for m in messages))
    prompt_tokens += sum(token_count(orjson.dumps(value).decode()) for value in typed if value)
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": reply.tokens,
        "total_tokens": prompt_tokens + reply.tokens,
    }
    mark = digest(dict(request))
    head: dict[str, Any] = {
        "id": f"chatcmpl-{mark}",
        "created": _CREATED + int(mark[:5], 16),
        "model": request["model"],
    }
    if not request.get("stream"):
        message = _message_body(reply, mark)
        choice = {"index": 0, "message": message, "finish_reason": reply.finish, "logprobs": None}
        whole = {"object": "chat.completion", "choices": [choice], "usage": usage}
        yield orjson.dumps({**head, **whole})
        return
    head["object"] = "chat.completion.chunk"
    yield _sse_event(head, {"role": "assistant", "content": ""})
    for delta in _deltas(reply, mark):
        yield _sse_event(head, delta)
        await asyncio.sleep(0)  # many replies stream at once; none should hold up the others
    yield _sse_event(head, {}, reply.finish)
    if (request.get("stream_options") or {}).get("include_usage"):
        yield b"data: " + orjson.dumps({**head, "choices": [], "usage": usage}) + b"\n\n"
    yield b"data: [DONE]\n\n"


def _message_body(reply: Turn, mark: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.arguments is not None:
        message["content"] = reply.text or None
        message["tool_calls"] = [_call_body(reply.tool, reply.arguments, mark)]
    return message


def _call_body(tool: str, arguments: str, mark: str) -> dict[str, Any]:
    function = {"name": tool, "arguments": arguments}
    return {"id": f"call_{mark}", "type": "function", "function": function}


def _deltas(reply: Turn, mark: str) -> Iterator[Mapping[str, Any]]:
    for piece in _pieces(reply.text, _TEXT_PIECE):
        yield {"content": piece}
    if reply.arguments is not None:
        yield {"tool_calls": [{"index": 0, **_call_body(reply.tool, "", mark)}]}
        for piece in _pieces(reply.arguments, _ARGUMENTS_PIECE):
            yield {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}


def _pieces(text: str, size: int) -> Iterator[str]:
    return (text[start : start + size] for start in range(0, len(text), size))


def complete_request(request: Mapping[str, Any]) -> tuple[str, str]:
    """Text and finish reason for a well-formed request, without what it calls."""
    reply = write_reply(request)
    return reply.text, reply.finish


def write_reply(request: Mapping[str, Any]) -> Turn:
    """The reply to a well-formed request, cut at its stops and its limit."""
    turn = _write_turn(request)
    text = turn.text
    stops = request.get("stop") or ()
    for stop in (stops,) if isinstance(stops, str) else stops:
        text = text.split(stop, 1)[0]
    # A call comes after the text, so it is cut with it.
    arguments = turn.arguments if text == turn.text else None
    finish = "stop" if arguments is None else "tool_calls"
    reply = Turn(text, arguments, turn.tool, finish)
    limit = request.get("max_completion_tokens") or request.get("max_tokens")
    if limit is None or reply.tokens <= limit:
        return reply
    room = (limit - token_count(text)) * CHARS_PER_TOKEN - len(turn.tool)
    cut = arguments[:room] if arguments is not None and room > 0 else None
    return Turn(text[: limit * CHARS_PER_TOKEN], cut, turn.tool, "length")


def _write_turn(request: Mapping[str, Any]) -> Turn:
    seed, messages = int(request.get("seed") or 0), request["messages"]
    given = request.get("temperature")
    temperature = 1.0 if given is None else float(given)
    asked = [content_text(m) for m in messages if m["role"] == "user"]
    instructions = instructions_text(messages)
    if asked:
        task = f"{instructions}\n\n{asked[0]}" if parse_task_name(instructions) else asked[0]
        # Asked for a repair, the plain JSON is given: a fence may have been what was wrong.
        repairing = asked[-1].startswith("# Task: repair")
        fenced = not repairing and seed_for(seed, "fence", digest(task)) % 3 == 0
        if is_judge_prompt(task):
            return Turn(judge_reply(task, fenced))
        if name := parse_task_name(task):
            by_chance = chance_slips(seed, float(given or 0)) if name == "extract" else {}
            return Turn(reflector_reply(task, fenced, request.get("slips") or by_chance))
    # Before it stands the talk so far, behind it what was wrong with a reply.
    if of_team := [text for text in asked if is_team_prompt(text)]:
        return Turn(team_reply(of_team[-1], instructions, seed, temperature))
    if turn := look_up(request, instructions, seed, temperature):
        return turn
    if turn := solve_with_tools(request, instructions, seed, temperature):
        return turn
    return Turn(solve(asked[-1].strip() if asked else "", instructions, seed, temperature))


def request_error(request: Mapping[str, Any]) -> str | None:
    """What is wrong with a request, as a sentence; None for one that can be answered."""
    if not isinstance(request.get("model"), str) or not request["model"]:
        return '"model" must be a non-empty string.'
    if problem := messages_error(request.get("messages")):
        return problem
    for name, fits, form in _FIELDS:
        value = request.get(name)
        if value is not None and not fits(value):
            return f'"{name}" must be {form}.'
    return tools_error(request)


def _sse_event(
    head: Mapping[str, Any], delta: Mapping[str, Any], finish: str | None = None
) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + orjson.dumps({**head, "choices": [choice]}) + b"\n\n"
