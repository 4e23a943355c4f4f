"""The `handoff:DIR` policy: whoever writes answers into a folder is the model.

A call without an answer is written down and never waited for: it raises AnswersPending, and the
process ends once nothing else can be asked. The next start takes the answers up.

`ID.call.json` waits for an answer; `ID.answer.json`, `.txt` or `.md` beside it is one. ID is a hash
of the request, so that neither order nor time matters. What was taken up moves to `done`, what was
changed by somebody to `refused`: nothing is deleted.
"""

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engines.core.codec import digest
from engines.core.errors import AnswersPending, PolicyError
from engines.core.protocols import OnText
from engines.core.text.tokens import prompt_tokens, text_tokens
from engines.core.types import CallKey, Completion, Message, Sampling, Usage
from engines.core.waiting import current_call
from engines.policies.chat.endpoint import TEXT_CHARS
from engines.policies.chat.exchange import MOST_TOKENS, Dialect, chat_request

SHOWN = 5
"""Names in a message; the folder has the others."""
_DIALECT = Dialect({"stream", "stream_options"})


class HandoffPolicy:
    """Asks through files in `folder`; `max_tokens` is the limit where a call sets none."""

    def __init__(self, folder: Path, max_tokens: int | None = None) -> None:
        self.folder = folder
        self.name = f"handoff:{folder.name}"
        self.asked: set[str] = set()
        self._max_tokens = max_tokens

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        """Give the answer that lies there.

        Raises AnswersPending: there is none, or none that can be taken.
        """
        await asyncio.sleep(0)  # let other jobs run, as every real call does
        key = current_call()
        purpose = key.purpose if key else "call"
        request = chat_request(self.name, messages, sampling, self._max_tokens, _DIALECT)
        name = call_id(purpose, request)
        self.asked.add(name)
        try:
            found, refused = self._find_answer(name)
            path = self.folder / f"{name}{CALL}"
            if found is None and not path.exists():
                write_whole(path, call_body(name, purpose, describe_call(key), request))
        except OSError as error:  # a failed try would be the model's fault
            cause = f"calls cannot be written there ({error.strerror})."
            raise PolicyError(str(self.folder), cause, "Correct that and start again.") from None
        if found is None:
            raise AnswersPending({str(self.folder): {name}}, refused)
        if not found.usage.calls:
            said = text_tokens(found.text) + text_tokens(found.reasoning)
            found = replace(found, usage=Usage(prompt_tokens(messages, sampling.tools), said, 1))
        if on_text is not None:
            on_text(found.text)
        return replace(found, model=found.model or self.name)

    async def ping(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            cause = f"it cannot be a folder of calls ({error.strerror})."
            raise PolicyError(str(self.folder), cause, "Name another: handoff:DIR.") from None

    async def aclose(self) -> None:
        """It holds nothing."""

    def _find_answer(self, name: str) -> tuple[Completion | None, tuple[str, ...]]:
        """The answer to a call, and why what lies there is none."""
        call, answers = self.folder / f"{name}{CALL}", find_answers(self.folder, name)
        if call.exists() and not is_unchanged(call):
            for path in (call, *answers):
                move(path, self.folder / "refused")
            why = f"{call.name} was changed, so that its answer is for another question"
            return None, (f"{why}; moved to refused",)
        done = self.folder / "done"
        for path in answers or find_answers(done, name):
            if len(answers) > 1:
                return None, (f"{name} has {len(answers)} answers; keep one",)
            try:
                found = read_answer(path, name)
            except AnswerRefused as refused:
                return None, (f"{path.name}: {refused}",)
            if answers:
                for taken in (call, path):
                    move(taken, done)
            return found, ()
        return None, ()


def folder_remarks(policies: Iterable[HandoffPolicy]) -> tuple[str, ...]:
    """What lies in the folders of these policies and belongs to none of their calls so far."""
    asked: dict[Path, set[str]] = {}
    for policy in policies:
        asked.setdefault(policy.folder, set()).update(policy.asked)
    remarks = []
    for folder, names in asked.items():
        there = sorted(path.name for path in folder.glob("[!.]*.*.*"))
        others = [name for name in there if name.partition(".")[0] not in names]
        if answers := [name for name in others if name.endswith(ANSWERS)]:
            shown = ", ".join(answers[:SHOWN]) + ", …" * (len(answers) > SHOWN)
            remarks.append(f"{folder}: no call of this process wants {shown}; left there")
        if calls := sum(name.endswith(CALL) for name in others):
            remarks.append(f"{folder}: {calls} of the calls there are not of this process")
    return tuple(remarks)


CALL, ANSWERS = ".call.json", (".answer.json", ".answer.txt", ".answer.md")


class Answer(BaseModel):
    """What may stand in `ID.answer.json`; its schema is part of every call."""

    model_config = ConfigDict(strict=True, extra="forbid")

    text: str = Field(description="the whole reply", pattern=r"\S", max_length=TEXT_CHARS)
    id: str = Field("", description="the id of the call, to be sure of it")
    model: str = Field("", description="who answered")
    reasoning: str = Field("", description="thoughts before the reply")
    finish: str = Field("stop", description="stop, or length where the reply was cut")
    usage: dict[str, Annotated[int, Field(ge=0, le=MOST_TOKENS)]] = Field(
        {}, description="prompt_tokens and completion_tokens, where they were counted"
    )


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
        "answer": {"write": write, "schema": Answer.model_json_schema()},
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
    """Raises AnswerRefused: it is no text, not of its form, or says that it answers another call.

    Without counted tokens the usage is that of no call.
    """
    try:
        text = path.read_text("utf-8-sig")
        given = {"text": text.strip()} if path.suffix != ".json" else orjson.loads(text)
        answer = Answer.model_validate(given)
    except OSError as error:
        raise AnswerRefused(f"it cannot be read ({error.strerror})") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "it"
        raise AnswerRefused(f"{place}: {first['msg']}") from None
    except ValueError as error:
        raise AnswerRefused(f"it is no UTF-8 text, or no JSON ({error})") from None
    if answer.id not in ("", name):
        raise AnswerRefused(f"it says that it answers {answer.id!r}")
    counts = [answer.usage.get(n, 0) for n in ("prompt_tokens", "completion_tokens")]
    return Completion(
        text=answer.text,
        reasoning=answer.reasoning,
        finish=answer.finish,
        usage=Usage(counts[0], counts[1], 1) if any(counts) else Usage(),
        model=answer.model,
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
