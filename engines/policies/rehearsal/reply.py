"""Rehearsal's side of the chat-completions protocol.

Every byte follows from the request: no clock, no chance but its seed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

import orjson

from engines.core.ids import digest, seed_for
from engines.policies.rehearsal.judge import is_judge_prompt, judge_reply
from engines.policies.rehearsal.reflect import parse_task_name, reflector_reply
from engines.policies.rehearsal.slips import are_slips
from engines.policies.rehearsal.solve import solve

_CREATED = 1_700_000_000  # a fixed base: `created` must not tell the time
_PIECE = 24  # characters a streamed delta holds, about six tokens
_CHARS_PER_TOKEN = 4  # the usual rule of thumb; there is no tokenizer to ask
_ROLES = ("system", "developer", "user", "assistant", "tool")


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
)


async def stream_reply(request: Mapping[str, Any]) -> AsyncGenerator[bytes, None]:
    """Yield the body of the response to a request in which `request_error` finds nothing.

    With `stream` true: server-sent events, one a piece, up to `data: [DONE]`; else one
    JSON object.
    """
    text, finish = complete_request(request)
    prompt_tokens = sum(_token_count(_content_text(m)) + 4 for m in request["messages"])
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": _token_count(text),
        "total_tokens": prompt_tokens + _token_count(text),
    }
    mark = digest(dict(request))
    head: dict[str, Any] = {
        "id": f"chatcmpl-{mark}",
        "created": _CREATED + int(mark[:5], 16),
        "model": request["model"],
    }
    if not request.get("stream"):
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
        whole = {"object": "chat.completion", "choices": [choice], "usage": usage}
        yield orjson.dumps({**head, **whole})
        return
    head["object"] = "chat.completion.chunk"
    yield _sse_event(head, {"role": "assistant", "content": ""})
    for start in range(0, len(text), _PIECE):
        yield _sse_event(head, {"content": text[start : start + _PIECE]})
        await asyncio.sleep(0)  # many replies stream at once; none should hold up the others
    yield _sse_event(head, {}, finish)
    if (request.get("stream_options") or {}).get("include_usage"):
        yield b"data: " + orjson.dumps({**head, "choices": [], "usage": usage}) + b"\n\n"
    yield b"data: [DONE]\n\n"


def complete_request(request: Mapping[str, Any]) -> tuple[str, str]:
    """Text and finish reason for a well-formed request."""
    text = _write_text(request)
    stops = request.get("stop") or ()
    for stop in (stops,) if isinstance(stops, str) else stops:
        text = text.split(stop, 1)[0]
    limit = request.get("max_completion_tokens") or request.get("max_tokens")
    if limit is not None and _token_count(text) > limit:
        return text[: limit * _CHARS_PER_TOKEN], "length"
    return text, "stop"


def _write_text(request: Mapping[str, Any]) -> str:
    seed, messages = int(request.get("seed") or 0), request["messages"]
    asked = [_content_text(m) for m in messages if m["role"] == "user"]
    instructions = "\n".join(
        _content_text(m) for m in messages if m["role"] in ("system", "developer")
    )
    if asked:
        task = f"{instructions}\n\n{asked[0]}" if parse_task_name(instructions) else asked[0]
        # Asked for a repair, the plain JSON is given: a fence may have been what was wrong.
        repairing = asked[-1].startswith("# Task: repair")
        fenced = not repairing and seed_for(seed, "fence", digest(task)) % 3 == 0
        if is_judge_prompt(task):
            return judge_reply(task, fenced)
        if parse_task_name(task):
            return reflector_reply(task, fenced, request.get("slips"))
    temperature = request.get("temperature")
    question = asked[-1].strip() if asked else ""
    return solve(question, instructions, seed, 1.0 if temperature is None else float(temperature))


def request_error(request: Mapping[str, Any]) -> str | None:
    """What is wrong with a request, as a sentence; None for one that can be answered."""
    if not isinstance(request.get("model"), str) or not request["model"]:
        return '"model" must be a non-empty string.'
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        return '"messages" must be a non-empty array.'
    for n, message in enumerate(messages):
        if not isinstance(message, Mapping) or message.get("role") not in _ROLES:
            return f'"messages[{n}].role" must be one of {", ".join(_ROLES)}.'
        if not _is_readable(message.get("content")):
            return f'"messages[{n}].content" must be text, an array of text parts or null.'
    for name, fits, form in _FIELDS:
        value = request.get(name)
        if value is not None and not fits(value):
            return f'"{name}" must be {form}.'
    return None


def _is_readable(content: object) -> bool:
    if isinstance(content, list):
        return all(
            isinstance(part, Mapping)
            and part.get("type") == "text"
            and isinstance(part.get("text"), str)
            for part in content
        )
    return content is None or isinstance(content, str)


def _content_text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part["text"] for part in content)
    return content or ""


def _token_count(text: str) -> int:
    return -(-len(text) // _CHARS_PER_TOKEN)


def _sse_event(
    head: Mapping[str, Any], delta: Mapping[str, str], finish: str | None = None
) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + orjson.dumps({**head, "choices": [choice]}) + b"\n\n"
