"""Calls and answers as files in one folder: what is asked, what was answered, what is refused.

`ID.call.json` waits for an answer; `ID.answer.json`, `.txt` or `.md` beside it is one. ID is a hash
of the request, so that neither order nor time matters. What was taken up moves to `done`, what was
changed by somebody to `refused`: nothing is deleted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson

from engines.core.ids import digest
from engines.core.types import CallKey, Completion, Usage
from engines.policies.chat.size_limits import TEXT_CHARS
from engines.policies.chat.streamed_reply import is_token_count

CALL, ANSWERS = ".call.json", (".answer.json", ".answer.txt", ".answer.md")
_SCHEMA = orjson.loads((files(__package__) / "answer.schema.json").read_bytes())
_FIELDS = _SCHEMA["properties"]
_TYPES = {"string": str, "object": dict}


class AnswerRefused(Exception):
    """Why an answer cannot be the one to its call."""


def call_id(purpose: str, request: Mapping[str, Any]) -> str:
    """The name of a call; equal requests for tries of one problem differ in their seeds."""
    asked = {name: value for name, value in request.items() if name != "model"}
    return digest({"purpose": purpose, "request": asked}, 10)


def call_body(name: str, purpose: str, about: str, request: Mapping[str, Any]) -> bytes:
    """What stands in `ID.call.json`; `request` is a body of OpenAI's chat completions."""
    write = f"The reply alone in {name}.answer.txt (or .md), or {name}.answer.json by the schema."
    body = {
        "id": name,
        "call": about,
        "purpose": purpose,
        "request": request,
        "answer": {"write": write, "schema": _SCHEMA},
    }
    return orjson.dumps(body, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def is_unchanged(path: Path) -> bool:
    """Whether a call's content still hashes to its name."""
    try:
        call = orjson.loads(path.read_bytes())
        return path.name == call_id(call["purpose"], call["request"]) + CALL
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return False


def find_answers(folder: Path, name: str) -> list[Path]:
    return [path for end in ANSWERS if (path := folder / f"{name}{end}").is_file()]


def read_answer(path: Path, name: str) -> Completion:
    """Raises AnswerRefused: it is empty, too long, no text, or says that it answers another call.

    Without counted tokens the usage is that of no call.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
        given = orjson.loads(text) if path.suffix == ".json" else {"text": text.strip()}
    except OSError as error:
        raise AnswerRefused(f"it cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise AnswerRefused("it is no UTF-8 text") from None
    except orjson.JSONDecodeError:
        raise AnswerRefused("it is no JSON; a plain text belongs into .answer.txt") from None
    if not isinstance(given, dict):
        raise AnswerRefused('it is no JSON object with "text"')
    for key, value in given.items():
        if key not in _FIELDS or not isinstance(value, _TYPES[_FIELDS[key]["type"]]):
            known = ", ".join(_FIELDS)
            raise AnswerRefused(f"{key!r} is no field of an answer, or not of its type ({known})")
    if given.get("id", name) != name:
        raise AnswerRefused(f"it says that it answers {given['id']!r}")
    if not given.get("text", "").strip():
        raise AnswerRefused("it has no text")
    if len(given["text"]) > TEXT_CHARS:
        raise AnswerRefused(f"it has more than {TEXT_CHARS:,} characters")
    counts = [given.get("usage", {}).get(n, 0) for n in ("prompt_tokens", "completion_tokens")]
    if not all(map(is_token_count, counts)):
        raise AnswerRefused("its usage holds what is no count")
    return Completion(
        text=given["text"],
        reasoning=given.get("reasoning", ""),
        finish=given.get("finish", "stop"),
        usage=Usage(counts[0], counts[1], 1) if any(counts) else Usage(),
        model=given.get("model", ""),
    )


def move(path: Path, folder: Path) -> None:
    """Move a file that may be gone already; what lies there under its name is kept, too."""
    folder.mkdir(exist_ok=True)
    there, number = folder / path.name, 1
    while there.exists():
        number += 1
        there = folder / f"{number}-{path.name}"
    with suppress(FileNotFoundError):
        os.replace(path, there)


def write_whole(path: Path, body: bytes) -> None:
    """No reader sees a part of it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    beside.write_bytes(body)
    os.replace(beside, path)


def describe_call(key: CallKey | None) -> str:
    """The place of a call in its run: `rollout: step 1, problem 3, try 2, turn 1`."""
    if key is None:
        return "call"
    counted = {"step": key.step, "problem": key.problem or key.position + 1, "try": key.index + 1}
    where = [f"{name} {n}" for name, n in {**counted, "turn": key.turn + 1}.items() if n]
    return f"{key.purpose}: {', '.join(where)}"
