"""The rehearsal endpoint as a function: method, path and body in, status and bytes out.

The in-process transport and the real server share it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

import orjson

MODEL = "rehearsal"


@dataclass(frozen=True, slots=True)
class EndpointReply:
    """`body` may be iterated once; closing it early ends the reply."""

    status: int
    content_type: str
    body: AsyncGenerator[bytes, None]


def answer_request(method: str, path: str, body: bytes) -> EndpointReply:
    match method, path.rstrip("/"):
        case "POST", "/v1/chat/completions":
            return _answer_chat(body)
        case "GET", "/v1/models":
            row = {"id": MODEL, "object": "model", "owned_by": "practice studio"}
            return _json_reply(200, {"object": "list", "data": [row]})
    return _error_reply(404, f"there is nothing at {method} {path}")


def _answer_chat(body: bytes) -> EndpointReply:
    from engines.policies.rehearsal.reply import request_error, stream_reply

    try:
        request = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        return _error_reply(400, f"the request is no JSON: {error.msg}")
    if not isinstance(request, dict):
        return _error_reply(400, "the request is no JSON object")
    if problem := request_error(request):
        return _error_reply(400, problem)
    if str(request.get("model")).partition(":")[0] != MODEL:
        # Answering for another model would pass scripted numbers off as that model's.
        known = f"the model {request.get('model')!r} does not exist; there is {MODEL!r} only"
        return _error_reply(404, known, "model_not_found")
    kind = "text/event-stream" if request.get("stream") else "application/json"
    return EndpointReply(200, kind, stream_reply(request))


def _error_reply(status: int, message: str, code: str | None = None) -> EndpointReply:
    error = {"message": message, "type": "invalid_request_error", "code": code}
    return _json_reply(status, {"error": error})


def _json_reply(status: int, value: object) -> EndpointReply:
    return EndpointReply(status, "application/json", _single_chunk(orjson.dumps(value)))


async def _single_chunk(data: bytes) -> AsyncGenerator[bytes, None]:
    yield data
