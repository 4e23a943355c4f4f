"""Rehearsal's replies to chat-completions requests.

Every byte follows from the request: no clock, no chance but its seed.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import Any, get_args

import orjson

from engines.core.chat_protocol import Asked, BadRequest, Reply, parse_request
from engines.core.codec import digest, seed_for
from engines.core.frozen import frozen
from engines.core.types import Completion, ToolCall, Usage
from engines.policies.rehearsal import prompt, reflect
from engines.policies.rehearsal.solve import Draw, judge_reply, solve
from engines.policies.rehearsal.tools import (
    Turn,
    is_team_prompt,
    look_up,
    solve_with_tools,
    team_reply,
)

_CREATED = 1_700_000_000  # a fixed base: `created` must not tell the time
_PIECE = 48  # characters a streamed delta holds, about twelve tokens: each costs 0.05 ms


@frozen
class Request:
    """A request for a reply, and what rehearsal reads of it beyond the usual parts."""

    body: Mapping[str, Any]
    asked: Asked
    seed: int
    temperature: float | None
    slips: Mapping[str, reflect.Slip]  # the words of problems at which it is careless, and how


def read_request(body: Any) -> Request:
    """Read a request. Raises BadRequest: it cannot be answered."""
    if not isinstance(body, Mapping) or not isinstance(body.get("model"), str):
        raise BadRequest('a request is an object with the text "model"')
    seed = body.get("seed") or 0
    if type(seed) is not int or not -(2**63) <= seed < 2**63:
        raise BadRequest('"seed" must be a whole number of 64 bits')
    temperature = body.get("temperature")
    if not isinstance(temperature, int | float | None):
        raise BadRequest('"temperature" must be a number')
    slips = body.get("slips") or {}
    if not isinstance(slips, Mapping) or not set(slips.values()) <= set(get_args(reflect.Slip)):
        raise BadRequest(f'"slips" are of the kinds {", ".join(get_args(reflect.Slip))}')
    return Request(body, parse_request(body), seed, temperature, slips)


async def stream_reply(request: Request) -> AsyncGenerator[bytes, None]:
    """Yield the body of the response.

    With `stream` true: server-sent events, one a piece, up to `data: [DONE]`; else one
    JSON object.
    """
    reply = write_reply(request)
    mark = digest(dict(request.body))
    calls: tuple[ToolCall, ...] = ()
    if reply.arguments is not None:
        calls = (ToolCall(f"call_{mark}", reply.tool, reply.arguments),)
    usage = Usage(_count_prompt_tokens(request), reply.tokens, 1)
    completion = Completion(reply.text, tool_calls=calls, finish=reply.finish, usage=usage)
    created = _CREATED + int(mark[:5], 16)
    writer = Reply(request.asked, request.body["model"], mark, created)
    if not request.asked.stream:
        yield orjson.dumps(writer.whole(completion))
        return
    yield writer.begin(has_text=True)
    for start in range(0, len(reply.text), _PIECE):
        yield writer.text(reply.text[start : start + _PIECE])
        await asyncio.sleep(0)  # many replies stream at once; none should hold up the others
    yield writer.end(completion)


def _count_prompt_tokens(request: Request) -> int:
    messages = request.asked.messages
    texts = [message.content for message in messages]
    for message in request.body["messages"]:
        if calls := message.get("tool_calls"):
            texts.append(orjson.dumps(calls).decode())
    texts.append(orjson.dumps(request.body.get("tools") or "").decode())
    return sum(prompt.token_count(text) for text in texts) + 4 * len(messages)


def write_reply(request: Request) -> Turn:
    """Return the reply to a request, cut at its stops and its limit."""
    turn = _write_turn(request)
    text = turn.text
    for stop in request.asked.stop:
        text = text.split(stop, 1)[0]
    # A call comes after the text, so it is cut with it.
    arguments = turn.arguments if text == turn.text else None
    finish = "stop" if arguments is None else "tool_calls"
    reply = replace(turn, text=text, arguments=arguments, finish=finish)
    limit = request.asked.max_tokens
    if limit is None or reply.tokens <= limit:
        return reply
    cut = text[: limit * prompt.CHARS_PER_TOKEN]
    return replace(turn, text=cut, arguments=None, finish="length")


def _write_turn(request: Request) -> Turn:
    seed, temperature = request.seed, request.temperature
    messages = request.asked.messages
    instructions = prompt.instructions_text(messages)
    draw = Draw(instructions, seed, 1.0 if temperature is None else temperature)
    questions = [message.content for message in messages if message.role == "user"] or [""]
    task = questions[0]
    if reflect.parse_task_name(instructions):
        task = f"{instructions}\n\n{task}"
    name = reflect.parse_task_name(task)
    # Asked for a repair, the plain JSON is given: a fence may have been what was wrong.
    repairing = questions[-1].startswith("# Task: repair")
    fenced = not repairing and seed_for(seed, "fence", digest(task)) % 3 == 0
    if name == "judge":
        return Turn(judge_reply(task, fenced))
    if name:
        slips = request.slips
        if name == "extract" and not slips:
            slips = reflect.chance_slips(seed, temperature or 0.0)
        return Turn(reflect.reflector_reply(task, fenced, slips))
    # Before it stands the talk so far, behind it what was wrong with a reply.
    if team_prompts := [text for text in questions if is_team_prompt(text)]:
        return Turn(team_reply(team_prompts[-1], draw))
    tools = [tool["name"] for tool in request.asked.tools]
    if request.asked.given.get("tool_choice") == "none":
        tools = []
    return (
        look_up(messages, tools, draw)
        or solve_with_tools(messages, tools, draw)
        or Turn(solve(questions[-1].strip(), draw))
    )
