"""Rehearsal's side of the chat-completions protocol.

Every byte follows from the request: no clock, no chance but its seed.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engines.core.codec import digest, seed_for
from engines.policies.rehearsal import prompt
from engines.policies.rehearsal.lookup import is_team_prompt, look_up, team_reply
from engines.policies.rehearsal.reflect import (
    Slip,
    chance_slips,
    parse_task_name,
    reflector_reply,
)
from engines.policies.rehearsal.solve import Draw, judge_reply, solve
from engines.policies.rehearsal.tools import Turn, solve_with_tools

_CREATED = 1_700_000_000  # a fixed base: `created` must not tell the time
_PIECE = 48  # characters a streamed delta holds, about twelve tokens: each costs 0.05 ms


class _Form(BaseModel):
    """An object of a request, with no more checked than a reply rests on."""

    model_config = ConfigDict(strict=True)


class _Function(_Form):
    name: str = Field(pattern=r"^[\w-]{1,64}$")
    arguments: str = ""


class _Call(_Form):
    type: Literal["function"]
    function: _Function
    id: str = ""


class _TextPart(_Form):
    type: Literal["text"]
    text: str


class _Message(_Form):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_TextPart] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str = ""


class _Request(_Form):
    model: str = Field(min_length=1)
    messages: list[_Message] = Field(min_length=1)
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: Literal[1, None] = None
    stop: str | list[Annotated[str, Field(min_length=1)]] | None = None
    stream_options: dict[str, Any] | None = None
    slips: dict[str, Slip] | None = None
    tools: list[_Call] | None = None
    tool_choice: Literal["auto", "none", None] = None


def request_error(request: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a request, as a sentence; None for one that can be answered."""
    try:
        parsed = _Request.model_validate(request)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "request"
        return f'"{place}": {first["msg"]}.'
    calls = {call.id for message in parsed.messages for call in message.tool_calls or ()}
    for message in parsed.messages:
        if message.role == "tool" and message.tool_call_id not in calls:
            return f'"tool_call_id" {message.tool_call_id!r} is not the id of a call.'
    return None


async def stream_reply(request: Mapping[str, Any]) -> AsyncGenerator[bytes, None]:
    """Yield the body of the response to a request in which `request_error` finds nothing.

    With `stream` true: server-sent events, one a piece, up to `data: [DONE]`; else one
    JSON object.
    """
    reply = write_reply(request)
    messages = request["messages"]
    texts = [prompt.content_text(m) for m in messages]
    texts += [orjson.dumps(m["tool_calls"]).decode() for m in messages if m.get("tool_calls")]
    texts.append(orjson.dumps(request.get("tools") or "").decode())
    prompt_tokens = sum(prompt.token_count(text) for text in texts) + 4 * len(messages)
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": reply.tokens,
        "total_tokens": prompt_tokens + reply.tokens,
    }
    mark = digest(dict(request))
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": ""},
        *({"content": piece} for piece in _pieces(reply.text)),
    ]
    if reply.arguments is not None:
        function = {"name": reply.tool, "arguments": reply.arguments}
        call = {"index": 0, "id": f"call_{mark}", "type": "function", "function": function}
        message["tool_calls"] = [call]
        deltas.append({"tool_calls": [{**call, "function": {**function, "arguments": ""}}]})
        for piece in _pieces(reply.arguments):
            deltas.append({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
    head: dict[str, Any] = {
        "id": f"chatcmpl-{mark}",
        "object": "chat.completion",
        "created": _CREATED + int(mark[:5], 16),
        "model": request["model"],
    }
    choice: dict[str, Any] = {"index": 0, "finish_reason": reply.finish}
    if not request.get("stream"):
        yield orjson.dumps({**head, "choices": [{**choice, "message": message}], "usage": usage})
        return
    head["object"] = "chat.completion.chunk"
    for delta in deltas:
        yield _sse_event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        await asyncio.sleep(0)  # many replies stream at once; none should hold up the others
    yield _sse_event({**head, "choices": [{**choice, "delta": {}}]})
    if (request.get("stream_options") or {}).get("include_usage"):
        yield _sse_event({**head, "choices": [], "usage": usage})
    yield b"data: [DONE]\n\n"


def _pieces(text: str) -> list[str]:
    return [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]


def _sse_event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"


def write_reply(request: Mapping[str, Any]) -> Turn:
    """Return the reply to a well-formed request, cut at its stops and its limit."""
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
    return Turn(text[: limit * prompt.CHARS_PER_TOKEN], None, turn.tool, "length")


def _write_turn(request: Mapping[str, Any]) -> Turn:
    seed, messages = request.get("seed") or 0, request["messages"]
    temperature = request.get("temperature")
    instructions = prompt.instructions_text(messages)
    draw = Draw(instructions, seed, 1.0 if temperature is None else temperature)
    asked = [prompt.content_text(m) for m in messages if m["role"] == "user"] or [""]
    task = f"{instructions}\n\n{asked[0]}" if parse_task_name(instructions) else asked[0]
    name = parse_task_name(task)
    # Asked for a repair, the plain JSON is given: a fence may have been what was wrong.
    repairing = asked[-1].startswith("# Task: repair")
    fenced = not repairing and seed_for(seed, "fence", digest(task)) % 3 == 0
    if name == "judge":
        return Turn(judge_reply(task, fenced))
    if name:
        slips = request.get("slips") or {}
        if name == "extract" and not slips:
            slips = chance_slips(seed, temperature or 0.0)
        return Turn(reflector_reply(task, fenced, slips))
    # Before it stands the talk so far, behind it what was wrong with a reply.
    if of_team := [text for text in asked if is_team_prompt(text)]:
        return Turn(team_reply(of_team[-1], draw))
    return (
        look_up(request, draw)
        or solve_with_tools(request, draw)
        or Turn(solve(asked[-1].strip(), draw))
    )
