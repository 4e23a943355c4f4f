"""The `replay:FILE` policy: answers that some model once gave, read from a log.

Owns the reading of such a log and the choice of the logged attempt. Does not look at
the logged rewards: verdicts are made anew. Makes nothing up: a question that the log
does not hold is a failed call.
"""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from engines.core.errors import CallFailed, DataError
from engines.core.protocols import OnText, Policy
from engines.core.types import Completion, Job, Message, Sampling, Usage


@dataclass(frozen=True, slots=True)
class LoggedAttempt:
    response: str
    model: str


class Replay:
    """Answers from a JSONL log of rollouts.

    A line holds `question` and either `rollouts`, a list of objects with `response`
    and perhaps `model`, or one `response` (and perhaps `model`) of its own; lines
    with the same question add up. The question is found in the last user message:
    the longest logged question that stands in it whole, white space aside.

    Which of a question's n logged attempts is given: a group must receive each once,
    and a request does not say which rollout it is for. So the rollout manager asks for
    `for_job(job)`, whose policy gives attempt `index % n`. Without a job it is
    `seed % n`.

    Raises:
        DataError: the file cannot be read, or a line of it is not of that form.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._attempts = read_log(path)

    @property
    def name(self) -> str:
        return f"replay:{self._path.stem}"

    def for_job(self, job: Job) -> Policy:
        return _Bound(self, job.key.index)

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        return await self.answer(messages, sampling.seed or 0, on_text)

    async def answer(
        self, messages: Sequence[Message], number: int, on_text: OnText | None
    ) -> Completion:
        """Give attempt `number % n` of the question that the messages ask."""
        # Let other jobs run, as every real call does.
        await asyncio.sleep(0)
        attempts = self._attempts[self._question(messages)]
        attempt = attempts[number % len(attempts)]
        if on_text is not None and attempt.response:
            on_text(attempt.response)
        return Completion(attempt.response, usage=Usage(calls=1), model=attempt.model)

    async def ping(self) -> None:
        """Nothing to do: the whole log was read when this was made."""

    async def aclose(self) -> None:
        pass

    def _question(self, messages: Sequence[Message]) -> str:
        asked = next((m.content for m in reversed(messages) if m.role == "user"), "")
        text = normalised(asked)
        if text in self._attempts:
            return text
        found = max((q for q in self._attempts if _stands_in(q, text)), key=len, default=None)
        if found is None:
            raise CallFailed(
                "refused", f"{self._path} holds no rollout for this question: {text[:120]!r}"
            )
        return found


class _Bound:
    """A replay that answers for one rollout of a group."""

    def __init__(self, replay: Replay, index: int) -> None:
        self._replay = replay
        self._index = index

    @property
    def name(self) -> str:
        return self._replay.name

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        if self._index < 0:  # a call that belongs to no single rollout
            return await self._replay.complete(messages, sampling, on_text)
        return await self._replay.answer(messages, self._index, on_text)

    async def ping(self) -> None:
        await self._replay.ping()

    async def aclose(self) -> None:
        await self._replay.aclose()


def normalised(text: str) -> str:
    """Text as it is compared: composed Unicode, runs of white space as one blank."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def read_log(path: Path) -> Mapping[str, tuple[LoggedAttempt, ...]]:
    """The attempts of each normalised question, in the order of the file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(
            str(path),
            f"the rollout log cannot be read: {error.strerror or error}.",
            "Correct the path after replay:, which is looked up beside the run file.",
        ) from None
    log: dict[str, list[LoggedAttempt]] = {}
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            question, attempts = _row(line, f"{path}:{number}")
            log.setdefault(question, []).extend(attempts)
    if not log:
        raise DataError(str(path), "the rollout log is empty.", "Give a log that holds rollouts.")
    return {question: tuple(attempts) for question, attempts in log.items()}


def _row(line: bytes, place: str) -> tuple[str, list[LoggedAttempt]]:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise DataError(
            place, f"the line is no JSON ({error.msg}).", "Mend the line or take it out."
        ) from None
    if not isinstance(row, dict):
        raise DataError(place, "the line is no JSON object.", "Mend the line or take it out.")
    question = row.get("question")
    if not isinstance(question, str) or not question.strip():
        raise DataError(place, '"question" is missing.', "Add the text that was asked.")
    rollouts = row.get("rollouts", [row] if "response" in row else None)
    if not isinstance(rollouts, list) or not rollouts:
        raise DataError(
            place,
            'the line has neither "rollouts" (a list that is not empty) nor a "response".',
            "Add the logged attempts, or take the line out.",
        )
    return normalised(question), [_attempt(rollout, place) for rollout in rollouts]


def _attempt(rollout: object, place: str) -> LoggedAttempt:
    response = rollout.get("response") if isinstance(rollout, dict) else None
    if not isinstance(rollout, dict) or not isinstance(response, str):
        raise DataError(
            place, 'a rollout has no "response" that is text.', "Add it, or take the rollout out."
        )
    return LoggedAttempt(response, str(rollout.get("model") or ""))


def _stands_in(question: str, text: str) -> bool:
    """True when the question stands in the text and does not end inside a word."""
    start = text.find(question)
    while start >= 0:
        end = start + len(question)
        before, after = text[start - 1 : start], text[end : end + 1]
        if not (before.isalnum() and question[0].isalnum()) and not (
            after.isalnum() and question[-1].isalnum()
        ):
            return True
        start = text.find(question, start + 1)
    return False
