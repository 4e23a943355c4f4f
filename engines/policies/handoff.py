"""The `handoff:DIR` policy: whoever writes answers into a folder is the model.

A call without an answer is written down and never waited for: it raises AnswersPending, and the
process ends once nothing else can be asked. The next start takes the answers up.

`ID.call.json` waits for an answer; `ID.answer.json`, `.txt` or `.md` beside it is one. ID is a hash
of the request, so that neither order nor time matters. What was taken up moves to `done`, what was
changed by somebody to `refused`: nothing is deleted.
"""

import asyncio
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engines.core import codec, errors, protocols, waiting
from engines.core.text.tokens import prompt_tokens, text_tokens
from engines.core.types import CallKey, Completion, Message, Names, Sampling, Usage
from engines.policies.chat import endpoint, exchange

CALL, ANSWERS = ".call.json", (".answer.json", ".answer.txt", ".answer.md")
_DIALECT = exchange.Dialect({"stream", "stream_options"})


class Answer(BaseModel):
    """What may stand in `ID.answer.json`; its schema is part of every call."""

    model_config = ConfigDict(strict=True, extra="forbid")

    text: str = Field(description="the whole reply", pattern=r"\S", max_length=endpoint.TEXT_CHARS)
    id: str = Field("", description="the id of the call, to be sure of it")
    model: str = Field("", description="who answered")
    reasoning: str = Field("", description="thoughts before the reply")
    finish: str = Field("stop", description="stop, or length where the reply was cut")
    usage: dict[str, Annotated[int, Field(ge=0, le=exchange.MOST_TOKENS)]] = Field(
        {}, description="prompt_tokens and completion_tokens, where they were counted"
    )


class AnswerRefused(Exception):
    """Why an answer cannot be the one to its call."""


class HandoffPolicy:
    """Asks through files in `folder`; `max_tokens` is the limit where a call sets none."""

    def __init__(self, folder: Path, max_tokens: int | None = None) -> None:
        self.folder = folder
        self.name = f"handoff:{folder.name}"
        self.asked: set[str] = set()
        self._max_tokens = max_tokens

    async def complete(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        on_text: protocols.OnText | None = None,
    ) -> Completion:
        """Give the answer that lies there.

        Raises AnswersPending: there is none, or none that can be taken.
        """
        await asyncio.sleep(0)  # let other jobs run, as every real call does
        key = waiting.current_call()
        purpose = key.purpose if key else "call"
        request = exchange.chat_request(self.name, messages, sampling, self._max_tokens, _DIALECT)
        name = call_id(purpose, request)
        self.asked.add(name)
        path = self.folder / f"{name}{CALL}"
        reply: Completion | None = None
        refused: Names = ()
        try:
            try:
                reply = self._take_answer(path, name)
            except AnswerRefused as refusal:
                refused = (str(refusal),)
            if reply is None and not path.exists():
                _write_call(path, name, purpose, describe_call(key), request)
        except OSError as error:  # a failed try would be the model's fault
            raise errors.PolicyError(
                str(self.folder),
                f"calls cannot be written there ({error.strerror}).",
                "Correct that and start again.",
            ) from None
        if reply is None:
            raise errors.AnswersPending({str(self.folder): {name}}, refused)
        if not reply.usage.calls:
            tokens = text_tokens(reply.text) + text_tokens(reply.reasoning)
            usage = Usage(prompt_tokens(messages, sampling.tools), tokens, 1)
            reply = replace(reply, usage=usage)
        if on_text is not None:
            on_text(reply.text)
        return replace(reply, model=reply.model or self.name)

    async def ping(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise errors.PolicyError(
                str(self.folder),
                f"it cannot be a folder of calls ({error.strerror}).",
                "Name another: handoff:DIR.",
            ) from None

    async def aclose(self) -> None:
        """It holds nothing."""

    def _take_answer(self, call: Path, name: str) -> Completion | None:
        """The answer to a call; None where there is none. Raises AnswerRefused."""
        answers = _find_answers(self.folder, name)
        if call.exists() and not _is_unchanged(call):
            for path in (call, *answers):
                _move(path, self.folder / "refused")
            text = f"{call.name} was changed, so that its answer is for another question"
            raise AnswerRefused(f"{text}; moved to refused")
        if len(answers) > 1:
            raise AnswerRefused(f"{name} has {len(answers)} answers; keep one")
        done = self.folder / "done"
        for path in answers or _find_answers(done, name):
            reply = _read_answer(path, name)
            if answers:
                _move(call, done)
                _move(path, done)
            return reply
        return None


def folder_remarks(policies: Iterable[HandoffPolicy]) -> Names:
    """The answers in the folders of these policies that belong to none of their calls so far."""
    asked: dict[Path, set[str]] = {}
    for policy in policies:
        asked.setdefault(policy.folder, set()).update(policy.asked)
    remarks = []
    for folder, names in asked.items():
        paths = sorted(folder.glob("[!.]*.answer.*"))
        if others := [path.name for path in paths if path.name.partition(".")[0] not in names]:
            shown = ", ".join(others[:5])
            remarks.append(f"{folder}: no call of this process wants {shown}; left there")
    return tuple(remarks)


def call_id(purpose: str, request: codec.JsonMapping) -> str:
    """The name of a call; equal requests for tries of one problem differ in their seeds."""
    asked = {name: value for name, value in request.items() if name != "model"}
    return codec.digest({"purpose": purpose, "request": asked}, 10)


def _write_call(
    path: Path, name: str, purpose: str, about: str, request: codec.JsonMapping
) -> None:
    """Write a call; no reader sees a part of it."""
    write = f"The reply alone in {name}.answer.txt (or .md), or {name}.answer.json by the schema."
    body = {
        "id": name,
        "call": about,
        "purpose": purpose,
        "request": request,  # a body of OpenAI's chat completions
        "answer": {"write": write, "schema": Answer.model_json_schema()},
    }
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    beside.write_bytes(orjson.dumps(body, option=options))
    os.replace(beside, path)


def _is_unchanged(path: Path) -> bool:
    """Whether a call's content still hashes to its name."""
    try:
        call = orjson.loads(path.read_bytes())
        return path.name == call_id(call["purpose"], call["request"]) + CALL
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return False


def _find_answers(folder: Path, name: str) -> list[Path]:
    return [path for end in ANSWERS if (path := folder / f"{name}{end}").is_file()]


def _read_answer(path: Path, name: str) -> Completion:
    """Without counted tokens the usage is that of no call. Raises AnswerRefused."""
    try:
        text = path.read_text("utf-8-sig")
        fields = {"text": text.strip()} if path.suffix != ".json" else orjson.loads(text)
        answer = Answer.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "it"
        raise AnswerRefused(f"{path.name}: {place}: {first['msg']}") from None
    except (OSError, ValueError) as error:
        reason = f"it is no UTF-8 text, or no JSON ({error})"
        raise AnswerRefused(f"{path.name}: {reason}") from None
    if answer.id not in ("", name):
        raise AnswerRefused(f"{path.name}: it says that it answers {answer.id!r}")
    prompt, reply = (answer.usage.get(n, 0) for n in ("prompt_tokens", "completion_tokens"))
    return Completion(
        text=answer.text,
        reasoning=answer.reasoning,
        finish=answer.finish,
        usage=Usage(prompt, reply, 1) if answer.usage else Usage(),
        model=answer.model,
    )


def _move(path: Path, folder: Path) -> None:
    """Move a file that may be gone already; what lies there under its name is kept, too."""
    folder.mkdir(exist_ok=True)
    target, number = folder / path.name, 1
    while target.exists():
        number += 1
        target = folder / f"{number}-{path.name}"
    with suppress(FileNotFoundError):
        os.replace(path, target)


def describe_call(key: CallKey | None) -> str:
    """The place of a call in its run: `rollout: step 1, problem 3, try 2, turn 1`."""
    if key is None:
        return "call"
    problem = key.problem or key.position + 1
    place = f"problem {problem}, try {key.index + 1}, turn {key.turn + 1}"
    return f"{key.purpose}: step {key.step}, {place}"
